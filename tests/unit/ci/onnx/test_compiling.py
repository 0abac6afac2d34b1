"""What a compiled case is, with a stand-in for QNN's provider; how models are prepared for it."""

from __future__ import annotations

import os
import pprint
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from msgspec import structs

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from onnx import TensorProto, load, save
from onnx.helper import make_function, make_graph, make_node, make_opsetid
from onnx.numpy_helper import to_array
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import EngineError

from ci.cases.engine import FLOAT, INPUTS, QUANTIZED, Delegation, RunNotes
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.spec import CaseSpec
from ci.explain.explain import find_known
from ci.explain.rules import read_rules
from ci.graphs.onnx_session import CPU
from ci.models.schemes import Scheme
from ci.models.tensors import read_sets
from ci.models.user_models import ReferencePolicy, Source
from ci.onnx import compile as compiling
from ci.onnx import engine, fallback, session
from ci.onnx.engine import Executed, OnnxEngine, note_execution
from ci.onnx.fallback import MOST_SAID, PROVIDER, PROVIDER_LOG, TRACEBACK_LOG, StageError
from ci.onnx.preparation import (
    OLDEST_IR,
    mend_names,
    prepare_file,
    quantize_file,
    write_normal_form,
)
from ci.onnx.source import list_inputs
from provisioning.errors import FailedError, UsageError
from tests.build.onnx import Provider, compile_case, make_engine
from tests.qnn_provider.contexts import make_blob
from tests.qnn_provider.models import (
    build_model,
    constant,
    tensor,
    write_conv,
    write_model,
    write_relu,
)
from tests.stand_ins.snapshots import check_snapshot

BODY = make_graph([make_node("Identity", ["x"], ["z"])], "g", [], [tensor("z", (1, 3))])
SNAPSHOTS = Path(__file__).with_name("snapshots")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    fake_provider = Provider()
    monkeypatch.setattr(compiling, "open_session", fake_provider.open_session)
    return fake_provider


def write_sigmoid(path: Path) -> Path:
    nodes = [make_node("Sigmoid", ["x"], ["a"], "inner"), make_node("Add", ["a", "x"], ["y"])]
    return write_model(path, nodes, [tensor("x", (1, 3, 8, 8))], [tensor("y", (1, 3, 8, 8))])


def write_given(path: Path) -> Path:
    """The model of ``write_sigmoid``, quantized to uint8."""
    pairs = [("x", "i"), ("a", "b"), ("c", "y")]
    nodes = [
        make_node(*arguments)
        for source, result in pairs
        for arguments in (
            ("QuantizeLinear", [source, "s", "z"], [f"{source}_q"]),
            ("DequantizeLinear", [f"{source}_q", "s", "z"], [result]),
        )
    ]
    nodes.insert(2, make_node("Sigmoid", ["i"], ["a"], "inner"))
    nodes.insert(5, make_node("Add", ["b", "i"], ["c"]))
    grid = [constant("s", 0.05), constant("z", 128, np.uint8)]
    ends = [tensor("x", (1, 3, 8, 8))], [tensor("y", (1, 3, 8, 8))]
    return write_model(path, nodes, *ends, grid)


def shorten(data: Any) -> Any:
    """What is not empty; numbers with four digits, as another CPU has them, and digests with
    eight."""
    if isinstance(data, dict):
        shortened = {
            key: shorten(value) for key, value in data.items() if key != "lowering_memory_bytes"
        }
        return {
            key: value for key, value in shortened.items() if value not in (None, "", [], {}, 0)
        }
    if isinstance(data, list | tuple):
        return [shorten(item) for item in data]
    if isinstance(data, str) and len(data) == 64:
        return data[:8]
    return float(f"{data:.4g}") if isinstance(data, float) else data


