"""Which values leave their calibrated ranges, of a PyTorch module and of an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402

from ci.analysis.clipping import find_clipped  # noqa: E402
from ci.graphs.onnx_program import read_onnx  # noqa: E402
from ci.graphs.torch_program import read_torch  # noqa: E402
from tests.build.exports import export_graph  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
OPS: Any = torch.ops.quantized_decomposed
LIMITS = (0.1, 128, 0, 255, torch.uint8)  # from -12.8 to 12.7
UNSIGNED = (0.1, 0, 0, 255, torch.uint8)  # from 0 to 25.5
FILE = """<ir_version: 8, opset_import: ["" : 21]> g (float[4, 16] values) => (float[a, b] y) {
    step = Constant<value_float = 0.1>()
    middle = Constant<value: tensor = uint8 middle {128}>()
    bottom = Constant<value: tensor = uint8 bottom {0}>()
    levels = QuantizeLinear(values, step, middle)
    rounded = DequantizeLinear(levels, step, middle)
    sum = Add(rounded, rounded)
    sum_levels = QuantizeLinear(sum, step, SECOND)
    y = DequantizeLinear(sum_levels, step, SECOND)
}"""
RELU = """<ir_version: 8, opset_import: ["" : 21]> g (float[4, 16] values) => (float[a, b] sum) {
    sum_of_two = Add(values, values)
    sum = Relu(sum_of_two)
}"""


class Doubled(nn.Module):
    """Adds a value to itself. The input and the sum are quantized."""

    def __init__(self, limits: Any) -> None:
        super().__init__()
        self.limits = limits

    def forward(self, values: Tensor) -> Any:
        rounded = OPS.dequantize_per_tensor(OPS.quantize_per_tensor(values, *LIMITS), *LIMITS)
        levels = OPS.quantize_per_tensor(rounded + rounded, *self.limits)
        return OPS.dequantize_per_tensor(levels, *self.limits)


def make_program(lane: str, folder: Path, sample: Any, *, unsigned: bool) -> Any:
    if lane == "PyTorch":
        graph = export_graph(Doubled(UNSIGNED if unsigned else LIMITS), sample)
        return read_torch(graph, sample)
    text = FILE.replace("SECOND", "bottom" if unsigned else "middle")
    save(parser.parse_model(text), folder / "network.onnx")
    save(parser.parse_model(RELU), folder / "float.onnx")
    is_limited = lane == "ONNX, with a Relu that the quantizer removed"
    float_model = folder / "float.onnx" if is_limited else None
    return read_onnx(folder / "network.onnx", folder / "scratch.onnx", float_model)


@pytest.mark.parametrize(
    ("lane", "unsigned", "factor", "clipped"),
    [
        ("PyTorch", False, 1, []),
        ("ONNX", False, 1, []),
        ("PyTorch", False, 10, [("input 'values'", True), ("the result of add", False)]),
        ("ONNX", False, 10, [("input 'values'", True), ("the result of Add 'sum'", False)]),
        ("PyTorch", True, 1, [("the result of add", False)]),
        ("ONNX", True, 1, [("the result of Add 'sum'", False)]),
        ("ONNX, with a Relu that the quantizer removed", True, 1, []),
    ],
)
def test_values_outside_their_calibrated_range_are_found(
    tmp_path: Path, lane: str, unsigned: bool, factor: int, clipped: list[Any]
) -> None:
    values = np.random.default_rng(0).uniform(-5, 5, (4, 16)).astype(np.float32)
    values[0, :2] = -5, 5
    sets: Any = [(values,), (factor * values,)]
    if lane == "PyTorch":
        sets = [(torch.from_numpy(array),) for (array,) in sets]
    program = make_program(lane, tmp_path, sets[0], unsigned=unsigned)
    tensors = find_clipped(program, sets)
    assert [(tensor.name.partition(" [")[0], tensor.is_input) for tensor in tensors] == clipped
    for tensor in tensors:
        if tensor.is_input:
            assert (tensor.low, tensor.high) == pytest.approx((-12.8, 12.7))
            assert tensor.seen_high == 5 * factor


class Emptied(nn.Module):
    """Quantizes the first 0 rows of a value, too, next to all of them."""

    def forward(self, values: Tensor) -> Any:
        parts = []
        for part in (values[:0], values):
            levels = OPS.quantize_per_tensor(part, *LIMITS)
            parts.append(OPS.dequantize_per_tensor(levels, *LIMITS))
        return parts


def test_a_value_without_elements_has_no_range() -> None:
    sample = (torch.full((4, 16), 50.0),)
    program = read_torch(export_graph(Emptied(), sample), sample)
    assert [tensor.name for tensor in find_clipped(program, [sample])] == ["input 'values'"]
