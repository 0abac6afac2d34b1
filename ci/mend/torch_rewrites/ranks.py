"""Tensors of more axes than QNN takes, made by views and permutations, and repeated elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.mend.axes import merge_axes, plan_product, read_equation, split_order
from ci.mend.torch_rewrites.editing import (
    Editor,
    argument,
    aten,
    is_fixed,
    is_idle,
    list_operators,
    rewrites,
    shape_of,
    value_of,
)

MOST_AXES = 5  # that QNN takes
VIEWS = list_operators(
    "view reshape _unsafe_view unsqueeze squeeze squeeze.dim squeeze.dims flatten.using_ints"
    " unflatten.int view_as reshape_as"
)
PERMUTATIONS = list_operators("permute transpose.int movedim.int movedim.intlist swapaxes")
MOVES = VIEWS | PERMUTATIONS | list_operators("select.int expand")
BOUNDED = list_operators("sigmoid hardsigmoid tanh")  # tanh with 16-bit activations
PARTS = list_operators("unbind.int chunk split.Tensor split_with_sizes")


@rewrites("lower-rank")
def lower_rank(edit: Editor) -> None:
    """Compute tensors of six or more axes, which only views, permutations, selections and
    expansions make, as tensors of at most four with the same elements in the same order."""
    made: dict[Node, Node] = {}
    nodes = [node for node in edit.graph.nodes if node.op == "call_function" and node.users]
    for node in nodes:
        source = node.args[0] if node.target is operator.getitem else node
        operand = source.args[0] if source.args else None
        is_low = _is_tensor(node) and not _is_high(node)
        if is_low and _is_high(operand) and is_fixed(node) and _is_movable(edit, node):
            with edit.at(node):
                new = edit.reshape(_order(edit, node, made), [*shape_of(node)])
            edit.replace(node, new, "views and permutations of at most four axes, one by one")


@rewrites("repeat-by-expand")
def repeat_by_expand(edit: Editor) -> None:
    """Write repeat_interleave by a fixed number, and that of grouped attention, as an expansion of
    rank 4, and expand_as as expand."""
    for node in edit.find(aten.expand_as.default):
        edit.replace(node, edit.expand(node.args[0], [*shape_of(node)]), "x.expand(other.shape)")
    for node in edit.find(aten.scaled_dot_product_attention.default):
        query, *pair = node.args[:3]
        heads = shape_of(query)[-3] if len(shape_of(query)) > 3 else 0
        if not node.kwargs.get("enable_gqa") or not all(len(shape_of(one)) == 4 for one in pair):
            continue
        made = [_repeat(edit, one, heads // shape_of(one)[1], 1) for one in pair]
        rest = {name: one for name, one in node.kwargs.items() if name != "enable_gqa"}
        new = edit.call(node.target, query, *made, *node.args[3:], **rest)
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


@rewrites("repeat-by-concatenation", aten.repeat.default, aten.tile.default)
def repeat_by_concatenation(edit: Editor, node: Node) -> None:
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


@rewrites("join-by-concatenation")
def join_by_concatenation(edit: Editor) -> None:
    """Write torch.stack, slice_scatter and select_scatter with an operand that a bounded activation
    computes as a concatenation, whose range ExecuTorch takes from all operands."""
    for node in edit.find(aten.stack.default):
        operands = node.args[0]
        if any(_is_bounded(edit, one) for one in operands):
            axis = (argument(node, "dim") or 0) % len(shape_of(node))
            parts = [edit.unsqueeze(one, axis) for one in operands]
            after = "torch.cat([x.unsqueeze(dim), y.unsqueeze(dim)], dim)"
            edit.replace(node, edit.cat(parts, axis), after)
    for node in edit.find(aten.slice_scatter.default, aten.select_scatter.default):
        operand, inserted = node.args[:2]
        if not any(_is_bounded(edit, one) for one in (operand, inserted)):
            continue
        shape = shape_of(operand)
        axis = (argument(node, "dim") or 0) % len(shape)
        if node.target is aten.select_scatter.default:
            start = argument(node, "index") % shape[axis]
            stop, inserted = start + 1, edit.unsqueeze(inserted, axis)
        elif argument(node, "step") != 1:
            continue
        else:
            start, stop, _ = slice(argument(node, "start"), argument(node, "end")).indices(
                shape[axis]
            )
        kept = [
            [edit.slice(operand, axis, first, last)] if first < last else []
            for first, last in ((0, start), (stop, shape[axis]))
        ]
        parts = [*kept[0], inserted, *kept[1]]
        new = edit.cat(parts, axis) if len(parts) > 1 else inserted
        edit.replace(node, new, "torch.cat([x[:start], y, x[stop:]], dim)")


def _is_bounded(edit: Editor, given: Any) -> bool:
    """Return whether a value is that of an activation for which ExecuTorch fixes the range, behind
    operators that keep it."""
    source = edit.source(given)
    while source.target in MOVES:
        source = edit.source(source.args[0])
    return source.target in BOUNDED


@rewrites("select-places", aten.index.Tensor)
def select_places(edit: Editor, node: Node) -> None:
    """Write an index of one or more neighbouring axes by constants as a selection of rows."""
    operand, given = node.args
    axes = [axis for axis, one in enumerate(given) if one is not None]
    stored = [one for axis in axes if (one := edit.value(given[axis])) is not None]
    start, stop = axes[0], axes[-1] + 1
    is_whole = len(stored) == len(axes) == stop - start
    if not is_whole or any(one.dtype != torch.int64 for one in stored):
        return
    shape, places = shape_of(operand), torch.zeros((), dtype=torch.int64)
    for axis, one in zip(axes, stored, strict=True):
        places = places * shape[axis] + one % shape[axis]
    flat = [*shape[:start], math.prod(shape[start:stop]), *shape[stop:]]
    new = edit.reshape(operand, flat) if len(axes) > 1 else operand
    new = edit.index_select(new, start, places.flatten())
    new = edit.reshape(new, [*shape_of(node)])
    edit.replace(node, new, "x.flatten(...).index_select(dim, places)")


def _repeat(edit: Editor, operand: Node, times: int, axis: int) -> Node:
    """Repeat each element of an axis."""
    shape = shape_of(operand)
    before, count, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    new = edit.reshape(operand, [before, count, 1, after])
    new = edit.expand(new, [before, count, times, after])
    return edit.reshape(new, [*shape[:axis], count * times, *shape[axis + 1 :]])


def _is_tensor(given: object) -> bool:
    return isinstance(given, Node) and isinstance(given.meta.get("val"), Tensor)


def _is_high(given: Any) -> bool:
    return _is_tensor(given) and len(shape_of(given)) > MOST_AXES


def _is_movable(edit: Editor, node: Node) -> bool:
    """Return whether ``_order`` can compute a node: back to tensors of at most five axes."""
    if node in edit.written or not is_fixed(node):
        return False
    is_part = node.target is operator.getitem
    source = node.args[0] if is_part else node
    if source.target not in (PARTS if is_part else MOVES) and (is_part or not is_idle(source)):
        return False
    operand = source.args[0]
    return not _is_high(operand) or _is_movable(edit, operand)


def _order(edit: Editor, node: Node, made: dict[Node, Node]) -> Node:
    """Return a node of at most five axes with the elements of ``node`` in the same order."""
    if node in made:
        return made[node]
    parts = node.args[0] if node.target is operator.getitem else node
    operand = parts.args[0]
    shape = shape_of(operand)
    source = _order(edit, operand, made) if _is_high(operand) else operand
    if node.target in VIEWS or is_idle(node):
        result = source
    elif node.target in PERMUTATIONS:
        result = _permute(edit, source, shape, find_order(node))
    elif node.target is aten.expand.default:
        result = source
        now = [1] * (len(shape_of(node)) - len(shape)) + [*shape]
        for axis, size in enumerate(shape_of(node)):
            if now[axis] != size:
                outer, inner = math.prod(now[:axis]), math.prod(now[axis + 1 :])
                result = edit.reshape(result, [outer, 1, inner])
                result = edit.expand(result, [outer, size, inner])
                now[axis] = size
    else:
        axis, start, size = find_part(node)
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        result = edit.reshape(source, [outer, shape[axis], inner])
        result = edit.slice(result, 1, start, start + size)
    made[node] = result
    return result


def find_order(node: Node) -> list[int]:
    """Return the order of the operand's axes in the result of a permutation."""
    sizes = range(2, 2 + len(shape_of(node)))  # no two of them are equal
    moved = node.target(torch.empty(*sizes, device="meta"), *node.args[1:], **node.kwargs)
    return [sizes.index(size) for size in moved.shape]


