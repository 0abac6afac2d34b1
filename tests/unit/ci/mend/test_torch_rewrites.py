"""Rewrites of PyTorch graphs compute the same function, and leave look-alikes alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor, fx, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils._pytree import tree_leaves  # noqa: E402

from ci.mend.graph_rewrites import DEFINITIONS  # noqa: E402
from ci.mend.rewrite import export_module  # noqa: E402
from ci.mend.table import read_rewrites  # noqa: E402
from ci.mend.torch_rewrites import REWRITES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
Shape: TypeAlias = "tuple[int, ...]"
# The number of changes, the shapes of the inputs, and a function or a layer
Row: TypeAlias = "tuple[int, Shape | list[Shape], Callable[..., Any]]"


class Body(nn.Module):
    """Computes a function of its inputs."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.layers, *inputs)


class Together(nn.Module):
    """Computes several bodies, each of its own inputs, because one export is faster than many."""

    def __init__(self, bodies: Sequence[Callable[..., Any]], counts: Sequence[int]) -> None:
        super().__init__()
        layers = [body if isinstance(body, nn.Module) else Body(body) for body in bodies]
        self.bodies, self.counts = nn.ModuleList(layers), counts

    def forward(self, *inputs: Tensor) -> list[Any]:
        start = 0
        outputs = []
        for body, count in zip(self.bodies, self.counts, strict=True):
            outputs.append(body(*inputs[start : start + count]))
            start += count
        return outputs


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def apply(name: str, rows: Sequence[Row]) -> tuple[int, fx.GraphModule]:
    """Apply a rewrite to the bodies of the rows, and check that all outputs are the same. Return
    the number of changes, and the rewritten graph."""
    shapes, counts = [], []  # of the inputs of all bodies, and their number per body
    for _, shape_or_shapes, _ in rows:
        of_body = [shape_or_shapes] if isinstance(shape_or_shapes, tuple) else shape_or_shapes
        shapes += of_body
        counts.append(len(of_body))
    net = Together([body for *_, body in rows], counts).eval()
    first = [randn(*shape, seed=1) for shape in shapes]
    second = [randn(*shape, seed=2) for shape in shapes]
    graph = export_module(net, first)
    changes = REWRITES[name](graph)
    for inputs in (first, second):
        with torch.no_grad():
            right, rewritten = (tree_leaves(each(*inputs)) for each in (net, graph))
        torch.testing.assert_close(rewritten, right, rtol=1e-5, atol=2e-6, equal_nan=True)
    return len(changes), graph


def assign(x: Tensor, value: Tensor, places: Any) -> Tensor:
    x[places] = value
    return x


def assign_behind_view(x: Tensor, value: Tensor) -> Tensor:
    view = x[:, 2:4]
    x[:, 2:4] = value
    return view + 1


ALL = slice(None)
W = randn(32).abs() + 0.5
FEW = -1.5  # few random numbers are lower
UPPER = torch.ones(4, 4).triu(1).bool()
CONV = nn.Conv1d(4, 4, 1)
UNBIASED = nn.Conv1d(4, 6, 3, bias=False)
attention = F.scaled_dot_product_attention


def rms(x: Tensor, axis: Any = -1, keep: bool = True) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(axis, keepdim=keep) + 1e-3)


def norm(kind: Any, size: int, **options: Any) -> nn.Module:
    """Return a batch norm with random statistics and factors."""
    layer: nn.Module = kind(size, **options)
    for seed, tensor in enumerate(layer.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(randn(*tensor.shape, seed=seed).abs() + 0.5)
    return layer


def dead(layer: nn.Module, factor: float = 0.0) -> nn.Module:
    """Return a layer whose first channel has nearly no weights."""
    with torch.no_grad():
        layer.get_parameter("weight")[0] *= factor
    return layer


def cut(function: Callable[[Tensor], Any], bias: bool = True) -> nn.Module:
    """Return a linear layer, and what ``function`` makes of its output, then sin of each part."""
    return Body(
        lambda layer, x: [part.sin() for part in function(layer(x))], nn.Linear(16, 48, bias)
    )


def erf(x: Tensor, scale: float = math.sqrt(2)) -> Tensor:
    return 1 + torch.erf(x / scale)


def state(layer: nn.Module) -> nn.Module:
    """Return a layer that takes its hidden state and its cell state as two inputs."""
    return Body(lambda layer, x, *pair: layer(x, pair), layer)


def twice(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.abs()) + layer(x)


def pair(x: Tensor, axis: int) -> Tensor:
    """Each element of an axis of 5 with its neighbour, as torch.onnx.export writes windows."""
    return x[(*[slice(None)] * axis, torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4]]))]


def six(x: Tensor) -> Tensor:
    return x.view(2, 4, 2, 3, 1, 4)


def rnn(x: Tensor, h: Tensor, weights: list[Tensor]) -> Any:
    return torch.rnn_tanh(x, h, weights, False, 1, 0.0, False, False, False)


def attend(**options: Any) -> nn.Module:
    return Body(lambda layer, x, y: layer(x, y, y), nn.MultiheadAttention(16, 4, **options))


