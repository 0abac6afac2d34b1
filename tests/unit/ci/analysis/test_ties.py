"""Which indices and booleans small errors may change, of a PyTorch module and of an ONNX file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from ci.analysis.ties import find_ties  # noqa: E402
from ci.graphs.onnx_program import read_onnx  # noqa: E402
from ci.graphs.torch_program import TorchProgram  # noqa: E402
from provisioning.errors import FailedError  # noqa: E402

NETWORK = """<ir_version: 8, opset_import: ["" : 21]>
g (float[1, 5] x) => (float[1, 5] logits, int64[1] index, bool[1, 5] above) {
    one = Constant<value_float = 1.0>()
    logits = Mul(x, one)
    index = ArgMax<axis = 1, keepdims = 0>(logits)
    above = Greater(logits, one)
}"""


class Choices(nn.Module):
    def forward(self, x: Tensor) -> Any:
        logits = x * 1.0
        return logits, logits.argmax(1), logits > 1.0


@pytest.mark.parametrize("lane", ["PyTorch", "ONNX"])
@pytest.mark.parametrize(
    ("bits", "gap", "tied"),
    [(8, 0.02, True), (8, 1.0, False), (16, 0.02, True), (16, 0.1, False), (0, 0.1, False)],
)
def test_an_argmax_is_a_tie_if_its_operands_differ_by_little(
    tmp_path: Path, lane: str, bits: int, gap: float, tied: bool
) -> None:
    logits = np.array([[0.0, 1.0, 1.0 - gap, -1.0, -2.0]], np.float32)
    right = [(logits, np.array([1]), logits > 1)]
    program: Any = TorchProgram(Choices(), {"forward": Choices()})
    sets: Any = [(torch.from_numpy(logits),)]
    if bits == 0:  # the graph shows that nothing is quantized to 8 bits
        program = TorchProgram(
            Choices(), {"forward": torch.export.export(Choices(), *sets).module()}
        )
    if lane == "ONNX":
        path = tmp_path / "network.onnx"
        save(parser.parse_model(NETWORK), path)
        program, sets = read_onnx(path, tmp_path / "scratch.onnx"), [(logits,)]
    low, high = find_ties(program, sets, right, bits)
    assert np.array_equal(low[0][0], logits)
    assert (low[0][1].tolist(), high[0][1].tolist()) == ([1], [2 if tied else 1])
    assert low[0][2].dtype == bool
    assert not high[0][2][0, [0, 3, 4]].any()
    if lane == "ONNX":
        assert high[0][2][0, 1]  # it equals the bound


def test_an_output_whose_shape_small_errors_change_is_no_bug_of_ours() -> None:
    numbers = np.array([1.0, 2.0, 3.0])
    shaken = SimpleNamespace(run=lambda _: [[np.array([0, 2])]])
    program: Any = SimpleNamespace(shake_choices=lambda _: shaken)
    with pytest.raises(FailedError, match="the shape of output 0 depends on the data"):
        find_ties(program, [numbers], [(np.array([0, 1, 2]),)], 8)
