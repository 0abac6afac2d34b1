"""Layers published in 2024 to 2026 that gate, scan and decode, red in some scheme; truths.toml says
why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.realistic.blocks import Block
from tests.realistic.vision import Inputs, Made

SETS = 8
BELOW = torch.ones(16, 16).tril()
Draw = Callable[[], Tensor]


def draw(*shape: int) -> Draw:
    return lambda: torch.randn(shape)


def make(function: Callable[..., Any], parts: dict[str, Any], *draws: Draw) -> Made:
    """The block with weights that gain a little over the scale of a signal, and sets of inputs."""
    block = Block(function, parts)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in block.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 1.3 / weight[0].numel() ** 0.5)
            elif "bias" in name:
                weight.uniform_(-0.2, 0.2)
    sets: list[Inputs] = [tuple(drawn() for drawn in draws) for _ in range(SETS)]
    return block.eval(), sets[0], sets[1:]


def attend_to_media(block: Any, x: Tensor, vision: Tensor, places: Tensor) -> Tensor:
    query = block.query(block.norm(x)).unflatten(-1, (4, 16)).transpose(1, 2)
    key, value = (
        part.unflatten(-1, (4, 16)).transpose(1, 2) for part in block.media(vision).chunk(2, -1)
    )
    numbers = places.cumsum(1)
    is_own = numbers.unsqueeze(-1) == block.numbers
    scores = torch.matmul(query, key.transpose(-1, -2)) / 4
    scores = scores.masked_fill(~is_own.unsqueeze(1), torch.finfo(scores.dtype).min)
    weights = (scores - scores.amax(-1, keepdim=True)).softmax(-1)
    is_before = (numbers == 0).unsqueeze(1).unsqueeze(-1)
    read = torch.matmul(weights.masked_fill(is_before, 0.0), value)
    return x + block.gate.tanh() * block.out(read.transpose(1, 2).flatten(2))


def draw_places() -> Tensor:
    """Where pictures stand among 12 tokens: three ones in [1, 12]."""
    places = torch.zeros(1, 12)
    places[0, torch.randperm(11)[:3]] = 1
    return places


def flamingo() -> Made:
    """Cross-attention of [1, 12, 64] to the last picture before each token, behind a gate."""
    parts = {
        "norm": nn.LayerNorm(64),
        "query": nn.Linear(64, 64),
        "media": nn.Linear(64, 128),
        "out": nn.Linear(64, 64),
        "gate": nn.Parameter(torch.tensor([0.6])),
        "numbers": torch.arange(3).repeat_interleave(4) + 1,
    }
    return make(attend_to_media, parts, draw(1, 12, 64), draw(1, 12, 64), draw_places)


def label_frames(block: Any, x: Tensor) -> Tensor:
    x = functional.gelu(block.stem(x))
    x = x + block.mix(functional.silu(block.norm(block.spread(x))))
    return functional.log_softmax(block.head(block.last(x.transpose(1, 2))) * 3, -1)


def ctc() -> Made:
    """The log-probabilities of 30 characters in 24 frames, far apart as those of a trained head."""
    parts = {
        "stem": nn.Conv1d(40, 64, 3, 2, 1),
        "spread": nn.Conv1d(64, 64, 9, padding=4, groups=64),
        "norm": nn.BatchNorm1d(64),
        "mix": nn.Conv1d(64, 64, 1),
        "last": nn.LayerNorm(64),
        "head": nn.Linear(64, 30),
    }
    return make(label_frames, parts, draw(1, 40, 48))


def scan_logarithms(block: Any, x: Tensor) -> Tensor:
    gate, hidden = block.gate(x), block.hidden(x)
    kept = (-functional.softplus(gate)).cumsum(1)
    positive = (functional.relu(hidden) + 0.5).log()
    new = torch.where(hidden >= 0, positive, -functional.softplus(-hidden))
    exponents = new - functional.softplus(-gate) - kept
    return block.out((exponents.exp().cumsum(1).log() + kept).exp())


def min_gru() -> Made:
    """A minimal GRU of 12 steps in logarithmic space: sums of exponentials up to 1e8."""
    parts = {"gate": nn.Linear(32, 48), "hidden": nn.Linear(32, 48), "out": nn.Linear(48, 32)}
    return make(scan_logarithms, parts, draw(1, 12, 32))


def scan_states(block: Any, x: Tensor) -> Tensor:
    mixed, steps = block.parts(x).split([128, 4], -1)
    mixed = functional.silu(block.conv(mixed.transpose(1, 2))[..., :16]).transpose(1, 2)
    value, write, read = mixed.split([96, 16, 16], -1)
    steps = functional.softplus(steps + block.steps)
    sums = torch.matmul(block.below, -block.rates.exp() * steps).transpose(1, 2)
    decay = (sums.unsqueeze(-1) - sums.unsqueeze(-2) + block.mask).exp()
    scores = torch.matmul(read, write.transpose(1, 2)).unsqueeze(1) * decay
    heads = value.unflatten(-1, (4, 24)).transpose(1, 2)
    scanned = torch.matmul(scores, heads * steps.transpose(1, 2).unsqueeze(-1)) + heads
    return block.out(block.norm(scanned.transpose(1, 2).flatten(2)))


def state_space() -> Made:
    """A block of Mamba-2 in its quadratic form, [1, 16, 48]: a mask before an exp."""
    parts = {
        "parts": nn.Linear(48, 132),
        "conv": nn.Conv1d(128, 128, 4, padding=3, groups=128),
        "steps": nn.Parameter(torch.tensor([-4.0, -3.0, -2.0, -1.0])),
        "rates": nn.Parameter(torch.tensor([0.0, 0.5, 1.0, 1.5])),
        "norm": nn.RMSNorm(96),
        "out": nn.Linear(96, 48),
        "below": BELOW,
        "mask": torch.full((16, 16), -1e4).triu(1),
    }
    return make(scan_states, parts, draw(1, 16, 48))
