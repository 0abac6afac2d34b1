"""A recurrent net: 4 steps of an LSTM cell, then a linear head. The state is both an input and an
output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ci.models.suite.seeding import Case, Inputs, make_inputs, seed_weights

STEPS, FEATURES, WIDTH = 4, 32, 48


class Recurrent(nn.Module):
    """An unrolled LSTM, because QNN 2.49.40 rejects the stack operator in the quantized graph of
    nn.LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.from_input = nn.Linear(FEATURES, 4 * WIDTH)
        self.from_hidden = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, steps: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map steps [1, 4, 32], hidden [1, 48] and cell [1, 48] to an output [1, 4, 16], the new
        hidden and the new cell."""
        projected = self.from_input(steps)
        states = []
        for step in range(STEPS):
            gates = projected[:, step] + self.from_hidden(hidden)
            keep, write, show, new = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(new)
            hidden = torch.sigmoid(show) * torch.tanh(cell)
            states.append(hidden.unsqueeze(1))
        return self.head(torch.cat(states, dim=1)), hidden, cell


def draw(generator: torch.Generator) -> Inputs:
    steps = torch.randn(1, STEPS, FEATURES, generator=generator)
    hidden = torch.tanh(torch.randn(1, WIDTH, generator=generator))
    return steps, hidden, torch.randn(1, WIDTH, generator=generator)


def make_case() -> Case:
    return (seed_weights(Recurrent(), 8, gain=1.5), *make_inputs(draw, 801))
