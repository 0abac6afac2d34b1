"""Rewritten .onnx files: what they keep, and that the proof rejects wrong ones, without QNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
import onnx
from onnx import numpy_helper, parser

from ci.graphs.onnx_session import open_reference
from ci.mend.different import BeyondBound, Different
from ci.mend.onnx_files import OnnxFile
from ci.mend.onnx_form import OnnxSubject
from ci.mend.proof import RewriteProof
from ci.mend.trials import Trials
from ci.models.user_models import Source
from ci.onnx.models import describe_shape
from provisioning.errors import StoreError

HEAD = (
    '<ir_version: 8, opset_import: ["" : {opset}{other_domains}]> g ({ports}) => (float[{out}] y) '
)
NORM = """{
    u = Constant<value_float = 0.25>()
    e = Constant<value_float = 1e-6>()
    f = Constant<value_float = -50.0>()
    t = Constant<value = float[6] {0.5, 1.5, -1.0, 2.0, 1.0, 3.0}>()
    z = Constant<value_float = 0.0>()
    a = Mul(x, u)
    s = Mul(a, a)
    m = ReduceMean<axes = [2], keepdims = 1>(s)
    d = Add(m, e)
    q = Sqrt(d)
    n = Div(a, q)
    g = Mul(n, t)
    b = Greater(a, z)
    w = Where(b, g, f)
    p = Softmax<axis = 2>(w)
    v = Transpose<perm = [0, 2, 1]>(p)
    y = MatMul(g, v)
}"""
# Mistakes, each as a line of NORM and what a wrong rewrite makes of it.
MISTAKES = [
    ("d = Add(m, e)", "d = Identity(m)"),
    ("d = Add(m, e)", "d = Add(m, u)"),
    ("d = Add(m, e)", "d = Sub(m, e)"),
    ("q = Sqrt(d)", "q = Identity(d)"),
    ("n = Div(a, q)", "n = Mul(a, q)"),
    ("n = Div(a, q)", "n = Div(q, a)"),
    ("n = Div(a, q)", "r = Div(a, q) n = Relu(r)"),
    ("m = ReduceMean<axes = [2], keepdims = 1>(s)", "m = ReduceMean<axes = [1], keepdims = 1>(s)"),
    ("m = ReduceMean<axes = [2], keepdims = 1>(s)", "m = ReduceSum(s)"),
    ("m = ReduceMean<axes = [2], keepdims = 1>(s)", "m = ReduceMax<axes = [2]>(s)"),
    ("s = Mul(a, a)", "s = Abs(a)"),
    ("s = Mul(a, a)", "s = Mul(a, x)"),
    ("g = Mul(n, t)", "g = Add(n, t)"),
    ("g = Mul(n, t)", "k = Neg(t) g = Mul(n, k)"),
    ("w = Where(b, g, f)", "w = Where(b, f, g)"),
    ("w = Where(b, g, f)", "k = Not(b) w = Where(k, g, f)"),
    ("w = Where(b, g, f)", "w = Where(b, g, z)"),
    ("p = Softmax<axis = 2>(w)", "p = Softmax<axis = 1>(w)"),
    ("p = Softmax<axis = 2>(w)", "p = LogSoftmax<axis = 2>(w)"),
    ("v = Transpose<perm = [0, 2, 1]>(p)", "v = Transpose<perm = [0, 1, 2]>(p)"),
    ("y = MatMul(g, v)", "y = MatMul(v, g)"),
    ("y = MatMul(g, v)", "k = MatMul(g, v) l = Log(k) y = Exp(l)"),
    ("y = MatMul(g, v)", "k = MatMul(g, v) l = Constant<value_float = 1.0001>() y = Mul(k, l)"),
]  # fmt: skip
# A model in which the rounding of its first lines reaches the output 40,000 times as large.
FACTOR, SUM = "f = Constant<value_float = 0.75>()", "b = Add(a, c) y0 = Mul(b, f)"
AMPLIFIERS = [f"t{n} = Mul(y{n}, k) s{n} = Sin(t{n}) y{n + 1} = Add(s{n}, s{n})" for n in range(6)]
AMPLIFYING = f"""{{
    c = Constant<value = float[6] {{0.25, 0.5, 0.1, 0.7, 0.3, 0.6}}>()
    k = Constant<value_float = 3.0>()
    w = Constant<value = float[6,1,1] {{0.25, 0.5, 0.1, 0.7, 0.3, 0.6}}>()
    {FACTOR}
    a = Sigmoid(x)
    {SUM}
    {" ".join(AMPLIFIERS)}
    y = Conv<group = 6>(y6, w)
}}"""
BATCH_NORM = "{ r = Relu(x) y = BatchNormalization<epsilon = 0.5>(r, s, b, m, v) }"
RANK = """{ r = Reshape(x, a) p = Transpose<perm = [0, 1, 3, 2, 4, 5]>(r) y = Reshape(p, c) }"""


def write_model(
    path: Path,
    body: str,
    ports: str = "float[1,6,6] x",
    out: str = "1,6,6",
    opset: int = 17,
    other_domains: str = "",
) -> Any:
    head = HEAD.format(opset=opset, ports=ports, out=out, other_domains=other_domains)
    model = parser.parse_model(head + body)
    vectors = [(name, np.linspace(0.5, 1.5, 4)) for name in "sbmv"]
    shapes = [("a", [-1, 2, 2, 2, 2, 4]), ("c", [-1, 4, 16])]
    used = {name for node in model.graph.node for name in node.input}
    used -= {name for node in model.graph.node for name in node.output}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, kind), name)
        for group, kind in ((vectors, np.float32), (shapes, np.int64))
        for name, value in group
        if name in used
    )
    onnx.save(model, path)
    return model


def prove(tmp_path: Path, wrong: Any, replaced: str) -> float:
    path = tmp_path / "net.onnx"
    dice = map(np.random.default_rng, (1, 2))
    sets = [(random.standard_normal((1, 6, 6), np.float32),) for random in dice]
    proof = RewriteProof(OnnxSubject(OnnxFile(path, ()), sets, tmp_path))
    return proof.measure(wrong, 1e-5, [replaced])


@pytest.mark.parametrize(("line", "wrong"), MISTAKES, ids=lambda line: line)
def test_a_mistake_in_an_onnx_rewrite_is_rejected(line: str, wrong: str, tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx", NORM)
    wrong_model = write_model(tmp_path / "wrong.onnx", NORM.replace(line, wrong))
    with pytest.raises(Different):
        prove(tmp_path, wrong_model, line[0])


def test_equal_models_with_other_nodes_are_accepted(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx", NORM)
    line = "n = Div(a, q)"
    equal_model = write_model(
        tmp_path / "same.onnx", NORM.replace(line, "k = Reciprocal(q) n = Mul(k, a)")
    )
    assert prove(tmp_path, equal_model, "n") < 1e-6
    equal_model.graph.output[0].name = "g"
    with pytest.raises(Different, match="outputs differ"):
        prove(tmp_path, equal_model, "n")


def test_onnx_forms_that_differ_by_rounding_alone_are_compared_in_float64(tmp_path: Path) -> None:
    def write(name: str, body: str) -> Any:
        return write_model(tmp_path / name, body, other_domains=', "com.microsoft" : 1')

    equal, equal_lines = "same.onnx", "p = Mul(a, f) q = Mul(c, f) y0 = Add(p, q)"
    write("net.onnx", AMPLIFYING)
    assert prove(tmp_path, write(equal, AMPLIFYING.replace(SUM, equal_lines)), "y0") < 1e-5
    factor = FACTOR.replace("0.75", "0.7500001")
    many = "l = Constant<value_float = 1000.0>() b = Add(a, c) o = Mul(b, f)"
    lossy = f"{many} i = Add(o, l) y0 = Sub(i, l)"
    for line, wrong in ((FACTOR, factor), (SUM, lossy)):
        wrong_model = write("wrong.onnx", AMPLIFYING.replace(line, wrong))
        with pytest.raises(BeyondBound):
            prove(tmp_path, wrong_model, "y0")
    # onnx's evaluator has no QuickGelu, which is onnxruntime's own.
    only_float32 = AMPLIFYING.replace("a = Sigmoid(x)", "a = com.microsoft.QuickGelu(x)")
    write("net.onnx", only_float32)
    with pytest.raises(BeyondBound, match="1e-05 allowed"):
        prove(tmp_path, write(equal, only_float32.replace(SUM, equal_lines)), "y0")


@pytest.mark.parametrize(("rewrite", "body", "shape", "out"), [
    ("scale-batch-norm", BATCH_NORM, "n,4,6", "n,4,6"),
    ("lower-rank", RANK, "n,2,2,2,8", "n,4,16"),
])  # fmt: skip
def test_a_dynamic_batch_stays_dynamic_after_a_rewrite(
    rewrite: str, body: str, shape: str, out: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    model = write_model(path, body, f"float[{shape}] x", out)
    sizes = [*map(int, shape.split(",")[1:])]
    (attempt,) = Trials(str(path), Source(str(path), shapes=(("x", (1, *sizes)),)), ((rewrite,),))()
    assert (attempt.fault, len(attempt.changes)) == ("", 1)
    OnnxFile(path, (("x", (1, *sizes)),)).write([rewrite], tmp_path / "new.onnx")
    rewritten = onnx.load(tmp_path / "new.onnx")
    assert describe_shape(rewritten.graph.input[0]) == describe_shape(model.graph.input[0])
    x = np.random.default_rng(0).standard_normal((5, *sizes), np.float32)
    before, after = (
        open_reference(model_path).run(None, {"x": x})[0]
        for model_path in (path, tmp_path / "new.onnx")
    )
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize(
    ("rewrite", "body", "ports", "fixed"),
    [
        ("scale-batch-norm", BATCH_NORM, "1,4,n", (1, 4, 6)),
        ("lower-rank", RANK.replace("a)", "k)"), "n,2,2,2,8", (1, 2, 2, 2, 8)),
    ],
)
def test_a_dynamic_size_that_a_rewrite_needs_becomes_fixed(
    rewrite: str, body: str, ports: str, fixed: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    body = body.replace("{", "{ k = Constant<value = int64[6] {1, 2, 2, 2, 2, 4}>()", 1)
    write_model(path, body, f"float[{ports}] x", "n,4,n")
    source = Source(str(path), shapes=(("x", fixed),))
    (attempt,) = Trials(str(path), source, ((rewrite,),))()
    assert (attempt.fault, len(attempt.changes)) == ("", 1)
    OnnxFile(path, source.shapes).write([rewrite], tmp_path / "new.onnx")
    rewritten = onnx.load(tmp_path / "new.onnx")
    assert describe_shape(rewritten.graph.input[0]) == str([*fixed])


@pytest.mark.parametrize("opset", [9, 13, 18, 23])
def test_weights_in_another_file_samples_opset_and_metadata_are_kept(
    opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "net.onnx", tmp_path / "new" / "net.onnx"
    body = "{ w = MatMul(x, k) r = Relu(w) y = BatchNormalization<epsilon = 0.5>(r, s, b, m, v) }"
    model = write_model(path, body, "float[1,4,600] x", "1,4,600", opset)
    weights = np.eye(600, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "k"))
    onnx.helper.set_model_props(model, {"labels": "a,b"})
    # As torch.onnx.export names them, and in the working directory.
    monkeypatch.chdir(path.parent)
    name = f"{path.name}.data"
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=100)
    sets = np.random.default_rng(0).standard_normal((8, 1, 4, 600), np.float32)
    np.savez(path.with_suffix(".npz"), x=sets)
    new.parent.mkdir()
    for _ in range(2):  # the second time, the files exist
        OnnxFile(path, ()).write(["scale-batch-norm"], new)

    rewritten = onnx.load(new, load_external_data=False)
    assert [domain.version for domain in rewritten.opset_import] == [opset]
    assert rewritten.metadata_props == model.metadata_props
    assert rewritten.graph.initializer[0].external_data[0].value == "net.onnx.data"
    data = (new.parent / "net.onnx.data").stat()
    assert (data.st_size < weights.nbytes * 1.1, data.st_mode) == (True, new.stat().st_mode)
    with np.load(new.with_suffix(".npz")) as samples:
        assert np.array_equal(samples["x"], sets)
    before, after = (
        open_reference(model_path).run(None, {"x": sets[0]})[0] for model_path in (path, new)
    )
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_a_full_disk_is_that_of_the_file_and_not_of_the_temporary_directory(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx", BATCH_NORM, "float[1,4,5,5] x", "1,4,5,5")
    target = tmp_path / "new.onnx"
    target.symlink_to("/dev/full")
    with pytest.raises(StoreError) as refusal:
        OnnxFile(tmp_path / "net.onnx", ()).write(["scale-batch-norm"], target)
    assert (refusal.value.place, refusal.value.is_full) == (target, True)


def test_rewrites_handle_if_branches_functions_and_computed_constants(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    body = """{
        one = Constant<value = float[1] {4.0}>()
        sizes = Shape<start = 1, end = 2>(x)
        ones = ConstantOfShape<value = float[1] {1.0}>(sizes)
        same = Identity(ones)
        shift = Mul(same, one)
        r = own.Twice(x)
        n = BatchNormalization<epsilon = 0.5>(r, shift, b, m, v)
        k = Constant<value = bool {1}>()
        y = If(k) <then_branch = t () => (float[1,4,6] o) { o = Add(n, one) },
            else_branch = e () => (float[1,4,6] q) { q = Mul(n, one) }>
    }
    <domain: "own", opset_import: ["" : 17]> Twice (a) => (b) { b = Add(a, a) }"""
    write_model(path, body, "float[1,4,6] x", "1,4,6", other_domains=', "own" : 1')
    (attempt,) = Trials(str(path), Source(str(path)), (("scale-batch-norm",),))()
    assert (attempt.fault, [change.nodes for change in attempt.changes]) == ("", [("n",)])
