"""A multi-layer perceptron: 3 linear layers, [4, 64] -> [4, 16]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ci.lowering.suite.seeding import Case, Inputs, make_inputs, seed_weights


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16)
        )

    def forward(self, features: Tensor) -> Tensor:
        """features [4, 64] -> logits [4, 16]."""
        logits: Tensor = self.layers(features)
        return logits


def draw(generator: torch.Generator) -> Inputs:
    return (torch.randn(4, 64, generator=generator),)


def make_case() -> Case:
    return (seed_weights(Mlp(), 1, gain=1.4), *make_inputs(draw, 101))
