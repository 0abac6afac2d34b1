"""Which exps read numbers that QNN computes wrongly in float16, of a PyTorch module and of an ONNX
file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from ci.executorch.graph_reader import describe_module, measure_module  # noqa: E402
from ci.mend import call_rewritten  # noqa: E402
from ci.onnx.compile import measure_file  # noqa: E402

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
    if lane == "PyTorch":
        steps = measure_module(Bases(), [(torch.from_numpy(array),) for array in arrays])
    else:
        path = folder / "net.onnx"
        save(parser.parse_model(FILE), path)
        steps = measure_file(path, folder / "scratch.onnx", [(array,) for array in arrays])
    return ["low" in step.numbers for step in steps if step.operator == "exp"]


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


class Chosen(nn.Module):
    """An exp of a part of its input that the second input chooses."""

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return torch.exp(x[places])


def test_an_exp_that_cannot_be_computed_may_read_low_numbers() -> None:
    x, places = torch.ones(3), torch.tensor([1, 2])
    sets = [(x, places), (x, places + 9)]  # beyond the elements
    assert measure_module(Chosen(), sets) == describe_module(Chosen(), sets[0])
    assert ["low" in step.numbers for step in measure_module(Chosen(), sets)][-1]
    assert not ["low" in step.numbers for step in measure_module(Chosen(), sets[:1])][-1]


SOFTPLUS = """from torch import nn, ones
def factory():
    return nn.Softplus().eval(), (ones(4),)
"""


def test_an_exp_that_a_rewrite_wrote_has_another_name_in_a_new_trace(tmp_path: Path) -> None:
    """mend writes softplus with an exp of -|x|, and its model was green with a warning."""
    (tmp_path / "net.py").write_text(SOFTPLUS)
    net, _ = call_rewritten(f"{tmp_path / 'net.py'}:factory", ["softplus-by-series"])
    for least, is_low in ((-80.0, False), (-100.0, True)):
        steps = measure_module(net, [(torch.tensor([0.0, 1.0, 2.0, least]),)])
        assert ["low" in step.numbers for step in steps if step.operator == "exp"] == [is_low]
