"""Finds the parts of which a model joins an output: in the graph, and from the numbers.

In the graph, a part consists of the elements that the same operators compute. Each element has a
label for this. Operators that only move elements, such as a concatenation or a transpose, move the
labels, and operators on single elements give new labels to the elements of each old one. So a part
stays a part behind whatever moves, scales, masks or normalizes the elements.

From the numbers, a part consists of channels whose values are far smaller than those of all others.
A single layer can compute such channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import structs

from ci.graphs.graph import Array, Constants, Graph, Node, Shape
from ci.graphs.operators import (
    CHOICES,
    ELEMENTWISE,
    EXPANDS,
    FILLS,
    MOVES,
    OF_IMAGES,
    PASSES_ON,
    REDUCTIONS,
    RESHAPES,
    list_moved,
)
from ci.models.tensors import OutputPart, Range

MOST_ELEMENTS = 1 << 24  # of an output whose parts are searched
MOST_PARTS = 256  # joined from more, an output is treated as one part
MOST_RANGES = 32  # of a part
MOST_COMPARED = 1 << 28  # elements that are compared to find parts along several axes


def find_parts(graph: Graph) -> list[tuple[OutputPart, ...]]:
    """Return for each output of a graph the parts of which the model joins it. The result is empty
    for an output that is a single part."""
    labels = _Labels(graph)
    parts: list[tuple[OutputPart, ...]] = []
    for name in graph.outputs:
        values = labels.find(name)
        if values is None:
            parts.append(())
        else:
            parts.append(tuple(labels.add_origin(part, values) for part in list_parts(values)))
    return parts


class _Labels:
    """Labels the elements of a graph's values. Two elements of a value have the same label if the
    same operators compute them."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.constants = graph, Constants(graph)
        self.makers = graph.list_makers()
        self.known: dict[str, Array | None] = {}
        self.numbers = itertools.count(1)
        self.origins: dict[int, str] = {}  # of a label

    def find(self, name: str) -> Array | None:
        """Return the labels of a value in its shape, or None if its shape is unknown or too large.
        A value that is a single part needs little memory, whatever its shape."""
        pending = [name]  # a loop, because a graph may be deeper than Python's stack
        while pending:
            node = self.makers.get(pending[-1])
            missing = (
                [read for read in node.reads if read and read not in self.known] if node else []
            )
            missing = [read for read in missing if read not in pending]
            if missing and node and self._looks_through(node):
                pending += missing
                continue
            value = pending.pop()
            if value not in self.known:
                self._label(value, node)
        return self.known[name]

    def add_origin(self, part: OutputPart, labels: Array) -> OutputPart:
        """Return a part with the origin of its first element."""
        first = part.take(labels, labels.ndim).flat[0]
        return structs.replace(part, origin=self.origins.get(int(first), ""))

    def _looks_through(self, node: Node) -> bool:
        operator = node.operator
        return (
            operator in PASSES_ON
            or operator in ELEMENTWISE
            or operator in MOVES
            or operator in CHOICES
            or operator in REDUCTIONS
            or operator.startswith(OF_IMAGES)
        )

    def _label(self, name: str, node: Node | None) -> None:
        labels: Sequence[Array | None] | None = None
        if node and self._looks_through(node):
            try:
                labels = self._follow(node)
            except Exception:  # noqa: BLE001 - then its result counts as a single part
                labels = None
        if labels is None or not node:
            names = node.results if node else (name,)
            labels = [self._label_whole(result) for result in names]
        else:
            names = node.results
        for result, values in zip(names, labels, strict=False):
            if result:
                self.known[result] = values
        self.known.setdefault(name, None)

    def _label_whole(self, name: str) -> Array | None:
        shape, number = self.graph.shapes.get(name), next(self.numbers)
        if name in self.makers:
            self.origins[number] = self.makers[name].origin
        return None if shape is None else np.broadcast_to(np.int64(number), shape)

    def _follow(self, node: Node) -> Sequence[Array | None] | None:
        """Return the labels of a node's results, from those of its operands, or None if each result
        is a single part."""
        operands = [self.known.get(read) if read else None for read in node.reads]
        shapes = [self.graph.shapes.get(name) for name in node.results]
        operator = node.operator
        if not operands or shapes[0] is None:
            return None
        if operator in PASSES_ON:
            return [operands[0]]
        condition = node.reads[operator == "masked_fill"] if operator in CHOICES else ""
        if operator in MOVES or (condition and self.constants.find(condition) is not None):
            return self._move(node, operands, shapes)
        if operator in ELEMENTWISE:
            return [self._combine(node, operands, shapes[0])] + [None] * (len(shapes) - 1)
        first = operands[0]
        if first is None:
            return None
        axes = node.axes if operator in REDUCTIONS else tuple(range(2, first.ndim))
        return [self._reduce(first, axes, shape) for shape in shapes]

    def _move(
        self, node: Node, operands: Sequence[Array | None], shapes: Sequence[Shape | None]
    ) -> Sequence[Array | None] | None:
        """Execute a node on labels."""
        places = list_moved(node.operator, len(node.reads))
        moved = [operands[place] for place in places]
        if node.compute is None or any(labels is None for labels in moved):
            return None
        known_labels = [labels for labels in moved if labels is not None]
        single = {int(labels.flat[0]) for labels in known_labels if labels.size}
        fills = node.operator in FILLS
        # A single part stays one, and needs no memory for its labels.
        if len(single) == 1 and all(map(is_single, known_labels)) and not fills:
            label = np.int64(single.pop())
            return [None if shape is None else np.broadcast_to(label, shape) for shape in shapes]
        if any(math.prod(shape or ()) > MOST_ELEMENTS for shape in shapes):
            return None
        if node.operator in RESHAPES or node.operator in EXPANDS:
            shape = shapes[0] or ()
            change = np.reshape if node.operator in RESHAPES else np.broadcast_to
            return [change(known_labels[0], shape)]
        # Labels become small numbers, because float32 holds integers only up to 2^24. Zero is for
        # what the node fills.
        used = np.unique(np.concatenate([np.unique(labels) for labels in known_labels]))
        arrays: list[Array | None] = [
            None if not read or place in places else self.constants.find(read)
            for place, read in enumerate(node.reads)
        ]
        if any(
            read and place not in places and arrays[place] is None
            for place, read in enumerate(node.reads)
        ):
            return None
        for place, labels in zip(places, known_labels, strict=True):
            arrays[place] = (np.searchsorted(used, labels) + 1).astype(np.float32)
        if node.fill is not None:
            fill = self.constants.find(node.reads[node.fill])
            arrays[node.fill] = None if fill is None else np.zeros(fill.shape, np.float32)
        table = np.concatenate([[next(self.numbers)], used])
        results = node.compute(arrays)
        return [table[np.asarray(result).round().astype(np.int64)] for result in results]

    def _combine(self, node: Node, operands: Sequence[Array | None], shape: Shape) -> Array | None:
        """Return the labels of the result of an operator on single elements. Constants do not
        divide the result."""
        reads = zip(node.reads, operands, strict=True)
        varied = [
            labels
            for read, labels in reads
            if labels is not None and not is_single(labels) and not self.constants.is_known(read)
        ]
        if not varied or math.prod(shape) > MOST_ELEMENTS:
            return self._label_whole(node.results[0])
        classes = np.zeros(shape, np.int64)
        for labels in varied:
            _, numbers = np.unique(labels, return_inverse=True)
            numbers = np.broadcast_to(numbers.reshape(labels.shape), shape)
            classes = classes * (int(numbers.max()) + 1) + numbers
            _, classes = np.unique(classes, return_inverse=True)
            classes = classes.reshape(shape)
        return self._renew(classes, np.broadcast_to(varied[0], shape))

    def _reduce(
        self, labels: Array, axes: tuple[int, ...] | None, shape: Shape | None
    ) -> Array | None:
        """Return the labels of a result each of whose elements depends on all elements along
        ``axes``."""
        if shape is None or is_single(labels) or math.prod(shape) > MOST_ELEMENTS:
            return None if shape is None else self._renew_whole(labels, shape)
        axes = tuple(range(labels.ndim)) if axes is None else axes
        axes = tuple(axis % labels.ndim for axis in axes)
        # These two stand for all labels along the axes, which would be many more to compare.
        lowest, highest = labels.min(axes, keepdims=True), labels.max(axes, keepdims=True)
        if lowest.size == math.prod(shape):  # the axes are gone or have size 1
            lowest, highest = lowest.reshape(shape), highest.reshape(shape)
        _, first = np.unique(lowest, return_inverse=True)
        _, second = np.unique(highest, return_inverse=True)
        pairs = first.reshape(lowest.shape) * (int(second.max()) + 1) + second.reshape(lowest.shape)
        return np.broadcast_to(self._renew(pairs, lowest), shape)

    def _renew_whole(self, labels: Array, shape: Shape) -> Array:
        number = next(self.numbers)
        if labels.size:
            self.origins[number] = self.origins.get(int(labels.flat[0]), "")
        return np.broadcast_to(np.int64(number), shape)

    def _renew(self, classes: Array, labels: Array) -> Array:
        """Return new labels, one for each of ``classes``. A new label has the origin of the old one
        in ``labels``, so that a part is named by what computes it, not by what scales it."""
        values, firsts, places = np.unique(classes, return_index=True, return_inverse=True)
        fresh = np.array([next(self.numbers) for _ in values], np.int64)
        for number, first in zip(fresh, firsts, strict=True):
            self.origins[int(number)] = self.origins.get(int(labels.flat[first]), "")
        return np.asarray(fresh[places.reshape(classes.shape)])


