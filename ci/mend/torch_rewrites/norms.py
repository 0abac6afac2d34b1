"""Norms: RMS norms of some sizes, layer norms over several axes, batch norms that stand alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

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
RmsNorm = tuple[Node, Node, Node | None, float, bool]


@rewrites("flatten-rms-norm")
def flatten_rms_norm(edit: Editor) -> None:
    """Compute RMS norms that ExecuTorch makes one operator of QNN as norms of one row of
    positions, [1, positions, length]."""
    for node, operand, weight, eps, refused in [*_find_rms_norms(edit)]:
        shape = shape_of(operand)
        if not refused and (len(shape) < 3 or math.prod(shape[:-2]) == 1):
            continue
        with edit.at(node):
            flat = edit.reshape(operand, [1, -1, shape[-1]])
            made = edit.reshape(edit.rms_norm(flat, [shape[-1]], weight, eps), [*shape])
        edit.replace(node, made, "norm(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)")


@rewrites("flatten-layer-norm", aten.layer_norm.default)
def flatten_layer_norm(edit: Editor, node: Node) -> None:
    """Compute layer norms over several axes as norms over the last of [1, positions, length]."""
    length, shape = math.prod(node.args[1]), shape_of(node)
    given = argument(node, "weight"), argument(node, "bias")
    stored = [edit.value(one) for one in given]
    if len(node.args[1]) < 2 or [one is None for one in given] != [one is None for one in stored]:
        return
    flat = edit.reshape(node.args[0], [1, -1, length])
    factors = [None if one is None else one.flatten() for one in stored]
    made = edit.layer_norm(flat, [length], *factors, argument(node, "eps"))
    edit.replace(node, edit.reshape(made, [*shape]), f"nn.LayerNorm({length}) of a flattened x")


@rewrites("write-variance", aten.var, aten.std)
def write_variance(edit: Editor, node: Node) -> None:
    """Write a variance or a standard deviation as the mean of squares."""
    operand, shape = node.args[0], shape_of(node.args[0])
    axes = normal_axes(argument(node, "dim") or range(len(shape)), len(shape))
    numbers = argument(node, "correction"), argument(node, "unbiased"), 1
    lost = next(number for number in numbers if number is not None)
    count = math.prod(shape[axis] for axis in axes)
    if count <= lost:
        return
    new = edit.sub(operand, edit.mean(operand, [*axes], True))
    new = edit.mean(edit.mul(new, new), [*axes], bool(argument(node, "keepdim")))
    new = edit.mul(new, count / (count - lost)) if lost else new
    new = edit.sqrt(new) if "std" in str(node.target) else new
    edit.replace(node, new, "((x - x.mean(dim, True)) ** 2).mean(dim) * n / (n - 1)")


@rewrites("write-distance", aten.cosine_similarity.default, aten.pairwise_distance.default)
def write_distance(edit: Editor, node: Node) -> None:
    """Write a cosine similarity or a Euclidean distance with products and sums."""
    first, second, *_ = node.args
    eps = argument(node, "eps")
    if node.target is aten.cosine_similarity.default:
        axes = [argument(node, "dim")]
        dot, *squares = (
            edit.sum(edit.mul(*pair), axes)
            for pair in ((first, second), (first, first), (second, second))
        )
        lengths = (edit.clamp_min(edit.sqrt(one), eps) for one in squares)
        new = edit.div(dot, edit.mul(*lengths))
        edit.replace(
            node, new, "(x * y).sum(dim) / (|x| * |y|), with |x| = (x * x).sum(dim).sqrt()"
        )
    elif argument(node, "p") == 2:
        apart = edit.add(edit.sub(first, second), eps)
        new = edit.sqrt(edit.sum(edit.mul(apart, apart), [-1], bool(argument(node, "keepdim"))))
        edit.replace(node, new, "((x - y + eps) * (x - y + eps)).sum(-1).sqrt()")


@rewrites("name-axes", aten.mean.default, aten.sum.default)
def name_axes(edit: Editor, node: Node) -> None:
    """Write a mean or a sum over all axes with their numbers."""
    reduce = edit.mean if node.target is aten.mean.default else edit.sum
    axes = [*range(len(shape_of(node.args[0])))]
    if axes and argument(node, "dtype") is None:
        edit.replace(node, reduce(node.args[0], axes), "x.mean(dim=(0, 1, ...))")


@rewrites("scale-batch-norm", aten.batch_norm.default)
def scale_batch_norm(edit: Editor, node: Node) -> None:
    """Write a batch norm that no convolution or linear layer absorbs as a product and a sum."""
    operand, *stored = node.args[:5]
    source = edit.source(operand)
    if node.args[5] or (source.target in ABSORBING and edit.user(source) is node):
        return
    weight, bias, mean, variance = (edit.value(one) for one in stored)
    is_computed = [one is None for one in stored[:2]] != [one is None for one in (weight, bias)]
    if mean is None or variance is None or is_computed:
        return
    gain = torch.rsqrt(variance.double() + node.args[7])
    gain = gain if weight is None else gain * weight
    offset = -mean * gain if bias is None else bias - mean * gain
    sizes = [-1, *[1] * (len(shape_of(node)) - 2)]
    gain, offset = (
        edit.constant(one.reshape(sizes).to(value_of(node).dtype)) for one in (gain, offset)
    )
    after = "x * g + o, with g = weight / (running_var + eps).sqrt(), o = bias - running_mean * g"
    edit.replace(node, edit.add(edit.mul(operand, gain), offset), after)


def _find_rms_norms(edit: Editor) -> Iterator[RmsNorm]:
    """Yield the RMS norms over the last axis."""
    for node in edit.find(aten.rms_norm.default):
        operand, sizes = node.args[:2]
        eps = argument(node, "eps")
        eps = torch.finfo(value_of(node).dtype).eps if eps is None else eps
        if len(sizes) == 1:
            yield node, operand, argument(node, "weight"), eps, False
    for node in edit.find(aten.rsqrt.default):
        found, result = _match_mean_of_squares(edit, node.args[0]), edit.user(node)
        if found is None or result is None or result.target is not aten.mul.Tensor:
            continue
        operand, eps = found
        factors = [one for one in map(edit.source, result.args) if one is not node]
        last = edit.user(result)
        if last is None or last.target is not aten.mul.Tensor or len(factors) != 1:
            continue
        others = [one for one in map(edit.source, last.args) if one is not result]
        if factors == [operand] and others and _is_weight(edit, others[0], operand):
            yield last, operand, others[0], eps, False
        elif others == [operand] and _is_weight(edit, factors[0], operand):
            yield last, operand, factors[0], eps, True


def _match_mean_of_squares(edit: Editor, given: Any) -> tuple[Node, float] | None:
    """Return x and eps of ``mean(x ** 2, -1, keepdim=True) + eps``."""
    add = edit.source(given)
    if not isinstance(add, Node) or add.target is not aten.add.Tensor or add.kwargs:
        return None
    mean, eps = map(edit.source, add.args)
    if isinstance(eps, Node):
        mean, eps = eps, mean
    stored = edit.value(eps)
    eps = stored.item() if stored is not None and stored.numel() == 1 else eps
    if not isinstance(mean, Node) or mean.target is not aten.mean.dim or isinstance(eps, Node):
        return None
    square = edit.source(mean.args[0])
    rank = len(shape_of(square))
    is_last = mean.args[1] and normal_axes(mean.args[1], rank) == (rank - 1,)
    if not is_last or argument(mean, "keepdim") is not True:
        return None
    operand = edit.source(square.args[0]) if square.args else None
    powers = square.target is aten.pow.Tensor_Scalar and square.args[1] == 2
    products = square.target is aten.mul.Tensor and edit.source(square.args[1]) is operand
    is_square = powers or products or square.target is aten.square.default
    return (operand, float(eps)) if is_square else None


def _is_weight(edit: Editor, given: Any, operand: Node) -> bool:
    """Return whether a value is stored with the model, a number per position of the last axis."""
    stored: Tensor | None = edit.value(given)
    return stored is not None and tuple(stored.shape) == shape_of(operand)[-1:]
