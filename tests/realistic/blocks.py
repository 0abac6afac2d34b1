"""Blocks of networks of 2024 to 2026 that are red in some scheme; truths.toml says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.realistic.vision import Inputs, Made, draw_image

SETS = 10


class Block(nn.Module):
    """A function of inputs, and of ``parts``: modules, parameters and buffers."""

    def __init__(self, function: Callable[..., Any], parts: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def build(
    function: Callable[..., Any], *shapes: tuple[int, ...], parts: Callable[[], dict[str, Any]]
) -> Made:
    """The block with the weights that torch gives its parts, and sets of smooth images."""
    torch.manual_seed(0)
    block = Block(function, parts()).eval()
    sets: list[Inputs] = [tuple(map(draw_image, shapes)) for _ in range(SETS)]
    return block, sets[0], sets[1:]


def find_peaks(block: Any, x: Tensor) -> Tensor:
    heat = torch.sigmoid(block.heat(functional.relu(block.stem(x))) * 3)
    return heat * (functional.max_pool2d(heat, 3, 1, 1) == heat).float()


def peaks() -> Made:
    """The peaks of a heat map, as CenterNet finds them: an equality decides."""
    return build(
        find_peaks,
        (1, 8, 24, 24),
        parts=lambda: {"stem": nn.Conv2d(8, 24, 3, padding=1), "heat": nn.Conv2d(24, 5, 1)},
    )


def select_queries(block: Any, x: Tensor) -> Tensor:
    places = block.scores(x).amax(-1).topk(12, dim=1).indices
    best = x.gather(1, places.unsqueeze(-1).expand(-1, -1, 32))
    return torch.sigmoid(block.boxes(best))


def queries() -> Made:
    """The queries with the best scores, as RT-DETR selects them."""
    return build(
        select_queries,
        (1, 96, 32),
        parts=lambda: {"scores": nn.Linear(32, 20), "boxes": nn.Linear(32, 4)},
    )


def quantize_twice(block: Any, x: Tensor) -> Tensor:
    codes = []
    for book in (block.first, block.second):
        distances = x.pow(2).sum(-1, keepdim=True) - 2 * x @ book.weight.t()
        codes.append(book((distances + book.weight.pow(2).sum(-1)).argmin(-1)))
        x = x - codes[-1]
    return codes[0] + codes[1]


def residual_quantizer() -> Made:
    """A residual vector quantizer of an audio codec."""
    return build(
        quantize_twice,
        (1, 20, 16),
        parts=lambda: {"first": nn.Embedding(32, 16), "second": nn.Embedding(32, 16)},
    )


def route(block: Any, x: Tensor) -> Tensor:
    scores = torch.sigmoid(block.router(x))
    second_score = (scores + block.bias).topk(2, -1).values[..., -1:]
    weights = torch.where(scores + block.bias >= second_score, scores, torch.zeros_like(scores))
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5
    values = block.up(x).view(1, 12, 6, 16) * weights.unsqueeze(-1)
    result: Tensor = block.down(values.flatten(2))
    return result


def sigmoid_router() -> Made:
    """Experts whose router has a sigmoid, and a bias that only selects, as DeepSeek V3 has it."""
    return build(
        route,
        (1, 12, 24),
        parts=lambda: {
            "router": nn.Linear(24, 6),
            "bias": nn.Parameter(torch.randn(6) * 0.1),
            "up": nn.Linear(24, 96),
            "down": nn.Linear(96, 24),
        },
    )


def step_of_mamba(block: Any, x: Tensor) -> Tensor:
    step = functional.softplus(block.step(x))
    result: Tensor = block.out(torch.exp(step * -torch.exp(block.decay)) * x)
    return result


def mamba_step() -> Made:
    """The step of a state space model."""
    return build(
        step_of_mamba,
        (1, 8, 24),
        parts=lambda: {
            "step": nn.Linear(24, 24),
            "decay": nn.Parameter(torch.log(torch.arange(1.0, 25.0))),
            "out": nn.Linear(24, 16),
        },
    )


def modulate(block: Any, x: Tensor, condition: Tensor) -> Tensor:
    shift, scale = block.condition(functional.silu(condition)).unsqueeze(1).chunk(2, -1)
    normed = functional.layer_norm(x, (32,), eps=1e-6) * (1 + scale) + shift
    result: Tensor = block.out(normed)
    return result


def diffusion_norm() -> Made:
    """A norm without weights that a condition modulates, as in a diffusion transformer."""
    return build(
        modulate,
        (1, 16, 32),
        (1, 32),
        parts=lambda: {"condition": nn.Linear(32, 64), "out": nn.Linear(32, 32)},
    )


def attend_in_groups(block: Any, x: Tensor) -> Tensor:
    queries = block.queries(x).view(1, 12, 4, 16).transpose(1, 2)
    keys = block.keys(x).view(1, 12, 2, 16).transpose(1, 2).repeat_interleave(2, 1)
    values = block.values(x).view(1, 12, 2, 16).transpose(1, 2).repeat_interleave(2, 1)
    scores = queries @ keys.transpose(-1, -2) / 4 + block.mask
    result: Tensor = (scores.softmax(-1) @ values).transpose(1, 2).reshape(1, 12, 64)
    return result


def grouped_attention() -> Made:
    """Attention of four heads with two keys, and a mask of minus infinity."""
    return build(
        attend_in_groups,
        (1, 12, 32),
        parts=lambda: {
            "queries": nn.Linear(32, 64),
            "keys": nn.Linear(32, 32),
            "values": nn.Linear(32, 32),
            "mask": torch.full((12, 12), float("-inf")).triu(1),
        },
    )


def compare_boxes(block: Any, x: Tensor) -> Tensor:
    boxes = torch.sigmoid(block.boxes(x)) * 300
    first, last = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    begins = torch.maximum(first[:, :, None], first[:, None])
    ends = torch.minimum(last[:, :, None], last[:, None])
    shared_sides = (ends - begins).clamp(min=0)
    shared = shared_sides[..., 0] * shared_sides[..., 1]
    areas = boxes[..., 2] * boxes[..., 3]
    return shared / (areas[:, :, None] + areas[:, None] - shared + 1e-7)


def overlaps() -> Made:
    """The overlaps of boxes in pixels, whose areas float16 does not hold."""
    return build(compare_boxes, (1, 20, 24), parts=lambda: {"boxes": nn.Linear(24, 4)})


def run_cell(block: Any, x: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
    for step in range(3):
        gates = block.gates(torch.cat([x[:, step], hidden], -1))
        enters, new, stays, leaves = gates.chunk(4, -1)
        state = torch.sigmoid(stays + 1) * state + torch.sigmoid(enters) * torch.tanh(new)
        hidden = torch.sigmoid(leaves) * torch.tanh(state)
    return state


def cell() -> Made:
    """Three steps of an LSTM, written out with one layer."""
    return build(run_cell, (2, 3, 16), (2, 24), (2, 24), parts=lambda: {"gates": nn.Linear(40, 96)})