def is_single(labels: Array) -> bool:
    """Return whether all elements have the same label."""
    # A stride of 0 shows a label that was broadcast, without a look at the elements.
    if not any(
        stride for stride, size in zip(labels.strides, labels.shape, strict=True) if size > 1
    ):
        return True
    return bool((labels == labels.flat[0]).all())


def list_parts(labels: Array) -> Iterator[OutputPart]:
    """Yield the parts of an output with these labels, in its shape: first those along a single
    axis, then those along several, which are inside of these. Parts that are no ranges of indices
    along axes, such as a triangle, are left out."""
    if labels.size > MOST_ELEMENTS or is_single(labels):
        return
    values, classes = np.unique(labels, return_inverse=True)
    classes = classes.reshape(labels.shape)
    if len(values) > MOST_PARTS:
        return
    parts = []
    for axis, size in enumerate(labels.shape):
        groups = group_indices(np.moveaxis(classes, axis, 0).reshape(size, -1))
        if 1 < len(groups) <= len(values):
            parts += [make_part({axis: group}, labels.shape) for group in groups]
    if labels.size * len(values) <= MOST_COMPARED:
        for number in range(len(values)):
            parts.append(find_box(classes == number))
    yield from dict.fromkeys(part for part in parts if part)


def group_indices(rows: Array) -> list[Array]:
    """Return the indices of equal rows, a group for each different row. ``rows`` are [index,
    place]."""
    _, numbers = np.unique(rows, axis=0, return_inverse=True)
    numbers = numbers.reshape(-1)
    firsts = dict.fromkeys(int(number) for number in numbers)  # in order of appearance
    return [np.flatnonzero(numbers == number) for number in firsts]