ROWS: dict[str, list[Row]] = {
    "fold-constants": [
        (1, (2, 4, 4), lambda x: x.masked_fill(~torch.ones(4, 4).tril().bool(), 3.0)),
        (1, (2, 4, 4), lambda x: torch.where(x > 0, x, torch.tensor(-2.0))),
        (0, (2, 4, 4), lambda x: x + torch.zeros_like(x[0]) * x[1]),
        (0, (4, 4), lambda x: x + torch.rand(4, 4) * 0),
    ],
    "put-constant-first": [
        (1, (2, 3, 4), lambda x: torch.cat([x, torch.full((2, 1, 4), 0.7)], 1)),
        (1, (2, 3, 4), lambda x: torch.cat([x, x, torch.ones(2, 3, 2)], -1)),
        (0, (2, 3, 4), lambda x: torch.cat([torch.ones(2, 1, 4), x], 1)),
        (0, (2, 3, 4), lambda x: torch.cat([x, torch.arange(8.0).view(2, 1, 4)], 1)),
    ],
    "expand-constant": [
        (1, (2, 3, 4), lambda x: x + torch.arange(12.0).view(3, 4)),
        (1, (2, 3, 4), lambda x: torch.sub(torch.ones(1, 3, 4), x, alpha=2)),
        (0, (2, 3, 4), lambda x: x + torch.ones(4)),
        (0, (1, 3, 4), lambda x: x + torch.ones(3, 4)),
        (0, (2, 3, 4), lambda x: x + torch.ones(2, 3, 4)[0].expand(2, 3, 4) * 0.5),
    ],
    "concatenate-padding": [
        (1, (2, 3, 4, 5), lambda x: F.pad(x, (0, 1, 2, 0), value=6.0)),
        (1, (2, 3, 4, 5), lambda x: F.pad(F.relu(x), (0, 1, 0, 1))),
        (1, (2, 3, 4), lambda x: F.pad(x - 0.5, (1, 1, 0, 2))),
        (0, (2, 3, 4), lambda x: F.pad(x * 0.5, (1, 1, 0, 2))),
        (0, (2, 3, 4, 5), lambda x: F.pad(x + 0.5, (1, 1))),
        (0, (2, 3), lambda x: F.pad(x, (-1, 1))),
        (0, (2, 3, 4), lambda x: F.pad(x, (1, 1), mode="reflect")),
    ],
    "flatten-rms-norm": [
        (1, (1, 16, 4, 32), lambda x: x * rms(x) * W),
        (1, (2, 5, 32), lambda x: W * (torch.rsqrt(1e-3 + (x * x).mean(2, True)) * x)),
        (1, (4, 32), lambda x: x * (torch.rsqrt(x.square().mean(-1, True) + 1e-3) * W)),
        (1, (2, 3, 4, 5, 32), lambda x: F.rms_norm(x, (32,), W, 1e-6)),
        (1, (2, 3, 32), lambda x: F.rms_norm(x, (32,))),
        (1, (2, 4, 32), lambda x: x * rms(x.float()) * W),
        (0, (1, 16, 32), lambda x: F.rms_norm(x, (32,), W, 1e-6)),  # one row
        (0, (2, 32, 32), lambda x: x * rms(x, 1) * W),
        (0, (2, 32, 32), lambda x: x * rms(x, (-2, -1)) * W),
        (0, (32, 32), lambda x: x * rms(x, keep=False) * W),
        (0, (2, 3, 32), lambda x: x * torch.rsqrt(x.pow(4).mean(-1, True) + 9) * W),
        (0, (2, 3, 32), lambda x: x * torch.rsqrt((x * (x + 1)).mean(-1, True) + 9) * W),
        (0, (2, 3, 32), lambda x: (x + 1) * rms(x) * W),
        (0, (2, 32, 32), lambda x: x * rms(x) * W[:, None]),
        (0, (2, 3, 32), lambda x: (y := x * rms(x), y * W)),
        (0, (2, 3, 32), lambda x: F.rms_norm(x, (3, 32))),
    ],
    "flatten-layer-norm": [
        (1, (2, 3, 8), nn.LayerNorm((3, 8))),
        (1, (2, 3, 4), nn.LayerNorm((2, 3, 4), elementwise_affine=False)),
        (0, (2, 3, 8), nn.LayerNorm(8)),
    ],
    "scale-batch-norm": [
        (1, (2, 4, 3, 3), nn.Sequential(nn.ReLU(), norm(nn.BatchNorm2d, 4))),
        (1, (2, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(True), norm(nn.BatchNorm1d, 4))),
        (1, (2, 4, 5), norm(nn.BatchNorm1d, 4, affine=False)),
        (1, (2, 4, 3, 3, 3), norm(nn.BatchNorm3d, 4, eps=0.1)),
        (1, (2, 4, 5), Body(lambda c, b, x: (y := c(x), b(y)), CONV, norm(nn.BatchNorm1d, 4))),
        (0, (2, 3, 3, 3), nn.Sequential(nn.Conv2d(3, 4, 1), norm(nn.BatchNorm2d, 4))),
        (0, (2, 3), nn.Sequential(nn.Linear(3, 4), norm(nn.BatchNorm1d, 4))),
        (0, (2, 4, 3, 3), norm(nn.BatchNorm2d, 4, track_running_stats=False)),
    ],
    "repeat-by-concatenation": [
        (1, (4, 5), lambda x: x.repeat(1, 3)),
        (1, (4, 5), lambda x: x.repeat(2, 1, 1)),
        (1, (1, 3, 1, 5), lambda x: x.repeat(2, 2, 4, 1)),
        (1, (2, 5), lambda x: x.tile((3,))),
        (0, (4, 5), lambda x: x.repeat(1, 1)),
    ],
    "join-by-concatenation": [
        (1, (3, 4), lambda x: torch.stack([x * 9, x.sigmoid()], 1)),
        (1, (3, 4), lambda x: torch.stack([x.sigmoid().view(3, 2, 2), x.view(3, 2, 2)], -1)),
        (1, (3, 8), lambda x: torch.slice_scatter(x, x[:, :2].tanh(), 1, 2, 4)),
        (1, (3, 8), lambda x: torch.slice_scatter(x, F.hardsigmoid(x), 1)),
        (1, (3, 8), lambda x: torch.select_scatter(x, x[:, 1].sigmoid(), 1, -1)),
        (1, (3, 8), lambda x: assign(x * 9, x[:, :2].sigmoid(), (ALL, slice(2, 4)))),
        (1, (3, 8), lambda x: assign(x.clone(), x[:, :1].sigmoid(), (ALL, slice(6, None)))),
        (1, (3, 8), lambda x: assign(x * 9, x[:, 0].sigmoid(), (ALL, -1))),
        (1, (3, 8), lambda x: assign(x * 9, x[0, :2].sigmoid(), (1, slice(2, 4)))),
        (0, (3, 8), lambda x: assign(x * 9, x[:, :2] + 1, (ALL, slice(2, 4)))),
        (0, (3, 8), lambda x: assign(x, x[:, :2].sigmoid() * 1.0, (ALL, slice(2, 4))) * 1.0),
        (0, (3, 8), lambda x: (x * 9)[:, 2:4].copy_(x[:, :2].sigmoid()) + 1),
        (0, (3, 8), lambda x: assign_behind_view(x * 9, x[:, :2].sigmoid())),
        (0, (3, 8), lambda x: torch.slice_scatter(x, x[:, :2].sigmoid(), 1, 2, 6, 2)),
        (0, (3, 4), lambda x: torch.stack([x, x.softmax(-1)], 1)),
        (0, (3, 4), lambda x: torch.cat([x, x.sigmoid()], 1)),
    ],
    "pad-before-pool": [
        (1, (3, 8, 8), lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True)),
        (0, (1, 3, 8, 8), lambda x: F.avg_pool2d(x, 2)),
        (0, (1, 3, 8, 8), lambda x: F.avg_pool2d(x, 2, ceil_mode=True)),
        (0, (1, 3, 8, 8), lambda x: F.max_pool2d(x, 3, 2, 1)),
    ],
    "state-stride": [
        (1, (1, 3, 8, 9), lambda x: F.max_pool2d(x, (2, 3), padding=1, ceil_mode=True)),
        (1, (1, 3, 8, 9), lambda x: F.max_pool2d(x, 2, dilation=2, return_indices=True)[0]),
        (1, (1, 3, 4, 6, 8), lambda x: F.avg_pool3d(x, 2, count_include_pad=False)),
        (0, (1, 3, 8, 9), lambda x: F.max_pool2d(x, 2, 1)),
    ],
    "widen-max-pool": [
        (1, (2, 3, 9), lambda x: F.max_pool1d(x, 2)),
        (1, (3, 16), lambda x: F.max_pool1d(x, 3, 2, 1, 2, True)),
        (0, (2, 3, 9), lambda x: F.avg_pool1d(x, 2)),
    ],
    "multiply-adaptive-pool": [
        (1, (1, 3, 5, 6), lambda x: F.adaptive_avg_pool2d(x, 3)),
        (1, (3, 5, 6), lambda x: F.adaptive_avg_pool2d(x, (None, 7))),
        (1, (2, 3, 10), lambda x: F.adaptive_avg_pool1d(x, 4)),
        (1, (1, 2, 5, 4, 4), lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4))),
        (0, (1, 3, 6, 9), lambda x: F.adaptive_avg_pool2d(x, 3)),
        (0, (1, 3, 6, 9), lambda x: F.adaptive_avg_pool2d(x, 1)),
        (1, (2, 3, 5, 5), lambda x: pair(pair(x, 2), 4).mean((3, 5))),
        (0, (2, 3, 5, 5), lambda x: pair(x, 2).mean(3)),
    ],
    "slice-adaptive-maximum": [
        (1, (1, 3, 17, 22), lambda x: F.adaptive_max_pool2d(x, (3, 5))),
        (1, (3, 6, 9), lambda x: F.adaptive_max_pool2d(x, (None, 1))),
        (1, (2, 3, 10), lambda x: F.adaptive_max_pool1d(x, 4)),
        (0, (1, 3, 6, 9), lambda x: F.adaptive_max_pool2d(x, 3, True)),
    ],
    "slice-windows": [
        (1, (2, 3, 8, 9), lambda x: F.unfold(x, 3, padding=1)),
        (1, (2, 3, 8, 9), lambda x: F.unfold(x, (2, 3), dilation=2, stride=(2, 1))),
        (0, (3, 8, 9), lambda x: F.unfold(x, 2)),
        (1, (1, 3, 5, 5), lambda x: pair(pair(x, 2), 4).transpose(3, 4).reshape(1, 12, 16)),
        (0, (2, 8, 12), lambda x: six(x).permute(0, 2, 1, 3, 5, 4).reshape(2, 96)),
        (1, (2, 3, 20), lambda x: x.unfold(-1, 6, 3)),
        (1, (2, 9, 3, 4), lambda x: x.unfold(1, 2, 2)),
    ],
    "select-nearest": [
        (1, (2, 3, 6, 6), lambda x: F.interpolate(x, (7, 13))),
        (1, (1, 3, 8, 5), lambda x: F.interpolate(x, scale_factor=(0.5, 1.7))),
        (1, (2, 3, 10), lambda x: F.interpolate(x, 7)),
        (1, (1, 2, 3, 4, 5), lambda x: F.interpolate(x, (3, 5, 4))),
        (0, (2, 3, 6, 6), lambda x: F.interpolate(x, (12, 6))),
        (1, (2, 3, 6, 6), lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact")),
        (1, (2, 3, 10), lambda x: F.interpolate(x, 7, mode="nearest-exact")),
        (0, (2, 3, 6, 6), lambda x: F.interpolate(x, (7, 7), mode="bilinear")),
    ],
    "resize-flat": [
        (1, (2, 3, 6), lambda x: F.interpolate(x, scale_factor=1.7, mode="linear")),
        (1, (2, 3, 6), lambda x: F.interpolate(x, 9, mode="linear", align_corners=True)),
        (0, (2, 3, 6), lambda x: F.interpolate(x, 9)),
    ],
    "gather-maximum": [
        (1, (1, 2, 9, 9), lambda x: F.max_pool2d(x, (3, 2), 1, 1, (2, 1))),
        (1, (2, 9, 8), lambda x: F.max_pool2d(x, 2, padding=1, dilation=2, ceil_mode=True)),
        (1, (1, 2, 4, 5, 6), lambda x: F.max_pool3d(x, 3, 2, 1)),
        (0, (1, 2, 9, 9), lambda x: F.max_pool2d(x, 2)),
        (0, (1, 2, 4, 5, 6), lambda x: F.max_pool3d(x, 2, return_indices=True)[0]),
    ],
    "group-by-instance": [
        (1, (2, 8, 5), norm(nn.GroupNorm, 4, num_channels=8, eps=0.1)),
        (1, (2, 8), nn.GroupNorm(2, 8, affine=False)),
        (1, (2, 8, 3, 4), nn.GroupNorm(2, 8)),
    ],
    "flatten-instance-norm": [
        (1, (2, 3, 2, 4, 5), nn.InstanceNorm3d(3, affine=True)),
        (0, (2, 3, 4, 5), nn.InstanceNorm2d(3)),
    ],
    "celu-by-elu": [
        (2, (64,), lambda x: F.celu(x) + F.celu(x, 0.5)),
        (0, (64,), F.elu),
    ],
    "subtract-clamped": [
        (1, (64,), lambda x: F.softshrink(x, 0.3)),
        (0, (64,), F.hardshrink),
    ],
    "scale-log-floor": [
        (1, (64,), lambda x: (x.relu() ** 4).clamp(min=1e-10).log()),
        (1, (64,), lambda x: (x.relu() ** 4).clamp(1e-9, 0.5).log()),
        (1, (64,), lambda x: (x.relu() ** 4 + 1e-9).log()),
        (0, (64,), lambda x: x.abs().clamp(min=1e-3).log()),
        (0, (64,), lambda x: (x.abs() + x.abs()).clamp(max=1e-9).log()),
    ],
    "write-variance": [
        (1, (2, 3, 8), lambda x: x.std(2)),
        (1, (2, 3, 8), lambda x: x.var((1, -1), keepdim=True, correction=0)),
        (2, (2, 3, 8), lambda x: x.var() + x.std(unbiased=False)),
        (0, (2, 3, 1), lambda x: x.var(-1)),
        (0, (2, 3, 8), lambda x: x.mean(-1)),
    ],
    "write-logsumexp": [
        (1, (2, 3, 8), lambda x: x.logsumexp(-1)),
        (1, (2, 3, 8), lambda x: torch.logsumexp(x * 40, (0, 2), keepdim=True)),
        (0, (2, 3, 8), lambda x: x.exp().sum(-1).log()),
    ],
    "separate-maximum": [
        (2, (3, 6), lambda x: [*x.max(-1)]),
        (1, (3, 6), lambda x: x.min(0, keepdim=True)[0]),
        (1, (3, 6), lambda x: x.min(1)[1]),
        (0, (3, 6), lambda x: x.max() + x.amax(1)),
    ],
    "narrow-indices": [
        (2, (3, 6), lambda x: [*x.topk(2)]),
        (1, (3, 6), lambda x: x.gather(1, x.sort(dim=0, stable=True)[1])),
        (0, (3, 6), lambda x: [x.topk(2)[0], x.sort()[1].to(torch.int32)]),
    ],
    "write-distance": [
        (1, [(3, 6), (3, 6)], F.cosine_similarity),
        (1, [(2, 3, 6), (3, 1)], lambda x, y: F.cosine_similarity(x, y, -2, 0.5)),
        (1, [(3, 6), (3, 6)], lambda x, y: F.pairwise_distance(x, y, keepdim=True)),
        (0, [(3, 6), (3, 6)], lambda x, y: F.pairwise_distance(x, y, 1)),
    ],
    "name-axes": [
        (2, (3, 6), lambda x: x.mean() + x.sum()),
        (0, (3, 6), lambda x: x.mean((0, 1)) + x.sum(dtype=torch.float64)),
    ],
    "copy-shared-bias": [
        (2, (2, 4, 4), Body(lambda conv, x: conv(conv(conv(x).relu())), CONV)),
        (1, (2, 4), Body(lambda layer, x: layer(x).exp() + layer(x * 9), nn.Linear(4, 3))),
        (0, (2, 4), Body(lambda layer, x: layer(layer(x)), nn.Linear(4, 4, bias=False))),
        (0, (2, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))),
    ],
    "multiply-single": [
        (2, (5, 1), nn.Sequential(nn.Linear(1, 7), nn.Linear(7, 1), nn.Linear(1, 2, bias=False))),
        (0, (5, 2), nn.Linear(2, 3)),
    ],
    "name-sigmoid": [
        (1, (2, 5), lambda x: 1 / (1 + torch.exp(-x))),
        (1, (2, 5), lambda x: (torch.exp(x * -3.0) + 1).reciprocal()),
        (1, (2, 5), lambda x: x / (1 + torch.exp(-x))),
        (1, (2, 5), lambda x: 2.0 / (1 + torch.exp(x))),
        (1, (2, 5), lambda x: (e := torch.exp(x)) / (1 + e)),
        (0, (2, 5), lambda x: 1 / (2 + torch.exp(-x))),
        (0, (2, 5), lambda x: 1 / (1 + (e := torch.exp(-x))) + e),
        (0, (2, 5), lambda x: torch.exp(-x) / (1 + x)),
        (0, (2, 5), lambda x: (e := torch.exp(x)) * 2 / (1 + e)),
    ],
    "multiply-outer": [
        (1, [(2, 5, 1), (2, 1, 4)], lambda x, y: x * y),
        (1, [(2, 4), (2, 5)], lambda x, y: x[:, None] * y[..., None]),
        (0, [(2, 5, 1), (1, 1, 4)], lambda x, y: x * y),
        (0, [(2, 5, 1), (2, 5, 4)], lambda x, y: x * y),
        (0, [(2, 1, 1), (2, 1, 4)], lambda x, y: x * y),
        (0, [(4, 1), (4,)], lambda x, y: x * y),
    ],
    "subtract-logarithms": [
        (1, (2, 8), lambda x: x.sigmoid().logit(1e-5)),
        (1, (2, 8), lambda x: x.sigmoid().logit()),
        (1, (2, 8), lambda x: (x.abs() / (x.exp() + 0.1)).log()),
        (0, (2, 8), lambda x: (x.abs() / 3).log() + (2 / x.abs()).log()),
    ],
    "log-by-roots": [
        (1, (2, 8), lambda x: (x.abs() * 10 + 0.01).log()),
        (1, (2, 8), lambda x: (x.abs() * 10).log1p()),
        (1, (2, 8), lambda x: (x.abs() * 10 + 1.5).log2()),
        (1, (2, 8), lambda x: (x.abs() * 10 + 1.5).log10()),
    ],
    "logsumexp-by-roots": [
        (1, (2, 3, 8), lambda x: x.logsumexp(-1)),
        (1, (2, 3, 8), lambda x: torch.logsumexp(x * 40, (0, 2), keepdim=True)),
    ],
    "write-log-softmax": [
        (1, (2, 3, 8), lambda x: torch.log_softmax(x * 40, -1)),
        (1, (2, 3, 8), lambda x: torch.log_softmax(x, 1)),
        (0, (2, 3, 8), lambda x: torch.softmax(x, -1)),
    ],
    "log-softmax-by-roots": [(1, (2, 3, 8), lambda x: torch.log_softmax(x * 40, -1))],
    "softmax-of-last-axis": [
        (1, (2, 3, 4), lambda x: torch.softmax(x, 1)),
        (1, (2, 3, 4, 5), lambda x: torch.softmax(x, -3)),
        (1, (2, 3, 4), lambda x: torch.log_softmax(x, 1)),
        (0, (2, 3, 4), lambda x: torch.softmax(x, -1)),
    ],
    "write-softmax": [
        (1, (2, 3, 4), lambda x: torch.softmax(x, -1)),
        (1, (2, 3, 4), lambda x: torch.softmax(100 * x, 1)),
        (0, (2, 3, 4), lambda x: torch.log_softmax(x, -1)),
    ],
    "sum-single-column": [
        (1, (2, 5, 1), lambda x: torch.arange(15.0).view(3, 5) @ x),
        (1, [(2, 4, 5), (2, 5, 1)], lambda x, y: x @ y),
        (1, (2, 4, 5), lambda x: x @ torch.arange(5.0).view(5, 1)),
        (0, (2, 1, 5), lambda x: x @ torch.arange(5.0).view(5, 1)),
        (0, (2, 4, 1), lambda x: x @ torch.ones(1, 1)),
        (0, (2, 4, 5), lambda x: x @ torch.arange(5.0)),
        (0, (2, 4, 5), lambda x: x @ torch.arange(10.0).view(5, 2)),
    ],
    "convolve-average": [
        (1, (1, 3, 16, 4), lambda x: F.avg_pool2d(x, 2, 1)),
        (1, (1, 3, 16, 4), lambda x: F.avg_pool2d(x, (3, 2), 1, divisor_override=5)),
        (0, (1, 3, 16, 4), lambda x: F.avg_pool2d(x, 2)),
        (0, (1, 3, 16, 4), lambda x: F.avg_pool2d(x, 3, 1, 1)),
    ],
    "multiply-cumulative": [
        (1, (2, 3, 4), lambda x: x.cumsum(1)),
        (1, (5,), lambda x: x.cumsum(-1)),
        (1, (1, 600), lambda x: x.abs().cumsum(-1)),
        (1, (2, 521, 3), lambda x: x.abs().cumsum(1)),
        (0, (2, 5), lambda x: x.int().cumsum(-1)),
    ],
    "lower-rank": [
        (1, (2, 8, 8, 3), lambda x: x.view(2, 2, 4, 2, 4, 3).permute(0, 1, 3, 2, 4, 5).flatten(2)),
        (1, (3, 64, 2), lambda x: x.view(3, *[2] * 7).permute(7, 4, 2, 0, 1, 3, 5, 6).flatten(1)),
        (1, (2, 8, 12), lambda x: [y.sin() for y in six(x).transpose(1, -3).unbind(3)]),
        (1, (2, 4, 6), lambda x: x[:, None, :, None, :, None].expand(2, 3, 4, 5, 6, 7).flatten()),
        (0, (2, 8, 12), lambda x: x.view(2, 4, 2, 3, 4).permute(4, 3, 2, 1, 0).reshape(2, -1)),
        (1, (2, 8, 12), lambda x: six(x).amax((2, -1))),
        (1, (2, 8, 12), lambda x: six(x).mean((1, 2), keepdim=True).view(2, -1) + 1),
        (0, (2, 8, 12), lambda x: (six(x) + 1).flatten()),
        (0, (2, 8, 12), lambda x: six(x).sum((0, 2, 4))),
        (0, (2, 8, 12), six),
    ],
    "multiply-lower-rank": [
        (1, (1, 2, 3, 4, 5), lambda x: x @ torch.arange(10.0).view(5, 2)),
        (1, (2, 2, 3, 4, 5), lambda x: x @ torch.arange(30.0).view(3, 5, 2)),
        (1, (2, 2, 3, 4, 5), lambda x: torch.arange(60.0).view(1, 1, 3, 5, 4) @ x),
        (1, (2, 2, 3, 4, 5), lambda x: x @ torch.arange(60.0).view(2, 3, 5, 2)),
        (1, (1, 6, 1, 1, 5), lambda x: x @ torch.arange(80.0).view(8, 5, 2)),
        (1, [(2, 2, 3, 4, 5), (2, 3, 5, 2)], lambda x, y: x @ y),
        (1, [(1, 2, 3, 4, 5), (2, 1, 5, 2)], lambda x, y: x @ y),
        (0, [(2, 2, 3, 4, 5), (2, 1, 3, 5, 2)], lambda x, y: x @ y),
        (0, (2, 2, 3, 4, 5), lambda x: x @ torch.arange(120.0).view(2, 2, 3, 5, 2)),
        (0, (2, 3, 4, 5), lambda x: x @ torch.arange(10.0).view(5, 2)),
        (0, (2, 2, 3, 4, 5), lambda x: x @ torch.arange(5.0)),
    ],
    "multiply-einsum": [
        (1, [(2, 3, 4, 5, 6), (3, 6, 7)], lambda x, y: torch.einsum("nkctv,kvw->nctw", x, y)),
        (1, [(2, 3, 4, 5), (2, 3, 6, 5)], lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y)),
        (1, [(2, 5, 3, 4), (6, 3, 2)], lambda x, y: torch.einsum("bthd, nhb -> nbdt", x, y)),
        (1, (2, 3, 4), lambda x: torch.einsum("abc,dc->dab", x, W[:20].view(5, 4))),
        (0, (3, 3), lambda x: torch.einsum("ii,ij->ij", x, x)),
        (0, [(2, 3), (1, 4)], lambda x, y: torch.einsum("ab,ac->abc", x, y)),
        (0, [(2, 3), (2, 4)], lambda x, y: torch.einsum("ab,ac->abc", x, y)),
        (0, [(2, 3), (3, 4)], lambda x, y: torch.einsum("ab,bc->a", x, y)),
        (0, [(2, 3), (1, 4)], lambda x, y: torch.einsum("ab,ac->bc", x, y)),
        (0, [(2, 3, 4), (3, 4)], lambda x, y: torch.einsum("...b,...b->...", x, y)),
        (1, (2, 3), lambda x: torch.einsum("ab->ba", x)),
    ],
    "select-places": [
        (1, (2, 4, 5), lambda x: x[:, torch.tensor([1, 0, -1]), torch.tensor([4, 0, 2])]),
        (1, (4, 5), lambda x: x[torch.tensor([[1, 0], [2, 2]])]),
        (1, (2, 4, 5), lambda x: x[..., torch.tensor([[1], [0]]), torch.tensor([4, 0, 2])]),
        (0, (2, 4, 5), lambda x: x[torch.tensor([1, 0]), :, torch.tensor([4, 0])]),
        (0, (2, 4, 5), lambda x: x[x.argmax(0)[:, 0] % 2]),
    ],
    "repeat-by-expand": [
        (1, [(2, 1, 5), (2, 4, 5)], lambda x, y: x.expand_as(y)),
        (1, (2, 4, 5, 6), lambda x: x.repeat_interleave(3, 1)),
        (1, (2, 4), lambda x: x.repeat_interleave(2, -1)),
        (1, (2, 4), lambda x: x.repeat_interleave(2)),
        (1, (1, 4, 5, 8), lambda x: attention(x, x[:, :2], x[:, 2:], scale=0.1, enable_gqa=True)),
        (0, (1, 4, 5, 8), lambda x: attention(x, x, x, scale=0.1)),
        (0, (2, 4), lambda x: x.repeat_interleave(torch.tensor([1, 2]), 0, output_size=3)),
    ],
    "softplus-by-series": [
        (1, (64,), lambda x: F.softplus(x * 30)),
        (1, (64,), lambda x: F.softplus(x, beta=2.0)),
        (1, (64,), lambda x: F.logsigmoid(x * 30)),
        (1, (64,), lambda x: F.mish(x * 9)),
        (1, (64,), lambda x: torch.log1p(x.exp())),
        (1, (64,), lambda x: torch.log(1 + x.exp())),
        (1, (64,), lambda x: torch.log(torch.sigmoid(x * 9))),
        (0, (64,), lambda x: torch.log1p(x.abs()) + torch.log(2 + x.exp())),
        (0, (64,), lambda x: F.softplus(x, threshold=1)),
        (0, (64,), lambda x: F.softplus(x, beta=-2.0)),
    ],
    "separate-activation": [
        (1, (2, 4, 4), nn.Sequential(CONV, nn.Tanh())),
        (1, (2, 4), nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.GELU("tanh"))),
        (2, (2, 4), lambda x: F.silu(x + x.abs()) + torch.sigmoid(torch.cat([x, x], 1))[:, :4]),
        (0, (4,), nn.Sequential(nn.Linear(4, 3), nn.Tanh())),
        (0, (2, 4), lambda x: torch.tanh(x * x)),
        (1, (2, 4), Body(lambda layer, x: torch.sigmoid(layer(x) * 3), nn.Linear(4, 3))),
        (1, (2, 4), Body(lambda layer, x: torch.tanh(layer(x) / 30), nn.Linear(4, 3))),
        (0, (2, 4), Body(lambda layer, x: torch.tanh(30 / layer(x)), nn.Linear(4, 3))),
        (0, (2, 4), Body(lambda layer, x: torch.sigmoid(layer(x) * x), nn.Linear(4, 4))),
        (0, (2, 4), lambda x: torch.sigmoid(x.abs() * 3)),
    ],
    "limit-before-activation": [
        (1, (2, 4, 4), nn.Sequential(CONV, nn.Tanh())),
        (1, (2, 4), Body(lambda layer, x: torch.tanh(layer(x) / 30), nn.Linear(4, 3))),
        (0, (2, 4), lambda x: torch.tanh(x * x)),
    ],
    "complement-by-sigmoid": [
        (2, (2, 4), lambda x: (1 - x.sigmoid()) * torch.sub(1.0, torch.sigmoid(x * 2))),
        (2, (2, 4), lambda x: torch.log((y := x.sigmoid()) / (1 - y))),
        (0, (2, 4), lambda x: (2 - x.sigmoid()) + (1 - x.tanh()) + (x.sigmoid() - 1)),
        (0, (2, 4), lambda x: torch.ones(3, 1, 1) - torch.sigmoid(x)),
        (0, (2, 4), lambda x: torch.rsub(x.sigmoid(), 1, alpha=2)),
    ],
    "silu-by-tanh": [
        (2, (2, 4), lambda x: (y := x.abs(), F.silu(x) + torch.sigmoid(y) * y)[1]),
        (0, (2, 4), lambda x: x * torch.sigmoid(x.abs())),
    ],
    "exp-of-power": [
        (2, (64,), lambda x: 2**x + 0.5**x),
        (1, (64,), torch.exp2),
        (0, (64,), lambda x: x.abs() ** x),
        (0, (64,), lambda x: x.abs() ** 2),
    ],
    "multiply-for-square": [
        (2, (64,), lambda x: torch.square(-F.relu(x)) + x**4),
        (1, (64,), lambda x: x ** torch.tensor(2.0)),
        (0, (64,), lambda x: x**3 + x.abs() ** 0.5),
    ],
    "raise-log-floor": [
        (1, (64,), lambda x: (x.abs() + 1).clamp(min=1e-10).log()),  # the same above the floor
        (1, (64,), lambda x: (9 + x.abs() + 1e-9).log10()),
        (0, (64,), lambda x: x.abs().clamp(min=1e-5).log()),
        (0, (64,), lambda x: x.abs().clamp(max=1e-9).log()),
    ],
    "split-prelu": [
        (1, (2, 4, 3), Body(lambda layer, x: layer(x), nn.PReLU(4, 0.3))),
        (1, (2, 4), nn.PReLU()),
        (0, (2, 4), lambda x: F.prelu(x, x[0, :1])),
    ],
    "name-gelu": [
        (1, (64,), lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))),
        (1, (64,), lambda x: x / 2 * (1 + ((x + 0.044715 * x * x * x) * 0.79788456).tanh())),
        (0, (64,), lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3)))),
        (1, [(64,), (64,)], lambda x, y: (z := x + y) * 0.5 * erf(z)),
        (1, (64,), lambda x: x * 0.5 * erf(x)),
        (1, (64,), lambda x: 0.5 * (x * erf(x))),
        (1, (64,), lambda x: x * (torch.erf(x * 0.70710678) + 1) / 2),
        (0, (64,), lambda x: x * 0.5 * erf(x, 1.5)),
        (0, (64,), lambda x: x * 0.4 * erf(x)),
        (0, (64,), lambda x: 0.5 * erf(x)),
        (0, (64,), lambda x: x * x * 0.5 * erf(x) * x),
        (0, (64,), lambda x: 0.5 * (x + 1) * erf(x)),
    ],
    "separate-projections": [
        (3, (2, 5, 16), cut(lambda y: y.chunk(3, -1))),
        (3, (2, 5, 16), cut(lambda y: y.unflatten(-1, (3, 16))[None].transpose(0, -2).squeeze(-2))),
        (3, (2, 5, 16), cut(lambda y: y.chunk(3, -1), bias=False)),
        (3, (2, 5, 16), cut(lambda y: [y.view(2, 5, 3, 16)[:, :, part] for part in range(3)])),
        (2, (2, 5, 16), cut(lambda y: y.split([16, 32], -1))),
        (3, (5, 2, 16), Body(lambda layer, x: layer(x, x, x), nn.MultiheadAttention(16, 4))),
        (2, [(5, 2, 16), (7, 2, 16)], attend()),
        (0, [(5, 2, 16), (7, 2, 8)], attend(kdim=8, vdim=8)),
        (3, (2, 5, 16), cut(lambda y: y.view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0))),
        (0, (2, 5, 16), cut(lambda y: y.view(2, 5, 16, 3).unbind(-1))),  # every third feature
        (0, (2, 5, 16), cut(lambda y: (*y.chunk(3, -1), y))),
        (0, (2, 5, 16), cut(lambda y: y.unbind(1))),
    ],
    "mask-after-softmax": [
        (1, (2, 4, 4), lambda x: (x + torch.full((4, 4), -1e4).triu(1)).softmax(-1)),
        (1, (2, 4, 4), lambda x: x.masked_fill(UPPER, -math.inf).softmax(1)),
        (1, (2, 4, 4), lambda x: (1e3 * x).masked_fill(UPPER, -math.inf).softmax(-1)),
        (1, (2, 4, 4), lambda x: torch.where(~UPPER, x, torch.tensor(-1e9)).softmax(-1)),
        (1, (2, 4, 8), lambda x: attention(x, x, x, is_causal=True, scale=0.3)),
        (1, (2, 4, 8), lambda x: attention(x, x, x, torch.full((4, 4), -1e9).tril(-1))),
        (1, [(2, 4, 8), (2, 6, 8)], lambda x, y: attention(x, y, y, is_causal=True)),
        (0, (2, 4, 4), lambda x: x.masked_fill(UPPER, -math.inf).softmax(0)),  # some see nothing
        (0, (2, 4, 4), lambda x: (x + torch.full((4, 4), -20.0).triu(1)).softmax(-1)),
        (0, (2, 4, 4), lambda x: (x - torch.full((4, 4), -1e4).triu(1)).softmax(-1)),
        (0, (2, 4, 4), lambda x: (x + torch.full((4, 4), -1e4).triu(1)).relu()),
        (0, (2, 4, 4), lambda x: [(y := x.masked_fill(UPPER, -1e9)).softmax(-1), y]),
        (0, [(2, 4, 4), (4, 4)], lambda x, m: (x + (1 - (m > 0).float()) * -1e4).softmax(-1)),
        (0, (4, 4), lambda x: (x + torch.full((2, 4, 4), -1e4).triu(1)).softmax(-1)),
        (0, (2, 4, 8), lambda x: attention(x, x, x)),
    ],
    "mask-of-30": [
        (1, [(2, 4, 4), (4, 4)], lambda x, m: (x + (1 - (m > FEW).float()) * -1e4).softmax(-1)),
        (1, [(2, 4, 4), (4, 4)], lambda x, m: x.masked_fill(m < FEW, -math.inf).softmax(-1)),
        (1, [(2, 4, 4), (4, 4)], lambda x, m: torch.where(m > FEW, x, -1e9).flatten(1).softmax(1)),
        (1, [(2, 4, 8), (4, 4)], lambda x, m: attention(x, x, x, ((m < FEW) * -1e9)[None])),
        (1, (2, 4, 4), lambda x: (x + torch.full((4, 4), -1e4).triu(1)).clamp(-1e9).softmax(-1)),
        (1, (2, 4, 4), lambda x: (x + torch.full((4, 4), -1e4).triu(1).add(W[:4])).softmax(-1)),
        # A sink of attention joins the masked scores.
        (1, (2, 4, 4), lambda x: torch.cat([x + UPPER * -1e4, x[..., :1]], -1).softmax(-1)),
        # A softmax that is written out; a maximum of masked numbers is none.
        (1, (2, 4, 4), lambda x: ((y := x + UPPER * -1e4) - y.amax(-1, True)).exp()),
        (0, (2, 4, 4), lambda x: (x + UPPER * -1e4).amax(-1, True).exp()),
        (0, (2, 4, 4), lambda x: (1 - (x + UPPER * -1e4)).exp()),
        (0, [(2, 4, 4), (4, 4)], lambda x, m: (x + (1 - (m > FEW).float()) * -9.0).softmax(-1)),
        (0, [(2, 4, 4), (4, 4)], lambda x, m: (x + (1 - (m > FEW).float()) * -1e4).sigmoid()),
        (0, (2, 4, 4), lambda x: [(y := x + torch.full((4, 4), -1e4).triu(1)).softmax(-1), y]),
        (0, (2, 4, 8), lambda x: attention(x, x, x)),
    ],
    "unroll-recurrent": [
        (1, (3, 3, 6), nn.GRU(6, 8)),
        (1, (3, 3, 6), nn.GRU(6, 8, batch_first=True, bidirectional=True)),
        (1, [(2, 3, 6), (2, 3, 8)], nn.GRU(6, 8, 2, bias=False)),
        (1, (2, 6), nn.GRU(6, 8)),  # torch adds a batch
        (1, (3, 2, 6), nn.LSTM(6, 8, batch_first=True)),
        (1, [(2, 3, 6), *[(4, 3, 8)] * 2], state(nn.LSTM(6, 8, 2, bidirectional=True))),
        (1, [(5, 3, 6), (1, 3, 8)], nn.RNN(6, 8)),
        (1, (3, 3, 6), nn.RNN(6, 8, 2, nonlinearity="relu")),
        (1, [(3, 6), (3, 8)], nn.GRUCell(6, 8)),
        (1, [(3, 6), (3, 8), (3, 8)], state(nn.LSTMCell(6, 8))),
        (1, [(3, 6), (3, 8)], nn.RNNCell(6, 8, bias=False)),
        (0, (5, 3, 6), nn.LSTM(6, 8, proj_size=3)),
        (0, [(5, 3, 6), (1, 3, 8), (8, 6)], lambda x, h, w: rnn(x, h, [w, w[:, :1].expand(8, 8)])),
    ],
    "reach-rows": [
        (1, (1, 4, 5, 5), nn.ConvTranspose2d(4, 6, 3, 3, 1, 2)),
        (1, (2, 4, 5), nn.ConvTranspose1d(4, 6, 3, 3, 0, 1, 2)),
        (1, (1, 4, 5, 5), nn.ConvTranspose2d(4, 4, (4, 3), (4, 2), 1, (3, 1), 4)),
        (1, (2, 4, 5), nn.ConvTranspose1d(4, 4, 3, 2, 1, 1, 4, bias=False)),
        (2, (1, 4, 5, 5), Body(twice, nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, 4))),
        (0, (1, 4, 5, 5), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1)),
        (0, (1, 4, 5, 5), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, 2)),
        (0, (1, 4, 5, 5), nn.ConvTranspose2d(4, 8, 3, 2, 1, 1, 4)),
        (0, (1, 4, 5, 5), nn.ConvTranspose2d(4, 4, 3, 2, (2, 1), (1, 0), 4)),
    ],
    "spread-kernel": [
        (1, (2, 4, 5), nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, dilation=2)),
        (1, (1, 4, 5, 6), nn.ConvTranspose2d(4, 6, (3, 2), dilation=(1, 3), bias=False)),
        (0, (2, 4, 5), nn.ConvTranspose1d(4, 6, 3, 2)),
    ],
    "stride-by-pool": [
        (1, (2, 4, 9, 8), nn.Conv2d(4, 8, (3, 2), (2, 3), (1, 2), (2, 1), 4)),
        (1, (4, 9, 8), nn.Conv2d(4, 4, 3, 2, "valid", 2, 4, bias=False)),
        (1, (2, 4, 9), nn.Conv1d(4, 4, 1, 2, groups=4)),
        (1, (2, 4, 9), nn.Conv1d(4, 8, 3, 2, 2, 2, 4)),
        (0, (1, 4, 9, 8), nn.Conv2d(4, 4, 3, 2, 1, 2, 2)),
        (0, (1, 4, 9, 8), nn.Conv2d(4, 4, 3, 1, "same", 2, 4)),
        (0, (1, 4, 9, 8), nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1, 1, 4), nn.Conv2d(4, 1, 1, 2))),
    ],
    "divide-before-relu": [
        (1, (2, 3), lambda x: torch.relu(x * 0.3) + 0.3),
        (2, (2, 3), lambda x: F.relu6(x * torch.full((1, 1, 1), -2.0)) + (3 * x).clamp(min=0)),
        (0, (2, 3), lambda x: torch.relu(x * torch.arange(3.0)) + torch.relu(x) * 0.5),
        (0, (2, 3), lambda x: torch.relu(x * x.sum()) + torch.relu(x * 0.0)),
    ],
    "limit-exp": [
        (1, (2, 3), lambda x: torch.exp(-100 * x * x)),
        (0, (2, 3), lambda x: torch.exp(x.clamp(min=-50)) + torch.exp(torch.relu(x))),
        (2, (2, 3), lambda x: torch.exp(x.clamp(max=0)) + torch.exp(x.clamp(-100, 5) * 20)),
        (2, (2, 3), lambda x: torch.exp(x.clamp(min=-100)) + torch.exp(x.maximum(W[:3] - 99))),
        (0, (2, 3), lambda x: torch.exp(x.clamp(min=-88)[:1]) + torch.exp(torch.tanh(x))),
    ],
    "name-tanh": [
        (1, (2, 3), lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())),
        (1, (2, 3), lambda x: ((e := torch.exp(2 * x)) - 1) / (e + 1)),
        (1, (2, 3), lambda x: ((e := torch.exp(x)) - 1) / (1 + e)),
        (2, (2, 3), lambda x: (1 - 2 / (torch.exp(2 * x) + 1), 2 / (1 + torch.exp(-2 * x)) - 1)),
        (0, (2, 3), lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 2) + torch.tanh(x)),
        (0, (2, 3), lambda x: (torch.exp(x) - torch.exp(-x.flip(0))) / (x.exp() + (-x).exp())),
    ],
    "name-softmax": [
        (1, (2, 3, 4), lambda x: (e := torch.exp(x)) / e.sum(-1, keepdim=True)),
        (1, (2, 3, 4), lambda x: (e := torch.exp(x)) / e.sum(1).unsqueeze(1)),
        (1, (2, 3, 4), lambda x: (e := x.exp().view(6, 2, 2)) / e.sum(1, keepdim=True)),
        (0, (2, 4, 4), lambda x: (e := x.exp()).view(8, 4) / e.view(8, 2, 2).sum((1, 2))[:, None]),
        (0, (2, 3, 4), lambda x: (e := torch.exp(x)) / e.sum()),
        (0, (4, 4), lambda x: (e := torch.exp(x)) / e.sum(1) + e / torch.exp(2 * x).sum(1, True)),
        (0, (2, 3, 4), lambda x: torch.exp(x) * W[:4] / torch.exp(x).sum(-1, keepdim=True)),
    ],
    "subtract-maximum": [
        (1, (2, 3, 4), lambda x: torch.log(torch.exp(x).sum(-1))),
        (1, (2, 3, 4), lambda x: torch.log(torch.exp(x).mean((0, 2), keepdim=True))),
        (1, (2, 3, 3), lambda x: ((e := torch.exp(x)) @ x) / e.sum(-1, keepdim=True)),
        (1, (2, 3, 4), lambda x: ((e := torch.exp(x)) * x).sum(1) / e.sum(1)),
        (1, (2, 3, 4), lambda x: (e := torch.exp(x)) / e.sum()),
        (0, (2, 3, 4), lambda x: torch.log(torch.exp(x - x.amax(-1, True)).sum(-1)) + x.amax(-1)),
        (0, (2, 3, 4), lambda x: (e := torch.exp(x)) * e / e.sum(-1, keepdim=True)),
        (0, (2, 3, 4), lambda x: (e := torch.exp(x)) / (e.sum(-1, keepdim=True) + 1)),
        (0, (2, 3, 4), lambda x: (e := torch.exp(x), e / e.sum(-1, keepdim=True))),
        (0, (2, 3, 4), lambda x: torch.log(1 + torch.exp(x)) + torch.log(x.abs().sum(1, True))),
    ],
    "limit-by-maximum": [
        (1, (2, 3), lambda x: nn.functional.linear(x, W[:9].view(3, 3), W[:3]).clamp(max=0.1)),
        (1, (2, 3), lambda x: nn.functional.linear(x, W[:9].view(3, 3), W[:3]).clamp(-0.1, 0.1)),
        (0, (2, 3), lambda x: nn.functional.linear(x, W[:9].view(3, 3)).clamp(0, 6)),
        (0, (2, 3), lambda x: (x * 2).clamp(-0.1, 0.1)),
    ],
    "add-negative": [
        (2, (2, 3), lambda x: torch.sigmoid(x) - 0.5 - torch.full((1,), 2.0)),
        (1, (2, 3), lambda x: torch.sub(x, 2, alpha=3)),
        (0, (2, 3), lambda x: (0.5 - x) - W[:3] - x.sum()),
    ],
    "add-epsilon": [
        (1, (2, 4, 3, 3), nn.Sequential(nn.Conv2d(4, 4, 1), norm(nn.BatchNorm2d, 4, eps=0.1))),
        (1, (2, 4, 5), norm(nn.BatchNorm1d, 4, affine=False, eps=0.1)),
        (0, (2, 4, 5), norm(nn.BatchNorm1d, 4)),
        (0, (2, 4, 5), norm(nn.BatchNorm1d, 4, track_running_stats=False)),
    ],
    "weigh-layer-norm": [
        (1, (2, 3, 8), nn.LayerNorm(8, eps=0.1, elementwise_affine=False)),
        (0, (2, 3, 8), nn.LayerNorm(8)),
        (0, (2, 3, 8), nn.LayerNorm([3, 8], elementwise_affine=False)),
    ],
    "add-bias-apart": [
        (1, (2, 4), dead(nn.Linear(4, 3))),
        (1, (2, 4, 9, 9), dead(nn.Conv2d(4, 6, 3, 2, 1, groups=2))),
        (1, (1, 4, 9), dead(nn.Conv1d(4, 6, 3), 1e-8)),
        (1, (1, 4, 9, 9), nn.Sequential(nn.Conv2d(4, 6, 3), dead(norm(nn.BatchNorm2d, 6)))),
        (1, (1, 4, 9), nn.Sequential(UNBIASED, dead(norm(nn.BatchNorm1d, 6)))),
        (0, (2, 4), nn.Linear(4, 3)),
        (0, (2, 4), dead(nn.Linear(4, 3), 0.01)),
        (0, (2, 4, 9, 9), nn.Sequential(nn.Conv2d(4, 6, 3), norm(nn.BatchNorm2d, 6))),
        (0, (2, 4), dead(nn.Linear(4, 3, bias=False))),
    ],
    "multiply-before-add": [
        (1, (2, 3, 4), lambda x: (x + W[:4]) * 0.5),
        (1, (2, 3, 4), lambda x: 3 * (torch.add(x + W[:4], 1, alpha=2).add_(W[:3, None]))),
        (2, (2, 3, 4), lambda x: ((x + W[:4]) * W[0] + W[4:8]) * 2),
        (0, (2, 3, 32), lambda x: (x + W) * 0.5),
        (0, (2, 3, 4), lambda x: (W[:4] + x) * 0.5 + (x + 1) * 2 + (x + torch.ones(4)) * 3),
        (0, (2, 3, 4), lambda x: (x + W[:4]) * x.sum() + (x + x[0]) * 0.5 + (x + W[:4]) * W[:4]),
        (0, (2, 3, 4), lambda x: (y := x + W[:4], y * 0.5)),
    ],
    "subtract-negative": [
        (1, (1, 1, 4, 8, 6), lambda x: x + torch.ones(1, 1, 4, 8, 1)),
        (1, (1, 1, 4, 8, 6), lambda x: torch.add(x, torch.ones(1, 1, 4, 8, 1).bool(), alpha=3)),
        (0, (1, 1, 4, 8, 6), lambda x: torch.ones(1, 1, 4, 8, 1) + x + 1 + W[:6] + x),
        (0, (1, 4, 8, 6), lambda x: x + torch.ones(4, 8, 1)),
    ],
    "reshape-single": [
        (1, (33, 1), lambda x: x.sum(-1)),
        (2, (1, 33, 1), lambda x: x.sum((0, 2)) + x.sum(-1, keepdim=True)),
        (0, (33, 2), lambda x: x.sum(-1) + x.mean(-1) + x.sum()),
        (0, (33, 1), lambda x: (x > 0).sum(-1) + x.sum(-1, dtype=torch.float64)),
    ],
    "join-transposed-groups": [
        (1, (1, 4, 5, 5), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)),
        (1, (2, 4, 5), nn.ConvTranspose1d(4, 4, 3, groups=4, bias=False, dilation=2)),
        (0, (1, 4, 5, 5), nn.ConvTranspose2d(4, 6, 3)),
    ],
    "convolve-longer-row": [
        (1, (2, 4, 16), nn.Conv1d(4, 6, 7, padding=3)),
        (1, (1, 4, 1, 32), nn.Conv2d(4, 6, (1, 11), padding=(0, 5), groups=2)),
        (1, (1, 4, 16), nn.Conv1d(4, 6, 3, dilation=3, padding="same")),
        (1, (1, 4, 1, 16), lambda x: F.conv2d(F.pad(x, (3, 3)), torch.ones(6, 4, 1, 7))),
        (0, (1, 4, 1, 16), lambda x: F.conv2d(F.pad(x, (6, 0)), torch.ones(6, 4, 1, 7))),
        (0, (1, 4, 24), nn.Conv1d(4, 6, 7, padding=3)),
        (0, (1, 4, 12), nn.Conv1d(4, 6, 7, padding=3)),
        (0, (1, 4, 16), nn.Conv1d(4, 4, 7, padding=3, groups=4)),
        (0, (1, 4, 2, 16), nn.Conv2d(4, 6, (1, 7), padding=(0, 3))),
    ],
    "repeat-channel": [
        (1, (2, 1, 40), nn.Conv1d(1, 257, 4, 2, bias=False)),
        (1, (2, 1, 40), nn.Conv1d(1, 260, 5, padding=2)),
        (0, (2, 1, 40), nn.Conv1d(1, 256, 4, 2)),
        (0, (2, 1, 40), nn.Conv1d(1, 257, 3)),
        (0, (2, 2, 40), nn.Conv1d(2, 257, 4)),
    ],
    "join-crowded-groups": [
        (1, (2, 4, 5, 5), nn.Conv2d(4, 256, 3, 2, 1, groups=4)),
        (1, (2, 2, 8), nn.Conv1d(2, 480, 3, groups=2, bias=False)),
        (0, (2, 4, 5, 5), nn.Conv2d(4, 188, 3, groups=4)),
        (0, (2, 2, 8), nn.Conv1d(2, 318, 3, groups=2)),
        (0, (1, 4, 5, 5), nn.Conv2d(4, 256, 3, groups=2)),
        (0, (1, 4, 5, 5), nn.Conv2d(4, 256, 3)),
        (0, (1, 36, 3, 3), nn.Conv2d(36, 288, 3, groups=36)),
    ],
    "join-multiplied-groups": [
        (1, (2, 4, 5, 6), nn.Conv2d(4, 8, (3, 2), 2, 1, groups=4)),
        (1, (2, 4, 8), nn.Conv1d(4, 12, 3, groups=4, bias=False)),
        (0, (2, 4, 5, 5), nn.Conv2d(4, 4, 3, groups=4)),
        (0, (2, 4, 5, 5), nn.Conv2d(4, 8, 3, groups=2)),
        (0, (2, 1, 5, 5), nn.Conv2d(1, 8, 3)),
    ],
    "copy-shared-weights": [
        (1, (2, 4, 5, 5), Body(lambda conv, x: conv(x) * conv.weight.sum(), nn.Conv2d(4, 3, 3))),
        (1, (2, 4, 5), Body(lambda conv, x: conv(x) * conv.weight.mean(), nn.Conv1d(4, 3, 3))),
        (
            1,
            (2, 4, 5, 5),
            Body(lambda conv, x: F.conv_transpose2d(conv(x), conv.weight), nn.Conv2d(4, 3, 3)),
        ),
        (0, (2, 4, 5), Body(lambda conv, x: conv(conv(x)), CONV)),
        (0, (2, 4, 5), CONV),
    ],
    "surround-kernel": [
        (1, (1, 4, 5, 5), nn.Conv2d(4, 6, (3, 2), padding=(4, 5), dilation=(1, 2))),
        (1, (2, 4, 5), nn.Conv1d(4, 6, 2, 2, 3, groups=2)),
        (0, (1, 4, 5, 5), nn.Conv2d(4, 6, 3, padding=4, dilation=2)),
    ],
    "widen-depthwise": [
        (1, (1, 4, 6, 8), nn.Conv2d(4, 4, 2, 2, groups=4)),
        (1, (1, 4, 6, 8), nn.Conv2d(4, 8, 2, 2, groups=4, bias=False)),
        (0, (1, 4, 7, 8), nn.Conv2d(4, 4, 2, 2, groups=4)),
        (0, (1, 4, 6, 8), nn.Conv2d(4, 4, 2, 2)),
        (0, (1, 4, 6, 8), nn.Conv2d(4, 4, 2, 2, groups=4, dilation=2)),
    ],
}  # fmt: skip


