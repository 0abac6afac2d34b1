"""Pairs the operators of a quantized LiteRT model with those of the float model from which it was
made.

Quantizers insert QUANTIZE and DEQUANTIZE, may rename tensors, and may let a layer contain its
activation or not. Operators are therefore paired along both graphs: those of the same kind that
read the same values, and whose constants are the same up to rounding. Where the graphs differ, two
values of the same name count as the same if the layers that compute them from paired values have
the same weights up to factors for each channel, as with a batch norm in the weights, and the
factors are those of the float model's products. Where no layer computes them, they must be about
the same on a sample.

Training with quantization moves weights further. An operator with such weights is paired, too, and
marked: they may as well be those of another state of the same training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    Entry,
    has_data,
    list_numbers,
    list_used,
    name_operator,
    name_tensor,
    read_constant,
    read_dtype,
    read_levels,
    read_model,
    read_shape,
    restore_numbers,
    split_activations,
)
from ci.graphs.litert_layers import (
    find_layer_factors,
    find_layer_weights,
    have_same_layers,
    is_neutral,
)
from ci.graphs.litert_part import find_operators
from ci.graphs.litert_session import open_interpreter, run_interpreter
from ci.graphs.rounding import is_rounded, is_rounded_or_drifted, shape_channels

PASSES_ON = frozenset({"QUANTIZE", "DEQUANTIZE"})
LEAST_CORRELATION = 0.7  # of two values that no layer computes and that count as the same
IsSame = Callable[[Array, Array, Array | float], bool]  # of a rounded constant and an exact one
CONSTANT = -2  # stands for any constant among what a call reads


class Counterpart(NamedTuple):
    """An operator of a quantized model, at ``place``, and those that compute the same in the float
    model, at the places ``operators``. ``reads`` are the tensors of the quantized model by those of
    the float model that they read, and ``results`` pairs of tensors, of the quantized model and of
    the float model. ``is_drifted`` is true if its weights differ by more than their rounding."""

    place: int
    operators: tuple[int, ...]
    reads: Mapping[int, int]
    results: tuple[tuple[int, int], ...]
    is_drifted: bool = False


class Rounded(NamedTuple):
    """A tensor of integers of a quantized model, the tensor of the same model whose value it
    rounds (itself, unless a QUANTIZE rounds it), and that of the float model with this value."""

    number: int
    source: int
    plain: int


class Operation(NamedTuple):
    """An operator that computes, with the values that it reads, as ``Side.find_root`` names
    them."""

    kind: str
    reads: tuple[int, ...]
    results: tuple[int, ...]


class Side:
    """One of the two models: the subgraph of its ``entry``, in the file ``data``."""

    def __init__(self, data: bytes, entry: Entry) -> None:
        self.data, self.entry = data, entry
        self.model = read_model(data)
        self.subgraph = self.model.subgraphs[entry.subgraph]
        self.split_model = read_model(data)
        split_activations(self.split_model)
        # The tensors in front of activations are behind those of the file.
        self.count = len(self.subgraph.tensors)
        split_subgraph = self.split_model.subgraphs[entry.subgraph]
        self.tensors = split_subgraph.tensors
        self.operators = split_subgraph.operators or ()
        self.names = [name_tensor(split_subgraph, n) for n in range(len(self.tensors))]
        self.passed_on = {
            int(operator.outputs[0]): int(operator.inputs[0])
            for operator in self.operators
            if name_operator(self.split_model, operator) in PASSES_ON
        }

    def find_root(self, number: int) -> int:
        """Return the tensor with the value that only quantizers and dequantizers pass on."""
        while number in self.passed_on:
            number = self.passed_on[number]
        return number

    def is_constant(self, number: int) -> bool:
        """Return whether a tensor is a constant."""
        return has_data(self.split_model, self.tensors[number])

    def list_calls(self) -> list[Operation]:
        """Return the operators that compute, in order."""
        calls = []
        for operator in self.operators:
            kind = name_operator(self.split_model, operator)
            if kind not in PASSES_ON:
                reads = tuple(
                    self.find_root(n) if n >= 0 else n for n in list_numbers(operator.inputs)
                )
                calls.append(Operation(kind, reads, list_numbers(operator.outputs)))
        return calls

    def read_constant(self, number: int) -> Array | None:
        """Return the numbers of a constant; None for types that numpy lacks, and for sparse
        ones."""
        tensor = self.tensors[number]
        if tensor.sparsity is not None or not read_dtype(tensor):
            return None
        try:
            integers = read_constant(self.split_model, tensor, self.data)
        except ValueError:
            return None
        return restore_numbers(tensor, integers)

    def find_steps(self, number: int) -> Array | float:
        """Return the scales of a constant, as is_rounded reads them; 0 if it is not quantized."""
        levels = read_levels(self.tensors[number])
        if levels is None:
            return 0.0
        if levels.scales.size == 1:
            return float(levels.scales[0])
        return shape_channels(levels.scales, len(read_shape(self.tensors[number])), levels.axis)


class _Pairing:
    """Pairs the values of two models: ``values`` are tensors of the float model by those of the
    quantized model. ``samples`` are inputs of both."""

    def __init__(
        self, quantized: Side, plain: Side, samples: tuple[Sequence[Array], Sequence[Array]]
    ) -> None:
        self.quantized, self.plain, self.samples = quantized, plain, samples
        self.values = dict(zip(quantized.entry.inputs, plain.entry.inputs, strict=True))
        self.paired: set[int] = {*self.values.values()}
        self.drifted: set[int] = set()  # results of the quantized model's operators
        self.calls, self.plain_calls = quantized.list_calls(), plain.list_calls()
        self.waiting: dict[tuple[Any, ...], list[Operation]] = {}
        for call in self.plain_calls:
            key = self._make_key(plain, call, {n: n for n in call.reads})
            self.waiting.setdefault(key, []).append(call)
        named: dict[str, list[int]] = {}
        for call in self.plain_calls:
            for number in call.results:
                named.setdefault(plain.names[number], []).append(number)
        self.named = {name: numbers[0] for name, numbers in named.items() if len(numbers) == 1}

    def run(self) -> dict[int, int]:
        """Pair what can be paired, and return the pairs of tensors of both files."""
        for call in self.calls:
            for number, plain_number in self._pair_results(call):
                self.values[number] = plain_number
                self.paired.add(plain_number)
        return {  # without the tensors in front of activations, which the files lack
            number: plain_number
            for number, plain_number in self.values.items()
            if number < self.quantized.count and plain_number < self.plain.count
        }

    def _pair_results(self, call: Operation) -> list[tuple[int, int]]:
        """Return the results of a call with those of the float model that have the same values."""
        counterpart = self._find_call(call, is_rounded)
        named = [] if counterpart else [*self._list_named(call)]
        if not counterpart and not named:
            counterpart = self._find_call(call, is_rounded_or_drifted)
            self.drifted.update(call.results if counterpart else ())
        return [*zip(call.results, counterpart.results, strict=True)] if counterpart else named

    def _make_key(self, side: Side, call: Operation, values: Mapping[int, int]) -> tuple[Any, ...]:
        """Return what two calls must have in common, besides their constants."""
        reads = [CONSTANT if n < 0 or side.is_constant(n) else values[n] for n in call.reads]
        while reads and reads[-1] == CONSTANT:  # such as a bias, which one of both may lack
            reads.pop()
        shapes = tuple(read_shape(side.tensors[number]) for number in call.results)
        return call.kind, tuple(reads), shapes

    def _find_call(self, call: Operation, is_same: IsSame) -> Operation | None:
        """Return the call of the float model that computes the same, and take it."""
        side = self.quantized
        values = self.values
        if any(n >= 0 and n not in values and not side.is_constant(n) for n in call.reads):
            return None
        waiting = self.waiting.get(self._make_key(side, call, values), [])
        equal = [plain for plain in waiting if self._has_same_constants(call, plain, is_same)]
        if not equal:
            return None
        name = side.names[call.results[0]] if call.results else ""
        chosen = equal[0]
        for plain in reversed(equal):  # the first of the same name, if there is one
            plain_name = self.plain.names[plain.results[0]] if plain.results else ""
            if plain_name == name:
                chosen = plain
        waiting.remove(chosen)
        return chosen

    def _has_same_constants(self, call: Operation, plain: Operation, is_same: IsSame) -> bool:
        if is_same is is_rounded_or_drifted:  # a factor is no training
            factors = find_layer_factors(self.quantized, self.plain, call, plain)
            if factors is not None and not is_neutral(factors):
                return False
        for number, plain_number in zip(call.reads, plain.reads, strict=False):
            is_constant = number >= 0 and self.quantized.is_constant(number)
            if not is_constant or plain_number < 0:
                continue
            rounded = self.quantized.read_constant(number)
            exact = self.plain.read_constant(plain_number)
            if rounded is None or exact is None or call.kind == "RESHAPE":  # the results are alike
                continue
            has_unread_scales = exact.dtype.kind == "f" and rounded.dtype.kind != "f"  # of blocks
            if has_unread_scales:
                continue
            if not is_same(rounded, exact, self.quantized.find_steps(number)):
                return False
        return True

    def _list_named(self, call: Operation) -> Iterator[tuple[int, int]]:
        """Yield the results of a call without a counterpart that have one of their name."""
        for number in call.results:
            plain_number = self.named.get(self.quantized.names[number], -1)
            is_free = plain_number >= 0 and plain_number not in self.paired
            if is_free and self._has_same_layers(number, plain_number):
                yield number, plain_number

    def _has_same_layers(self, number: int, plain_number: int) -> bool:
        """Return whether the layers that compute two values from paired ones are the same; without
        layers, whether the values are about the same on a sample."""
        calls = list_calls_between(self.calls, self.values.keys(), number)
        plain_calls = list_calls_between(self.plain_calls, self.paired, plain_number)
        if not have_same_layers(self.quantized, self.plain, calls, plain_calls):
            return False
        has_layers = any(find_layer_weights(self.quantized, call) >= 0 for call in calls)
        return has_layers or self._is_same(number, plain_number)

    def _is_same(self, number: int, plain_number: int) -> bool:
        """Return whether both models compute about the same for a sample."""
        if number >= self.quantized.count or plain_number >= self.plain.count:
            return False
        if self.quantized.entry.subgraph or self.plain.entry.subgraph:
            return False  # an interpreter returns inner values of the first one only
        value = restore_numbers(
            self.quantized.tensors[number], self.interpreters[0].get_tensor(number)
        )
        exact = self.interpreters[1].get_tensor(plain_number)
        if value.shape != exact.shape or exact.dtype.kind != "f" or value.size < 2:
            return False
        pair = value.ravel().astype(np.float64), exact.ravel().astype(np.float64)
        if not all(np.isfinite(array).all() and array.std() > 0 for array in pair):
            return False
        return bool(np.corrcoef(*pair)[0, 1] >= LEAST_CORRELATION)

    @cached_property
    def interpreters(self) -> list[Any]:
        """The interpreters of both models, with the results of the sample."""
        interpreters = []
        for side, inputs in zip((self.quantized, self.plain), self.samples, strict=True):
            interpreter = open_interpreter(side.data, keeps_tensors=True)
            run_interpreter(interpreter, inputs)
            interpreters.append(interpreter)
        return interpreters


def list_calls_between(
    calls: Sequence[Operation], paired: Collection[int], number: int
) -> list[Operation]:
    """Return those of ``calls``, in order, that compute a value from paired ones."""
    needed, chosen = {number}, []
    for call in reversed(calls):
        if not needed.isdisjoint(call.results):
            chosen.append(call)
            needed.update(read for read in call.reads if read not in paired)
    return chosen[::-1]


def pair_values(
    quantized: Side, plain: Side, samples: tuple[Sequence[Array], Sequence[Array]]
) -> dict[int, int]:
    """Return the tensors of the float model by those of the quantized model with the same value.
    ``samples`` are the inputs of both for one sample."""
    return _Pairing(quantized, plain, samples).run()


def has_other_layers(
    quantized: Side, plain: Side, samples: tuple[Sequence[Array], Sequence[Array]]
) -> bool:
    """Return whether the quantized model has layers with quantized weights, and none of them
    computes a value of the float model. Operators without weights, such as a transpose of the
    input, are the same in any state of a net. ``samples`` are as in pair_values."""
    pairing = _Pairing(quantized, plain, samples)
    pairing.run()
    layers = [
        call
        for call in pairing.calls
        if (number := find_layer_weights(quantized, call)) >= 0
        and read_levels(quantized.tensors[number])
    ]
    return bool(layers) and pairing.values.keys().isdisjoint(
        number for layer in layers for number in layer.results
    )


def list_rounded(
    quantized: Side, plain: Side, samples: tuple[Sequence[Array], Sequence[Array]]
) -> list[Rounded]:
    """Return the values that the quantized model rounds to integers and that the float model
    computes in float: results of operators in integers, and those of QUANTIZE. ``samples`` are as
    in pair_values."""
    values = pair_values(quantized, plain, samples)
    roots = {number: number for number in values}
    for number in quantized.passed_on:
        roots[number] = quantized.find_root(number)
    return [
        Rounded(number, root, values[root])
        for number, root in roots.items()
        if root in values and _is_float_of(quantized, plain, number, values[root])
    ]


def find_counterparts(
    quantized: Side, plain: Side, samples: tuple[Sequence[Array], Sequence[Array]]
) -> list[Counterpart]:
    """Return the operators of a quantized model that its float model can compute instead.
    ``samples`` are as in pair_values."""
    pairing = _Pairing(quantized, plain, samples)
    values = pairing.run()
    by_plain = {plain_number: number for number, plain_number in values.items()}
    makers: dict[int, int] = {}  # the places of the operators of the quantized model
    for place, operator in enumerate(quantized.subgraph.operators or ()):
        makers |= dict.fromkeys(list_numbers(operator.outputs), place)
    counterparts = []
    for place, operator in enumerate(quantized.subgraph.operators or ()):
        results = list_numbers(operator.outputs)
        if name_operator(quantized.model, operator) in PASSES_ON:
            continue
        if results and all(_is_float_of(quantized, plain, n, values.get(n)) for n in results):
            pairs = tuple((number, values[number]) for number in results)
            plain_results = [plain_number for _, plain_number in pairs]
            computed_before = by_plain.keys() - {*plain_results}
            operators = find_operators(plain.subgraph, computed_before, plain_results)
            reads = _find_reads(plain, operators, by_plain)
            is_earlier = reads is not None and all(
                makers.get(n, -1) < place for n in reads.values()
            )
            if reads is not None and is_earlier and operators:
                is_drifted = not pairing.drifted.isdisjoint(results)
                counterparts.append(
                    Counterpart(place, tuple(operators), reads, pairs, is_drifted=is_drifted)
                )
    return counterparts


def _is_float_of(quantized: Side, plain: Side, number: int, plain_number: int | None) -> bool:
    """Return whether a quantized tensor has a float32 one in the float model."""
    if plain_number is None or read_levels(quantized.tensors[number]) is None:
        return False
    return read_dtype(plain.tensors[plain_number]) == "float32"


def _find_reads(
    plain: Side, operators: Sequence[int], by_plain: Mapping[int, int]
) -> dict[int, int] | None:
    """Return the tensors of the quantized model for those that operators of the float model read
    and do not compute, or None if one has none, or if an operator runs other subgraphs."""
    calls = [plain.subgraph.operators[place] for place in operators]
    computed = {number for call in calls for number in list_numbers(call.outputs)}
    reads = {}
    for call in calls:
        if list_used(call):
            return None
        for number in list_numbers(call.inputs):
            if number < 0 or number in computed or plain.is_constant(number):
                continue
            if number not in by_plain:
                return None
            reads[number] = by_plain[number]
    return reads
