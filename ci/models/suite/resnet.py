"""Two residual blocks with batch norm: [1, 3, 32, 32] -> [1, 10]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ci.models.suite.seeding import Case, Inputs, make_inputs, seed_weights


class Residual(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = nn.Conv2d(width, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Map an image [1, 3, 32, 32] to logits [1, 10]."""
        x = self.blocks(torch.relu(self.stem(image)))
        return self.head(x.mean(dim=(2, 3)))


def draw(generator: torch.Generator) -> Inputs:
    # A random tint, because images that differ only in noise would have the same pooled features.
    tint = torch.randn(1, 3, 1, 1, generator=generator)
    return (torch.randn(1, 3, 32, 32, generator=generator) * 0.7 + tint,)


def make_case() -> Case:
    return (seed_weights(ResNet(), 2, gain=1.4), *make_inputs(draw, 201))
