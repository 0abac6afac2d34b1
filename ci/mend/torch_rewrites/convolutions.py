"""Convolutions and linear layers of some sizes."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from ci.mend.axes import find_growth
from ci.mend.torch_rewrites.editing import Editor, argument, aten, rewrites, shape_of
from ci.mend.torch_rewrites.norms import ABSORBING, CONVOLUTIONS, TRANSPOSED
from ci.mend.torch_rewrites.pooling import per_axis


@rewrites("reach-rows", *TRANSPOSED)
def lengthen_transposed_kernel(edit: Editor, node: Node) -> None:
    """Append zeros to the kernel of a transposed convolution and lower its output_padding, until
    a kernel reaches all rows. If it is depthwise with one output per input, lower it below the
    padding, or to 0."""
    weight = edit.value(node.args[1])
    stride, padding, extra, dilation = read_numbers(
        node, "stride", "padding", "output_padding", "dilation"
    )
    if weight is None or any(one != 1 for one in dilation):
        return
    depthwise = is_depthwise(node) and shape_of(node.args[1])[1] == 1
    added = [
        find_growth(size, step, pad, more, max(pad, 1) if depthwise else math.inf)
        for size, step, pad, more in zip(weight.shape[2:], stride, padding, extra, strict=True)
    ]
    if any(added):
        counts = [count for one in reversed(added) for count in (0, one)]
        extra = [more - count for more, count in zip(extra, added, strict=True)]
        longer = torch.nn.functional.pad(weight, counts)
        new = edit.call_again(node, weight=longer, output_padding=extra)
        edit.replace(node, new, "zeros appended to the kernel, and less output_padding")


@rewrites("spread-kernel", *TRANSPOSED)
def spread_kernel(edit: Editor, node: Node) -> None:
    """Write a transposed convolution with dilation with zeros between the rows of the kernel."""
    weight, kernel = edit.value(node.args[1]), shape_of(node.args[1])[2:]
    (dilation,) = read_numbers(node, "dilation")
    if weight is None or all(one == 1 for one in dilation):
        return
    sizes = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    spread = weight.new_zeros(*weight.shape[:2], *sizes)
    places = tuple(slice(None, None, step) for step in (1, 1, *dilation))
    spread[places] = weight
    new = edit.call_again(node, weight=spread, dilation=[1] * len(kernel))
    edit.replace(node, new, "zeros between the rows of the kernel, without dilation")


@rewrites("join-transposed-groups", *TRANSPOSED)
def join_transposed_groups(edit: Editor, node: Node) -> None:
    """Write a transposed convolution of several groups as one of a single group, whose weights
    between the channels of different groups are zeros."""
    weight, groups = edit.value(node.args[1]), argument(node, "groups")
    if weight is None or groups < 2:
        return
    size, count, *kernel = weight.shape
    joined = weight.new_zeros(groups, size // groups, groups, count, *kernel)
    for group, part in enumerate(weight.chunk(groups)):
        joined[group, :, group] = part
    new = edit.call_again(node, weight=joined.reshape(size, groups * count, *kernel), groups=1)
    edit.replace(node, new, "groups=1, and zeros for the channels of other groups")


@rewrites("surround-kernel", *CONVOLUTIONS)
def surround_kernel(edit: Editor, node: Node) -> None:
    """Surround the kernel of a convolution by zeros until it is longer than the padding."""
    weight, kernel = edit.value(node.args[1]), shape_of(node.args[1])[2:]
    padding, dilation = read_numbers(node, "padding", "dilation")
    rings = [
        max(math.ceil(pad / step) - (size - 1), 0)
        for size, pad, step in zip(kernel, padding, dilation, strict=True)
    ]
    if weight is None or not any(rings):
        return
    counts = [count for ring in reversed(rings) for count in (ring, ring)]
    steps = zip(padding, rings, dilation, strict=True)
    padding = [pad + count * step for pad, count, step in steps]
    new = edit.call_again(node, weight=torch.nn.functional.pad(weight, counts), padding=padding)
    edit.replace(node, new, "zeros around the kernel, and as much more padding")


@rewrites("widen-depthwise", aten.conv2d.default)
def widen_depthwise_kernel(edit: Editor, node: Node) -> None:
    """Write a depthwise convolution with a kernel and a stride of 2 with a kernel of 3, whose first
    row and column are zeros."""
    weight, even = edit.value(node.args[1]), not any(n % 2 for n in shape_of(node.args[0])[-2:])
    if weight is None or not even or tuple(weight.shape[1:]) != (1, 2, 2):
        return
    numbers = read_numbers(node, "stride", "padding", "dilation")
    if argument(node, "groups") > 1 and numbers == [[2, 2], [0, 0], [1, 1]]:
        wide = torch.nn.functional.pad(weight, [1, 0, 1, 0])
        new = edit.call_again(node, weight=wide, padding=[1, 1])
        edit.replace(node, new, "a kernel of 3 that starts with zeros, and padding=1")


@rewrites("stride-by-pool", aten.conv1d, aten.conv2d)
def stride_by_pool(edit: Editor, node: Node) -> None:
    """Write a depthwise convolution with a stride that has a dilation, or one axis and a kernel of
    1, with a stride of 1, and let a max pool of single elements select its results."""
    kernel = shape_of(node.args[1])[2:]
    stride, dilation = read_numbers(node, "stride", "dilation")
    if is_depthwise(node) and max(stride) > 1 and (max(dilation) > 1 or kernel == (1,)):
        new = edit.call_again(node, stride=[1] * len(kernel))
        if len(kernel) == 1:  # ExecuTorch quantizes no max_pool1d
            new = edit.unsqueeze(new, -2)
            new = edit.max_pool2d(new, [1, 1], [1, *stride])
            new = edit.squeeze(new, -2)
        else:
            new = edit.max_pool2d(new, [1, 1], stride)
        edit.replace(node, new, f"the same with stride=1, and a max pool of 1 with stride={stride}")


@rewrites("copy-shared-bias")
def copy_shared_bias(edit: Editor) -> None:
    """Give each call of a layer after the first its own bias. ExecuTorch quantizes a bias for the
    input of the first call."""
    known = set()
    for node in edit.find(*ABSORBING):
        bias = argument(node, "bias")
        if not isinstance(bias, Node) or bias.op != "get_attr" or len(node.args) < 3:
            continue
        if bias.target in known:
            new = edit.call_again(node, bias=edit.value(bias))
            edit.replace(node, new, "a layer with the same weights and its own bias for each call")
        known.add(bias.target)


@rewrites("multiply-single", aten.linear.default)
def multiply_single(edit: Editor, node: Node) -> None:
    """Write a linear layer of a single feature as a product and a sum."""
    operand, weight, bias = node.args[0], edit.value(node.args[1]), argument(node, "bias")
    if weight is not None and weight.shape[1] == 1:
        new = edit.mul(operand, weight.flatten())
        new = new if bias is None else edit.add(new, bias)
        edit.replace(node, new, "x * weight + bias")


def is_depthwise(node: Node) -> bool:
    """Return whether a convolution, transposed or not, has a group for each of several inputs."""
    groups: int = argument(node, "groups")
    channels = shape_of(node.args[1])[0 if node.target in TRANSPOSED else 1]
    return groups > 1 and channels == (groups if node.target in TRANSPOSED else 1)


def read_numbers(node: Node, *names: str) -> list[list[int]]:
    """Return arguments of a convolution that have a number for each axis of the image."""
    axes = len(shape_of(node.args[1])) - 2
    return [per_axis(argument(node, name), axes) for name in names]
