"""Executes a LiteRT model with changed and recorded values: operator after operator, each on
LiteRT's CPU interpreter, with the changes between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ci.graphs.graph import Array, Graph
from ci.graphs.litert_file import (
    BEFORE_ACTIVATION,
    RUN_HERE,
    Carried,
    Entry,
    inline_composites,
    list_bodies,
    list_entries,
    list_numbers,
    name_operator,
    number_tensors,
    read_constant,
    read_levels,
    read_model,
    restore_numbers,
    run_control,
    split_activations,
)
from ci.graphs.litert_reader import COMPUTED, LitertGraph, read_litert_graph
from ci.graphs.run import Change, Recipe, Record, Shared, draw_uniform, share_axes

METHOD = "forward"  # of a file without signatures


class LitertProgram:
    """A model whose entries are methods: all, or those of the ``signatures``. Its inputs are those
    of all these entries, one after another, and so are its outputs. The subgraphs that operators
    run, such as an IF, are methods, too, without inputs and outputs of the model. Composites become
    the operators inside, and activations operators, unless it ``keeps_operators`` as they are."""

    def __init__(
        self, data: bytes, signatures: Collection[str] = (), *, keeps_operators: bool = False
    ) -> None:
        self.data, self.model = data, read_model(data)
        if not keeps_operators:
            inline_composites(self.model)
            split_activations(self.model)
        self.entries = list_entries(self.model, signatures)
        self.bodies = list_bodies(self.model, self.entries)

    @cached_property
    def parsed(self) -> dict[str, LitertGraph]:
        """The graph of each method, with the numbers of its tensors."""
        return {
            name_method(entry): read_litert_graph(self.model, entry, self.data)
            for entry in (*self.entries, *self.bodies)
        }

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The graph of each method."""
        return {name: parsed.graph for name, parsed in self.parsed.items()}

    def find_values(self, tensors: Collection[tuple[int, str]]) -> dict[str, frozenset[str]]:
        """Return the values that operators compute for tensors, by method. A tensor is the number
        of its subgraph and its name in the file."""
        values: dict[str, frozenset[str]] = {}
        for entry in (*self.entries, *self.bodies):
            subgraph, names = self.model.subgraphs[entry.subgraph], set[str]()
            numbers = number_tensors(subgraph)
            results = {numbers.get(text, -1) for index, text in tensors if index == entry.subgraph}
            for operator in subgraph.operators or ():
                computed = results.intersection(list_numbers(operator.outputs))
                for number in list_numbers(operator.inputs) if computed else ():
                    if (subgraph.tensors[number].name or b"").endswith(BEFORE_ACTIVATION):
                        computed.add(number)
                names.update(self.parsed[name_method(entry)].names[number] for number in computed)
            values[name_method(entry)] = frozenset(names | {*map(COMPUTED.format, names)})
        return values

    @property
    def limited(self) -> frozenset[str]:
        """No quantizer limits values instead of an operator."""
        return frozenset()

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample, without changes."""
        return self.prepare({}).run(sets)

    def prepare(self, recipes: Mapping[str, Recipe]) -> LitertRun:
        """Prepare runs with a recipe for each method. Each run continues the sequence of random
        numbers. Raises ValueError for a recipe without rounding, because LiteRT's operators
        round."""
        if any(recipe.unrounded for recipe in recipes.values()):
            raise ValueError("LiteRT's quantized operators cannot be run without rounding")
        return LitertRun(self, recipes)

    def name_operators(self, method: str, value: str) -> Sequence[str]:
        """Return nothing: a file is compiled as it is."""
        del method, value
        return ()

    def shake_choices(self, share: float) -> LitertRun:
        """Prepare runs as Program.shake_choices describes."""
        return LitertRun(self, {}, shaken=share)


def name_method(entry: Entry) -> str:
    """Return the name of an entry as a method."""
    return entry.key or METHOD


class LitertRun:
    """Runs a model with recipes. If ``shaken`` is not 0, the operands of choices have errors of
    this share of their RMS."""

    def __init__(
        self, program: LitertProgram, recipes: Mapping[str, Recipe], shaken: float = 0.0
    ) -> None:
        self.program, self.shaken, self.tools = program, shaken, ArrayTools()
        self.methods: dict[str, _Method] = {}
        for entry in (*program.entries, *program.bodies):
            name = name_method(entry)
            self.methods[name] = _Method(program, entry, recipes.get(name, Recipe()), self)
        self.bodies = {body.subgraph: self.methods[name_method(body)] for body in program.bodies}

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample."""
        names = [name_method(entry) for entry in self.program.entries]
        outputs = []
        for sample in self.record(sets):
            arrays = [array for name in names for array in sample[name].outputs]
            outputs.append(tuple(arrays))
        return outputs

    def record(self, sets: Sequence[Sequence[Array]]) -> list[dict[str, Record]]:
        """Return the outputs and the recorded values for each sample; those of a subgraph that an
        operator runs are of its last run."""
        records = []
        for method in self.methods.values():
            method.carried.begin()
        for inputs in sets:
            for method in self.methods.values():
                method.last = Record([], {})
            place = 0
            for entry in self.program.entries:
                self.methods[name_method(entry)].run(inputs[place : place + len(entry.inputs)])
                place += len(entry.inputs)
            records.append({name: method.last for name, method in self.methods.items()})
        return records

    def run_body(self, number: int, inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of a subgraph that an operator runs."""
        return self.bodies[number].run(inputs)


class _Method:
    """A method and its recipe."""

    def __init__(
        self, program: LitertProgram, entry: Entry, recipe: Recipe, owner: LitertRun
    ) -> None:
        self.program, self.entry, self.recipe, self.owner = program, entry, recipe, owner
        self.parsed = program.parsed[name_method(entry)]
        self.subgraph = program.model.subgraphs[entry.subgraph]
        names = self.parsed.names
        self.changed_constants = {
            number
            for number, name in names.items()
            if name in recipe.changes and name in self.parsed.graph.constants
        }
        # An operator whose kernel takes only constants there; its weights then stay as they are.
        self.refused: set[int] = set()
        self.last = Record([], {})  # of the last run
        self.carried = Carried(entry, program.model)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs, of which those in ``last`` are restored from their integers."""
        values: dict[int, Array] = {}
        recorded: dict[str, Array] = {}
        for number, array in zip(self.entry.inputs, inputs, strict=True):
            self._store(number, array, None, values, recorded)
        for state, array in zip(self.entry.states, self.carried.values, strict=True):
            self._store(state.read, array, None, values, recorded)
        for place, operator in enumerate(self.subgraph.operators or ()):
            self._execute(place, operator, values, recorded)
        outputs = [self._find(number, values) for number in self.entry.outputs]
        self.carried.keep([self._find(state.write, values) for state in self.entry.states])
        restored = []
        for number, array in zip(self.entry.outputs, outputs, strict=True):
            restored.append(restore_numbers(self.subgraph.tensors[number], array))
        self.last = Record(restored, recorded)
        return outputs

    def _execute(
        self, place: int, operator: Any, values: dict[int, Array], recorded: dict[str, Array]
    ) -> None:
        pieces, results = self.parsed.pieces, list_numbers(operator.outputs)
        if name_operator(self.program.model, operator) in RUN_HERE:
            operands = [self._find(number, values) for number in list_numbers(operator.inputs)]
            model, run_body = self.program.model, self.owner.run_body
            computed = run_control(model, operator, operands, run_body)
            for number, array in zip(results, computed, strict=True):
                self._store(number, array, None, values, recorded)
            return
        inputs = frozenset(self.changed_constants.intersection(list_numbers(operator.inputs)))
        if place in self.refused:
            inputs = frozenset()
        arrays = self._list_operands(place, results, inputs, values)
        try:
            computed = pieces.run(place, arrays, inputs)
        except (RuntimeError, ValueError):
            if not inputs:
                raise
            self.refused.add(place)
            arrays = self._list_operands(place, results, frozenset(), values)
            computed = pieces.run(place, arrays)
        reads = list_numbers(operator.inputs)
        first = values.get(reads[0]) if reads else None
        for number, array in zip(results, computed, strict=True):
            if number >= 0:
                self._store(number, array, first, values, recorded)

    def _list_operands(
        self,
        place: int,
        results: Sequence[int],
        inputs: frozenset[int],
        values: dict[int, Array],
    ) -> list[Array]:
        numbers = self.parsed.pieces.list_reads(place, inputs)
        arrays = [self._find(number, values) for number in numbers]
        if self.owner.shaken and self._chooses(results):
            arrays = [
                self._shake(number, array) for number, array in zip(numbers, arrays, strict=True)
            ]
        return arrays

    def _chooses(self, results: Sequence[int]) -> bool:
        """Return whether an operator returns integers or booleans that stand for themselves."""
        for number in results:
            tensor = self.subgraph.tensors[number]
            dtype = self.parsed.graph.dtypes.get(self.parsed.names[number], "")
            if not dtype.startswith("float") and read_levels(tensor) is None:
                return True
        return False

    def _shake(self, number: int, array: Array) -> Array:
        """Return an operand to whose elements, except zeros, a share of its RMS is added, or from
        which it is subtracted."""
        levels = read_levels(self.subgraph.tensors[number])
        if array.dtype.kind != "f" and levels is None:
            return array
        real = levels.restore(array) if levels else array
        amount = self.owner.shaken * math.sqrt(float(np.mean(np.square(real, dtype=np.float64))))
        signs = np.sign(self.owner.tools.draw(real, 1.0))
        moved = np.where(real != 0, real + signs * amount, real)
        if levels is None:
            return np.asarray(moved, array.dtype)
        limits = np.iinfo(array.dtype)
        steps = np.round(moved / levels.scales[0] + levels.zero_points[0])
        return np.asarray(np.clip(steps, limits.min, limits.max), array.dtype)

    def _find(self, number: int, values: dict[int, Array]) -> Array:
        """Return the value of a tensor; a constant with its change."""
        if number in values:
            return values[number]
        tensor = self.subgraph.tensors[number]
        array = read_constant(self.program.model, tensor, self.program.data)
        if number in self.changed_constants:
            return self._change(number, array, None)
        return array

    def _change(self, number: int, array: Array, operand: Array | None) -> Array:
        change: Change | None = self.recipe.changes.get(self.parsed.names[number])
        if change is None or (change.for_floats and array.dtype.kind != "f"):
            return array
        tools = self.owner.tools
        first = None if operand is None else tools.wrap(operand)
        changed = change.compute(tools.wrap(array), first, tools)
        return np.asarray(changed).astype(array.dtype).reshape(array.shape)

    def _store(
        self,
        number: int,
        array: Array,
        operand: Array | None,
        values: dict[int, Array],
        recorded: dict[str, Array],
    ) -> None:
        """Keep the value of a tensor, changed and recorded as the recipe says."""
        name = self.parsed.names[number]
        if name in self.recipe.fixed:
            array = np.asarray(self.recipe.fixed[name], array.dtype).reshape(array.shape)
        else:
            array = self._change(number, array, operand)
        values[number] = array
        if name in self.recipe.watched and array.dtype.kind == "f":
            tools = self.owner.tools
            recorded[name] = np.asarray(self.recipe.watch(tools.wrap(array), tools))
        if name in self.recipe.decisions:
            recorded[name] = array


class Values(np.ndarray[Any, np.dtype[Any]]):
    """An array with the methods that changes use."""

    def floor(self) -> Any:
        """Round down."""
        return np.floor(self)

    def abs(self) -> Any:
        """Return the magnitudes."""
        return np.abs(self)

    def sign(self) -> Any:
        """Return -1, 0 or 1 for each element."""
        return np.sign(self)

    def square(self) -> Any:
        """Return the squares."""
        return np.square(self)

    def clamp(self, low: float, high: float) -> Any:
        """Limit the elements."""
        return np.clip(self, low, high)


class ArrayTools:
    """The Tools of arrays. The random numbers are the same for each new object."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def wrap(self, array: Array) -> Values:
        """Return an array as the value of a change."""
        return np.asarray(array).view(Values)

    def draw(self, like: Any, size: float, shared: Shared | int = Shared.NONE) -> Any:
        """Return the result of Tools.draw. Axes along which elements share a number have size 1."""
        if not size:
            return 0.0
        shape = share_axes(tuple(np.shape(like)), shared)
        return self.wrap(draw_uniform(self.random, shape, size))

    def to_float(self, value: Any) -> Any:
        """Return a value as float32."""
        return value.astype(np.float32)

    def to_type(self, value: Any, like: Any) -> Any:
        """Return a value in the type of ``like``."""
        return value.astype(like.dtype)

    def is_inexact(self, value: Any) -> Any:
        """Return whether float16 cannot represent each element."""
        return (value != self.round_to_half(value)).astype(np.float32)

    def mean(self, value: Any) -> float:
        """Return the mean of all elements."""
        return float(np.mean(value))

    def limit(self, value: float, lowest: float) -> float:
        """Return the larger one of two numbers."""
        return max(value, lowest)

    def round_to_half(self, value: Any) -> Any:
        """Return the elements, rounded to float16, in the type of the value."""
        with np.errstate(over="ignore"):
            return value.astype(np.float16).astype(value.dtype)

    def find_extremes(self, value: Any) -> Any:
        """Return the smallest and the largest element, as an array of shape [2]."""
        return np.array([value.min(), value.max()])

    def is_number(self, value: Any) -> bool:
        """Return whether a value is a plain number."""
        return not isinstance(value, np.ndarray)

    def choose(self, condition: Any, if_true: Any, if_false: Any) -> Any:
        """Return elements of one of two values by a condition."""
        return self.wrap(np.where(condition, if_true, if_false))
