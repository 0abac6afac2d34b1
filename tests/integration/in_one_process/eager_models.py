"""Where noise decides what an eager model gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

from ci.analysis import ties  # noqa: E402
from ci.graphs.torch_program import TorchProgram  # noqa: E402
from ci.models.eager import run_eager  # noqa: E402
from ci.models.schemes import Scheme  # noqa: E402


class Net(torch.nn.Module):
    """Any function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def find_ties(module: Any, sets: Any, scheme: Scheme, outputs: Any) -> Any:
    program = TorchProgram(module, {"forward": module})
    return ties.find_ties(program, sets, outputs, scheme.recipe.activation_bits)


def bounds(function: Callable[..., Any], *inputs: Any, scheme: Scheme = Scheme.A8W8) -> Any:
    """The only output's least and greatest value for one sample."""
    outputs = run_eager(Net(function), [inputs])
    low, high = find_ties(Net(function), [inputs], scheme, outputs)
    return low[0][0].tolist(), high[0][0].tolist()


def test_a_near_tie_of_an_argmax_may_go_either_way_and_a_clear_winner_may_not() -> None:
    x = torch.tensor([[1.0, 1.05, -1.0, 0.0], [1.0, 2.0, -1.0, 0.0]])
    assert bounds(lambda x: x.argmax(-1), x) == ([0, 1], [1, 1])
    assert bounds(lambda x: x.argmax(-1), x, scheme=Scheme.A16W8) == ([1, 1], [1, 1])


def test_a_comparison_is_a_tie_only_near_its_threshold() -> None:
    x = torch.tensor([0.45, 0.55, -1.0, 2.0])
    low, high = bounds(lambda x: x > 0.5, x)
    assert low == [False, False, False, True]
    assert high == [True, True, False, True]
    chain = bounds(lambda x: torch.where(x > 0.5, 7, 3) * 2, x)
    assert chain == ([6, 6, 6, 14], [14, 14, 6, 14])


def test_a_float_output_that_a_tie_decides_gets_no_bounds() -> None:
    x = torch.tensor([0.45, 0.55, -1.0, 2.0])
    low, high = bounds(lambda x: torch.where(x > 0.5, 1.0, 0.0), x)
    assert low == high == [0.0, 1.0, 0.0, 1.0]


def test_zeros_integers_and_constants_cause_no_ties() -> None:
    mask = torch.tensor([0.0, 1.0, 0.0])
    assert bounds(lambda x: x > 0, mask) == ([False, True, False], [False, True, False])
    tokens = torch.tensor([0, 5, 3])
    assert bounds(lambda x: x > 2, tokens) == ([False, True, True], [False, True, True])
    threshold = torch.tensor(0.99)  # a number is as exact in a tensor
    assert bounds(lambda x: x > threshold, torch.tensor([1.15])) == ([True], [True])


def test_a_float_converted_to_integers_gets_a_range() -> None:
    low, high = bounds(lambda x: (x * 100).round().to(torch.int64), torch.tensor([0.5, 1.0]))
    assert low[0] < 50 < high[0]
    assert low[1] < 100 < high[1]
    wide = (0.5**2 / 2 + 1 / 2) ** 0.5 * 10  # a tenth of the RMS, in hundredths
    assert all(
        abs(bound - mid) <= wide + 1
        for row in (low, high)
        for bound, mid in zip(row, (50, 100), strict=True)
    )


def test_float_outputs_get_no_bounds_and_the_state_is_restored() -> None:
    class Count(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            return x * self.seen, x.argmax(-1)

    module, sets = Count(), [(torch.tensor([1.0, 1.01]),)] * 3
    outputs = run_eager(module, sets)
    module.seen.zero_()
    low, high = find_ties(module, sets, Scheme.A8W8, outputs)
    assert module.seen.item() == 0
    assert low[2][0].tolist() == outputs[2][0].tolist()
    assert (low[2][1].item(), high[2][1].item()) == (0, 1)
