"""Norms: RMS norms of some sizes, layer norms over several axes, batch norms that stand alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


# QNN normalizes only over the last axis: nn.LayerNorm([4, 32]) is on the CPU.
@rewrites("flatten-layer-norm", aten.layer_norm.default)
def flatten_layer_norm(edit: Editor, node: fx.Node) -> None:
    """Compute layer norms over several axes as norms over the last of [1, positions, length]."""
    length, shape = math.prod(node.args[1]), shape_of(node)
    parameters = argument(node, "weight"), argument(node, "bias")
    stored = [edit.value(parameter) for parameter in parameters]
    if len(node.args[1]) < 2 or not _are_stored(parameters, stored):
        return
    flat = edit.reshape(node.args[0], [1, -1, length])
    factors = map(_flatten, stored)
    normalized = edit.layer_norm(flat, [length], *factors, argument(node, "eps"))
    new = edit.reshape(normalized, [*shape])
    edit.replace(node, new, f"nn.LayerNorm({length}) of a flattened x")


def _are_stored(parameters: Sequence[Any], stored: Sequence[Tensor | None]) -> bool:
    """Return whether each parameter is stored with the model, or None in the call."""
    pairs = zip(parameters, stored, strict=True)
    return all((parameter is None) == (value is None) for parameter, value in pairs)


def _flatten(stored: Tensor | None) -> Tensor | None:
    """Return a parameter with one axis, or None if there is none."""
    return None if stored is None else stored.flatten()


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


# ExecuTorch stores a separate batch norm with wrong scales, and torchao folds one into a
# convolution whose result others read, too: 3.3 dB in 16a8w behind a ReLU, and 47.8 dB after (QNN
# 2.49.40).
@rewrites("scale-batch-norm", aten.batch_norm.default)
def scale_batch_norm(edit: Editor, node: fx.Node) -> None:
    """Write a batch norm that no convolution or linear layer absorbs as a product and a sum."""
    operand, *parameters = node.args[:5]
    source = edit.source(operand)
    is_training, eps = node.args[5], node.args[7]
    # A layer absorbs its batch norm; but if others read its result, too, torchao would give them
    # normalized values.
    if is_training or (source.target in ABSORBING and edit.user(source) is node):
        return
    weight, bias, mean, variance = (edit.value(parameter) for parameter in parameters)
    if mean is None or variance is None or not _are_stored(parameters[:2], (weight, bias)):
        return
    gain = torch.rsqrt(variance.double() + eps)
    gain = gain if weight is None else gain * weight
    offset = -mean * gain if bias is None else bias - mean * gain
    sizes = [-1, *[1] * (len(shape_of(node)) - 2)]
    dtype = value_of(node).dtype
    stored_gain = edit.constant(gain.reshape(sizes).to(dtype))
    stored_offset = edit.constant(offset.reshape(sizes).to(dtype))
    after = "x * g + o, with g = weight / (running_var + eps).sqrt(), o = bias - running_mean * g"
    edit.replace(node, edit.add(edit.mul(operand, stored_gain), stored_offset), after)


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