@rewrites("reshape-single", aten.sum.dim_IntList)
def reshape_single(edit: Editor, node: Node) -> None:
    """Write a sum over axes of size 1 as a reshape."""
    operand, axes = node.args[:2]
    shape = shape_of(operand)
    is_same = value_of(operand).dtype == value_of(node).dtype
    if axes and is_same and all(shape[axis] == 1 for axis in axes):
        edit.replace(node, edit.reshape(operand, [*shape_of(node)]), "x.reshape(...)")


@rewrites("multiply-einsum", aten.einsum.default)
def multiply_einsum(edit: Editor, node: Node) -> None:
    """Write an einsum of two tensors as permutations and one matrix product of at most three
    axes."""
    equation, operands = node.args[:2]
    labels, result = read_equation(equation) or ([], "")
    if len(labels) != 2:
        return
    (first, second), (one, other) = labels, operands
    sizes = dict(zip(first, shape_of(one), strict=True))
    others = dict(zip(second, shape_of(other), strict=True))
    groups = plan_product(first, second, result)
    if groups is None or any(sizes[one] != others[one] for one in {*sizes} & {*others}):
        return
    batch, summed, left, right = groups
    order = [*batch, *left, *right]
    sizes |= others
    one = _arrange(edit, one, first, (batch, left, summed), sizes)
    other = _arrange(edit, other, second, (batch, summed, right), sizes)
    places = [order.index(label) for label in result]
    made = _permute(edit, edit.matmul(one, other), [sizes[label] for label in order], places)
    edit.replace(node, edit.reshape(made, [*shape_of(node)]), "permutations and one matrix product")


