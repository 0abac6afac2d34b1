"""Pools, unfolded windows and cumulative sums: padding written out, slices, and products with
constant matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from ci.mend.torch_rewrites.constants import surround
from ci.mend.torch_rewrites.editing import Editor, argument, aten, rewrites, shape_of, value_of

# The operators that pool 1, 2 or 3 axes
AVERAGES = [aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default]
MEANS = [getattr(aten, f"adaptive_avg_pool{axes}d").default for axes in (1, 2, 3)]
MAXIMA = [getattr(aten, f"adaptive_max_pool{axes}d").default for axes in (1, 2, 3)]


@rewrites("pad-before-pool", *AVERAGES)
def pad_before_pool(edit: Editor, node: Node) -> None:
    """Write the padding of average pools out, and that of windows beyond the edge. The border is
    multiplied by the factor that the other number of counted elements makes."""
    axes, operand = AVERAGES.index(node.target) + 1, node.args[0]
    kernel = per_axis(node.args[1], axes)
    stride = per_axis(argument(node, "stride") or kernel, axes)
    padding = per_axis(argument(node, "padding"), axes)
    sizes, made = shape_of(operand)[-axes:], shape_of(node)[-axes:]
    after = [  # a negative number: elements that no window reaches
        max((count - 1) * step + window - size - pad, 0)
        for size, count, window, step, pad in zip(sizes, made, kernel, stride, padding, strict=True)
    ]
    if not any(padding) and not any(after):
        return
    ones = torch.ones(1, 1, *sizes, dtype=value_of(node).dtype)
    counts = [count for pair in zip(padding, after, strict=True) for count in reversed(pair)]
    padded = torch.nn.functional.pad(ones, counts[::-1])
    factor = node.target(ones, *node.args[1:], **node.kwargs) / node.target(padded, kernel, stride)
    new = edit.call(node.target, surround(edit, operand, padding, after), kernel, stride)
    if not bool((factor == 1).all()):
        new = edit.mul(new, factor[0, 0])
    edit.replace(node, new, "pad with zeros, pool without padding, multiply by a constant factor")


@rewrites("state-stride", aten.max_pool2d, aten.max_pool2d_with_indices, aten.avg_pool3d)
def state_stride(edit: Editor, node: Node) -> None:
    """State the stride of pools, which is the kernel by default."""
    if not argument(node, "stride"):
        kernel = node.args[1]
        node.replace_all_uses_with(edit.call_again(node, stride=kernel))
        edit.note(node, f"the same pool with stride={kernel}")


@rewrites("widen-max-pool", aten.max_pool1d)
def widen_max_pool(edit: Editor, node: Node) -> None:
    """Write max pools over one axis as pools of images with one row."""
    kernel = per_axis(node.args[1], 1)
    size, stride, padding, dilation = (
        [number, *per_axis(argument(node, name) or kernel, 1)]
        for name, number in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    )
    numbers = size, stride, padding, dilation, argument(node, "ceil_mode")
    new = edit.squeeze(edit.max_pool2d(edit.unsqueeze(node.args[0], -2), *numbers), -2)
    edit.replace(node, new, "F.max_pool2d(x.unsqueeze(-2), (1, k), (1, s)).squeeze(-2)")


@rewrites("multiply-adaptive-pool", *MEANS)
def multiply_adaptive_pool(edit: Editor, node: Node) -> None:
    """Write adaptive average pools of sizes that do not divide as products with constant matrices,
    one per axis."""
    axes, operand = MEANS.index(node.target) + 1, node.args[0]
    sizes, made = shape_of(operand)[-axes:], shape_of(node)[-axes:]
    if all(size % count == 0 for size, count in zip(sizes, made, strict=True)):
        return
    for axis, size, count in zip(range(-axes, 0), sizes, made, strict=True):
        if size != count:
            single = torch.eye(size, dtype=torch.float64)[None]
            averages = torch.nn.functional.adaptive_avg_pool1d(single, count)[0].T
            operand = _multiply_axis(edit, operand, axis, averages)
    edit.replace(node, operand, "rows @ x @ columns.T, with constant matrices of averages")


@rewrites("slice-adaptive-maximum", *MAXIMA)
def slice_adaptive_maximum(edit: Editor, node: Node) -> None:
    """Write adaptive max pools as the maximum of each window, axis by axis."""
    users = [user for user in node.users if user.users]
    if [user.args[1:] for user in users] != [(0,)]:
        return  # the indices are used
    axes, operand = MAXIMA.index(node.target) + 1, node.args[0]
    sizes, made = shape_of(operand)[-axes:], shape_of(users[0])[-axes:]
    rank = len(shape_of(operand))
    for axis, size, count in zip(range(rank - axes, rank), sizes, made, strict=True):
        bounds = [(row * size // count, -(-(row + 1) * size // count)) for row in range(count)]
        parts = [edit.slice(operand, axis, *bound) for bound in bounds]
        parts = [edit.amax(part, [axis], True) for part in parts]
        operand = edit.cat(parts, axis) if count > 1 else parts[0]
    edit.replace(users[0], operand, "torch.cat([x[..., a:b].amax(-1, True), ...], -1)")


@rewrites("separate-maximum", aten.max.dim, aten.min.dim)
def separate_maximum(edit: Editor, node: Node) -> None:
    """Compute a maximum or minimum along an axis, and its place, with an operator each."""
    end = "max" if node.target is aten.max.dim else "min"
    axis, keep = node.args[1] % len(shape_of(node.args[0])), argument(node, "keepdim")
    for user in [user for user in node.users if user.users]:
        word, axes = (f"a{end}", [axis]) if user.args[1] == 0 else (f"arg{end}", axis)
        edit.replace(user, getattr(edit, word)(node.args[0], axes, keep), f"x.{word}(dim)")


@rewrites(
    "select-nearest", aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d
)
def select_nearest(edit: Editor, node: Node) -> None:
    """Write a resize with mode nearest to sizes that are no multiples as a selection of places,
    axis by axis."""
    operand, made = node.args[0], shape_of(node)[2:]
    sizes = shape_of(operand)[2:]
    if all(count % size == 0 for size, count in zip(sizes, made, strict=True)):
        return
    numbers = torch.arange(math.prod(sizes)).reshape(1, 1, *sizes).double()
    places: Tensor = node.target(numbers, *node.args[1:], **node.kwargs)[0, 0].long()
    for axis, (size, count) in enumerate(zip(sizes, made, strict=True)):
        if size != count:
            step = math.prod(sizes[axis + 1 :])
            line = places.movedim(axis, 0).flatten(1)[:, 0] if places.dim() > 1 else places
            operand = edit.index_select(operand, axis + 2, line // step)
    edit.replace(node, operand, "x.index_select(dim, places) for each axis")


@rewrites("slice-windows")
def slice_windows(edit: Editor) -> None:
    """Write F.unfold as a concatenation of one slice of the image per position of the window, and
    x.unfold as a selection of places."""
    for node in edit.find(aten.unfold.default):
        operand, axis, size, step = node.args
        rank = len(shape_of(operand))
        axis, count = axis % rank, shape_of(node)[axis % rank]
        places = torch.arange(count)[:, None] * step + torch.arange(size)
        rows = edit.constant(places.flatten())
        turns = [axis, rank - 1] if axis < rank - 1 else []
        new = edit.transpose(operand, *turns) if turns else operand
        new = edit.index_select(new, rank - 1, rows)
        new = edit.reshape(new, [*shape_of(new)[:-1], count, size])
        new = edit.transpose(new, *turns) if turns else new
        edit.replace(node, new, "x.index_select(dim, places).unflatten(dim, (-1, size))")
    for node in edit.find(aten.im2col.default):
        operand, *given = node.args
        kernel, dilation, padding, stride = (per_axis(one, 2) for one in given)
        if len(shape_of(operand)) != 4:
            continue
        operand = surround(edit, operand, padding, padding)
        batch, channels, *sizes = shape_of(operand)
        reach = [
            size - (count - 1) * step
            for size, count, step in zip(sizes, kernel, dilation, strict=True)
        ]
        parts = []
        for place in itertools.product(*map(range, kernel)):
            part = operand
            for axis, start in enumerate(place):
                start *= dilation[axis]
                part = edit.slice(part, axis + 2, start, start + reach[axis], stride[axis])
            parts.append(edit.reshape(part, [batch, channels, 1, -1]))
        new = edit.cat(parts, 2) if len(parts) > 1 else parts[0]
        new = edit.reshape(new, [*shape_of(node)])
        edit.replace(node, new, "torch.cat([x[:, :, i:m:s, j:n:t].reshape(b, c, 1, -1), ...], 2)")


@rewrites("convolve-average", aten.avg_pool2d)
def convolve_tall_pool(edit: Editor, node: Node) -> None:
    """Write average pools of tall images with a stride of 1 as depthwise convolutions."""
    kernel = per_axis(node.args[1], 2)
    stride = per_axis(argument(node, "stride") or kernel, 2)
    padding = per_axis(argument(node, "padding"), 2)
    shape = shape_of(node.args[0])
    divisor = argument(node, "divisor_override") or math.prod(kernel)
    if stride != [1, 1] or any(padding) or len(shape) != 4:
        return
    weight = torch.full((shape[1], 1, *kernel), 1 / divisor, dtype=value_of(node).dtype)
    new = edit.conv2d(node.args[0], weight, None, [1, 1], [0, 0], [1, 1], shape[1])
    edit.replace(node, new, "F.conv2d(x, weight, groups=channels), each weight 1 / kernel ** 2")


@rewrites("multiply-cumulative", aten.cumsum.default)
def sum_by_triangle(edit: Editor, node: Node) -> None:
    """Write a cumulative sum as a linear layer whose weights are a triangle of ones."""
    operand, axis = node.args[:2]
    shape, dtype = shape_of(operand), value_of(node).dtype
    if shape and dtype.is_floating_point and value_of(operand).dtype == dtype:
        triangle = torch.ones(shape[axis], shape[axis]).tril()
        new = _multiply_axis(edit, operand, axis % len(shape) - len(shape), triangle)
        edit.replace(node, new, "F.linear(x, torch.ones(n, n).tril())")


def _multiply_axis(edit: Editor, operand: Node, axis: int, matrix: Tensor) -> Node:
    """Multiply a matrix [made, size] by an axis, a number below zero, of a tensor."""
    stored = edit.constant(matrix.to(value_of(operand).dtype))
    if axis == -1:
        return edit.linear(operand, stored)
    return edit.transpose(edit.linear(edit.transpose(operand, axis, -1), stored), axis, -1)


def per_axis(given: int | Sequence[int], axes: int) -> list[int]:
    numbers = [given] if isinstance(given, int) else [*given]
    return numbers * axes if len(numbers) == 1 else numbers
