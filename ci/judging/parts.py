"""Divides an output into the parts in which its error is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ci.judging.figures import Array, channel_axes
from ci.models.tensors import TensorInfo

WHOLE, ROW, ELEMENT = "all input sets", "row", "element"


class Parts(NamedTuple):
    """The error power of each part of one kind, [..., part]. The parts are the slices along
    ``axis`` of [input set, *shape]; ``axis`` is None for parts that are not such slices."""

    kind: str
    axis: int | None
    powers: Array

    def name(self, index: int) -> str:
        """Return a name such as ``row 1 of 2``, with numbers from 0. If there is a single part,
        return only the kind."""
        count = self.powers.shape[-1]
        return f"{self.kind} {index} of {count}" if count > 1 else self.kind


def divide(squares: Array, info: TensorInfo) -> Iterator[Parts]:
    """Yield the error power of every part of an output, for each kind of part: the whole output,
    input sets, rows, channels, parts of a concatenation, and elements. ``squares`` are the squared
    errors, [..., input set, *shape]."""
    rank = len(info.shape)
    lead = squares.ndim - rank - 1
    places = tuple(range(lead, squares.ndim))
    yield Parts(WHOLE, None, squares.mean(places)[..., None])
    for kind, axis in (("input set", 0), *name_axes(info)):
        if squares.shape[lead + axis] > 1:
            others = tuple(place for place in places if place != lead + axis)
            yield Parts(kind, axis, squares.mean(others))
    if info.joined:
        others = tuple(place for place in places if place != lead + info.joined_axis + 1)
        starts = np.cumsum((0, *info.joined[:-1]))
        sizes = np.asarray(info.joined)
        yield Parts("part", None, np.add.reduceat(squares.mean(others), starts, -1) / sizes)
    yield Parts(ELEMENT, None, squares.reshape(*squares.shape[:lead], -1))


def name_axes(info: TensorInfo) -> list[tuple[str, int]]:
    """Return (name, axis) for the rows of a batch and for channels. ``axis`` is an axis of [input
    set, *shape]. An output with fewer than two axes has no rows."""
    rows = [(ROW, 1)] if len(info.shape) > 1 else []
    channels = channel_axes(len(info.shape) + 1)
    return rows + [(f"axis {axis - 1}, channel", axis) for axis in channels]
