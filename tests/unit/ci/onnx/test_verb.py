"""Which cases of .onnx files the verb makes: their shapes, and schemes of quantized ones."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import helper

from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.inspect.files import inspect_file
from ci.models.schemes import Scheme
from ci.models.user_models import ModelEntry, Source
from ci.onnx.fitting import fit_files, fit_schemes, fit_shapes
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, ManifestError, UsageError
from tests.qnn_provider.models import constant, tensor, write_model, write_relu

POLICY = read_emulator_policy(lane="onnx")


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    scale, zero = constant("scale", 0.1), constant("zero", 7, "uint16")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    return write_model(tmp_path / "quantized.onnx", nodes, *ends((1, 3)), [scale, zero])


def ends(shape: Sequence[int | str]) -> tuple[list[Any], list[Any]]:
    return [tensor("x", shape)], [tensor("y", shape)]


def fit_all(
    specs: Sequence[CaseSpec], policy: Any, chosen_schemes: list[str], command: str = ""
) -> list[CaseSpec]:
    """What a session makes of its cases before anything is fetched."""
    read, quantized = fit_shapes(specs, policy, Progress(), command)
    return fit_schemes(read, quantized, policy, chosen_schemes)


def fit(path: Path, *schemes: Scheme, chosen: bool = False) -> list[str]:
    specs = [CaseSpec(path.name, scheme, "SM8650", Source(str(path))) for scheme in schemes]
    words = [*schemes] if chosen else ["*"] * (len({*schemes} & {Scheme.ASIS}) > 0)
    return [spec.scheme.value for spec in fit_all(specs, POLICY, words)]


def test_a_float_model_must_have_the_shapes_and_types_of_the_quantized_one(
    tmp_path: Path, quantized: Path
) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    files = {
        "plain": write_model(tmp_path / "p.onnx", [relu], *ends((1, 3))),
        "wide": write_model(tmp_path / "w.onnx", [relu], *ends((1, 4))),
        "short": write_model(
            tmp_path / "s.onnx", [relu], ends((1, 3))[0], [tensor("y", (1, 3), 10)]
        ),
    }

    def fit_pair(path: Path, float_model: Path) -> list[CaseSpec]:
        entry = ModelEntry(str(path), float_model=str(float_model))
        policy = replace(POLICY, models={"net": entry})
        return fit_all([CaseSpec("net", Scheme.U8, "SM8650", entry.make_source())], policy, [])

    assert fit_pair(quantized, files["plain"])[0].source.float_model == str(files["plain"])
    wrong = [
        (quantized, files["wide"], "does not match"),
        (quantized, files["short"], "does not match"),
        (quantized, quantized, "is itself quantized"),
        (files["plain"], files["plain"], "only for a model that is already quantized"),
        (quantized, tmp_path / "none.onnx", "cannot read"),
    ]
    for path, float_model, why in wrong:
        with pytest.raises(UsageError, match=rf"^models\.net\.float_model: .*{why}"):
            fit_pair(path, float_model)


def test_a_file_that_qnn_cannot_take_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    """The fix is a command with sizes that work."""
    free = write_model(
        tmp_path / "free.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", ("batch", 3, "h", "w"))],
        [tensor("y", ("batch", 3, "h", "w"))],
    )
    source = Source(str(free))
    spec = CaseSpec("net", Scheme.U8, "SM8650", source)
    entry = ModelEntry(str(free))
    policy = replace(POLICY, models={"net": entry})
    with pytest.raises(UsageError, match=r"models\.net\.path: free\.onnx cannot be used") as caught:
        fit_all([spec], policy, [], "qnn-ci test-onnx")
    line = "shapes = {x = [1, 3, 224, 224]}"
    assert caught.value.fix.endswith(f", in [models.net] of the policy:\n    {line}")
    with_shapes = [*fit_files([spec], {"x": (1, 3, 224, 224)})]
    assert fit_all(with_shapes, policy, []) == with_shapes
    later = CaseSpec("net", Scheme.FP16, "SM8750", source)
    for command, cases, case_options in (
        ("qnn-ci test-onnx", [spec, later], "--model net "),
        ("qnn-ci test-onnx", [spec], "--model net --scheme u8 --soc SM8650 "),
        ("", [spec, later], ""),
    ):
        with pytest.raises(UsageError) as caught:
            fit_all(cases, POLICY, [], command)
        last = f"{command} {case_options}--shape x=1,3,224,224".strip()
        assert caught.value.fix.splitlines()[-1].strip() == last
    np.savez(tmp_path / "free.npz", x=np.zeros((5, 2, 3, 8, 8), np.float32))
    with pytest.raises(UsageError) as caught:
        fit_all([spec], POLICY, [])
    assert caught.value.fix.endswith("--shape x=2,3,8,8")
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no")
    with pytest.raises(UsageError, match=r"^(?!models\.).*is not an ONNX model"):
        fit_all([CaseSpec(bad.name, Scheme.FP16, "SM8650", Source(str(bad)))], policy, [])


def test_files_that_qnn_cannot_take_do_not_keep_others_from_being_judged(tmp_path: Path) -> None:
    good, bad = write_relu(tmp_path / "good.onnx"), tmp_path / "bad.onnx"
    bad.write_bytes(b"no")
    relu = helper.make_node("Relu", ["x"], ["y"])
    worse = write_model(tmp_path / "worse.onnx", [relu], *ends((1, "length")))
    specs = [
        CaseSpec(path.name, Scheme.U8, "SM8650", Source(str(path))) for path in (bad, good, worse)
    ]
    terminal = io.StringIO()
    assert fit_shapes(specs, POLICY, Progress(terminal), judges=True)[0] == specs
    assert "bad.onnx is not an ONNX model" in terminal.getvalue()
    assert "worse.onnx cannot be used: QNN supports only fixed shapes" in terminal.getvalue()
    with pytest.raises(UsageError, match=r"bad\.onnx is not"):
        fit_shapes(specs, POLICY, Progress())
    with pytest.raises(UsageError, match=r"bad\.onnx is not"):
        fit_shapes([specs[0], specs[2]], POLICY, Progress(), judges=True)


def test_a_dynamic_batch_is_set_to_1_and_reported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write_model(tmp_path / "net.onnx", nodes, *ends(("n", 3)))
    source, policy = Source(str(path)), replace(POLICY, models={"net": ModelEntry(str(path))})
    specs = [CaseSpec("net", scheme, "SM8650", source) for scheme in (Scheme.FP16, Scheme.U8)]
    for chosen_policy, where in ((policy, "`shapes` in [models.net]"), (POLICY, "--shape")):
        terminal = io.StringIO()
        fitted, _ = fit_shapes(specs, chosen_policy, Progress(terminal))
        assert {spec.source.shapes for spec in fitted} == {(("x", (1, 3)),)}
        (line,) = terminal.getvalue().splitlines()
        assert line.endswith(f"net: its batch size (n) varies, so 1 is used; {where} sets another")
    with_shapes = [*fit_files(specs, {"x": (4, 3)})]
    assert fit_shapes(with_shapes, policy, Progress())[0] == with_shapes


def test_operators_that_qnn_takes_in_no_model_are_named_before_anything_is_converted(
    tmp_path: Path,
) -> None:
    x, y = ends((1, 4, 8))
    angles = [constant(name, np.zeros((1, 4, 4), np.float32)) for name in ("cos", "sin")]
    rope = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["r"], num_heads=1)
    again = helper.make_node("RotaryEmbedding", ["r", "cos", "sin"], ["s"], num_heads=1)
    heads = {"q_num_heads": 1, "kv_num_heads": 1}
    models = {
        "attention": (
            [rope, again, helper.make_node("Attention", ["s", "s", "s"], ["y"], **heads)],
            ["3 nodes will run on the CPU", "2 RotaryEmbedding, 1 Attention;"],
        ),
        "rope": ([rope, helper.make_node("Relu", ["r"], ["y"])], ["1 node will", "1 Rotary"]),
        "norm": ([helper.make_node("RMSNormalization", ["x", "w"], ["y"])], []),
        "swish": ([helper.make_node("Swish", ["x"], ["y"])], []),
        "own": ([helper.make_node("Attention", ["x"] * 3, ["y"], "n", "", "com.microsoft")], []),
    }
    for name, (nodes, texts) in models.items():
        weights = [*angles, constant("w", np.ones(8, np.float32))]
        path = write_model(tmp_path / f"{name}.onnx", nodes, x, y, weights, opset=24)
        terminal = io.StringIO()
        spec = CaseSpec("net", Scheme.U8, "SM8650", Source(str(path)))
        fit_shapes([spec], POLICY, Progress(terminal))
        shown = terminal.getvalue()
        assert all(text in shown for text in texts), shown
        assert bool(shown) == bool(texts)
        damage = inspect_file(path).damage
        assert all(text in damage for text in ("no EPContext node", *texts))
        assert ("will run on the CPU" in damage) == bool(texts)


@pytest.mark.parametrize(
    ("path", "line", "why"),
    [
        ("net.onnx", "shapes = {x = [1, 3]}", ""),
        ("net.onnx", "shapes = {x = [1, 0]}", "shapes"),
        ("net.py:make", "shapes = {x = [1, 3]}", r"only for an \.onnx file"),
        ("net.py:make", 'float_model = "net.py"', r"net\.float_model is only for an \.onnx or"),
        ("net.onnx", 'float_model = "none.onnx"', r"net\.float_model: no file"),
    ],
)
def test_keys_for_onnx_files_are_validated(tmp_path: Path, path: str, line: str, why: str) -> None:
    (tmp_path / path.partition(":")[0]).write_bytes(b"")
    policy = tmp_path / "qnn.toml"
    policy.write_text(f'extends = "default"\n[models.net]\npath = "{path}"\n{line}\n')
    if not why:
        entry = read_emulator_policy(policy, "onnx").models["net"]
        assert entry.make_source().shapes == (("x", (1, 3)),)
        return
    with pytest.raises(ManifestError, match=why):
        read_emulator_policy(policy, "onnx")


def test_a_quantized_onnx_model_becomes_one_asis_case(tmp_path: Path, quantized: Path) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    dynamic = write_model(tmp_path / "dynamic.onnx", nodes, *ends((1, 3)))
    for path in (quantized, dynamic):
        assert fit(path, Scheme.FP16, Scheme.U8, Scheme.U16A8W) == ["asis"]
    assert fit(quantized, Scheme.ASIS, Scheme.FP16) == ["asis"]  # by a glob
    with pytest.raises(UsageError, match=r"--scheme: .* is quantized already(.|\n)*asis"):
        fit(quantized, Scheme.ASIS, Scheme.FP16, chosen=True)
    with pytest.raises(UsageError, match=r"--scheme: .* is quantized already(.|\n)*asis"):
        fit(quantized, Scheme.FP16, chosen=True)
    plain = write_relu(tmp_path / "plain.onnx")
    assert fit(plain, Scheme.FP16, Scheme.U8) == ["fp16", "u8"]
    assert fit(plain, Scheme.ASIS, Scheme.U8) == ["u8"]
    with pytest.raises(UsageError, match=r"is not quantized, and asis"):
        fit(plain, Scheme.ASIS, Scheme.U8, chosen=True)
    with pytest.raises(UsageError, match="is not quantized"):
        fit(plain, Scheme.ASIS, chosen=True)


@pytest.mark.parametrize("verb", ["test-onnx", "audit"])
@pytest.mark.parametrize(("scheme", "code"), [("asis", ExitCode.USAGE), ("u8", ExitCode.OK)])
def test_a_list_refuses_a_scheme_that_no_requested_file_has(
    tmp_path: Path, verb: str, scheme: str, code: ExitCode
) -> None:
    path = write_relu(tmp_path / "plain.onnx")
    assert main([verb, "--model", str(path), "--scheme", scheme, "--list"]) == code
