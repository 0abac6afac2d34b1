"""Networks that end in a matrix product, drawn by number: ``products.py:product_17``.

Each has a product of two computed tensors (attention, a product of two projections, a Gram matrix)
or none, what stands behind it (nothing, an activation, a softmax, a residual sum, heads that are
joined), and a last product: a linear layer with or without a bias, a matrix of weights, or a
product of two computed tensors. The tensors have rank 2 to 4.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

Network = tuple[nn.Module, tuple[Tensor, ...]]
NAME = re.compile(r"product_(\d+)")
BEFORE = ("two inputs", "two projections", "attention", "gram", "none")
BETWEEN = ("nothing", "relu", "softmax", "residual", "scaled")
LAST = ("weights", "linear", "bias", "computed")


class Product(nn.Module):
    """A network of ``BEFORE``, ``BETWEEN`` and ``LAST``, for inputs [*lead, rows, width]."""

    def __init__(self, number: int) -> None:
        super().__init__()
        dice = random.Random(number)
        torch.manual_seed(number)
        self.before, self.between, self.last = map(dice.choice, (BEFORE, BETWEEN, LAST))
        rank = dice.choice((2, 3, 3, 4, 4))
        self.lead = [1, dice.choice((1, 2, 4))][4 - rank :] if rank > 2 else []
        self.rows, self.width = dice.choice((8, 16, 24)), dice.choice((8, 16, 32))
        self.out = dice.choice((4, 8, 16))
        self.query, self.key, self.value = (nn.Linear(self.width, self.width) for _ in range(3))
        inner = self.rows if self.before in {"gram", "two inputs"} else self.width
        self.inner = inner
        self.weights = nn.Parameter(torch.randn(inner, self.out) * 0.4)
        self.linear = nn.Linear(inner, self.out, bias=self.last == "bias")

    def make_inputs(self) -> tuple[Tensor, ...]:
        """Return normally distributed inputs."""
        first = torch.randn(*self.lead, self.rows, self.width)
        if self.before == "two inputs":
            return first, torch.randn(*self.lead, self.width, self.rows)
        return (first,)

    def multiply(self, x: Tensor, y: Tensor | None) -> Tensor:
        """Return the product of computed tensors, or x if there is none."""
        if self.before == "two inputs":
            return x @ y
        if self.before == "two projections":
            return (self.query(x) @ self.key(x).transpose(-1, -2)) @ self.value(x)
        if self.before == "attention":
            scores = self.query(x) @ self.key(x).transpose(-1, -2) / self.width**0.5
            return torch.softmax(scores, -1) @ self.value(x)
        if self.before == "gram":
            return x @ x.transpose(-1, -2)
        return x

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        value = self.multiply(x, y)
        if self.between == "relu":
            value = torch.relu(value)
        elif self.between == "softmax":
            value = torch.softmax(value, -1)
        elif self.between == "residual" and value.shape == x.shape:
            value = value + x
        elif self.between == "scaled":
            value = value * 0.25
        if self.last == "weights":
            return value @ self.weights
        if self.last == "computed":
            return value @ torch.relu(value).transpose(-1, -2)
        return self.linear(value)


def make_product(number: int) -> Network:
    """Return the network of this number in eval mode, and its inputs."""
    network = Product(number).eval()
    return network, network.make_inputs()


def __getattr__(name: str) -> Callable[[], Network]:
    if match := NAME.fullmatch(name):
        return lambda: make_product(int(match[1]))
    raise AttributeError(name)
