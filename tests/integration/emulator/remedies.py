"""Models that a rule of errors.toml explains, and the same models with the rule's remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Model = tuple[nn.Module, tuple[Tensor, ...], list[tuple[Tensor, ...]]]


class Net(nn.Module):
    """A linear layer, ``compute``, and a linear layer if the result is [..., 32]."""

    def __init__(self, compute: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 16)
        self.parts = nn.ModuleDict(parts)
        self.compute = compute

    def forward(self, *inputs: Tensor) -> Any:
        hidden = self.compute(self.parts, self.first(inputs[0]), *inputs[1:])
        return self.last(hidden) if hidden.shape[-1:] == (32,) else hidden


def make(
    compute: Callable[..., Any], *shapes: tuple[int, ...], **parts: Callable[[], nn.Module]
) -> Model:
    torch.manual_seed(0)
    net = Net(compute, **{name: make_part() for name, make_part in parts.items()}).eval()

    def draw() -> tuple[Tensor, ...]:
        return tuple(torch.randn(shape) for shape in shapes)

    return net, draw(), [draw() for _ in range(8)]


ROWS, OTHER = (1, 8, 32), (1, 10, 32)


class Heads(nn.Module):
    """Attention with separate projections."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in "qkvo")

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        def split(tokens: Tensor) -> Tensor:
            return tokens.view(1, -1, 4, 8).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(y)), split(self.v(y))
        attended = functional.scaled_dot_product_attention(q, k, v, mask, **options)
        return self.o(attended.transpose(1, 2).reshape(1, -1, 32))


def joint() -> nn.Module:
    return nn.MultiheadAttention(32, 4, batch_first=True)


def split_weight_before() -> Model:
    return make(lambda p, x, y: p["a"](x, y, y, need_weights=False)[0], ROWS, OTHER, a=joint)


def split_weight_after() -> Model:
    return make(lambda p, x, y: p["a"](x, y), ROWS, OTHER, a=Heads)


def fast_path(*, on: bool) -> Model:
    torch.backends.mha.set_fastpath_enabled(on)
    return make(
        lambda p, x: p["a"](x),
        ROWS,
        a=lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    )


def fast_path_before() -> Model:
    return fast_path(on=True)


def fast_path_after() -> Model:
    return fast_path(on=False)


def rank_before() -> Model:
    return make(
        lambda _, x: x.view(1, 2, 4, 2, 4, 4).permute(0, 3, 1, 2, 4, 5).reshape(1, 8, 32), ROWS
    )


def rank_after() -> Model:
    return make(lambda _, x: x.view(8, 2, 16).permute(1, 0, 2).reshape(1, 8, 32), ROWS)


def recurrent_before() -> Model:
    return make(lambda p, x: p["a"](x)[0], ROWS, a=lambda: nn.GRU(32, 32, batch_first=True))


