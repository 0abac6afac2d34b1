"""Which exps read numbers that QNN computes wrongly in float16, of a PyTorch module and of an ONNX
file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from ci.analysis.exponents import measure_low  # noqa: E402
from ci.analysis.steps import describe_steps  # noqa: E402
from ci.graphs.onnx_program import read_onnx  # noqa: E402
from ci.graphs.onnx_reader import read_file  # noqa: E402
from ci.graphs.torch_program import read_torch  # noqa: E402
from ci.graphs.torch_reader import read_module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
FILE = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {
    s = Mul(x, x)
    n = Neg(s)
    base = Exp(n)
    r = Relu(x)
    growth = Exp(r)
    decay = Exp(x)
    a = Add(base, growth)
    y = Add(a, decay)
}"""


class Bases(nn.Module):
    """A radial basis, an exp of numbers from 0 on, and one of the input itself."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-(x * x)) + torch.exp(torch.relu(x)) + torch.exp(x)


def list_low(lane: str, samples: list[list[float]], folder: Path) -> list[bool]:
    """Return which of the three exps have the number ``low``."""
    arrays = [np.array(sample, np.float32) for sample in samples]
    program: Any
    sets: list[tuple[Any]]
    if lane == "PyTorch":
        sets = [(torch.from_numpy(array),) for array in arrays]
        steps = describe_steps(read_module(Bases(), sets[0], functional=False))
        program = read_torch(Bases(), sets[0])
    else:
        path = folder / "net.onnx"
        save(parser.parse_model(FILE), path)
        sets = [(array,) for array in arrays]
        steps = describe_steps(read_file(path))
        program = read_onnx(path, folder / "scratch.onnx")
    measured = measure_low(steps, lambda: program, sets)
    assert [step.name for step in measured] == [step.name for step in steps]
    return ["low" in step.numbers for step in measured if step.operator == "exp"]


@pytest.mark.parametrize("lane", ["PyTorch", "ONNX"])
@pytest.mark.parametrize(
    ("samples", "low"),
    [
        ([[0, 1, 2, 3]], [False, False, False]),
        ([[0, 1, 2, -9.3]], [False, False, False]),  # -86.5
        ([[0, 1, 2, 3], [0, 1, 2, 10]], [True, False, False]),
        ([[-100, 1, 2, 3]], [True, False, True]),
    ],
)
def test_an_exp_of_low_numbers_is_one_that_reads_them(
    lane: str, samples: list[list[float]], low: list[bool], tmp_path: Path
) -> None:
    assert list_low(lane, samples, tmp_path) == low
