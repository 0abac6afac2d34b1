"""Operators on images and sequences: convolutions and linear layers of some sizes, pools, unfolded
windows and cumulative sums. Padding is written out, or they become slices and products with
constant matrices."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from ci.mend.torch_rewrites.editing import (
    CASTS,
    Editor,
    argument,
    aten,
    rewrites,
    shape_of,
    value_of,
)
from ci.mend.torch_rewrites.norms import ABSORBING

# The operators that pool 1, 2 or 3 axes
NEAREST = [getattr(aten, f"upsample_nearest{axes}d") for axes in (1, 2, 3)]
EXACT = [getattr(aten, f"_upsample_nearest_exact{axes}d") for axes in (1, 2, 3)]
MAXIMA = [getattr(aten, f"adaptive_max_pool{axes}d").default for axes in (1, 2, 3)]


# Seen in CBAM, whose two convolutions are called twice: 7.6 dB in 8a8w and 16a8w, and 33.0 and 47.6
# dB after (QNN 2.49.40).
@rewrites("copy-shared-bias")
def copy_shared_bias(edit: Editor) -> None:
    """Give each call of a layer after the first its own bias. ExecuTorch quantizes a bias for the
    input of the first call."""
    used_biases = set()
    for node in edit.find(*ABSORBING):
        bias = argument(node, "bias")
        if not isinstance(bias, fx.Node) or bias.op != "get_attr" or len(node.args) < 3:
            continue
        if bias.target in used_biases:
            new = edit.call_again(node, bias=edit.value(bias))
            edit.replace(node, new, "a layer with the same weights and its own bias for each call")
        used_biases.add(bias.target)


# ExecuTorch passes the stride of the call to QNN, and none if the call states none: F.max_pool2d(x,
# 2) is refused in fp16, 8a8w and 16a8w.
@rewrites("state-stride", aten.max_pool2d, aten.max_pool2d_with_indices, aten.avg_pool3d)
def state_stride(edit: Editor, node: fx.Node) -> None:
    """State the stride of pools, which is the kernel by default."""
    if not argument(node, "stride"):
        kernel = node.args[1]
        node.replace_all_uses_with(edit.call_again(node, stride=kernel))
        edit.note(node, f"the same pool with stride={kernel}")


# ExecuTorch makes a reshape before a max_pool1d, does not quantize it, and leaves it to the CPU.
@rewrites("widen-max-pool", aten.max_pool1d)
def widen_max_pool(edit: Editor, node: fx.Node) -> None:
    """Write max pools over one axis as pools of images with one row."""
    kernel = per_axis(node.args[1], 1)
    # The numbers of the axis with one row, then those of the pool: only the stride may be empty.
    stride = [1, *per_axis(argument(node, "stride") or kernel, 1)]
    padding = [0, *per_axis(argument(node, "padding"), 1)]
    dilation = [1, *per_axis(argument(node, "dilation"), 1)]
    numbers = [1, *kernel], stride, padding, dilation, argument(node, "ceil_mode")
    new = edit.squeeze(edit.max_pool2d(edit.unsqueeze(node.args[0], -2), *numbers), -2)
    edit.replace(node, new, "F.max_pool2d(x.unsqueeze(-2), (1, k), (1, s)).squeeze(-2)")


# ExecuTorch makes it a max pool of windows of one size: 21.0 dB in all schemes for 17 x 22 to 3 x
# 3, and 71.2 dB in fp16 after.
@rewrites("slice-adaptive-maximum", *MAXIMA)
def slice_adaptive_maximum(edit: Editor, node: fx.Node) -> None:
    """Write adaptive max pools as the maximum of each window, axis by axis."""
    # The pool returns the maxima and their indices, and a getitem reads each of them.
    getitems = [user for user in node.users if user.users]
    if [getitem.args[1:] for getitem in getitems] != [(0,)]:
        return  # the indices are used
    pooled_axes, operand = MAXIMA.index(node.target) + 1, node.args[0]
    sizes, counts = shape_of(operand)[-pooled_axes:], shape_of(getitems[0])[-pooled_axes:]
    rank = len(shape_of(operand))
    axes = range(rank - pooled_axes, rank)
    for axis, size, count in zip(axes, sizes, counts, strict=True):
        windows = []
        for number in range(count):
            # Windows overlap if count does not divide size: the start is rounded down, the end up.
            start, end = number * size // count, -(-(number + 1) * size // count)
            windows.append(edit.slice(operand, axis, start, end))
        maxima = [edit.amax(window, [axis], True) for window in windows]
        operand = edit.cat(maxima, axis) if count > 1 else maxima[0]
    edit.replace(getitems[0], operand, "torch.cat([x[..., a:b].amax(-1, True), ...], -1)")


# ExecuTorch leaves an operator with two results on the CPU.
@rewrites("separate-maximum", aten.max.dim, aten.min.dim)
def separate_maximum(edit: Editor, node: fx.Node) -> None:
    """Compute a maximum or minimum along an axis, and its place, with an operator each."""
    end = "max" if node.target is aten.max.dim else "min"
    axis, keep = node.args[1] % len(shape_of(node.args[0])), argument(node, "keepdim")
    for user in [user for user in node.users if user.users]:
        word, axes = (f"a{end}", [axis]) if user.args[1] == 0 else (f"arg{end}", axis)
        edit.replace(user, getattr(edit, word)(node.args[0], axes, keep), f"x.{word}(dim)")


# The program would read them as int64: 9.5 dB in fp16 for neighbours by torch.topk and gather, and
# 56.5 dB after (QNN 2.49.40).
@rewrites("narrow-indices", aten.topk.default, aten.sort.default, aten.sort.stable)
def narrow_indices(edit: Editor, node: fx.Node) -> None:
    """Cast indices to int32, as which QNN writes them, and back to int64."""
    items = [user for user in node.users if user.users]  # values and indices
    readers = {reader for item in items if item.args[1] == 1 for reader in item.users}
    if all(reader.target in CASTS and value_of(reader).dtype == torch.int32 for reader in readers):
        return  # no one reads them, or they are cast already
    result = edit.call_again(node)
    for item in items:
        new = edit.call(operator.getitem, result, item.args[1])
        if item.args[1] == 1:
            new = edit.to(edit.to(new, torch.int32), torch.int64)
        edit.replace(item, new, "indices.to(torch.int32).to(torch.int64)")


# ExecuTorch lowers it with half-pixel centres, which read other pixels than torch: 0.1 dB in fp16,
# 8a8w and 16a8w for sizes that are no multiples. It leaves an exact one on the CPU.
@rewrites("select-nearest", *NEAREST, *EXACT)
def select_nearest(edit: Editor, node: fx.Node) -> None:
    """Write a resize with mode nearest to sizes that are no multiples, and one with mode
    nearest-exact, as a selection of places, axis by axis."""
    operand, result_sizes = node.args[0], shape_of(node)[2:]
    sizes = shape_of(operand)[2:]
    if all(count % size == 0 for size, count in zip(sizes, result_sizes, strict=True)):
        if node.target.overloadpacket in EXACT:  # both modes select the same elements
            nearest = NEAREST[EXACT.index(node.target.overloadpacket)]
            target = getattr(nearest, node.target._overloadname)
            new = edit.call(target, *node.args, **node.kwargs)
            edit.replace(node, new, 'F.interpolate(..., mode="nearest")')
        return
    # Interpolating an image that contains its own indices gives the indices that torch selects.
    numbers = torch.arange(math.prod(sizes)).reshape(1, 1, *sizes).double()
    places: Tensor = node.target(numbers, *node.args[1:], **node.kwargs)[0, 0].long()
    for axis, (size, count) in enumerate(zip(sizes, result_sizes, strict=True)):
        if size != count:
            step = math.prod(sizes[axis + 1 :])
            line = places.movedim(axis, 0).flatten(1)[:, 0] if places.dim() > 1 else places
            operand = edit.index_select(operand, axis + 2, line // step)
    edit.replace(node, operand, "x.index_select(dim, places) for each axis")


def per_axis(number: int | Sequence[int], axes: int) -> list[int]:
    """Return a number per axis, of a list with one per axis or of one for all axes."""
    numbers = [number] if isinstance(number, int) else [*number]
    return numbers * axes if len(numbers) == 1 else numbers
