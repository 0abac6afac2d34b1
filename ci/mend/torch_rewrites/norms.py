"""Norms: RMS norms of some sizes, layer norms over several axes, batch norms that stand alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from ci.mend.torch_rewrites.editing import (
    Editor,
    argument,
    aten,
    list_operators,
    normal_axes,
    rewrites,
    shape_of,
    value_of,
)

CONVOLUTIONS = list_operators("conv1d conv2d conv3d")
TRANSPOSED = list_operators("conv_transpose1d conv_transpose2d.input conv_transpose3d.input")
# Layers into which ExecuTorch or QNN folds a batch norm.
ABSORBING = CONVOLUTIONS | TRANSPOSED
ABSORBING |= list_operators("conv1d.padding conv2d.padding conv3d.padding convolution linear")


# Its result, operand, weight or None and epsilon, and whether it is written as
# x * (rsqrt(...) * weight), which ExecuTorch refuses.
RmsNorm = tuple[fx.Node, fx.Node, fx.Node | None, float, bool]


# In fp16 and 8 bits, QNN 2.49.40 misplaces rows of RMS norms of some sizes: 3.0 dB for [1, 16, 4,
# 32], and 68.7 dB (fp16) and 32.9 dB (8a8w) after.
@rewrites("flatten-rms-norm")
def flatten_rms_norm(edit: Editor) -> None:
    """Compute RMS norms that ExecuTorch makes one operator of QNN as norms of one row of
    positions, [1, positions, length]."""
    for node, operand, weight, eps, is_refused in [*_find_rms_norms(edit)]:
        shape = shape_of(operand)
        # In rank 2, and with a single row of positions, QNN's norm is right.
        if not is_refused and (len(shape) < 3 or math.prod(shape[:-2]) == 1):
            continue
        with edit.at(node):
            flat = edit.reshape(operand, [1, -1, shape[-1]])
            normalized = edit.rms_norm(flat, [shape[-1]], weight, eps)
            new = edit.reshape(normalized, [*shape])
        edit.replace(node, new, "norm(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)")


# ExecuTorch has no QNN builder for a variance: it stays on the CPU.
@rewrites("write-variance", aten.var, aten.std)
def write_variance(edit: Editor, node: fx.Node) -> None:
    """Write a variance or a standard deviation as the mean of squares."""
    operand, shape = node.args[0], shape_of(node.args[0])
    axes = normal_axes(argument(node, "dim") or range(len(shape)), len(shape))
    # Each overload has one of the arguments: a number, or true for 1. Without any, it is 1.
    corrections = argument(node, "correction"), argument(node, "unbiased"), 1
    lost = next(number for number in corrections if number is not None)
    count = math.prod(shape[axis] for axis in axes)
    if count <= lost:
        return
    new = edit.sub(operand, edit.mean(operand, [*axes], True))
    new = edit.mean(edit.mul(new, new), [*axes], bool(argument(node, "keepdim")))
    new = edit.mul(new, count / (count - lost)) if lost else new
    new = edit.sqrt(new) if "std" in str(node.target) else new
    edit.replace(node, new, "((x - x.mean(dim, True)) ** 2).mean(dim) * n / (n - 1)")


# ExecuTorch decomposes them into operators without a QNN builder.
@rewrites("write-distance", aten.cosine_similarity.default, aten.pairwise_distance.default)
def write_distance(edit: Editor, node: fx.Node) -> None:
    """Write a cosine similarity or a Euclidean distance with products and sums."""
    first, second, *_ = node.args
    eps = argument(node, "eps")
    if node.target is aten.cosine_similarity.default:
        axes = [argument(node, "dim")]
        dot = edit.sum(edit.mul(first, second), axes)
        first_square = edit.sum(edit.mul(first, first), axes)
        second_square = edit.sum(edit.mul(second, second), axes)
        first_length = edit.clamp_min(edit.sqrt(first_square), eps)
        second_length = edit.clamp_min(edit.sqrt(second_square), eps)
        new = edit.div(dot, edit.mul(first_length, second_length))
        edit.replace(
            node, new, "(x * y).sum(dim) / (|x| * |y|), with |x| = (x * x).sum(dim).sqrt()"
        )
    elif argument(node, "p") == 2:
        difference = edit.add(edit.sub(first, second), eps)
        total = edit.sum(edit.mul(difference, difference), [-1], bool(argument(node, "keepdim")))
        edit.replace(node, edit.sqrt(total), "((x - y + eps) * (x - y + eps)).sum(-1).sqrt()")


# ExecuTorch has no QNN builder for a reduction without axes.
@rewrites("name-axes", aten.mean.default, aten.sum.default)
def name_axes(edit: Editor, node: fx.Node) -> None:
    """Write a mean or a sum over all axes with their numbers."""
    reduce = edit.mean if node.target is aten.mean.default else edit.sum
    axes = [*range(len(shape_of(node.args[0])))]
    if axes and argument(node, "dtype") is None:
        edit.replace(node, reduce(node.args[0], axes), "x.mean(dim=(0, 1, ...))")


def _find_rms_norms(edit: Editor) -> Iterator[RmsNorm]:
    """Yield the RMS norms over the last axis."""
    for node in edit.find(aten.rms_norm.default):
        operand, sizes = node.args[:2]
        eps = argument(node, "eps")
        eps = torch.finfo(value_of(node).dtype).eps if eps is None else eps
        if len(sizes) == 1:
            yield node, operand, argument(node, "weight"), eps, False
    for node in edit.find(aten.rsqrt.default):
        mean_of_squares, product = _match_mean_of_squares(edit, node.args[0]), edit.user(node)
        if mean_of_squares is None or product is None or product.target is not aten.mul.Tensor:
            continue
        operand, eps = mean_of_squares
        factors = [factor for factor in map(edit.source, product.args) if factor is not node]
        last = edit.user(product)
        if last is None or last.target is not aten.mul.Tensor or len(factors) != 1:
            continue
        last_factors = [factor for factor in map(edit.source, last.args) if factor is not product]
        if factors == [operand] and last_factors and _is_weight(edit, last_factors[0], operand):
            yield last, operand, last_factors[0], eps, False
        # ExecuTorch's pass RecomposeRmsNorm takes any operand of the last product for the weight:
        # -3 dB in 16 bits or, if x is an input, no program.
        elif last_factors == [operand] and _is_weight(edit, factors[0], operand):
            yield last, operand, factors[0], eps, True


def _match_mean_of_squares(edit: Editor, value: Any) -> tuple[fx.Node, float] | None:
    """Return x and eps of ``mean(x ** 2, -1, keepdim=True) + eps``."""
    add = edit.source(value)
    if not isinstance(add, fx.Node) or add.target is not aten.add.Tensor or add.kwargs:
        return None
    mean, eps = map(edit.source, add.args)
    if isinstance(eps, fx.Node):
        mean, eps = eps, mean
    stored = edit.value(eps)
    eps = stored.item() if stored is not None and stored.numel() == 1 else eps
    if (
        not isinstance(mean, fx.Node)
        or mean.target is not aten.mean.dim
        or isinstance(eps, fx.Node)
    ):
        return None
    square = edit.source(mean.args[0])
    rank = len(shape_of(square))
    is_last = mean.args[1] and normal_axes(mean.args[1], rank) == (rank - 1,)
    if not is_last or argument(mean, "keepdim") is not True:
        return None
    operand = edit.source(square.args[0]) if square.args else None
    is_power = square.target is aten.pow.Tensor_Scalar and square.args[1] == 2
    is_product = square.target is aten.mul.Tensor and edit.source(square.args[1]) is operand
    is_square = is_power or is_product or square.target is aten.square.default
    return (operand, float(eps)) if is_square else None


def _is_weight(edit: Editor, factor: Any, operand: fx.Node) -> bool:
    """Return whether a value is stored with the model, a number per position of the last axis."""
    stored: Tensor | None = edit.value(factor)
    return stored is not None and tuple(stored.shape) == shape_of(operand)[-1:]
