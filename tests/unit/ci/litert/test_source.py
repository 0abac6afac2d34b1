"""The inputs of a .tflite file, and the float model of a quantized one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.cases.spec import CaseSpec
from ci.graphs.litert_file import read_model
from ci.litert.source import load_litert
from ci.litert.suite import Net, make_model, quantize
from ci.models.schemes import Scheme
from ci.models.user_models import RANDOM, Source
from provisioning.errors import UsageError
from tests.stand_ins.litert import make_compiled


def make_sum(*names: str, width: int = 4, outputs: int = 1) -> Net:
    net = Net()
    inputs = {name: net.add_tensor((2, width), name) for name in names}
    total = inputs["x"]
    for name in names:
        total = net.call("ADD", (total, inputs[name]), (2, width), "AddOptions")
    net.end([*inputs.values()], [total, inputs["x"]][:outputs])
    return net


def write_case(folder: Path, data: bytes, float_data: bytes = b"") -> CaseSpec:
    path, float_path = folder / "net.tflite", folder / "float.tflite"
    path.write_bytes(data)
    if float_data:
        float_path.write_bytes(float_data)
    source = Source(str(path), float_model=str(float_path) if float_data else "")
    return CaseSpec("net", Scheme.ASIS, "SM8650", source)


def test_all_samples_next_to_a_file_are_judged_because_nothing_is_calibrated(
    tmp_path: Path,
) -> None:
    spec = write_case(tmp_path, make_model("dense"))
    samples = np.random.default_rng(1).standard_normal((7, 4, 64)).astype(np.float32)
    assert load_litert(spec).made_inputs == RANDOM
    np.savez(tmp_path / "net.npz", x=samples)
    source = load_litert(spec)
    assert source.made_inputs == ""
    np.testing.assert_array_equal([arrays[0] for arrays in source.evaluation], samples)


QUANTIZED = quantize(make_sum("x", "y"), 8)
WRONG = {
    "a model that is not quantized": (make_sum("x").pack(), make_sum("x").pack(), "remove"),
    "a quantized float model": (QUANTIZED, QUANTIZED, "is itself quantized"),
    "another number of inputs": (QUANTIZED, make_sum("x").pack(), "its inputs are x [2, 4], but"),
    "other shapes": (QUANTIZED, make_sum("x", "y", width=5).pack(), "its inputs are x [2, 5], y"),
    "inputs in another order": (QUANTIZED, make_sum("y", "x").pack(), "its inputs are y [2, 4], x"),
    "other outputs": (QUANTIZED, make_sum("x", "y", outputs=2).pack(), "its outputs are value_"),
    "no model": (QUANTIZED, b"PK" * 9, "is not a .tflite file"),
}


UNUSABLE = {
    "an archive": (b"PK" * 9, "its content is a ZIP archive"),
    "an ONNX model": (b"\x08\x08\x12\x07pytorch", "its content is an ONNX model"),
    "a cut model": (make_model("dense")[:-400], "is outside the flatbuffer"),
    "a compiled model": (make_compiled(), "is compiled already for Qualcomm SM8650"),
    "a compiled model without its stamp": (make_compiled(stamp=b""), "is compiled already"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_file_that_cannot_be_compiled_is_refused(name: str, tmp_path: Path) -> None:
    data, message = UNUSABLE[name]
    with pytest.raises(UsageError) as raised:
        load_litert(write_case(tmp_path, data))
    assert message in f"{raised.value}"


@pytest.mark.parametrize("name", WRONG)
def test_a_float_model_that_does_not_belong_to_the_file_is_refused(
    name: str, tmp_path: Path
) -> None:
    data, float_data, message = WRONG[name]
    with pytest.raises(UsageError, match=r"^float_model: ") as raised:
        load_litert(write_case(tmp_path, data, float_data))
    assert message in f"{raised.value} {raised.value.why} {raised.value.fix}"


def test_the_float_model_of_a_quantized_file_is_taken(tmp_path: Path) -> None:
    float_data = make_sum("x", "y").pack()
    source = load_litert(write_case(tmp_path, QUANTIZED, float_data))
    assert read_model(source.float_data).version == 3
    assert source.digest != load_litert(write_case(tmp_path, QUANTIZED)).digest
