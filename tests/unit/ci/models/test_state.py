"""The state that a model keeps in buffers, and whether what a tool made of it still reads it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from ci.models.eager import find_changed, find_frozen  # noqa: E402

X = (torch.randn(2, 4),)


class Counter(nn.Module):
    """Counts its calls in ``count``, and writes ``unread``, which nothing reads."""

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("unread", torch.zeros(2))
        self.register_buffer("weight", torch.full((4,), float("nan")))
        self.reads = reads

    def forward(self, x: Tensor) -> Any:
        y = x + self.count if self.reads else x + 0.0
        self.count.add_(1)
        self.unread.copy_(x[:, 0])
        return y


def test_the_buffers_that_a_call_changes_are_found_and_the_state_stays() -> None:
    counter = Counter()
    assert {*find_changed(counter, X)} == {"count", "unread"}
    assert float(counter.count) == 0
    assert find_changed(nn.Linear(4, 4), X) == {}


class Copied(Counter):
    """Reads the buffer, and writes the next count to a copy."""

    def forward(self, x: Tensor) -> Any:
        y = x + self.count
        (self.count * 1.0).add_(1)
        return y


class Rounded(Counter):
    """Rounds the next count, as a quantized model does."""

    def forward(self, x: Tensor) -> Any:
        y = x + self.count
        self.count.copy_(self.count + 0.8)
        return y


@pytest.mark.parametrize(
    ("module", "frozen"),
    [
        (Counter(), ()),
        (Counter(reads=False), ("count",)),  # no output depends on ``unread``, in neither
        (Copied(), ("count",)),
        (Rounded(), ()),
        (nn.Identity(), ()),  # a tool that keeps no buffers is judged by its outputs alone
    ],
)
def test_a_buffer_is_frozen_if_outputs_depend_on_it_in_the_model_alone(
    module: nn.Module, frozen: tuple[str, ...]
) -> None:
    model = Counter()
    assert find_frozen(model, module, X) == frozen
    assert float(model.count) == 0