class Cell(nn.Module):
    """A GRU of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.own = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        keep, read = self.gates(torch.cat([x, h], -1)).sigmoid().chunk(2, -1)
        new = self.own(torch.cat([x, read * h], -1)).tanh()
        return keep * h + (1 - keep) * new


def run_cell(p: Any, x: Tensor, h: Tensor) -> Tensor:
    rows = []
    for step in range(4):
        h = p["a"](x[:, step], h)
        rows.append(h)
    return torch.stack(rows, 1)


def recurrent_after() -> Model:
    return make(run_cell, (1, 4, 32), (1, 32), a=Cell)


def cell_before() -> Model:
    return make(run_cell, (1, 4, 32), (1, 32), a=lambda: nn.GRUCell(32, 32))


def cell_after() -> Model:
    return recurrent_after()


def repeat_before() -> Model:
    return make(lambda _, x: x.view(1, 8, 4, 8).repeat_interleave(2, 2).reshape(1, 16, 32), ROWS)


def repeat_after() -> Model:
    def compute(_: Any, x: Tensor) -> Tensor:
        return x.view(1, 8, 4, 1, 8).expand(1, 8, 4, 2, 8).reshape(1, 16, 32)

    return make(compute, ROWS)


def causal_before() -> Model:
    return make(lambda p, x: p["a"](x, x, is_causal=True), ROWS, a=Heads)


class Masked(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((8, 8), -30.0), 1))

    def forward(self, x: Tensor, y: Tensor, *_: Any, **__: Any) -> Tensor:
        return super().forward(x, y, self.mask)


def causal_after() -> Model:
    return make(lambda p, x: p["a"](x, x), ROWS, a=Masked)


def norm_before() -> Model:
    return make(lambda p, x: p["a"](x), ROWS, a=lambda: nn.LayerNorm([8, 32]))


def norm_after() -> Model:
    return make(
        lambda p, x: p["a"](x.flatten(1)).view(1, 8, 32), ROWS, a=lambda: nn.LayerNorm(8 * 32)
    )


def pool_before() -> Model:
    return make(lambda _, x: functional.max_pool2d(x.view(1, 1, 8, 32), 2), ROWS)


def pool_after() -> Model:
    return make(lambda _, x: functional.max_pool2d(x.view(1, 1, 8, 32), 2, 2), ROWS)


def branch_before() -> Model:
    return make(lambda _, x: x.relu() if x.sum() > 0 else x.tanh(), ROWS)


def branch_after() -> Model:
    return make(lambda _, x: torch.where(x.sum((1, 2), keepdim=True) > 0, x.relu(), x.tanh()), ROWS)


def indices_before() -> Model:
    return make(lambda _, x: torch.topk(x, 4)[1], ROWS)


def indices_after() -> Model:
    return make(lambda _, x: torch.topk(x, 4)[1].to(torch.int32), ROWS)


def maximum_before() -> Model:
    return make(lambda _, x: x.max(1).values, ROWS)


def maximum_after() -> Model:
    return make(lambda _, x: x.amax(1), ROWS)


def erf_before() -> Model:
    return make(lambda _, x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), ROWS)


def erf_after() -> Model:
    return make(lambda _, x: functional.gelu(x), ROWS)


def softplus_before() -> Model:
    return make(lambda _, x: functional.softplus(x), ROWS)


def softplus_after() -> Model:
    return make(lambda _, x: x.relu() + torch.log1p(torch.exp(-x.abs())), ROWS)


def halved_before() -> Model:
    net, example, samples = halved_after()
    return net.half(), tuple(x.half() for x in example), [(x.half(),) for (x,) in samples]


def halved_after() -> Model:
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    return make(lambda p, x: p["a"](x.view(1, 1, 8, 32)), ROWS, a=lambda: layers)


def quantized_before() -> Model:
    net, *inputs = quantized_after()
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}), *inputs


def quantized_after() -> Model:
    return make(lambda _, x: x.relu(), ROWS)


def modulated_before() -> Model:
    def compute(parts: Any, x: Tensor) -> Tensor:
        factors = x.exp().mean((0, 2)).view(1, 8, 1, 1)
        return functional.conv2d(x.view(1, 8, 4, 8), parts["a"].weight * factors)

    return make(compute, ROWS, a=lambda: nn.Conv2d(8, 4, 3))


def modulated_after() -> Model:
    def compute(parts: Any, x: Tensor) -> Tensor:
        factors = x.exp().mean((0, 2)).view(1, 8, 1, 1)
        return functional.conv2d(x.view(1, 8, 4, 8) * factors, parts["a"].weight)

    return make(compute, ROWS, a=lambda: nn.Conv2d(8, 4, 3))


class Quotient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x.argmax(-1) // self.n).int()


def quotient_before() -> Model:
    return make(lambda _, x: (x.argmax(-1) // 8).int(), ROWS)


def quotient_after() -> Model:
    return make(lambda p, x: p["a"](x), ROWS, a=Quotient)


def cosine_before() -> Model:
    return make(lambda _, x, y: functional.cosine_similarity(x, y), ROWS, ROWS)


def cosine_after() -> Model:
    def compute(_: Any, x: Tensor, y: Tensor) -> Tensor:
        lengths = (x * x).sum(1).sqrt() * (y * y).sum(1).sqrt()
        return (x * y).sum(1) / lengths

    return make(compute, ROWS, ROWS)
