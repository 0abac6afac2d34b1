"""Convolutions in forms that QNN takes and computes right: with zeros in the kernel, and with less
of an argument instead."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, LITERT, Array, Node
from ci.mend.axes import find_growth
from ci.mend.graph_rewrites.definition import defines
from ci.mend.graph_rewrites.images import read_per_axis, read_windows
from ci.models.crowded import has_crowded_channels, has_too_many_outputs
from ci.models.short_rows import find_short_row

CONVOLVE = ("conv1d", "conv2d", "conv3d")
TRANSPOSE = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
# Images whose average QNN computes wrongly with a stride of 1: see avg-pool-of-tall-picture.
TALL, NARROW = 14, 10
SMALL_KERNEL = 2
# How many times as large as the weights of its channel a bias is that 16-bit activations leave.
# Measured for inputs up to 4: 1,250 is right, and 2,540 is wrong; in 8 bits, 250 times as much.
LEAST_BIASED, LEAST_WEIGHT = 1000.0, 2.5e-7
AFTER_BIAS = "layer(x) + b, with b as a constant, for the channels whose weights are nearly zero"
LIMIT = 60000.0  # below the largest number of float16
SINGLE_GROUP = "groups=1, and zeros for the channels of other groups"
FEW_CHANNELS = 8  # below it, QNN computes a depthwise kernel of 2 x 2 wrongly in 8 bits


class Convolution(NamedTuple):
    """The constant weights of a convolution, transposed or not, and its arguments: the numbers of
    groups, and a number per axis. ``before`` and ``after`` are the padding at both ends."""

    weights: Array
    groups: int
    stride: list[int]
    dilation: list[int]
    before: list[int]
    after: list[int]

    @property
    def kernel(self) -> list[int]:
        return [*self.weights.shape[2:]]

    def extend(self, begins: list[int], ends: list[int]) -> Array:
        """Return the weights with zeros at the beginnings and ends of the kernel."""
        counts = [*zip(begins, ends, strict=True)]
        return np.pad(self.weights, [(0, 0), (0, 0), *counts])


def read_convolution(edit: GraphEditor, node: Node) -> Convolution | None:
    """Return the weights and arguments of a convolution, or None if its weights are no constant, or
    if its padding is not known as numbers."""
    weights = edit.value(node.reads[1])
    if weights is None or "auto_pad" in node.numbers or "padding" not in node.numbers:
        return None
    axes = weights.ndim - 2
    stride, dilation, padding = (
        read_per_axis(node, name, axes) for name in ("stride", "dilation", "padding")
    )
    before = read_per_axis(node, "padding_before", axes) or padding
    after = read_per_axis(node, "padding_after", axes) or padding
    groups = int(edit.argument(node, "groups", 1) or 1)
    return Convolution(weights, groups, stride, dilation, before, after)


# QNN 2.49.40 does not write the rows that no kernel reaches: -90.6 dB in fp16, and 64.5 dB after. A
# depthwise one is wrong if its output_padding is at least its padding.
@defines("reach-rows", *TRANSPOSE)
def reach_rows(edit: GraphEditor, node: Node) -> None:
    """Append zeros to the kernel of a transposed convolution and lower its output_padding, until
    a kernel reaches all rows. If it is depthwise with one output per input, lower it below the
    padding, or to 0."""
    layer = read_convolution(edit, node)
    if layer is None or {*layer.dilation} != {1} or "output_padding" not in node.numbers:
        return
    output_padding = read_per_axis(node, "output_padding", len(layer.kernel))
    is_depthwise = layer.groups == len(layer.weights) > 1 == layer.weights.shape[1]
    added = []  # rows of zeros, along each axis
    for size, step, begin, end, output_pad in zip(
        layer.kernel, layer.stride, layer.before, layer.after, output_padding, strict=True
    ):
        # A depthwise one is right with an output padding below its padding, and without any.
        limit = max(min(begin, end), 1) if is_depthwise else math.inf
        added.append(find_growth(size, step, end, output_pad, limit))
    if any(added):
        less = [pad - count for pad, count in zip(output_padding, added, strict=True)]
        longer = layer.extend([0] * len(added), added)
        new = edit.call_again(node, node.reads[0], longer, output_padding=less)
        before = f"a transposed convolution, kernel {layer.kernel}, output_padding {output_padding}"
        after = f"{added} zeros appended to the kernel, and output_padding {less}"
        edit.replace(node, new, after, before)


# QNN 2.49.40 computes a transposed convolution over one axis with dilation wrongly in 16 bits: -6.9
# dB in 16a8w, and 45.7 dB with zeros in the kernel.
@defines("spread-kernel", *TRANSPOSE)
def spread_kernel(edit: GraphEditor, node: Node) -> None:
    """Write a transposed convolution with dilation with zeros between the rows of the kernel."""
    layer = read_convolution(edit, node)
    if layer is None or {*layer.dilation} == {1}:
        return
    sizes = [(size - 1) * step + 1 for size, step in zip(layer.kernel, layer.dilation, strict=True)]
    spread = np.zeros((*layer.weights.shape[:2], *sizes), layer.weights.dtype)
    places = tuple(slice(None, None, step) for step in (1, 1, *layer.dilation))
    spread[places] = layer.weights
    new = edit.call_again(node, node.reads[0], spread, dilation=[1] * len(sizes))
    after = "zeros between the rows of the kernel, without dilation"
    edit.replace(node, new, after, f"a transposed convolution with dilation {layer.dilation}")


# If weights are quantized per channel, QNN 2.49.40 takes the scales of other channels, or its
# compiler fails: 12.4 dB in 16a4w, and 53.5 dB with a single group; 11.9 dB in u8_channel, and 46.8
# dB.
@defines("join-transposed-groups", *TRANSPOSE)
def join_transposed_groups(edit: GraphEditor, node: Node) -> None:
    """Write a transposed convolution of several groups as one of a single group, whose weights
    between the channels of different groups are zeros."""
    weights, groups = edit.value(node.reads[1]), int(edit.argument(node, "groups", 1) or 1)
    if weights is None or groups < 2:
        return
    new = edit.call_again(node, node.reads[0], join_groups(weights, groups), groups=1)
    edit.replace(node, new, SINGLE_GROUP, f"a transposed convolution of {groups} groups")


def join_groups(weights: Array, groups: int) -> Array:
    """Return the weights of a convolution as those of a single group. Those between the channels
    of different groups are zeros."""
    size, count, *kernel = weights.shape  # the second axis has the channels of a group
    blocks = np.zeros((groups, size // groups, groups, count, *kernel), weights.dtype)
    for group, part in enumerate(np.split(weights, groups)):
        blocks[group, :, group] = part
    return blocks.reshape(size, groups * count, *kernel)


# QNN has one layout for the weights of a convolution and another one for each other use. Of weights
# that have both, the layout is changed for both: -2.2 dB in fp16 through ExecuTorch, and 62.6 dB
# with a copy; onnxruntime's provider refuses them (QNN 2.49.40).
@defines("copy-shared-weights", *CONVOLVE, *TRANSPOSE)
def copy_shared_weights(edit: GraphEditor, node: Node) -> None:
    """Give a convolution its own copy of weights that something else than such convolutions
    reads, too."""
    weights = edit.value(node.reads[1])
    if weights is None or not _is_read_elsewhere(edit, node):
        return
    new = edit.call_again(node, node.reads[0], weights)
    edit.replace(node, new, "a convolution with a copy of the weights", "a convolution")


def _is_read_elsewhere(edit: GraphEditor, layer: Node) -> bool:
    """Return whether a call reads the weights of a convolution as something else."""
    family = CONVOLVE if layer.operator in CONVOLVE else TRANSPOSE
    name = layer.reads[1]
    return name in edit.outputs or any(
        reader.operator not in family or reader.reads.count(name) > 1 or reader.reads[1] != name
        for reader in edit.list_readers(name)
    )


# In fp16, QNN 2.49.40 computes the border wrongly if the padding is as long as the kernel: -23.8 dB
# for Conv2d(8, 8, 3, padding=3), and 69.1 dB after.
@defines("surround-kernel", *CONVOLVE)
def surround_kernel(edit: GraphEditor, node: Node) -> None:
    """Surround the kernel of a convolution by zeros until it is longer than the padding."""
    layer = read_convolution(edit, node)
    if layer is None:
        return
    rings = []  # rows of zeros at both ends of the kernel, along each axis
    for size, step, begin, end in zip(
        layer.kernel, layer.dilation, layer.before, layer.after, strict=True
    ):
        rings.append(max(math.ceil(max(begin, end) / step) - (size - 1), 0))
    if any(rings):
        added = [count * step for count, step in zip(rings, layer.dilation, strict=True)] * 2
        pads = [*layer.before, *layer.after]
        padding = [pad + count for pad, count in zip(pads, added, strict=True)]
        is_symmetric = layer.before == layer.after
        padding = padding[: len(rings)] if is_symmetric else padding
        new = edit.call_again(node, node.reads[0], layer.extend(rings, rings), padding=padding)
        after = f"zeros around the kernel, and padding {padding}"
        edit.replace(node, new, after, f"a convolution, kernel {layer.kernel}, padding {pads}")


# In fp16, QNN 2.49.40 refuses a stride with dilation, and computes one along a single axis wrongly:
# -10.5 dB (PyTorch) and -17.8 dB (ONNX), and 71.5 and 65.6 dB after.
@defines("stride-by-pool", *CONVOLVE[:2])
def stride_by_pool(edit: GraphEditor, node: Node) -> None:
    """Compute a depthwise convolution with a stride that has a dilation, or one axis and a kernel
    of 1, with a stride of 1, and let a max pool of single elements select its results."""
    shape, groups = edit.shape(node.reads[1]), edit.argument(node, "groups", 1) or 1
    axes = len(shape) - 2
    stride, dilation = (read_per_axis(node, name, axes) for name in ("stride", "dilation"))
    is_depthwise = shape[1] == 1 and groups > 1
    # In two dimensions, a stride without dilation is right.
    is_faulty = max(dilation) > 1 or shape[2:] == (1,)
    # With another stride, the padding of auto_pad="SAME_UPPER" would be another one.
    is_padded = "auto_pad" in node.numbers and max(shape[2:]) > 1
    if not is_depthwise or not is_faulty or max(stride) == 1 or is_padded:
        return
    new = edit.call_again(node, node.reads[0], stride=[1] * axes)
    result_shape = edit.shape(node.results[0])
    if axes == 1:  # ExecuTorch quantizes no max_pool1d
        new = edit.unsqueeze(new, dim=-2)
        new = edit.max_pool2d(new, kernel_size=[1, 1], stride=[1, *stride])
        new = edit.reshape(new, shape=[*result_shape])
    else:
        new = edit.max_pool2d(new, kernel_size=[1, 1], stride=stride)
    after = f"the same with stride=1, and a max pool of 1 with stride={stride}"
    edit.replace(node, new, after, f"a depthwise convolution with stride {stride}")


# QNN 2.49.40 computes these pools wrongly: in fp16, 19.4 dB with ceil_mode, -0.3 dB with a kernel
# of 2 and counted padding, 2.8 dB with a kernel of 2 on 16 x 8, and 67.3, 68.0 and 67.7 dB after.
# QNN 2.51.0 joins a pool with the padding in front of it, as LiteRT's converter writes both.
@defines("convolve-average", "avg_pool1d", "avg_pool2d")
def convolve_average(edit: GraphEditor, node: Node) -> None:
    """Compute an average pool as a depthwise convolution with weights of 1 / kernel, and multiply
    the elements at the edges by the missing factor.

    This is done for a pool whose last window extends beyond the edge, that counts its padding or
    has a kernel of 2 with it, or that has a stride of 1 on a tall image. In a .tflite file, a
    padding is an operator in front of the pool.
    """
    windows, shape = read_windows(edit, node), edit.shape(node.reads[0])
    if windows is None or len(shape) != len(windows.kernel) + 2:
        return
    kernel, begins, stated_ends = windows.kernel, windows.begins, windows.stated_ends
    is_beyond = any(end > stated for end, stated in zip(windows.ends, stated_ends, strict=True))
    has_padding = any([*begins, *stated_ends])
    is_wrongly_padded = has_padding and (windows.counts_padding or SMALL_KERNEL in kernel)
    is_tall = {*windows.stride} == {1} and shape[2] >= TALL and shape[-1] <= NARROW
    # Behind ExecuTorch, pools with padding or beyond the edge were measured with pad-before-pool.
    is_chosen = is_beyond or is_wrongly_padded or is_tall
    if edit.graph.front_end == LITERT and {*kernel} == {SMALL_KERNEL}:
        is_chosen |= is_padded_apart(edit, node.reads[0])
    if edit.graph.front_end == EXECUTORCH:
        is_chosen = is_tall and not is_beyond and not has_padding
    if not is_chosen:
        return
    divisor = edit.argument(node, "divisor_override") or math.prod(kernel)
    weights = np.full((shape[1], 1, *kernel), 1 / divisor)
    ends = [max(end, 0) for end in windows.ends]
    # With a stride of 1, QNN computes a small kernel right, as measured in PyTorch.
    if edit.graph.front_end != EXECUTORCH and has_small_kernel(weights):
        weights, ends = lengthen_kernel(weights, ends)
    padding = begins if begins == ends else [*begins, *ends]
    new = edit.call(
        node.operator.replace("avg_pool", "conv"),
        *(node.reads[0], weights, None),
        stride=windows.stride,
        padding=padding,
        groups=shape[1],
    )
    factor = windows.multiply_factors()
    if not np.allclose(factor, 1.0):
        new = edit.mul(new, factor[None, None])
    before = f"an average pool, kernel {kernel}, padding {begins} and {stated_ends}"
    after = "F.conv2d(x, weight, groups=channels), each weight 1 / kernel, times a factor at edges"
    edit.replace(node, new, after, before)


def is_padded_apart(edit: GraphEditor, value: str) -> bool:
    """Return whether a padding with zeros computes an image from another computed value."""
    maker = edit.makers.get(edit.source(value))
    if maker is not None and maker.operator == "permute":  # LiteRT's images have channels last
        maker = edit.makers.get(edit.source(maker.reads[0]))
    if maker is None or maker.operator != "pad" or edit.argument(maker, "value") != 0:
        return False
    return edit.source(maker.reads[0]) in edit.makers


# In fp16, QNN 2.49.40 is wrong if the result has the length of its row, and this is short and a
# multiple of 8: 3.8 dB for 16 steps that are padded by 3, and 68.5 dB after.
@defines("convolve-longer-row", *CONVOLVE[:2])
def convolve_longer_row(edit: GraphEditor, node: Node) -> None:
    """Pad a short row by one more zero at each end before its convolution, and cut off the elements
    that this adds. A padding before the convolution is left alone: QNN joins it with this one."""
    if "auto_pad" in node.numbers or "padding" not in node.numbers:
        return
    shape, weight_shape = (edit.shape(name) for name in node.reads[:2])
    axes = len(weight_shape) - 2
    stride, dilation, padding = (
        read_per_axis(node, name, axes) for name in ("stride", "dilation", "padding")
    )
    before = read_per_axis(node, "padding_before", axes) or [*padding]
    after = read_per_axis(node, "padding_after", axes) or [*padding]
    if before[-1] != after[-1]:
        return
    apart = _find_padding_apart(edit, node.reads[0])
    counts = {"padding": padding[-1], "stride": stride[-1], "dilation": dilation[-1]}
    is_short = find_short_row(shape, weight_shape, **counts)
    if not (is_short or find_short_row(shape, weight_shape, **counts, apart=apart)):
        return
    before[-1] += 1
    after[-1] += 1
    longer_padding = before if before == after else [*before, *after]
    longer = edit.call_again(node, node.reads[0], padding=longer_padding)
    result_shape = edit.shape(node.results[0])
    new = edit.slice(longer, dim=len(result_shape) - 1, start=1, end=result_shape[-1] + 1)
    after_text = f"the same with padding={longer_padding}, and y[..., 1:-1]"
    edit.replace(node, new, after_text, f"a convolution with padding {padding}")


def _find_padding_apart(edit: GraphEditor, value: str) -> int:
    """Return by how many zeros a padding that computes a value extends its last axis at both ends,
    or 0 if it is another call or another padding."""
    pad = edit.makers.get(edit.source(value))
    if pad is None or pad.operator not in {"pad", "constant_pad_nd"}:
        return 0
    counts = [*map(int, pad.numbers.get("pad", ()))]  # of the last axis first
    # A padding that is no constant has no value, and one of ONNX may be of some axes only.
    is_whole = edit.graph.front_end == EXECUTORCH or len(counts) == 2 * len(edit.shape(value))
    if not counts or not is_whole or edit.argument(pad, "value") != 0:
        return 0
    return counts[0] if counts[0] == counts[1] and not any(counts[2:]) else 0


# QNN 2.49.40 computes this kernel wrongly in 8 bits: -8.4 dB in u8, and 19.9 dB after; in 8a8w,
# -9.9 dB for 4 channels of 8 x 8, and 37.7 dB after.
@defines("widen-depthwise", "conv2d")
def widen_depthwise(edit: GraphEditor, node: Node) -> None:
    """Write a depthwise convolution with a kernel of 2 x 2 with a kernel of 3 x 3 that has a row
    and a column of zeros."""
    layer = read_convolution(edit, node)
    if layer is None or layer.kernel != [SMALL_KERNEL] * 2 or {*layer.dilation} != {1}:
        return
    count, is_depthwise = len(layer.weights), layer.groups > 1 == layer.weights.shape[1]
    if edit.graph.front_end == EXECUTORCH:
        # torch pads both ends of an axis by the same number, so that the zeros are the first row
        # and column. With a stride of 1, QNN computes the kernel right.
        is_even = not any(size % 2 for size in edit.shape(node.reads[0])[-2:])
        is_plain = layer.stride == [2, 2] and not any(layer.before)
        if not (is_depthwise and is_even and is_plain):
            return
        wide, padding = layer.extend([1, 1], [0, 0]), [1, 1]
        after = "a kernel of 3 that starts with zeros, and padding=1"
    else:
        if not is_depthwise or layer.groups != count or not has_small_kernel(layer.weights):
            return
        wide, ends = lengthen_kernel(layer.weights, layer.after)
        padding = [*layer.before, *ends]
        after = "the kernel padded with zeros to 3 x 3"
    new = edit.call_again(node, node.reads[0], wide, padding=padding)
    before = f"a depthwise convolution of {count} channels with a kernel of 2 x 2"
    edit.replace(node, new, after, before)


def has_small_kernel(weights: Array) -> bool:
    """Return whether these are weights of a depthwise convolution of few channels, and all sizes of
    the kernel are 2."""
    return {*weights.shape[2:]} == {SMALL_KERNEL} and len(weights) < FEW_CHANNELS


def lengthen_kernel(weights: Array, ends: list[int]) -> tuple[Array, list[int]]:
    """Return a kernel with a row of zeros appended along each axis, and the padding at the ends
    that keeps the result the same."""
    longer = np.pad(weights, [(0, 0)] * 2 + [(0, 1)] * len(ends))
    return longer, [end + 1 for end in ends]


# LiteRT's converter writes a convolution of one input channel as a depthwise one, which QNN 2.51.0
# computes wrongly in fp16 if it has many outputs: nn.Conv1d(1, 258, 256, 128) has -2.6 dB, and 68.9
# dB after.
@defines("repeat-channel", *CONVOLVE[:2])
def repeat_channel(edit: GraphEditor, node: Node) -> None:
    """Write a convolution of one input channel and many outputs as one of two channels, of which
    the second is the first again and has weights of 0. A .tflite file has an operator for one
    channel that is not depthwise, and gets that one."""
    layer, shape = read_convolution(edit, node), edit.shape(node.reads[0])
    if layer is None or len(shape) != len(layer.kernel) + 2 or shape[1] != 1:
        return
    if not has_too_many_outputs(layer.kernel, len(layer.weights)):
        return
    before = f"a convolution of 1 input and {len(layer.weights)} output channels"
    if edit.graph.front_end == LITERT:
        new = edit.call_again(node, multiplier=0)
        edit.replace(node, new, "a convolution that is not depthwise", before)
        return
    twice = edit.cat([node.reads[0], node.reads[0]], dim=1)
    weights = np.concatenate([layer.weights, np.zeros_like(layer.weights)], axis=1)
    new = edit.call_again(node, twice, weights)
    edit.replace(node, new, "the channel twice, the second time with weights of 0", before)


# QNN computes a depthwise convolution with many outputs wrongly in fp16: of 32 channels with 8
# outputs each and a kernel of 3 x 3, QNN 2.49.40 has 1.0 dB on 24 x 24, and 68.9 dB after; QNN
# 2.51.0, which LiteRT uses, has 0.5 dB on 8 x 8, and 68.6 dB after.
@defines("join-crowded-groups", *CONVOLVE[:2])
def join_crowded_groups(edit: GraphEditor, node: Node) -> None:
    """Write a depthwise convolution with many outputs as one of a single group."""
    layer = read_depthwise(edit, node)
    shape = edit.shape(node.reads[0])
    if layer and has_crowded_channels(shape[2:], layer.groups, len(layer.weights)):
        join_depthwise(edit, node, layer)


# Through ExecuTorch, QNN 2.49.40 refuses a depthwise convolution with several outputs per channel
# in 8 and 16 bits if its result is an output of the model: 37.5 dB in 8a8w after.
@defines("join-multiplied-groups", *CONVOLVE[:2])
def join_multiplied_groups(edit: GraphEditor, node: Node) -> None:
    """Write a depthwise convolution with several outputs per channel as one of a single group."""
    layer = read_depthwise(edit, node)
    if layer and len(layer.weights) > layer.groups:
        join_depthwise(edit, node, layer)


def read_depthwise(edit: GraphEditor, node: Node) -> Convolution | None:
    """Return a depthwise convolution of several channels of a batch of images or rows; None for
    another convolution."""
    layer, shape = read_convolution(edit, node), edit.shape(node.reads[0])
    if layer is None or len(shape) != len(layer.kernel) + 2:
        return None
    return layer if layer.groups == shape[1] > 1 else None


def join_depthwise(edit: GraphEditor, node: Node, layer: Convolution) -> None:
    """Replace a depthwise convolution by one of a single group."""
    joined = join_groups(layer.weights, layer.groups)
    new = edit.call_again(node, node.reads[0], joined, groups=1)
    before = f"a depthwise convolution of {layer.groups} channels and {len(joined)} outputs"
    edit.replace(node, new, SINGLE_GROUP, before)


# ExecuTorch stores the bias of a channel as 32-bit integers with the scale of its weights. Where
# these are nearly zero, as of pruned channels, the integers saturate: such a channel has -1.2 dB in
# 16a8w, and 52.4 dB after (QNN 2.49.40).
@defines("add-bias-apart", "linear", *CONVOLVE)
def add_bias_apart(edit: GraphEditor, node: Node) -> None:
    """Add the bias of a layer behind it for channels whose weights are small in relation to it. A
    batch norm that the layer absorbs adds to the bias."""
    weights = edit.value(node.reads[1])
    bias = edit.value(node.reads[2]) if len(node.reads) > 2 and node.reads[2] else None
    (result,) = node.results
    norm = edit.reader(result, "batch_norm")
    has_norm = norm is not None and len(norm.results) == 1
    if weights is None or (bias is None and not has_norm) or not edit.is_float(result):
        return
    largest = np.abs(weights).reshape(len(weights), -1).max(1).astype(np.float64)
    total = np.zeros(len(weights)) if bias is None else bias.astype(np.float64)
    gain, parameters = np.ones(len(weights)), list[Array]()
    if norm and has_norm:
        stored = [edit.value(name) for name in norm.reads[1:]]
        parameters = [array.astype(np.float64) for array in stored if array is not None]
        if len(parameters) != 4:
            return
        weight, offset, mean, variance = parameters
        gain = weight / np.sqrt(variance + edit.argument(norm, "eps", 1e-5))
        total = (total - mean) * gain + offset
    is_lost = np.abs(total) > LEAST_BIASED * np.maximum(largest * np.abs(gain), LEAST_WEIGHT)
    if not is_lost.any():
        return
    apart = np.where(is_lost, total, 0)
    sizes = (-1, *[1] * (len(edit.shape(result)) - 2)) if node.operator != "linear" else (-1,)
    if norm and has_norm:
        # The layer stays: torchao folds the batch norm into its own parameters.
        weight, offset, mean, variance = parameters
        with edit.at(norm):
            normalized = edit.call_again(
                norm, norm.reads[0], weight, offset - apart, mean, variance
            )
            new = edit.add(normalized, apart.reshape(sizes))
        edit.replace(norm, new, AFTER_BIAS, "a layer and a batch norm")
        return
    layer = edit.call_again(node, *node.reads[:2], np.where(is_lost, 0, total))
    edit.replace(node, edit.add(layer, apart.reshape(sizes)), AFTER_BIAS, "a layer with a bias")


# QNN computes a transposed convolution and the GELU behind it together, and approximates: 43.5 dB
# in fp16, and 62.9 after. Behind a convolution and a linear layer, the same limit makes it worse
# (21.0 and 14.4 dB).
@defines("limit-before-gelu", *TRANSPOSE)
def limit_before_gelu(edit: GraphEditor, node: Node) -> None:
    """Limit the result of a transposed convolution, before a GELU that is written out with erf, to
    the numbers of float16, which changes none of them."""
    (result,) = node.results
    if len(edit.shape(result)) != 4 or not edit.is_float(result):
        return
    readers = edit.list_readers(result)
    scaled = [reader.results[0] for reader in readers if reader.operator in {"mul", "div"}]
    if any(edit.reader(value, "erf") for value in (result, *scaled)):
        new = edit.clamp(edit.call_again(node, *node.reads), min=-LIMIT, max=LIMIT)
        edit.replace(node, new, f"conv(x).clamp(-{LIMIT:g}, {LIMIT:g})", "conv(x)")
