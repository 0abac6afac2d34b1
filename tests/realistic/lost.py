"""The smallest models that lose accuracy for the reasons that docs/findings/faults.md gives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.realistic.vision import Made, vary


class Twice(nn.Module):
    """A layer that is called with inputs of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.layer(3 * y)


def twice() -> Made:
    return vary(Twice(), (1, 16), (1, 16))


def norm() -> Made:
    """A BatchNorm that no convolution absorbs."""
    module, example, sets = vary(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8)), (1, 8, 16, 16))
    with torch.no_grad():
        module.get_buffer("1.running_mean").uniform_(0, 1)
        module.get_buffer("1.running_var").uniform_(0.1, 2)
        module.get_parameter("1.weight").uniform_(0.5, 2)
    return module, example, sets


class Positions(nn.Module):
    """A batch to which a constant without a batch is added, before a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(24, 64, generator=torch.Generator()))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x + self.positions)
        return normed


def positions() -> Made:
    return vary(Positions(), (2, 24, 64))


class Expanded(Positions):
    """The same with a position for each row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(self.positions.expand(2, -1, -1).clone())


def expanded() -> Made:
    return vary(Expanded(), (2, 24, 64))