def _arrange(
    edit: Editor, given: Node, labels: str, groups: Sequence[list[str]], sizes: dict[str, int]
) -> Node:
    """Return an operand of an einsum with one axis for each of the groups of labels. An empty first
    group has none."""
    order = [labels.index(label) for group in groups for label in group]
    shape = [math.prod(sizes[label] for label in group) for group in groups]
    shape = shape if groups[0] else shape[1:]
    stored = edit.value(given)
    if stored is not None:
        return edit.constant(stored.permute(order).reshape(shape))
    return edit.reshape(_permute(edit, given, [sizes[label] for label in labels], order), shape)


def find_part(node: Node) -> tuple[int, int, int]:
    """Return axis, start and size of the part that a node selects."""
    if node.target is aten.select.int:
        axis, start = node.args[1:3]
        shape = shape_of(node.args[0])
        return axis % len(shape), start % shape[axis], 1
    source, place = node.args
    axis = argument(source, "dim")
    sizes = [1] * (place + 1)
    if source.target is not aten.unbind.int:
        sizes = [one.shape[axis] for one in source.meta["val"]]
    return axis % len(shape_of(source.args[0])), sum(sizes[:place]), sizes[place]


def _permute(edit: Editor, source: Node, shape: Sequence[int], order: Sequence[int]) -> Node:
    """Permute the axes of ``shape``, with at most four axes at a time. The result has the elements
    in the right order, but perhaps another shape."""
    for sizes, places in split_order(*merge_axes(shape, order), most=4):
        if len(places) > 1:
            source = edit.reshape(source, sizes)
            source = edit.permute(source, places)
    return source