def test_each_rewrite_of_the_table_has_a_function_and_rows() -> None:
    names = {rewrite.name for rewrite in read_rewrites("torch")}
    assert names == ROWS.keys()
    assert names <= REWRITES.keys()
    # A rewrite of both lanes may be of use in the other one only.
    only_there = {rewrite.name for rewrite in read_rewrites("onnx")} & DEFINITIONS.keys()
    assert REWRITES.keys() <= names | only_there


@pytest.mark.parametrize("name", ROWS)
def test_rewritten_bodies_compute_the_same(name: str) -> None:
    rows = [row for row in ROWS[name] if row[0]]
    count, graph = apply(name, rows)
    assert count == sum(row[0] for row in rows)
    assert REWRITES[name](graph) == ()


@pytest.mark.parametrize("name", ROWS)
def test_torch_graphs_that_only_resemble_a_pattern_are_left_unchanged(name: str) -> None:
    count, _ = apply(name, [row for row in ROWS[name] if not row[0]])
    assert count == 0


@settings(max_examples=15, deadline=None)
@given(
    axes=st.integers(1, 3),
    size=st.integers(4, 9),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    padding=st.integers(0, 2),
    options=st.fixed_dictionaries({"ceil_mode": st.booleans(), "count_include_pad": st.booleans()}),
    divisor=st.sampled_from([None, 3]),
)
def test_padding_moved_out_of_average_pools_gives_the_same_values(
    axes: int, size: int, sizes: Any, padding: int, options: Any, divisor: Any
) -> None:
    options |= {"divisor_override": divisor} if axes > 1 and divisor else {}
    pool = getattr(nn, f"AvgPool{axes}d")(*sizes, min(padding, sizes[0] // 2), **options)
    apply("pad-before-pool", [(1, (2, 3, *[size, size + 1, size + 2][:axes]), pool)])


class Changing(nn.Module):
    """Changes its buffer, which is therefore no constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(2, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([x, self.state], 1) + self.state.exp()[:, :1]
        self.state.mul_(0.5)
        return F.softplus(y * self.state[:, :1])


@pytest.fixture(scope="module")
def changing() -> fx.GraphModule:
    return export_module(Changing(), [randn(2, 3, 4)])


@pytest.mark.parametrize("name", ROWS)
def test_a_buffer_that_the_model_changes_is_no_constant(name: str, changing: Any) -> None:
    graph, original = copy.deepcopy(changing), copy.deepcopy(changing)
    REWRITES[name](graph)
    for seed in range(3):
        x = randn(2, 3, 4, seed=seed)
        torch.testing.assert_close(graph(x), original(x))


@pytest.fixture(scope="module")
def of_any_batch() -> fx.GraphModule:
    dynamic = {"inputs": ({0: torch.export.Dim("n", min=2)},)}
    factor = W[:4].clone()
    net = Body(lambda x: factor * F.softplus(F.avg_pool2d(x, 3, 2, 1)).repeat_interleave(2, 1))
    program = torch.export.export(net, (randn(2, 3, 8, 8),), dynamic_shapes=dynamic)
    return program.module(check_guards=False)


@pytest.mark.parametrize("name", ROWS)
def test_a_graph_with_a_dynamic_batch_is_not_rewritten(name: str, of_any_batch: Any) -> None:
    graph = copy.deepcopy(of_any_batch)
    assert REWRITES[name](graph) == ()
    torch.testing.assert_close(graph(randn(5, 3, 8, 8)), of_any_batch(randn(5, 3, 8, 8)))


def test_rewritten_nodes_keep_source_line_and_module_of_the_old_ones() -> None:
    graph = export_module(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softplus()), [randn(1, 3, 8, 8)])
    before = {node.name for node in graph.graph.nodes}
    old = next(node for node in graph.graph.nodes if "softplus" in str(node.target)).meta
    (change,) = REWRITES["softplus-by-series"](graph)
    assert change.nodes == ("softplus",)
    new = [node.meta for node in graph.graph.nodes if node.name not in before]
    assert new
    for meta in new:
        assert meta["nn_module_stack"] == old["nn_module_stack"]
        assert meta["stack_trace"] == old["stack_trace"]
        assert meta["val"].shape == (1, 4, 8, 8)


class Mixed(nn.Module):
    """Multiplies its input by the rows of a parameter, [2, 4], which ``split`` returns."""

    def __init__(self, split: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.rows, self.split = nn.Parameter(randn(2, 4)), split

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.split(self.rows)
        return (x * first).relu() * second


# ExecuTorch refuses an unbind of a parameter, and torch.export makes one of an iteration.
@pytest.mark.parametrize(
    ("split", "unbinds"), [(tuple, False), (lambda rows: rows.unbind(0), True)]
)
def test_only_a_parameter_that_the_model_unbinds_itself_is_unbound(
    split: Callable[[Tensor], Sequence[Tensor]], unbinds: bool
) -> None:
    module, x = Mixed(split), randn(3, 4, seed=1)
    graph = export_module(module, (x,))
    assert torch.equal(graph(x), module(x))
    again = torch.export.export(graph, (x,), strict=False).graph
    targets = [node.target for node in again.nodes]
    assert (torch.ops.aten.unbind.int in targets) is unbinds
