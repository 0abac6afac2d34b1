"""Tensors of more axes than QNN takes, which views, permutations and reductions make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import Array, Node, Shape
from ci.graphs.operators import FIRST, MOVES
from ci.mend.axes import merge_sizes
from ci.mend.graph_rewrites.definition import defines
from ci.mend.graph_rewrites.products import permute_elements, reshape_to

MOST_AXES = 5  # that QNN takes
MOST_FOLLOWED = 1 << 24  # of a tensor whose elements are followed
SELECTING = frozenset(operator for operator, operands in MOVES.items() if operands == FIRST)
REDUCING = frozenset({"amax", "amin", "mean", "sum"})
# Operators that read another tensor only for its shape
LIKE = frozenset({"expand_as", "reshape_as", "view_as"})
LOW_RANKS = "views, permutations and reductions of at most four axes, one by one"


# Window attention (Swin) has views of rank 6, which stay on the CPU in fp16, 8a8w and 16a8w.
@defines("lower-rank")
def lower_rank(edit: GraphEditor) -> None:
    """Compute tensors of six or more axes, which only views, permutations, selections, expansions
    and reductions make, as tensors of at most four with the same elements in the same order."""
    lowered: dict[str, str] = {}  # what replaces each value of six or more axes
    for node in edit.find(*SELECTING, *REDUCING):
        if not _is_high(edit, node.reads[0]) or any(_is_high(edit, old) for old in node.results):
            continue
        results = [_lower(edit, old, lowered) if old else "" for old in node.results]
        if not all(new for new, old in zip(results, node.results, strict=True) if old):
            continue
        for place, (new, old) in enumerate(zip(results, node.results, strict=True)):
            results[place] = edit.reshape(new, shape=[*edit.shape(old)]) if new else ""
        rank = len(edit.shape(node.reads[0]))
        edit.replace(node, results, LOW_RANKS, f"{node.operator} of rank {rank}")


def _is_high(edit: GraphEditor, value: str) -> bool:
    return len(edit.shapes.get(value, ())) > MOST_AXES


def _lower(edit: GraphEditor, value: str, lowered: dict[str, str]) -> str:
    """Return a value of at most MOST_AXES axes with the elements of ``value`` in the same order, or
    "" if there is none. ``lowered`` are those of earlier calls."""
    if value not in lowered:
        lowered[value] = _move_elements(edit, value, lowered)
    return lowered[value]


def _move_elements(edit: GraphEditor, value: str, lowered: dict[str, str]) -> str:
    node = edit.makers.get(value)
    is_fixed = node and all(name in edit.shapes for name in (*node.reads, value) if name)
    if node is None or not is_fixed or not edit.graph.written.isdisjoint((*node.reads, value)):
        return ""
    operand = node.reads[0]
    source = _lower(edit, operand, lowered) if _is_high(edit, operand) else operand
    if not source or edit.is_idle(node):
        return source
    shape = edit.shape(operand)
    if node.operator in REDUCING:
        return _reduce(edit, node, source, shape)
    places = _follow(edit, node, value)
    return "" if places is None else _select(edit, source, shape, places)


def _follow(edit: GraphEditor, node: Node, value: str) -> Array | None:
    """Return the place that each element of a result has in the operand, counted row by row, or
    None if the call does more than move elements, or moves others for another input."""
    size = math.prod(edit.shape(node.reads[0]))
    if node.operator not in SELECTING or node.compute is None or size > MOST_FOLLOWED:
        return None
    operands: list[Array | None] = [np.arange(size).reshape(edit.shape(node.reads[0]))]
    for read in node.reads[1:]:
        is_shape = node.operator in LIKE
        array = np.empty(edit.shape(read)) if is_shape and read else edit.value(read)
        if read and array is None:
            return None
        operands.append(array)
    try:
        results = node.compute(operands)
    except Exception:  # noqa: BLE001 - an operator that takes no integers moves more than elements
        return None
    return np.asarray(results[node.results.index(value)])


def _select(edit: GraphEditor, source: str, shape: Shape, places: Array) -> str:
    """Return the elements of ``source``, seen as ``shape``, at these places, or "" if they are no
    view, permutation, expansion or part of it."""
    elements = np.arange(math.prod(shape)).reshape(shape)
    if np.array_equal(places.reshape(-1), elements.reshape(-1)):
        return source
    if places.size == elements.size:
        order = _find_order(elements, places)
        return permute_elements(edit, source, shape, order) if order else ""
    if places.size > elements.size:
        repeated = _broadcast(elements, places.shape)
        is_same = repeated is not None and np.array_equal(repeated, places)
        return _expand(edit, source, shape, places.shape) if is_same else ""
    for axis, start, end in _list_parts(shape, places):
        if np.array_equal(elements.take(range(start, end), axis).reshape(-1), places.reshape(-1)):
            outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
            rows = edit.reshape(source, shape=[outer, shape[axis], inner])
            return edit.slice(rows, dim=1, start=start, end=end)
    return ""


def _find_order(elements: Array, places: Array) -> list[int]:
    """Return the order of axes in which ``elements`` are ``places``, or [] if there is none."""
    steps = [size // elements.itemsize for size in elements.strides]
    axis_by_step = {
        step: axis
        for axis, (step, size) in enumerate(zip(steps, elements.shape, strict=True))
        if size > 1
    }
    order = []
    for axis, size in enumerate(places.shape):
        if size > 1:
            step = int(places.take(1, axis).flat[0] - places.flat[0])
            order.append(axis_by_step.get(step, -1))
    order += [axis for axis, size in enumerate(elements.shape) if size == 1]
    if sorted(order) != [*range(elements.ndim)]:
        return []
    is_same = np.array_equal(elements.transpose(order).reshape(-1), places.reshape(-1))
    return order if is_same else []


def _broadcast(elements: Array, shape: Shape) -> Array | None:
    try:
        return np.broadcast_to(elements, shape)
    except ValueError:
        return None


def _list_parts(shape: Shape, places: Array) -> Iterator[tuple[int, int, int]]:
    """Yield each axis along which ``places`` may be a part of a tensor of this shape, with the
    first place and the one after the last."""
    for axis, size in enumerate(shape):
        along = places.reshape(-1) // math.prod(shape[axis + 1 :]) % size
        start, end = int(along.min(initial=size)), int(along.max(initial=-1)) + 1
        if 0 < end - start < size:
            yield axis, start, end


def _expand(edit: GraphEditor, source: str, shape: Shape, expanded: Sequence[int]) -> str:
    """Expand a value, seen as ``shape``, to another shape, axis by axis. The result has the
    elements in the right order, but perhaps another shape."""
    sizes = [1] * (len(expanded) - len(shape)) + [*shape]
    for axis, size in enumerate(expanded):
        if sizes[axis] != size:
            outer, inner = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
            rows = edit.reshape(source, shape=[outer, 1, inner])
            source = edit.expand(rows, size=[outer, size, inner])
            sizes[axis] = size
    return source


def _reduce(edit: GraphEditor, node: Node, source: str, shape: Shape) -> str:
    """Reduce axes of ``source``, seen as ``shape``, or return "" if it has too many even if
    neighbours that are all reduced, or all stay, are one axis."""
    reduced = {axis % len(shape) for axis in node.axes or ()}
    (result,) = node.results
    is_same = edit.is_float(source, result) and edit.dtypes[source] == edit.dtypes[result]
    runs = itertools.groupby(range(len(shape)), reduced.__contains__)
    groups = [[*run] for _, run in runs]
    if not reduced or not is_same or len(groups) > MOST_AXES:
        return ""
    value = reshape_to(edit, source, merge_sizes(shape, groups))
    places = [place for place, group in enumerate(groups) if group[0] in reduced]
    return edit.call(node.operator, value, dim=places, keepdim=False)


# QNN 2.49.40 stacks tensors of unlike ranges wrongly in ONNX models in 8 and 16 bits: 21.2 dB in u8
# and 22.3 dB in u16a8w for a layer's result and an embedding, and 37.3 and 53.7 dB after.
@defines("stack-flat", "cat")
def stack_flat(edit: GraphEditor, node: Node) -> None:
    """Write a stack, a concatenation along an axis of size 1, as one along the axis behind it, and
    a reshape."""
    shape, dim = edit.shape(node.results[0]), edit.argument(node, "dim")
    if dim is None or not edit.is_float(*node.results) or len(node.reads) < 2:
        return
    axis = int(dim) % len(shape)
    is_last = axis == len(shape) - 1
    if is_last or any(edit.shape(name)[axis] != 1 for name in node.reads):
        return
    flat = [*shape[:axis], *shape[axis + 1 :]]
    parts = []
    for name in node.reads:
        maker = edit.makers.get(name)
        is_unsqueezed = maker is not None and maker.operator in {"unsqueeze", "reshape"}
        source = maker.reads[0] if maker and is_unsqueezed else ""
        has_form = bool(source) and [*edit.shapes.get(source, ())] == flat
        parts.append(source if has_form else edit.reshape(name, shape=flat))
    joined = edit.cat(parts, dim=axis)
    new = edit.reshape(joined, shape=[*shape])
    edit.replace(node, new, "torch.cat([x, y], dim).reshape(...)", "torch.stack([x, y], dim)")
