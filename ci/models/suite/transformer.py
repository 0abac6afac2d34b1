"""A transformer encoder block: [1, 16, 64] -> [1, 16, 64]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ci.models.suite.seeding import Case, draw_normal, make_inputs, seed_weights

WIDTH, HEADS = 64, 4


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(2 * WIDTH, WIDTH)
        )

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map x [1, 16, 64] to the same shape."""
        x = x + self.attend(self.norm_attention(x))
        return x + self.feed(self.norm_feed(x))


def make_case() -> Case:
    return (seed_weights(Encoder(), 5, gain=1.2), *make_inputs(draw_normal(1, 16, WIDTH), 501))
