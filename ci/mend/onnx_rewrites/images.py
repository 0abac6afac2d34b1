"""Operators on images that QNN computes wrongly or does not take, as other operators on images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ci.analysis.steps import Operand, find_short
from ci.graphs.onnx_file import read_attributes
from ci.mend.onnx_rewrites.graph import Graph, read, rewrites

SMALL_KERNEL = 2
FEW_CHANNELS = 8  # below it, QNN computes a depthwise kernel of 2 x 2 wrongly in 8 bits


# QNN 2.49.40 computes this kernel wrongly in 8 bits: -8.4 dB in u8, and 19.9 dB after.
@rewrites("widen-depthwise", "Conv")
def widen_depthwise(graph: Graph, node: Any) -> None:
    """Append a row and a column of zeros to the 2 x 2 kernel of a depthwise convolution of few
    channels."""
    weights = graph.constant(node.input[1])
    if weights is None or weights.shape[2:] != (SMALL_KERNEL,) * 2 or weights.shape[1] != 1:
        return
    few = read(node, "group", 1) == len(weights) < FEW_CHANNELS
    is_plain = read(node, "auto_pad", "NOTSET") == "NOTSET"
    if not few or not is_plain or set(read(node, "dilations", [1])) != {1}:
        return
    operands = [node.input[0], weights, *node.input[2:]]
    pads, strides = read(node, "pads", [0] * 4), read(node, "strides", [1, 1])
    result = add_depthwise(graph, operands, pads, strides)
    before = f"a depthwise Conv of {len(weights)} channels with a kernel of 2 x 2"
    graph.replace([node], [result], before, "the kernel padded with zeros to 3 x 3")


def add_depthwise(
    graph: Graph, operands: Sequence[Any], pads: Sequence[int], strides: Sequence[int]
) -> str:
    """Add a depthwise convolution of ``operands``, and return its result. If there are few
    channels, zeros are appended to a kernel of size 2. The padding at the ends grows with the
    kernel, so that the result stays the same."""
    x, weights, *bias = operands
    axes = weights.ndim - 2
    if set(weights.shape[2:]) == {SMALL_KERNEL} and len(weights) < FEW_CHANNELS:
        weights = np.pad(weights, [(0, 0)] * 2 + [(0, 1)] * axes)
        pads = [*pads[:axes], *(end + 1 for end in pads[axes:])]
    attributes = {"group": len(weights), "kernel_shape": weights.shape[2:]}
    return graph.add("Conv", x, weights, *bias, pads=pads, strides=strides, **attributes)


# In fp16, QNN 2.49.40 is wrong if the result has the length of its row, and this is short and a
# multiple of 8: 3.8 dB for 16 steps that are padded by 3, and 68.5 dB after.
@rewrites("convolve-longer-row", "Conv")
def convolve_longer_row(graph: Graph, node: Any) -> None:
    """Pad a short row by one more zero at each end before its convolution, and cut off the elements
    that this adds. A Pad before the Conv is left alone: QNN joins it with this one."""
    operands = [Operand(graph.shapes.get(name, ())) for name in node.input[:2]]
    axes = len(operands[0].shape) - 2
    if axes < 1 or read(node, "auto_pad", "NOTSET") != "NOTSET":
        return
    pads = [int(count) for count in read(node, "pads", [0] * 2 * axes)]
    if pads[axes - 1] != pads[-1]:
        return
    numbers = {
        "padding": tuple(map(float, pads[axes:])),
        "stride": tuple(map(float, read(node, "strides", [1] * axes))),
        "dilation": tuple(map(float, read(node, "dilations", [1] * axes))),
    }
    apart = _find_padding(graph, node.input[0])
    if not (find_short(operands, numbers) or find_short(operands, numbers, apart)):
        return
    pads[axes - 1] += 1
    pads[-1] += 1
    longer = graph.add("Conv", *node.input, **read_attributes(node) | {"pads": pads})
    length = graph.shape(node.output[0])[-1]
    result = graph.slice(longer, axes + 1, length + 1, 1)
    graph.replace([node], [result], "Conv", f"Conv with pads {pads}, and a Slice without the ends")


def _find_padding(graph: Graph, name: str) -> int:
    """Return by how many zeros a Pad that computes a value extends its last axis at both ends, or 0
    if it is another node or another padding."""
    pad = graph.makers.get(name)
    if pad is None or pad.op_type != "Pad" or read(pad, "mode", "constant") != "constant":
        return 0
    pads_name, value, axes = (*pad.input[1:], "", "", "")[:3]
    pads = graph.constant(pads_name) if pads_name else None
    is_zero = not value or graph.number(value) == 0
    if pads is None or axes or not is_zero:
        return 0
    # First the beginnings of all axes, then their ends: the last axis is in the middle and last.
    *counts, end = pads.tolist()
    begin = counts.pop(len(counts) // 2)
    return int(end) if begin == end and not any(counts) else 0


# QNN takes rank 4, and only some kinds of rounding.
@rewrites("resize-flat", "Resize")
def resize_flat(graph: Graph, node: Any) -> None:
    """Resize a sequence of rank 3 as an image of height 1. If the nearest element is not rounded
    down, but the same elements are chosen, round down, which QNN takes."""
    x, y = node.input[0], node.output[0]
    scales = graph.constant(node.input[2]) if len(node.input) > 2 else None
    if scales is None or not graph.is_float(x, y):
        return
    attributes = read_attributes(node)
    shape, result_shape, factors = graph.shape(x), graph.shape(y), [*map(float, scales)]
    rounding = read(node, "nearest_mode", "round_prefer_floor")
    is_nearest = read(node, "mode", "nearest") == "nearest" and rounding != "floor"
    is_nearest &= read(node, "coordinate_transformation_mode", "half_pixel") == "asymmetric"
    rounds = is_nearest and all(map(partial(chooses_floor, rounding), result_shape, factors))
    is_sequence = len(shape) == 3 and factors[:2] == [1.0, 1.0] and "axes" not in attributes
    if not (rounds or is_sequence):
        return
    attributes |= {"nearest_mode": "floor"} if rounds else {}
    if is_sequence:
        image = graph.reshape(x, [*shape[:2], 1, shape[2]])
        image_factors = np.array([1.0, 1.0, 1.0, factors[2]])
        resized = graph.add("Resize", image, "", image_factors, **attributes)
        result = graph.reshape(resized, result_shape)
    else:
        result = graph.add("Resize", x, "", scales, **attributes)
    before = f"Resize of rank {len(shape)}" + f", nearest_mode {rounding}" * rounds
    after = "Resize of rank 4" + ", nearest_mode floor" * rounds
    graph.replace([node], [result], before, after)


def chooses_floor(rounding: str, size: int, scale: float) -> bool:
    """Return whether a rounding of the nearest element chooses the same elements as rounding down,
    for a result of this ``size``."""
    places = np.arange(size) / scale
    chosen = {
        "round_prefer_floor": np.ceil(places - 0.5),
        "round_prefer_ceil": np.floor(places + 0.5),
        "ceil": np.ceil(places),
    }
    return rounding in chosen and np.array_equal(np.floor(places), chosen[rounding])
