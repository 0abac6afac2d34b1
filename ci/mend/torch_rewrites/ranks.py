"""Repeated, joined and selected elements."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ci.mend.torch_rewrites.editing import (
    Editor,
    argument,
    aten,
    list_operators,
    rewrites,
    shape_of,
)

VIEWS = list_operators(
    "view reshape _unsafe_view unsqueeze squeeze squeeze.dim squeeze.dims flatten.using_ints"
    " unflatten.int view_as reshape_as"
)
PERMUTATIONS = list_operators("permute transpose.int movedim.int movedim.intlist swapaxes")
REARRANGING = VIEWS | PERMUTATIONS | list_operators("select.int expand")
# In 8 bits, ExecuTorch's range of a tanh is right.
BOUNDED = list_operators("sigmoid hardsigmoid tanh")  # tanh with 16-bit activations
PARTS = list_operators("unbind.int chunk split.Tensor split_with_sizes")


# ExecuTorch decomposes repeat_interleave into an index, which stays on the CPU. For expand_as there
# is no program in 8a8w.
@rewrites("repeat-by-expand")
def repeat_by_expand(edit: Editor) -> None:
    """Write repeat_interleave by a fixed number, and that of grouped attention, as an expansion of
    rank 4, and expand_as as expand."""
    for node in edit.find(aten.expand_as.default):
        edit.replace(node, edit.expand(node.args[0], [*shape_of(node)]), "x.expand(other.shape)")
    for node in edit.find(aten.scaled_dot_product_attention.default):
        query, key, value = node.args[:3]
        has_rank_4 = len(shape_of(key)) == len(shape_of(value)) == 4
        if not node.kwargs.get("enable_gqa") or not has_rank_4:
            continue
        heads = shape_of(query)[-3] if len(shape_of(query)) > 3 else 0
        key = _repeat(edit, key, heads // shape_of(key)[1], 1)
        value = _repeat(edit, value, heads // shape_of(value)[1], 1)
        options = {name: option for name, option in node.kwargs.items() if name != "enable_gqa"}
        new = edit.call(node.target, query, key, value, *node.args[3:], **options)
        edit.replace(node, new, "x.unsqueeze(2).expand(...).flatten(1, 2) for key and value")
    for node in edit.find(aten.repeat_interleave.self_int):
        operand, times = node.args[:2]
        axis, shape = argument(node, "dim"), shape_of(operand)
        if axis is None:
            shape, axis = (math.prod(shape),), 0
        if len(shape) != len(shape_of(operand)):
            operand = edit.reshape(operand, [*shape])
        new = _repeat(edit, operand, times, axis % len(shape))
        edit.replace(node, new, f"x.unsqueeze({axis + 1}).expand(...).flatten({axis}, {axis + 1})")


# ExecuTorch leaves the operator on the CPU, such as x.repeat(2, 1, 1) of [4, 16].
@rewrites("repeat-by-concatenation", aten.repeat.default, aten.tile.default)
def repeat_by_concatenation(edit: Editor, node: fx.Node) -> None:
    """Write Tensor.repeat and torch.tile as concatenations of the tensor with itself, or as an
    expansion of an axis of size 1."""
    operand, times = node.args[0], [*node.args[1]]
    shape = [*shape_of(operand)]
    rank = max(len(shape), len(times))
    times = [1] * (rank - len(times)) + times
    shape = [1] * (rank - len(shape)) + shape
    if not shape or not all(isinstance(count, int) and count > 0 for count in times):
        return
    if shape != [*shape_of(operand)]:
        operand = edit.reshape(operand, shape)
    calls = []
    for axis, count in enumerate(times):
        if count > 1 and shape[axis] == 1:
            shape[axis] = count
            operand = edit.expand(operand, [*shape])
            calls.append("x.expand(...)")
        elif count > 1:
            shape[axis] *= count
            operand = edit.cat([operand] * count, axis)
            calls.append(f"torch.cat([x] * {count}, {axis})")
    if operand is not node.args[0]:
        edit.replace(node, operand, ", then ".join(calls) or f"x.reshape({shape})")


# ExecuTorch gives the fixed range of such an activation, 0 to 1 for a sigmoid, to everything that
# is stacked with it: 0.2 dB in 8a8w next to boxes in pixels, and 40.9 dB after.
@rewrites("join-by-concatenation")
def join_by_concatenation(edit: Editor) -> None:
    """Write torch.stack, slice_scatter and select_scatter with an operand that a bounded activation
    computes as a concatenation, whose range ExecuTorch takes from all operands."""
    for node in edit.find(aten.stack.default):
        operands = node.args[0]
        if any(_is_bounded(edit, operand) for operand in operands):
            axis = (argument(node, "dim") or 0) % len(shape_of(node))
            parts = [edit.unsqueeze(operand, axis) for operand in operands]
            after = "torch.cat([x.unsqueeze(dim), y.unsqueeze(dim)], dim)"
            edit.replace(node, edit.cat(parts, axis), after)
    for node in edit.find(aten.slice_scatter.default, aten.select_scatter.default):
        operand, inserted = node.args[:2]
        if not any(_is_bounded(edit, tensor) for tensor in (operand, inserted)):
            continue
        shape = shape_of(operand)
        axis = (argument(node, "dim") or 0) % len(shape)
        size = shape[axis]
        if node.target is aten.select_scatter.default:
            start = argument(node, "index") % size
            stop, inserted = start + 1, edit.unsqueeze(inserted, axis)
        elif argument(node, "step") != 1:
            continue
        else:
            bounds = slice(argument(node, "start"), argument(node, "end"))
            start, stop, _ = bounds.indices(size)
        parts = [inserted]
        if start > 0:
            parts.insert(0, edit.slice(operand, axis, 0, start))
        if stop < size:
            parts.append(edit.slice(operand, axis, stop, size))
        new = edit.cat(parts, axis) if len(parts) > 1 else inserted
        edit.replace(node, new, "torch.cat([x[:start], y, x[stop:]], dim)")


def _is_bounded(edit: Editor, operand: Any) -> bool:
    """Return whether a value is that of an activation for which ExecuTorch fixes the range, behind
    operators that keep it."""
    source = edit.source(operand)
    while source.target in REARRANGING:
        source = edit.source(source.args[0])
    return source.target in BOUNDED


# ExecuTorch leaves an index by several constants on the CPU (DLRM).
@rewrites("select-places", aten.index.Tensor)
def select_places(edit: Editor, node: fx.Node) -> None:
    """Write an index of one or more neighbouring axes by constants as a selection of rows."""
    operand, indices = node.args  # an axis that is not indexed has None
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    stored = []
    for axis in axes:
        places = edit.value(indices[axis])
        if places is None or places.dtype != torch.int64:
            return
        stored.append(places)
    start, stop = axes[0], axes[-1] + 1
    if len(axes) != stop - start:
        return
    # The places in one axis that is all of the indexed axes, flattened
    shape, flat_places = shape_of(operand), torch.zeros((), dtype=torch.int64)
    for axis, places in zip(axes, stored, strict=True):
        flat_places = flat_places * shape[axis] + places % shape[axis]
    flat_shape = [*shape[:start], math.prod(shape[start:stop]), *shape[stop:]]
    new = edit.reshape(operand, flat_shape) if len(axes) > 1 else operand
    new = edit.index_select(new, start, flat_places.flatten())
    new = edit.reshape(new, [*shape_of(node)])
    edit.replace(node, new, "x.flatten(...).index_select(dim, places)")


def _repeat(edit: Editor, operand: fx.Node, times: int, axis: int) -> fx.Node:
    """Repeat each element of an axis."""
    shape = shape_of(operand)
    before, count, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    new = edit.reshape(operand, [before, count, 1, after])
    new = edit.expand(new, [before, count, times, after])
    return edit.reshape(new, [*shape[:axis], count * times, *shape[axis + 1 :]])
