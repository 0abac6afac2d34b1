"""How analyses run a model with changed values, and record values, whichever engine executes it.

A Program executes the model, and has a Graph of each method. An analysis names the values that it
changes, each with a function, the Change, and those that it records. All other nodes stay as they
are: torch runs the changes between two nodes (torch_program), and for onnxruntime they become nodes
(onnx_program), so that everything is executed in one session. A change is therefore written in
arithmetic that values of both have: ``+``, ``-``, ``*``, ``>``, abs, sign, round, floor and clamp.
Tools has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ci.graphs.graph import Array, Graph, Shape

Value = Any  # a torch.Tensor, or an onnx_program.Symbol


class Shared(Enum):
    """Which elements of a tensor share a random number."""

    NONE = "each has its own"
    ROW = "those along the last axis"
    ALL = "all"


def share_axes(shape: Shape, shared: Shared | int) -> Shape:
    """Return the shape of the numbers that elements of a tensor of this ``shape`` share: 1 along
    each axis along which they share one."""
    if isinstance(shared, int):
        own_axis = shared % max(len(shape), 1)
        return tuple(length if axis == own_axis else 1 for axis, length in enumerate(shape))
    if shared is Shared.ROW:
        return (*shape[:-1], 1) if shape else ()
    return (1,) * len(shape) if shared is Shared.ALL else shape


def draw_uniform(random: np.random.Generator, shape: Shape, size: float) -> Array:
    """Return uniformly distributed numbers from -size to size, as float32."""
    numbers = np.asarray(random.random(shape, np.float32), np.float32)
    numbers *= np.float32(2 * size)  # in place: most of an analysis is spent here
    numbers -= np.float32(size)
    return numbers


class Tools(Protocol):
    """What a change may do with values, besides arithmetic."""

    def draw(self, like: Value, size: float, shared: Shared | int = Shared.NONE) -> Value:
        """Return uniformly distributed numbers from -size to size that broadcast to the shape of
        ``like``, or 0.0 if ``size`` is 0. With a number as ``shared``, elements with the same index
        along this axis share one."""

    def to_float(self, value: Value) -> Value:
        """Return a tensor of integers as float32."""

    def to_type(self, value: Value, like: Value) -> Value:
        """Return a value in the type of another one."""

    def is_inexact(self, value: Value) -> Value:
        """Return 1 for each element that float16 cannot represent, and 0 for others."""

    def mean(self, value: Value) -> Value:
        """Return the mean of all elements: a number, or a value of rank 0."""

    def limit(self, value: Value, lowest: Value) -> Value:
        """Return the larger one of two results of ``mean``, or of numbers."""

    def round_to_half(self, value: Value) -> Value:
        """Round the elements to numbers that float16 represents. The type stays."""

    def find_extremes(self, value: Value) -> Value:
        """Return the smallest and the largest element, as a tensor of both."""

    def is_number(self, value: Value) -> bool:
        """Return whether a value is known before the model runs, or is a plain number in a run."""

    def choose(self, condition: Value, if_true: Value, if_false: Value) -> Value:
        """Return elements of one of two values by a condition."""


class Change(NamedTuple):
    """A function that returns a new value of the same shape and type. It gets the value, and the
    first operand of the node that computes it (None for an input, a constant or a buffer). If it is
    ``for_floats``, values of other types stay as they are."""

    compute: Callable[[Value, Value, Tools], Value]
    for_floats: bool = True


Changes = Mapping[str, Change]  # by the name of the value


def keep(value: Value, _: Tools) -> Value:
    """Return the value itself, as a Recipe records it."""
    return value


class Recipe(NamedTuple):
    """How a method is run. ``changes`` are the values that become others. The quantizers and
    dequantizers whose results are in ``unrounded`` do not round: they pass on what they read.
    Of each value in ``watched`` that is floating-point, what ``watch`` returns is recorded, and
    each input and result in ``decisions`` as it is. The results in ``fixed`` are these arrays
    instead."""

    changes: Changes = MappingProxyType({})
    unrounded: Collection[str] = ()
    watched: Collection[str] = ()
    watch: Callable[[Value, Tools], Value] = keep
    decisions: Collection[str] = ()
    fixed: Mapping[str, Array] = MappingProxyType({})


class Record(NamedTuple):
    """What was recorded in a run of a method on one sample: its outputs and the watched values."""

    outputs: Sequence[Array]
    values: Mapping[str, Array]


class Run(Protocol):
    """Executes a program as recipes say. It draws other random numbers each time, but a new Run
    draws the same ones."""

    def run(self, sets: Sequence[Any]) -> Sequence[Sequence[Array]]:
        """Return the outputs for each sample. State lasts from one sample to the next, and is
        restored at the end."""

    def record(self, sets: Sequence[Any]) -> Sequence[Mapping[str, Record]]:
        """Return the records of each sample, by method. State is as in ``run``."""


class Program(Protocol):
    """A model that an engine executes."""

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graph of each method."""

    @property
    def limited(self) -> Collection[str]:
        """Values whose quantizer also limits them: the front end removed an operator such as relu,
        because the quantizer's range has the same effect."""

    def run(self, sets: Sequence[Any]) -> Sequence[Sequence[Array]]:
        """Return the outputs for each sample."""

    def prepare(self, recipes: Mapping[str, Recipe]) -> Run:
        """Prepare runs with a recipe for each method. A method without one is run as it is."""

    def name_operators(self, method: str, value: str) -> Sequence[str]:
        """Return the names by which the parts of a mixture select the operators that compute a
        value. There are several if the front end merged them, and none for an input, or if no part
        can select them."""

    def shake_choices(self, share: float) -> Run:
        """Prepare runs in which the elements of the floating-point operands of each operator that
        returns integers or booleans, such as a comparison, have an error of this ``share`` of the
        operand's RMS. Zeros stay zero, as in a program."""
