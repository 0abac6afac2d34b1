"""Windows of images as torch.onnx.export writes them, with selections of rank 6, which QNN does not
take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import Array, Node
from ci.mend.onnx_rewrites.both_lanes import edit_model
from ci.mend.onnx_rewrites.graph import REWRITES

HIGHEST_RANK = 5  # of a selection, a transposition and a mean in QNN
MOST_ELEMENTS = 1 << 22  # of a matrix of averages
MOVES = frozenset({"gather_nd", "index_select", "permute", "reshape", "squeeze", "unsqueeze"})


def rewrites_windows(name: str) -> Callable[[Callable[[GraphEditor], None]], None]:
    """Return a decorator that makes a function of the graph's editor the rewrite ``name``."""

    def register(definition: Callable[[GraphEditor], None]) -> None:
        REWRITES[name] = functools.partial(edit_model, definition)

    return register


# F.unfold stays on the CPU.
@rewrites_windows("slice-windows")
def select_windows(edit: GraphEditor) -> None:
    """Compute selections of rank 6 and what moves their elements as one selection of places."""
    for node in edit.find(*MOVES):
        readers = edit.list_readers(node.results[0])
        if any(reader.operator in MOVES for reader in readers):
            continue  # a part of a longer chain
        chain = _read_chain(edit, node.results[0])
        found = _find_rows(edit, chain) if chain else None
        if found is None:
            continue
        source, rows, _ = found
        inner = math.prod(edit.shape(source)) // len(rows)
        flat = edit.reshape(source, shape=[1, len(rows), inner])
        chosen = edit.index_select(flat, rows[0], dim=2)
        new = edit.reshape(chosen, shape=[*edit.shape(node.results[0])])
        edit.replace(node, new, "one Gather of places", "a Gather of rank 6")


# An adaptive average pool to a size that is no multiple stays on the CPU.
@rewrites_windows("multiply-adaptive-pool")
def multiply_windows(edit: GraphEditor) -> None:
    """Compute the mean of selections of rank 6 as a product with a constant matrix."""
    for node in edit.find("mean"):
        chain = _read_chain(edit, node.reads[0])
        found = _find_rows(edit, chain, node.axes or ()) if chain and node.axes else None
        if found is None:
            continue
        source, rows, count = found
        inner = math.prod(edit.shape(source)) // len(rows)
        windows = rows[0].reshape(-1, count)
        if inner * len(windows) > MOST_ELEMENTS:
            continue
        averages = np.zeros((inner, len(windows)))
        np.add.at(averages, (windows.T, np.arange(len(windows))), 1 / count)
        flat = edit.reshape(source, shape=[len(rows), inner])
        product = edit.matmul(flat, averages)
        new = edit.reshape(product, shape=[*edit.shape(node.results[0])])
        edit.replace(node, new, "a product with a matrix of averages", "a mean of rank 6")


def _read_chain(edit: GraphEditor, value: str) -> list[Node]:
    """Return the calls that move elements to ``value``, in order, or [] if their rank is one that
    QNN takes."""
    chain: list[Node] = []
    while node := edit.makers.get(value):
        is_known = all(edit.value(name) is not None for name in node.reads[1:] if name)
        if node.operator not in MOVES or not is_known or node.compute is None:
            break
        chain.insert(0, node)
        value = node.reads[0]
    ranks = [len(edit.shapes.get(node.results[0], ())) for node in chain]
    return chain if max(ranks, default=0) > HIGHEST_RANK else []


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
