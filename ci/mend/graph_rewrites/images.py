"""Operators on images in forms that QNN takes."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Array, Node
from ci.mend.graph_rewrites.definition import defines
from ci.mend.graph_rewrites.elements import surround_by


class Windows(NamedTuple):
    """The windows of an average pool, with a number per axis. ``begins`` and ``stated_ends`` are
    the padding. ``ends`` is how far the last window reaches beyond the image, below 0 if it ends
    before. ``factors`` is the number of elements by that of the counted ones, for each window along
    an axis."""

    kernel: list[int]
    stride: list[int]
    begins: list[int]
    stated_ends: list[int]
    counts_padding: bool
    ends: list[int]
    factors: list[Array]

    def multiply_factors(self) -> Array:
        """Return the factor of each window."""
        return np.asarray(functools.reduce(np.multiply.outer, self.factors))


# QNN's provider takes neither, and both stay on the CPU. ExecuTorch leaves the dilated one there,
# and its program of the other has results of another shape in fp16.
@defines("gather-maximum", "max_pool2d", "max_pool3d")
def gather_maximum(edit: GraphEditor, node: Node) -> None:
    """Compute a max pool with dilations or over three axes as the maximum of shifted images, one
    axis after the other."""
    value = node.reads[0]
    axes = 3 if node.operator == "max_pool3d" else 2
    kernel, stride, dilation = (
        read_per_axis(node, name, axes) for name in ("kernel_size", "stride", "dilation")
    )
    # ONNX may pad the two ends of an axis differently.
    name = "padding_before" if "padding_before" in node.numbers else "padding"
    padding = read_per_axis(node, name, axes)
    is_single = not any(map(edit.is_read, node.results[1:]))
    if not (is_single and edit.is_float(value)) or (axes == 2 and {*dilation} == {1}):
        return
    shape, result_shape = [*edit.shape(value)], edit.shape(node.results[0])
    for place in range(axes):
        axis = len(shape) - axes + place
        size, count = shape[axis], result_shape[axis]
        starts = np.arange(count) * (stride or kernel)[place] - padding[place]
        taps = starts + np.arange(kernel[place])[:, None] * dilation[place]  # [kernel, count]
        is_inside = (taps >= 0) & (taps < size)
        if not is_inside.any(0).all():
            return  # a window has only padding
        # A row in the padding is replaced by one of its window, which does not change the maximum.
        first_inside = np.take_along_axis(taps, is_inside.argmax(0)[None], 0)
        rows = np.where(is_inside, taps, first_inside).astype(np.int64)
        flat = edit.reshape(
            value, shape=[math.prod(shape[:axis]), size, math.prod(shape[axis + 1 :])]
        )
        images = [edit.index_select(flat, places, dim=1) for places in rows]
        shape[axis] = count
        value = functools.reduce(edit.maximum, images)
    new = edit.reshape(value, shape=[*shape])
    after = "torch.maximum of x.index_select(dim, places) for each axis"
    edit.replace(node, new, after, "a max pool with dilations or over three axes")


# QNN 2.49.40 divides windows beyond the edge by the wrong number, and others with padding, too. So
# does ExecuTorch 1.5.1 for padding in 3D: torch.export omits count_include_pad if it is true, and
# op_avg_pool3d.py then assumes false.
@defines("pad-before-pool", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def pad_before_pool(edit: GraphEditor, node: Node) -> None:
    """Write the padding of average pools out, and that of windows beyond the edge. The border is
    multiplied by the factor that the other number of counted elements makes."""
    windows = read_windows(edit, node)
    if windows is None:
        return
    ends = [max(end, 0) for end in windows.ends]
    if not any(windows.begins) and not any(ends):
        return
    padded = surround_by(edit, node.reads[0], windows.begins, ends)
    changed: dict[str, Any] = {"padding": [0] * len(ends), "ceil_mode": False}
    # QNN computes a kernel of 2 wrongly with count_include_pad=False, even without padding.
    if "count_include_pad" in node.numbers and edit.graph.front_end == EXECUTORCH:
        changed["count_include_pad"] = True
    new = edit.call_again(node, padded, **changed)
    factor = windows.multiply_factors()
    if "divisor_override" not in node.numbers and not np.allclose(factor, 1.0):
        new = edit.mul(new, factor)
    after = "pad with zeros, pool without padding, multiply by a constant factor"
    edit.replace(node, new, after, "an average pool with padding or ceil_mode")


def read_windows(edit: GraphEditor, node: Node) -> Windows | None:
    """Return the windows of an average pool, or None if its padding is not known as numbers, or if
    its windows have gaps."""
    operand, axes = node.reads[0], int(node.operator[-2])
    if "auto_pad" in node.numbers or "padding" not in node.numbers or not edit.is_float(operand):
        return None
    kernel, stride, padding, dilation = (
        read_per_axis(node, name, axes) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    if {*dilation} - {1}:
        return None
    stride = stride or kernel
    begins = read_per_axis(node, "padding_before", axes) or padding
    stated_ends = read_per_axis(node, "padding_after", axes) or padding
    counts_padding = bool(edit.argument(node, "count_include_pad", 1))
    ends, factors = [], []
    for size, count, window, step, begin, stated in zip(
        edit.shape(operand)[-axes:], edit.shape(node.results[0])[-axes:], kernel, stride, begins,
        stated_ends, strict=True,
    ):  # fmt: skip
        starts = np.arange(count) * step - begin
        ends.append(int(starts[-1]) + window - size)
        low, high = (-begin, size + stated) if counts_padding else (0, size)
        counted = np.minimum(starts + window, high) - np.maximum(starts, low)
        factors.append(window / counted)
    return Windows(kernel, stride, begins, stated_ends, counts_padding, ends, factors)


def read_per_axis(node: Node, name: str, axes: int) -> list[int]:
    """Return an argument of a call on images that has a number per axis, or [] if it is omitted."""
    numbers = [*map(int, node.numbers.get(name, ()))]
    return numbers * axes if len(numbers) == 1 else numbers