def find_box(mask: Array) -> OutputPart | None:
    """Return the part of the elements in ``mask``, or None if they are not all elements that have
    certain indices along each axis."""
    indices = {}
    for axis in range(mask.ndim):
        other_axes = tuple(another for another in range(mask.ndim) if another != axis)
        indices[axis] = np.flatnonzero(mask.any(other_axes))
    if math.prod(map(len, indices.values())) != mask.sum():
        return None
    return make_part(indices, mask.shape)


def make_part(indices: Mapping[int, Array], shape: Shape) -> OutputPart | None:
    """Return the part of the elements with these indices, sorted, along each axis. Return None if
    it would have more than MOST_RANGES ranges."""
    ranges: list[Range] = []
    for axis, places in indices.items():
        if len(places) < shape[axis]:
            ranges += [Range(axis, *bounds) for bounds in list_ranges(list(map(int, places)))]
    return OutputPart(tuple(ranges)) if 0 < len(ranges) <= MOST_RANGES else None


def list_ranges(places: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield sorted indices as ranges: start, stop, period and size."""
    place_set = {*places}
    starts = [place for place in places if place - 1 not in place_set]
    stops = [place + 1 for place in places if place + 1 not in place_set]
    sizes = {stop - start for start, stop in zip(starts, stops, strict=True)}
    periods = {after - before for before, after in itertools.pairwise(starts)}
    if len(starts) > 2 and len(sizes) == len(periods) == 1:
        yield starts[0], stops[-1], periods.pop(), sizes.pop()
        return
    for start, stop in zip(starts, stops, strict=True):
        yield start, stop, 0, 0


# Channels are far below the others if their largest magnitude is at most 1/FAR of that of any other
# channel that is not among them. Channels of one layer, with at least LEAST_VALUES values each,
# differ by factors of up to 2.4 in the models of the suite and of tests/realistic.
FAR, LEAST_VALUES, MOST_CHANNELS = 16.0, 4, 1024
SILENT = 2.0**-20  # relative to the output's largest magnitude: rounding of float32
FLAT = 0.01  # a channel that varies by less than this share of its magnitude has no range
SPARSE = 0.5  # the share of zeros with which a channel counts as switched off by the model


def has_range(values: Array, largest: float) -> bool:
    """Return whether a part, [sample, *place], of an output with this largest magnitude has
    something to lose: it is not zero, not constant, and not the same for all samples."""
    if not values.size or not np.isfinite(values).all():
        return False
    spread = np.ptp(values, axis=0) if len(values) > 1 else np.ptp(values)
    return bool(np.max(spread) > SILENT * largest)


def find_quiet(values: Array) -> Iterator[OutputPart]:
    """Yield the channels of an output, [sample, *shape], whose values are far below those of all
    others along an axis. They are grouped: from group to group, the largest magnitude differs by a
    factor of at least FAR.

    Channels that are zero, constant or mostly zero are left out, and so are the classes of a
    probability distribution, because they share a unit: a small one means that others are large.
    """
    values = values.astype(np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    shape = values.shape[1:]
    for axis, size in enumerate(shape):
        count = values.size // size if size else 0
        if not 2 <= size <= MOST_CHANNELS or count < LEAST_VALUES or is_distribution(values, axis):
            continue
        rows = np.moveaxis(values, axis + 1, 0).reshape(size, -1)
        levels = np.abs(rows).max(1)
        varied = (np.ptp(rows, 1) > FLAT * levels) & (levels > SILENT * largest)
        varied &= (rows == 0).mean(1) < SPARSE
        for group in _group_levels(levels, np.flatnonzero(levels > SILENT * largest)):
            channels = np.sort(group[varied[group]])
            part = make_part({axis: channels}, shape) if len(channels) else None
            if part:
                yield part


def is_distribution(values: Array, axis: int) -> bool:
    """Return whether the values along an axis of the shape are probabilities that add up to one."""
    if (values < 0).any():
        return False
    return bool(np.allclose(values.sum(axis + 1), 1.0, atol=1e-3))


def _group_levels(levels: Array, channels: Array) -> Iterator[Array]:
    """Yield groups of channels whose levels are far below those of the channels before, the loudest
    first. The first group, the loudest of all, is left out."""
    order = channels[np.argsort(-levels[channels], kind="stable")]
    factors = levels[order[:-1]] / levels[order[1:]]
    ends = np.flatnonzero(factors >= FAR) + 1
    for start, stop in itertools.pairwise([*ends, len(order)]):
        yield order[start:stop]
