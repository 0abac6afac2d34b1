"""One step of a decoder: embedding, rotary embedding, a static KV cache, RMS norm, SiLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ci.models.suite.seeding import Case, Inputs, make_inputs, seed_weights

VOCABULARY, WIDTH, HEADS, CONTEXT = 96, 64, 4, 16
HEAD = WIDTH // HEADS
MASKED = -16.0


class DecoderStep(nn.Module):
    """One decoder step. Earlier keys and values are inputs, and the new ones are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm_attention, self.norm_feed, self.norm_out = (
            nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(3)
        )
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.logits = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, token: Tensor, angles: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map token int32 [1, 1]; angles [2, 1, 8] (cosines, sines); mask [1, 1, 1, CONTEXT + 1];
        keys, values [1, HEADS, CONTEXT, HEAD] to logits [1, 1, VOCABULARY], new key, new value.
        """
        cos, sin = angles[0], angles[1]
        x = self.embedding(token)
        normed = self.norm_attention(x)
        query = rotate(heads(self.query(normed)), cos, sin)
        key = rotate(heads(self.key(normed)), cos, sin)
        value = heads(self.value(normed))
        all_keys, all_values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        scores = query @ all_keys.transpose(-1, -2) * HEAD**-0.5 + mask
        mixed = torch.softmax(scores, dim=-1) @ all_values
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        normed = self.norm_feed(x)
        x = x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return self.logits(self.norm_out(x)), key, value


def heads(x: Tensor) -> Tensor:
    """Split [1, 1, WIDTH] into heads: [1, HEADS, 1, HEAD]."""
    return x.view(1, 1, HEADS, HEAD).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to [1, HEADS, 1, HEAD], with cosines and sines [1, HEAD / 2]."""
    first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def draw(generator: torch.Generator) -> Inputs:
    token = torch.randint(0, VOCABULARY, (1, 1), generator=generator, dtype=torch.int32)
    position = int(torch.randint(4, CONTEXT, (1,), generator=generator))
    angles = position / 10000 ** (torch.arange(HEAD // 2) * 2 / HEAD)
    mask = torch.zeros(1, 1, 1, CONTEXT + 1)
    mask[..., position:CONTEXT] = MASKED
    past = torch.randn(2, 1, HEADS, CONTEXT, HEAD, generator=generator)
    past[..., position:, :] = 0.0
    turns = torch.stack([angles.cos(), angles.sin()])[:, None]
    return token, turns, mask, past[0], past[1]


def make_case() -> Case:
    model = seed_weights(DecoderStep(), 6, gain=1.2)
    with torch.no_grad():
        model.get_parameter("embedding.weight").mul_(WIDTH**0.5)
    return (model, *make_inputs(draw, 601))
