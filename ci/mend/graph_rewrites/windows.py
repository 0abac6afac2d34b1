"""Windows of images, and their averages: as exported programs have them, and as torch.onnx.export
writes them, with selections of rank 6, which QNN does not take."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import Array, Node
from ci.mend.graph_rewrites.definition import defines
from ci.mend.graph_rewrites.elements import surround_by
from ci.mend.graph_rewrites.images import read_per_axis
from ci.mend.graph_rewrites.products import exchange_axes, multiply_weights

MOST_MOVED_AXES = 5  # of a selection, a transposition and a mean in QNN
MOST_WEIGHTS = 1 << 22  # of a matrix of averages
SELECTIONS = frozenset({"gather_nd", "index", "index_select"})
MOVING = SELECTIONS | {"permute", "reshape", "squeeze", "transpose", "unsqueeze", "view"}
MEANS_OF_WINDOWS = ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")


# ExecuTorch takes only windows that do not overlap. F.unfold of an .onnx file stays on the CPU.
@defines("slice-windows", "unfold", "im2col", *MOVING)
def slice_windows(edit: GraphEditor, node: Node) -> None:
    """Write F.unfold as a concatenation of one slice of the image per position of the window, and
    x.unfold as a selection of places. Write selections of rank 6 and what moves their elements,
    as which torch.onnx.export writes F.unfold, as one selection of places."""
    if node.operator == "unfold":
        select_along_axis(edit, node)
    elif node.operator == "im2col":
        concatenate_positions(edit, node)
    else:
        join_selections(edit, node)


def select_along_axis(edit: GraphEditor, node: Node) -> None:
    """Write x.unfold as a selection of places."""
    operand, rank = node.reads[0], len(edit.shape(node.reads[0]))
    axis, size, step = (
        int(edit.argument(node, name) or 0) for name in ("dimension", "size", "step")
    )
    axis %= rank
    count = edit.shape(node.results[0])[axis]
    places = np.arange(count)[:, None] * step + np.arange(size)
    last = rank - 1
    new = exchange_axes(edit, operand, axis, last)
    new = edit.index_select(new, places.reshape(-1), dim=last)
    new = edit.reshape(new, shape=[*edit.shape(new)[:-1], count, size])
    new = exchange_axes(edit, new, axis, last)
    edit.replace(node, new, "x.index_select(dim, places).unflatten(dim, (-1, size))")


def concatenate_positions(edit: GraphEditor, node: Node) -> None:
    """Write F.unfold as a concatenation of one slice of the image per position of the window."""
    kernel, dilation, padding, stride = (
        read_per_axis(node, name, 2) for name in ("kernel_size", "dilation", "padding", "stride")
    )
    if len(edit.shape(node.reads[0])) != 4:
        return
    image = surround_by(edit, node.reads[0], padding, padding)
    batch, channels, *sizes = edit.shape(image)
    # The rows that one position of the window may have, along each axis
    reach = [
        size - (count - 1) * step for size, count, step in zip(sizes, kernel, dilation, strict=True)
    ]
    result_shape = [*edit.shape(node.results[0])]
    parts = []
    for position in itertools.product(*map(range, kernel)):
        part = image
        for axis, place in enumerate(position):
            start = place * dilation[axis]
            end = start + reach[axis]
            part = edit.slice(part, dim=axis + 2, start=start, end=end, step=stride[axis])
        parts.append(edit.reshape(part, shape=[batch, channels, 1, result_shape[-1]]))
    new = edit.cat(parts, dim=2) if len(parts) > 1 else parts[0]
    new = edit.reshape(new, shape=result_shape)
    edit.replace(node, new, "torch.cat([x[:, :, i:m:s, j:n:t].reshape(b, c, 1, -1), ...], 2)")


def join_selections(edit: GraphEditor, node: Node) -> None:
    """Compute selections of rank 6 and what moves their elements as one selection of places."""
    readers = edit.list_readers(node.results[0])
    if any(reader.operator in MOVING for reader in readers):
        return  # a part of a longer chain
    chain = _read_chain(edit, node.results[0])
    selection = _find_rows(edit, chain) if chain else None
    if selection is None:
        return
    source, rows, _ = selection
    inner = math.prod(edit.shape(source)) // len(rows)
    flat = edit.reshape(source, shape=[1, len(rows), inner])
    elements = edit.index_select(flat, rows[0], dim=2)
    new = edit.reshape(elements, shape=[*edit.shape(node.results[0])])
    edit.replace(node, new, "one selection of places", "a selection of rank 6")


# ExecuTorch lowers only sizes that divide the input. In an .onnx file, the others stay on the CPU.
@defines("multiply-adaptive-pool", "mean", *MEANS_OF_WINDOWS)
def multiply_adaptive_pool(edit: GraphEditor, node: Node) -> None:
    """Write an adaptive average pool, whose size does not divide that of the input, as products
    with constant matrices, one per axis. A mean of selections with six axes, as which
    torch.onnx.export writes the pool, becomes a single product."""
    if node.operator in MEANS_OF_WINDOWS:
        multiply_axes(edit, node)
    else:
        multiply_mean(edit, node)


def multiply_axes(edit: GraphEditor, node: Node) -> None:
    """Write an adaptive average pool as products with constant matrices, one per axis."""
    operand, axes = node.reads[0], MEANS_OF_WINDOWS.index(node.operator) + 1
    shape, result_shape = edit.shape(operand), edit.shape(node.results[0])
    sizes, counts = shape[-axes:], result_shape[-axes:]
    is_exact = all(size % count == 0 for size, count in zip(sizes, counts, strict=True))
    if is_exact or not edit.is_float(operand):
        return
    rank, new = len(shape), operand
    for axis, size, count in zip(range(rank - axes, rank), sizes, counts, strict=True):
        if size == count:
            continue
        averages = np.zeros((count, size))
        for number in range(count):
            # Windows overlap if count does not divide size: the start is rounded down, the end up.
            start, end = number * size // count, -(-(number + 1) * size // count)
            averages[number, start:end] = 1 / (end - start)
        new = multiply_weights(edit, exchange_axes(edit, new, axis, -1), averages)
        new = exchange_axes(edit, new, axis, -1)
    edit.replace(node, new, "rows @ x @ columns.T, with constant matrices of averages")


def multiply_mean(edit: GraphEditor, node: Node) -> None:
    """Compute the mean of selections of rank 6 as a product with a constant matrix."""
    (result,) = node.results
    is_same = edit.dtypes.get(node.reads[0]) == edit.dtypes.get(result)
    chain = _read_chain(edit, node.reads[0]) if is_same and node.axes else []
    selection = _find_rows(edit, chain, node.axes or ()) if chain else None
    if selection is None:
        return
    source, rows, count = selection
    inner = math.prod(edit.shape(source)) // len(rows)
    places = rows[0].reshape(-1, count)
    if inner * len(places) > MOST_WEIGHTS:
        return
    averages = np.zeros((inner, len(places)))
    np.add.at(averages, (places.T, np.arange(len(places))), 1 / count)
    flat = edit.reshape(source, shape=[len(rows), inner])
    product = multiply_weights(edit, flat, averages.T)
    new = edit.reshape(product, shape=[*edit.shape(node.results[0])])
    edit.replace(node, new, "a product with a matrix of averages", "a mean of rank 6")


def _read_chain(edit: GraphEditor, value: str) -> list[Node]:
    """Return the calls that move elements to ``value``, in order, or [] if their rank is one that
    QNN takes, or if none of them selects elements: lower-rank computes the others."""
    chain: list[Node] = []
    while node := edit.makers.get(value):
        is_known = all(edit.value(name) is not None for name in node.reads[1:] if name)
        if node.operator not in MOVING or not is_known or node.compute is None:
            break
        chain.insert(0, node)
        value = node.reads[0]
    ranks = [len(edit.shapes.get(node.results[0], ())) for node in chain]
    selects = any(node.operator in SELECTIONS for node in chain)
    return chain if selects and max(ranks) > MOST_MOVED_AXES else []


def _find_rows(
    edit: GraphEditor, chain: list[Node], axes: tuple[int, ...] = ()
) -> tuple[str, Array, int] | None:
    """Return the value from which calls move elements, the places of these elements in each of its
    rows, which are all the same, and how many elements a mean over ``axes`` has. Return None if
    rows differ."""
    source = chain[0].reads[0]
    shape = edit.shape(source)
    places = np.arange(math.prod(shape)).reshape(shape)
    for node in chain:
        constants = [edit.value(name) if name else None for name in node.reads[1:]]
        if node.compute is not None:  # as in all of a chain
            (places,) = node.compute([places, *constants])
    reduced = [axis % places.ndim for axis in axes]
    count = math.prod(places.shape[axis] for axis in reduced)
    places = np.moveaxis(places, reduced, range(places.ndim - len(reduced), places.ndim))
    for rank in range(len(shape) - 1, 0, -1):  # the most leading axes first
        outer, inner = math.prod(shape[:rank]), math.prod(shape[rank:])
        if places.size % outer:
            continue
        rows = places.reshape(outer, -1) - np.arange(outer)[:, None] * inner
        if (rows == rows[0]).all() and rows[0].min() >= 0 and rows[0].max() < inner:
            return source, rows, count
    return None
