"""What is often said of operators on HTP, and more: a module per row, all in one model.

A row's operators are told apart by the line of its ``forward``. Rows whose shapes vary end a
lowering and are factories of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Row(nn.Module):
    """A row: its parts are torch modules, its operators are called by ``forward``."""

    def __init__(self, call: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, *self.parts)


def attend(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x)  # row: sdpa


def attend_apart(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(-1, -2) / math.sqrt(8), -1) @ x  # row: attention


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)  # row: linear


def layer_norm(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)  # row: layer_norm


def embedding(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)  # row: embedding


def rope(x: Tensor, table: nn.Module) -> Tensor:
    return torch.cat([x[..., :4] * table.cos - x[..., 4:] * table.sin, x[..., 4:] * table.cos + x[..., :4] * table.sin], -1)  # row: rope  # fmt: skip  # noqa: E501


def gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")  # row: gelu_tanh


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x)  # row: gelu


def gelu_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.7071))  # row: gelu_erf


def where_data(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * 0.1)  # row: where


def matmul(x: Tensor) -> Tensor:
    return x @ x.transpose(-1, -2)  # row: matmul


def topk(x: Tensor) -> Tensor:
    return torch.topk(x, 4).values  # row: topk


class Angles(nn.Module):
    """Sine and cosine by position: constants of the model."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())


def make_rows() -> dict[str, tuple[Row, Tensor]]:
    """Return each row with its input, seeded."""
    torch.manual_seed(0)
    heads, flat = torch.randn(1, 2, 6, 8), torch.randn(4, 16)
    return {
        "linear": (Row(linear, nn.Linear(16, 8)), flat),
        "layer_norm": (Row(layer_norm, nn.LayerNorm(16)), flat),
        "embedding": (Row(embedding, nn.Embedding(32, 8)), torch.randint(0, 32, (4, 6))),
        "sdpa": (Row(attend), heads),
        "attention": (Row(attend_apart), heads),
        "rope": (Row(rope, Angles()), heads),
        "gelu_tanh": (Row(gelu_tanh), flat),
        "gelu": (Row(gelu), flat),
        "gelu_erf": (Row(gelu_erf), flat),
        "where": (Row(where_data), flat),
        "matmul": (Row(matmul), heads),
        "topk": (Row(topk), flat),
    }


class Every(nn.Module):
    """All rows, next to each other."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self.rows = nn.ModuleList(rows)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(row(value) for row, value in zip(self.rows, inputs, strict=True))


def every() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """All rows of fixed shapes in one model, each with its own input and output."""
    rows = make_rows().values()
    return Every([row for row, _ in rows]), tuple(value for _, value in rows)


class Varying(nn.Module):
    """A length that is an input, between operators that QNN takes."""

    def __init__(self, call: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        size = length.item()
        torch._check(size >= 2)
        torch._check(size <= 6)
        return x + self.call(x, size, *self.parts)


def rope_to(x: Tensor, size: int, table: nn.Module) -> Tensor:
    cos, sin = table.cos[:size], table.sin[:size]  # row: rope_dynamic
    low, high = x[:, :, :size, :4], x[:, :, :size, 4:]  # row: rope_dynamic
    turned = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)  # row: rope_dynamic
    return turned.sum()  # row: rope_dynamic


def topk_to(x: Tensor, size: int) -> Tensor:
    return torch.topk(x, size).values.sum()  # row: topk_dynamic


def rope_dynamic() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Rotary embedding of a part of the sequence whose length is data."""
    torch.manual_seed(0)
    return Varying(rope_to, Angles()), (torch.randn(1, 2, 6, 8), torch.tensor(4))


def topk_dynamic() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """torch.topk whose k is data."""
    torch.manual_seed(0)
    return Varying(topk_to), (torch.randn(4, 16), torch.tensor(4))


class Branching(nn.Module):
    """A branch on data, by torch.cond."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))  # row: branch


def branch() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Conditional control flow."""
    torch.manual_seed(0)
    return Branching(), (torch.randn(4, 16),)