# What is compiled, the engine's fields, those of the case, and the operators that QNN leaves.
COMPILED: dict[str, tuple[Callable[[Path], Path], Scheme, dict[str, Any], dict[str, Any], str]] = {
    "float": (write_sigmoid, Scheme.FP16, {}, {}, ""),
    "float, beside": (write_sigmoid, Scheme.FP16, {"embed": False, "saver": True}, {}, ""),
    "float, layers": (write_sigmoid, Scheme.FP16, {}, {"layers": True}, ""),
    "float, nothing on QNN": (write_relu, Scheme.FP16, {"saver": True}, {}, "Relu Add"),
    "calibrated": (write_sigmoid, Scheme.U8, {"user_options": {"vtcm_mb": "4"}}, {}, "Sigmoid"),
    "calibrated, layers": (write_sigmoid, Scheme.U8, {}, {"layers": True}, ""),
    "calibrated on data": (write_relu, Scheme.U8, {}, {"inputs": "x", "calibration": "x"}, ""),
    "quantized": (write_given, Scheme.ASIS, {"direct": True}, {}, ""),
    "quantized, layers": (write_given, Scheme.ASIS, {}, {"layers": True}, ""),
    "quantized, data": (write_conv, Scheme.ASIS, {}, {"inputs": "x"}, "Conv"),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_case_has_its_record_files_and_sessions(
    name: str, tmp_path: Path, provider: Provider
) -> None:
    write, scheme, engine, case, left = COMPILED[name]
    provider.left = tuple(left.split())
    values = np.random.default_rng(5).standard_normal((6, 1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    case_arguments = {
        key: str(tmp_path / "x.npy") if value == "x" else value for key, value in case.items()
    }
    case_engine = make_engine(tmp_path / "sdk", **engine)
    record = compile_case(
        tmp_path / "scratch", case_engine, write(tmp_path / "net.onnx"), scheme, **case_arguments
    )
    shown_record = shorten(msgspec.to_builtins(structs.replace(record, steps=())))
    files = sorted(
        str(path.relative_to(tmp_path / "scratch"))
        for path in (tmp_path / "scratch").rglob("*")
        if path.is_file() and path.suffix != ".raw"
    )
    sets = {
        folder.name: len(list(folder.glob("*.raw")))
        for folder in sorted((tmp_path / "scratch/staging").iterdir())
        if list(folder.glob("*.raw"))
    }
    log = (tmp_path / "scratch" / PROVIDER_LOG).read_text(errors="replace")
    shown = pprint.pformat(
        (shown_record, provider.opened, files, sets, log), width=110, compact=True
    )
    text = f"{shown}\n".replace(str(tmp_path), "PLACE")
    check_snapshot(SNAPSHOTS / f"compiled {name}.txt", text)


@pytest.mark.parametrize(
    ("nodes", "stage", "cause"),
    [
        ([make_node("Relu", ["x"], ["y"])], fallback.QNN, "no"),
        ([make_node("None", ["x"], ["y"], domain="com.microsoft")], fallback.ONNXRUNTIME, "None"),
        (
            [
                make_node("ReduceSum", ["x"], ["s"], keepdims=0),
                make_node("Cast", ["s"], ["is"], to=TensorProto.BOOL),
                make_node("If", ["is"], ["y"], "choice", then_branch=BODY, else_branch=BODY),
            ],
            fallback.QNN,
            "the If 'choice' has a condition that the model computes",
        ),
    ],
)
def test_a_refused_onnx_model_names_the_stage_and_cause_of_the_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[Any], stage: str, cause: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(compiling, "open_session", fail)
    ends = [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    model = write_model(tmp_path / "net.onnx", nodes, *ends)
    call = (model, tmp_path / "program", tmp_path / "run.log", "SM8650", {})
    with pytest.raises(StageError) as caught:
        compiling.write_context(*call, embed=True)
    assert str(caught.value) == stage
    assert cause in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("operator", "message", "cause"),
    [
        ("Mish", compiling.FORGOTTEN_NODE, "no context can be written of the Mish 'soft'"),
        ("Mish", "no", "no"),
        ("Erf", compiling.FORGOTTEN_NODE, compiling.FORGOTTEN_NODE),
    ],
    ids=["a function", "another error", "no function"],
)
def test_a_function_of_which_no_context_can_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str, message: str, cause: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        log = f"Validation FAILED for 1 nodes in OrtNodeUnit ({operator}) :\n"
        log += f"\tOperator type: {operator} Node name: soft Node index: 0\n"
        log += f"\tREASON : Operators of type `{operator}` are not supported by QNN EP.\n\n"
        os.write(1, log.encode())
        raise ValueError(message)

    monkeypatch.setattr(compiling, "open_session", fail)
    ends = [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    model = write_model(tmp_path / "net.onnx", [make_node(operator, ["x"], ["y"], "soft")], *ends)
    call = (model, tmp_path / "program", tmp_path / "run.log", "SM8650", {})
    with pytest.raises(StageError) as caught:
        compiling.write_context(*call, embed=True)
    assert cause in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("RandomNormalLike", "the model draws random numbers, in RandomNormalLike 'y'"),
        ("NonZero", "the shape of an output depends on the data: [2, 3] for one sample"),
    ],
)
def test_a_model_whose_outputs_cannot_be_compared_is_refused(
    tmp_path: Path, provider: Provider, kind: str, cause: str
) -> None:
    result = tensor("y", (1, 3)) if kind != "NonZero" else tensor("y", (2, "n"), TensorProto.INT64)
    nodes = [make_node(kind, ["x"], ["y"])]
    model = write_model(tmp_path / "net.onnx", nodes, [tensor("x", (1, 3))], [result])
    np.save(tmp_path / "x.npy", np.triu(np.ones((6, 3), np.float32))[:, None])
    data = {"inputs": str(tmp_path / "x.npy"), "calibration": str(tmp_path / "x.npy")}
    with pytest.raises(StageError, match="CPU") as caught:
        compile_case(
            tmp_path / "scratch", make_engine(tmp_path / "sdk"), model, Scheme.FP16, **data
        )
    assert cause in str(caught.value.__cause__)


def test_a_context_for_another_soc_is_not_kept(tmp_path: Path, provider: Provider) -> None:
    provider.blob = make_blob(soc="SM8750", arch=79)
    engine, model = make_engine(tmp_path / "sdk"), write_relu(tmp_path / "net.onnx")
    with pytest.raises(StageError) as caught:
        compile_case(tmp_path / "scratch", engine, model, Scheme.FP16)
    assert "SM8750" in str(caught.value.__cause__)


class Restarting:
    """A session after which the subsystem restarts, for the first ``left`` runs of all."""

    left = 0

    def get_inputs(self) -> Any:
        return [SimpleNamespace(name="x"), SimpleNamespace(name="z")]

    def run(self, names: None, feed: dict[str, int]) -> tuple[int, ...]:
        if Restarting.left:
            Restarting.left -= 1
            raise EngineError("crashed.\n  SSR detected.")
        return feed["x"], feed["z"]

    def end_profiling(self) -> str:
        return "profile.json"


@pytest.mark.parametrize("times", [0, engine.MAX_RESTARTS, engine.MAX_RESTARTS + 1])
def test_a_session_is_opened_again_when_the_subsystem_restarts(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(Restarting, "left", times)
    monkeypatch.setattr(engine, "read_profile", lambda path: {str(path): ("a",)})
    session = engine.RecoveringSession(Restarting)
    sets: Any = [(1, 2), (3, 4)]
    if times > engine.MAX_RESTARTS:
        with pytest.raises(FailedError, match="restarted 4 times"):
            session.run(sets)
        return
    assert session.run(sets) == [[1, 2], [3, 4]]
    assert session.finish() == Executed({"profile.json": ("a",)}, times)


def test_refusals_name_the_stage_the_providers_words_and_the_cause(tmp_path: Path) -> None:
    """Only refusals by QNN show the provider's log, up to a number of lines."""
    failed = FailedError("one", why="a cause", fix="a remedy")
    errors = [
        (failed, ""),
        (failed, fallback.QUANTIZER),
        (ValueError(" a\n  b "), ""),
        (ValueError(), ""),
    ]
    errors += [(ValueError("no such line 0"), fallback.QNN)]
    shown = []
    for lines in (0, 1, MOST_SAID, MOST_SAID + 5):
        numbers = [*range(lines), *range(min(lines, 1))]  # the first one twice
        head = "2026-11-20 20:32:20.8 [E:onnxruntime:, q.cc:9 F]"
        text = "".join(f"{head} line {number} \n" for number in numbers)
        (tmp_path / PROVIDER_LOG).write_text(text)
        for cause, stage in errors if lines < 2 else errors[-1:]:
            error: Exception = StageError(stage) if stage else cause
            error.__cause__ = cause if stage else None
            explained = OnnxEngine(toolchain=(), sdk=tmp_path).explain(
                error, tmp_path / "lower.log"
            )
            traceback = (tmp_path / TRACEBACK_LOG).read_text()
            shown.append(
                f"{lines} lines, {stage or 'no'} stage, {cause!r}\n{explained.text}\n{traceback}"
            )
    check_snapshot(SNAPSHOTS / "refusals.txt", "\n".join(shown))


def digest_weights_of(path: Path, *weights: Any, inner: Any = (1, 1, 1)) -> str:
    """The digest of a model's weights, of which one is in the branches of an If."""
    body = [make_node("Identity", ["v"], ["b"])]
    bodies = [make_graph(body, "g", [], [tensor("b", (3,))], [constant("v", inner)])] * 2
    branches = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
    nodes = [make_node("If", ["is"], ["c"], **branches), make_node("Relu", ["x"], ["y"])]
    ends = [tensor("x", (1, 3)), tensor("is", (), TensorProto.BOOL)], [tensor("y", (1, 3))]
    write_model(path, nodes, *ends, weights)
    return compiling.digest_source(cast(Any, SimpleNamespace(origin=path)))


def test_names_types_shapes_and_values_of_all_weights_are_in_their_digest(tmp_path: Path) -> None:
    """Weights in a branch are included; their order in the file does not matter."""
    digest = partial(digest_weights_of, tmp_path / "m.onnx")
    a, b = constant("a", [[1, 2]]), constant("b", [3, 4])
    other_weights = [constant("c", [3, 4]), constant("b", [[3, 4]]), constant("b", [3, 5])]
    other_weights.append(constant("b", np.float32([3, 4]).view(np.int32), np.int32))
    digests = [digest(a, b), digest(a), digest(b), digest(a, b, inner=(1, 0, 1))]
    digests += [digest(a, weight) for weight in other_weights]
    assert len({*digests}) == 8
    assert digest(b, a) == digests[0]


QUANTIZERS = [
    make_node("QuantizeLinear", ["a", "s", "z"], ["q"]),
    make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
]


def write_pair(folder: Path, *values: float) -> dict[str, Any]:
    """A quantized model and its float model, which add a weight of these values in another file.
    Their shapes are given; they are free in the files. Return fields of a source."""
    paths = []
    rows = (("net", QUANTIZERS), ("float", [make_node("Relu", ["a"], ["y"])]))
    for (name, nodes), value in zip(rows, values, strict=True):
        ends = [tensor("x", ("n", 3))], [tensor("y", ("n", 3))]
        weights = [constant("w", [value] * 3), constant("s", 0.5), constant("z", 7, np.uint8)]
        model = build_model([make_node("Add", ["x", "w"], ["a"]), *nodes], *ends, weights)
        external = {"save_as_external_data": True, "location": f"{name}.bin", "size_threshold": 9}
        (folder / f"{name}.bin").unlink(missing_ok=True)  # it would be appended to
        save(model, folder / f"{name}.onnx", **external)
        paths.append(folder / f"{name}.onnx")
    return {"model": paths[0], "float_model": str(paths[1]), "shapes": (("x", (2, 3)),)}


def test_a_quantized_model_is_compared_with_its_float_model_in_the_given_shapes(
    tmp_path: Path, provider: Provider
) -> None:
    engine, arguments = make_engine(tmp_path / "sdk"), write_pair(tmp_path, 10, 20)
    record = compile_case(tmp_path / "scratch", engine, scheme=Scheme.ASIS, **arguments)
    staging = tmp_path / "scratch/staging"
    assert [port.shape for port in (*record.inputs, *record.outputs)] == [(2, 3), (2, 3)]
    inputs, float32, quantized_outputs = (
        read_sets(staging / kind, record.outputs, record.sets)
        for kind in (INPUTS, FLOAT, QUANTIZED)
    )
    for model in (staging / compiling.QUANTIZED_MODEL, staging.with_name("plain.onnx")):
        assert list_inputs(load(model)) == {"x": (np.dtype(np.float32), (2, 3))}
    assert len(inputs) == 4
    for (x,), (right,), (quantized_output,) in zip(inputs, float32, quantized_outputs, strict=True):
        np.testing.assert_allclose(right, np.maximum(x + 20, 0), rtol=1e-6)
        np.testing.assert_array_equal(quantized_output, np.round((x + 10) / 0.5) * 0.5)
    arguments, policy = write_pair(tmp_path, 10, -1e9), ReferencePolicy(min_rms=1.0, min_spread=0.1)
    with pytest.raises(FailedError, match="proves nothing") as caught:
        compile_case(tmp_path / "2", engine, scheme=Scheme.ASIS, policy=policy, **arguments)
    assert "random inputs" in caught.value.why


def test_the_source_of_a_case_has_the_requested_shapes_and_float_model(
    tmp_path: Path,
) -> None:
    def load_digest(*values: float) -> str:
        arguments = write_pair(tmp_path, *values)
        path = str(arguments.pop("model"))
        source = compiling.load_source(
            CaseSpec("n", Scheme.ASIS, "SM8650", Source(path, **arguments))
        )
        assert source.evaluation[0][0].shape == (2, 3)
        with pytest.raises(UsageError) as caught:
            compiling.load_source(CaseSpec("n", Scheme.ASIS, "SM8650", Source(path)))
        assert caught.value.fix.endswith("\n    --shape x=1,3")
        return source.digest

    digests = [load_digest(*values) for values in ((1, 2), (1, 3), (4, 2), (1, 2))]
    assert len({*digests}) == 3
    assert digests[0] == digests[3]


def test_notes_on_a_run_are_its_restarts_contradictions_and_profile(tmp_path: Path) -> None:
    compiled = SimpleNamespace(sets=2, delegation=Delegation(8, 0, 1))
    opened: Any = SimpleNamespace(program=SimpleNamespace(directory=tmp_path, compiled=compiled))
    plain = note_execution(opened, Executed({PROVIDER: ("a",)}))
    assert plain == RunNotes()
    (tmp_path / PROFILE_CSV).touch()
    notes = note_execution(opened, Executed({"CPU": ("a",)}, 2))
    assert notes.files == (tmp_path / PROFILE_CSV,)
    assert notes.faults == ("QNN executed nothing, according to the session's profile: CPU ran a",)
    assert "2 restarts " in notes.remark
    assert "1 restart " in note_execution(opened, Executed({PROVIDER: ("a",)}, 1)).remark


def test_a_provider_without_a_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimpleNamespace(ep_name=name) for name in (CPU, PROVIDER)]
    stand_in = SimpleNamespace(
        register_execution_provider_library=lambda *_: None, get_ep_devices=lambda: devices
    )
    monkeypatch.setattr(session, "onnxruntime", stand_in)
    assert session.find_device.__wrapped__() is devices[1]
    devices.pop()
    with pytest.raises(FailedError, match=r"no device for QNN's provider(.|\n)*fix: "):
        session.find_device.__wrapped__()


def test_the_norm_of_opset_23_that_qnn_takes_is_read_in_opset_21(
    tmp_path: Path,
) -> None:
    ports = [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    scale = constant("scale", np.ones(3, np.float32))
    norm = make_node("RMSNormalization", ["x", "scale"], ["z"], axis=-1, epsilon=0.25)
    nodes = [norm, make_node("Neg", ["z"], ["y"])]
    path = write_model(tmp_path / "norm.onnx", nodes, *ports, [scale], opset=23)
    model = load(write_normal_form(path, tmp_path / "other.onnx"))
    node = model.graph.node[0]
    assert (node.op_type, node.domain) == ("SimplifiedLayerNormalization", "")
    assert {opset.domain: opset.version for opset in model.opset_import}[""] == 21
    session = InferenceSession(model.SerializeToString(), providers=[CPU])
    (y,) = session.run(None, {"x": np.array([[1, 2, 3]], np.float32)})
    np.testing.assert_allclose(y, np.array([[1, 2, 3]]) / -np.sqrt(14 / 3 + 0.25), rtol=1e-6)

    target = tmp_path / "quantized.onnx"
    quantize_file(tmp_path / "other.onnx", target, Scheme.U8, [(np.ones((1, 3), np.float32),)])
    kinds = [node.op_type for node in load(target).graph.node]
    start = kinds.index("SimplifiedLayerNormalization")
    typed = ["SimplifiedLayerNormalization", "QuantizeLinear", "DequantizeLinear", "Neg"]
    assert kinds[start : start + 4] == typed


def test_a_model_with_operators_of_opsets_22_to_25_keeps_its_opset(tmp_path: Path) -> None:
    ports = [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    newer_nodes = make_node("Swish", ["x"], ["a"]), make_node("TensorScatter", ["a", "x"], ["y"])
    path = write_model(tmp_path / "kept.onnx", newer_nodes, *ports, opset=24)
    assert write_normal_form(path, tmp_path / "other.onnx") == path

    axis = constant("axis", np.array(1))
    newer = make_node("CumProd", ["x", "axis"], ["a"]), make_node("Swish", ["a"], ["y"])
    path = write_model(tmp_path / "new.onnx", newer, *ports, [axis], opset=26)
    with pytest.raises(StageError) as caught:
        write_normal_form(path, tmp_path / "other.onnx")
    assert str(caught.value.__cause__) == "the model has CumProd, which opset 25 lacks"
    finding = find_known(str(caught.value.__cause__), read_rules())
    assert finding is not None
    assert finding.rule == "onnx-operator-too-new"


def test_a_recent_model_with_constant_weights_stays_as_it_is(tmp_path: Path) -> None:
    parts = [make_node("Relu", ["x"], ["y"])], [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    for opset, is_kept in ((12, False), (13, True), (21, True), (22, False)):
        path = write_model(tmp_path / f"{opset}.onnx", *parts, opset=opset)
        model = load(path)
        model.opset_import.add(domain="my.ops", version=30)  # which does not count
        save(model, path)
        assert (write_normal_form(path, tmp_path / "other.onnx") == path) is is_kept
        normal_form = load(write_normal_form(path, tmp_path / "other.onnx", [("x", (1, 3))]))
        assert {opset.domain: opset.version for opset in normal_form.opset_import}[""] == min(
            max(opset, 13), 21
        )
        assert normal_form.ir_version == model.ir_version > OLDEST_IR
    path = write_model(tmp_path / "functions.onnx", *parts, opset=21)
    model = load(path)
    silu = [make_node("Sigmoid", ["a"], ["b"]), make_node("Mul", ["a", "b"], ["c"])]
    model.functions.append(
        make_function("my.ops", "Silu", ["a"], ["c"], silu, [make_opsetid("", 21)])
    )
    model.graph.node[0].CopyFrom(make_node("Silu", ["x"], ["y"], domain="my.ops"))
    save(model, path)
    inlined = load(write_normal_form(path, tmp_path / "other.onnx"))
    assert [node.op_type for node in inlined.graph.node] == ["Sigmoid", "Mul"]


def test_constants_whose_names_the_quantizer_would_create_are_renamed() -> None:
    weights = [constant(name, np.ones((1, 3))) for name in ("a", "b", "c", "d1")]
    nodes = [
        make_node("Sum", ["x", "a", "b", "c", "d1"], ["a1"]),
        make_node("Relu", ["x"], ["d12"]),
        make_node("Gemm", ["x", "w", "b"], ["b22"]),
    ]
    graph = build_model(nodes, [tensor("x", (1, 3))], [tensor("b22", (1, 3))], weights).graph
    mend_names(graph)
    renamed = ["a_weight", "b_weight", "c", "d1_weight"]
    assert [initializer.name for initializer in graph.initializer] == renamed
    read = [[*node.input] for node in graph.node]
    assert read == [["x", *renamed], ["x"], ["x", "w", "b_weight"]]


def test_a_model_is_mended_and_rewritten_for_qnn_before_it_is_quantized(tmp_path: Path) -> None:
    """The nodes of an exported L2 norm become one node; the metadata is kept."""
    nodes = [make_node("Gemm", ["x", "w", "bias"], ["bias1"], "layer")]
    last = {
        "LpNormalization": [
            make_node("ReduceL2", ["bias1", "axes"], ["a"], "n1", keepdims=1),
            make_node("Clip", ["a", "least"], ["b"], "n2"),
            make_node("Expand", ["b", "shape"], ["c"], "n3"),
            make_node("Div", ["bias1", "c"], ["y"], "n4"),
        ],
        "Relu": [make_node("Relu", ["bias1"], ["y"], "n1")],
    }
    values = {"w": np.eye(3), "bias": [[1.0, np.inf, 2.0]], "least": 1e-12}
    weights = [constant(name, value) for name, value in values.items()]
    weights += [constant("axes", [-1], np.int64), constant("shape", [2, 3], np.int64)]
    for kind, tail in last.items():
        ends = [tensor("x", (2, 3))], [tensor("y", (2, 3))]
        model = build_model([*nodes, *tail], *ends, weights[: 2 if kind == "Relu" else None])
        model.metadata_props.add(key="author", value="x")
        model.metadata_props.add(key="licence", value="y")
        save(model, tmp_path / "m.onnx")
        prepared = prepare_file(tmp_path / "m.onnx")
        assert [node.op_type for node in prepared.graph.node] == ["Gemm", kind]
        metadata = {prop.key: prop.value for prop in prepared.metadata_props}
        assert (metadata["author"], metadata["licence"]) == ("x", "y")
        values_by_name = {
            initializer.name: to_array(initializer).tolist()
            for initializer in prepared.graph.initializer
        }
        assert values_by_name["bias_weight"] == [1.0, 65504.0, 2.0]


def ramp(top: float) -> Any:
    return np.linspace(-top, top, 8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize(
    ("scheme", "activations", "weights", "scales"),
    [
        (Scheme.U8, "uint8", "uint8", 1),
        (Scheme.U16A8W_CHANNEL, "uint16", "int8", 3),
        (Scheme.U16A4W, "uint16", "int4", 3),
    ],
)
def test_a_quantized_model_has_the_types_of_its_scheme_and_the_ranges_of_every_set(
    tmp_path: Path, scheme: Scheme, activations: str, weights: str, scales: int
) -> None:
    """The model computes y = x w and z = x / u."""
    nodes = [make_node("Gemm", ["x", "w"], ["y"], "first"), make_node("Div", ["x", "u"], ["z"])]
    weight_of_gemm = [constant("w", np.random.default_rng(1).standard_normal((4, 3)))]
    inputs = [tensor(name, (2, 4)) for name in ("x", "u")]
    outputs = [tensor("y", (2, 3)), tensor("z", (2, 4))]
    model = write_model(tmp_path / "m.onnx", nodes, inputs, outputs, weight_of_gemm)
    sets = [(ramp(1), ramp(20)), (ramp(4), ramp(2))]
    quantize_file(model, tmp_path / "q.onnx", scheme, sets)
    written = {
        initializer.name: to_array(initializer)
        for initializer in load(tmp_path / "q.onnx").graph.initializer
    }
    assert (written["w_scale"].size, written["w_quantized"].dtype.name) == (scales, weights)
    levels = 255 if activations == "uint8" else 65535
    for name, top in (("x", 4), ("u", 20)):
        assert written[f"{name}_zero_point"].dtype.name == activations
        assert written[f"{name}_scale"] == pytest.approx(2 * top / levels, rel=1e-3)


def test_a_float16_model_is_prepared_with_float32_weights(tmp_path: Path) -> None:
    """Behind a Cast, the quantizer would take them for activations."""
    nodes = [make_node("Conv", ["x", "w"], ["y"], "named")]
    weight_of_conv = [constant("w", np.ones((3, 2, 1, 1)), np.float16)]
    inputs = [tensor("x", (1, 2, 4, 4), TensorProto.FLOAT16)]
    outputs = [tensor("y", (1, 3, 4, 4), TensorProto.FLOAT16)]
    graph = prepare_file(
        write_model(tmp_path / "m.onnx", nodes, inputs, outputs, weight_of_conv)
    ).graph
    assert [node.op_type for node in graph.node] == ["Cast", "Conv", "Cast"]
    kinds = {initializer.name: initializer.data_type for initializer in graph.initializer}
    assert kinds[graph.node[1].input[1]] == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("soc", "scheme", "options", "is_refused"),
    [
        ("QCM6490", Scheme.FP16, {}, True),
        ("QCM6490", Scheme.U8, {}, False),
        ("SM8650", Scheme.FP16, {}, False),
        ("QCM6490", Scheme.FP16, {"backend_path": "libQnnCpu.so"}, False),
    ],
)
def test_a_float_model_is_refused_for_an_htp_without_float16(
    soc: str, scheme: Scheme, options: dict[str, str], is_refused: bool
) -> None:
    """QNN's provider says "Failed to add fused Matmul node" only."""
    spec = CaseSpec("net.onnx", scheme, soc)
    if not is_refused:
        compiling.require_float16(spec, options)
        return
    with pytest.raises(FailedError, match="the HTP of QCM6490 has no float16"):
        compiling.require_float16(spec, options)
