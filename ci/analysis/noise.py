"""Predicts how much the outputs of a correct program may differ from the outputs of its model. To
do so, it runs the model with errors like the ones that QNN's arithmetic makes.

A program's rounding differs from the model's by a step here and there. The effect on an output
depends on the model. The model is therefore run several times with such errors inserted at random.
The spread of its outputs is the expected error of a correct program; this needs neither a program
nor recorded numbers. ci.models.rounding has the sizes of the errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import structs

from ci.graphs.graph import EXECUTORCH, LITERT, ONNXRUNTIME, Array, Graph, Node, to_array
from ci.graphs.operators import CHOICES, computes, is_dequantizer, is_layer, is_quantizer
from ci.graphs.run import Change, Changes, Program, Recipe, Shared, Tools, Value
from ci.models.rounding import (
    ADD,
    CARRY_SHARE,
    CARRY_STEPS,
    CELL,
    CELLS,
    FLOAT16,
    FLOAT16_MAX,
    LAYER,
    LEAST_TALL,
    MOST_SPLIT,
    MOVED,
    NO_TERM,
    PRODUCT_BIAS,
    RELATIVE,
    STATE,
    TALL,
    UNIFORM,
    VARIES,
    WEIGHT_GAIN,
    WEIGHT_STEPS,
    Term,
    Terms,
    count_runs,
    read_terms,
    take_term,
)

FUSED_THROUGH = frozenset({"view", "_unsafe_view", "reshape", "cat", "clone", "alias", "flatten"})
FACTORS = frozenset({"mul", "div"})
NARROW, FEW, MANY = 2**9, 2**5, 2**9  # numbers of levels
LEVELS_OF_8_BITS = 2**8 - 1
PRODUCTS = frozenset({"matmul", "bmm"})
# Each element of the result is one of an operand or a limit. QNN copies it, after rounding all of
# them to float16, where 0.99999 is 1. With random errors, 1 - x is negative behind an x that is
# limited to it, as in torch.logit: the prediction had NaN for a program that is right.
CHOOSES = CHOICES.keys() | {
    *("clamp", "clamp_max", "clamp_min", "clip", "fmax", "fmin", "hardtanh", "maximum"),
    *("minimum", "relu6"),
}
# QNN's approximations do not leave these, either: a sigmoid that it fuses with a layer has an error
# of 0.001 to 0.003, and is never below 0 (measured with QNN 2.49.40 and 2.51.0 through all front
# ends). A logarithm of it was NaN otherwise.
RANGES = {
    **dict.fromkeys(("_softmax", "hardsigmoid", "sigmoid", "softmax"), (0.0, 1.0)),
    **dict.fromkeys(("cos", "erf", "sin", "tanh"), (-1.0, 1.0)),
}
EVERYWHERE = -math.inf, math.inf
INT16_MOST = 2**15 - 1
BLOCKED = "dequantize_affine"  # torchao's, of weights with a scale per block


def predict_noise(
    program: Program,
    sets: Sequence[Any],
    right: Sequence[Sequence[Any]] | None = None,
    *,
    qnn: str = "",
    on_cpu: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Array]:
    """Return one array of errors per output, [run, sample, *shape], or an empty array if the output
    is not floating-point.

    ``program`` is the quantized model, of which QNN computes in float16 what is not quantized, or
    the float32 model. ``right`` are its outputs, if they are known. ``qnn`` is the version of QNN.
    ``on_cpu`` are the values that the CPU computes, by method. The model is run up to RUNS times,
    with the same random errors each time that this is called.
    """
    exact = right or program.run(sets)
    errors_by_method = find_errors_of(program, qnn, on_cpu)
    run = program.prepare({name: Recipe(errors) for name, errors in errors_by_method.items()})
    sizes = (math.prod(output.shape) for outputs in exact for output in outputs)
    noisy = [run.run(sets) for _ in range(count_runs(sizes))]
    errors = []
    for index, first in enumerate(exact[0]):
        if to_array(first).dtype.kind == "f":
            exact_output = _stack_samples(exact, index)
            noisy_outputs = [_stack_samples(outputs, index) for outputs in noisy]
            errors.append(np.stack([output - exact_output for output in noisy_outputs]))
        else:
            errors.append(np.empty(0))
    return errors


def find_errors_of(
    program: Program, qnn: str, on_cpu: Mapping[str, Collection[str]]
) -> dict[str, Changes]:
    """Return the changes that add one run's random errors to the values of each method."""
    return {
        name: find_errors(graph, read_terms(qnn, graph.front_end), on_cpu.get(name, ()))
        for name, graph in program.graphs.items()
    }


def _stack_samples(outputs: Sequence[Sequence[Any]], index: int) -> Array:
    return np.stack([to_array(sample[index]) for sample in outputs])


def find_errors(graph: Graph, terms: Terms, on_cpu: Collection[str] = ()) -> Changes:
    """Return the changes that add one run's random errors to the values of a graph: after each
    quantizer of a computed value, after each float16 computation, and to the inputs and constants
    that these read. What is ``on_cpu`` has no error, but is rounded to float16 if QNN reads it."""
    errors = _Errors(graph, terms, on_cpu)
    return dict([*errors.list_given(), *errors.list_computed()])


def find_fused(graph: Graph, terms: Terms) -> dict[str, tuple[Node, Change]]:
    """Return the results of the activations that HTP computes together with the layer or the sum
    before them in float16, with their nodes and the changes that add their errors."""
    errors = _Errors(graph, terms)
    return {name: (node, change) for name, node, change in errors.list_fused()}


def rounds(operator: str) -> bool:
    """Return whether QNN rounds the results of an operator. It copies what ``where`` chooses."""
    return computes(operator) and operator not in CHOICES


def find_float16(graph: Graph, on_cpu: Collection[str] = ()) -> frozenset[str]:
    """Return the values that QNN computes in float16: all of a graph without quantizers; or else
    those that are not quantized next, results of recurrent layers, the dequantized values from
    which they are computed, and the inputs and constants that anything else than a quantizer
    reads, such as a reshape in front of it. Of the values that are computed ``on_cpu``, only those
    that QNN reads."""
    taken = [node for node in graph.nodes if not is_computed_in(node, on_cpu)]
    if not any(is_quantizer(node.operator) for node in graph.nodes):
        values = {name for node in taken for name in (*node.reads, *node.results)}
        values |= {*graph.outputs} - {*on_cpu}
        return frozenset(values - {""})
    quantized: set[str] = set()
    read: set[str] = set()
    halves: set[str] = set()
    direct: set[str] = set()
    # A node that reads nothing is a constant of a file.
    results = {name for node in graph.nodes if node.reads for name in node.results}
    # The last one first, because the readers of a value decide its type.
    for node in reversed([node for node in taken if node.reads]):
        operands = [name for name in node.reads[: node.operands] if name]
        if not is_quantizer(node.operator) and not is_dequantizer(node.operator):
            direct.update(operands)
        if is_quantizer(node.operator):
            quantized.update(operands)
        elif is_dequantizer(node.operator):
            halves.update(read.intersection(node.results))
        elif computes(node.operator):
            if node.operator in CELLS or quantized.isdisjoint(node.results):
                halves.update(node.results)
                read.update(operands)
        else:
            for names in (quantized, read):
                if not names.isdisjoint(node.results):
                    names.update(operands)
    return frozenset(halves | (direct - results) | read.intersection(on_cpu))


def is_computed_in(node: Node, values: Collection[str]) -> bool:
    """Return whether a node computes one of these values."""
    return bool(values) and any(name in values for name in node.results)


@dataclass(frozen=True)
class Rounded:
    """The error of a value in float16. A ``given`` value is only rounded. ``scaled`` is true if the
    error is multiplied by the node's operand, and ``cell`` for a recurrent layer, of which
    ``is_state`` marks the cell state. A value that ``is_handed_over`` to the CPU is a number that
    float16 has: what the CPU only moves is then exact where QNN reads it again. No result is
    outside of ``limits``."""

    term: Term
    is_given: bool = False
    is_scaled: bool = False
    is_cell: bool = False
    is_state: bool = False
    is_handed_over: bool = False
    limits: tuple[float, float] = EVERYWHERE

    def add(self, value: Value, operand: Value, tools: Tools) -> Value:
        """Return the value with its error. ``operand`` is the first operand of the node that
        computes it."""
        if not self.is_handed_over:
            return self.add_errors(value, operand, tools)
        is_only_rounded = self.term == NO_TERM and not self.is_cell
        noisy = value if is_only_rounded else self.add_errors(value, operand, tools)
        return tools.round_to_half(noisy.clamp(-FLOAT16_MAX, FLOAT16_MAX))

    def add_errors(self, value: Value, operand: Value, tools: Tools) -> Value:
        """Return the value with random errors."""
        # The error of an infinite value would be infinite, too, or NaN.
        finite = value.clamp(-FLOAT16_MAX, FLOAT16_MAX)
        relative = max(RELATIVE, UNIFORM * self.term.relative)
        error = finite * tools.draw(value, relative)
        if self.is_given:  # values that float16 can hold are exact
            error = error * tools.is_inexact(value)
        if self.term.steps:
            scale = operand if self.is_scaled else 1.0
            error = error + scale * tools.draw(value, UNIFORM * self.term.steps)
        if self.is_cell:
            error = error + tools.draw(value, CELL)
        if self.is_state:
            error = error + finite * tools.draw(value, CELL)
        noisy = value + error + share(self.term, finite, tools)
        return noisy if self.limits == EVERYWHERE else noisy.clamp(*self.limits)


def share(term: Term, value: Value, tools: Tools) -> Value:
    """Return the errors of a term that several elements share: the bias, and the gain of each
    row. ``value`` is the result, in the unit of the bias."""
    bias = term.bias + tools.draw(value, UNIFORM * term.varies, Shared.ALL)
    return bias + value * tools.draw(value, UNIFORM * term.row, Shared.ROW) if term.row else bias


def round_chosen(value: Value, _: Value, tools: Tools) -> Value:
    """Return what one of CHOOSES returns, rounded to float16 if that can hold it."""
    limited = value.clamp(-FLOAT16_MAX, FLOAT16_MAX)
    return value + (tools.round_to_half(limited) - limited)


def read_input(value: Value, _: Value, tools: Tools) -> Value:
    """Round an input that is quantized to 8 bits or fewer: QNN rounds it to float16 first."""
    return value + value * tools.draw(value, RELATIVE)


@dataclass(frozen=True)
class Moved:
    """The error of a quantized result, in steps: ``zero`` is its zero point, and ``low`` and
    ``high`` are the limits of its ``bits``. ``weight_bits`` are those of a layer's weights, 0 if
    it is none, and ``channel`` is the axis of its channels. The layer ``loses_carry`` if the front
    end makes it do so."""

    term: Term
    bits: int
    zero: float
    low: float
    high: float
    weight_bits: int = 0
    channel: int = 1
    loses_carry: bool = False

    def add(self, value: Value, _: Value, tools: Tools) -> Value:
        """Return the levels with their error, limited to those from ``low`` to ``high``, in their
        type."""
        term = self.term
        levels = tools.to_float(value)
        is_shared = any((term.bias, term.varies, term.relative, term.row))
        is_wide = self.weight_bits in {4, 16}
        signal = levels - self.zero if is_shared or is_wide else levels
        shared: Value = 0.0
        shared_power = chance = 0.0
        if is_shared:
            shared = share(term, signal, tools)
            shared = shared + signal * tools.draw(value, UNIFORM * term.relative)
            # Rounding at random moves elements by a step, too.
            fraction = shared - shared.floor()
            chance = tools.mean(fraction * (1 - fraction))
            shared_power = tools.mean(shared.square()) + chance
        # An operator has its own error, or that of every operator if that is larger.
        power = tools.limit(
            tools.limit(MOVED[self.bits] - shared_power, term.steps**2 - chance), 0.0
        )
        steps = roll_steps(levels, power, tools)
        if is_wide:
            shared_by = self.channel if self.weight_bits == 4 else Shared.NONE
            steps = steps + tools.draw(value, WEIGHT_STEPS, shared_by)
            # Per channel, as in programs: for mlp in u16a4w, 54.6 dB are predicted and 54.7 dB
            # measured. With an error per element, 48.7 dB were predicted.
            steps = steps + signal * tools.draw(value, WEIGHT_GAIN, self.channel)
        if self.loses_carry:
            lost = tools.draw(value, 1.0).abs() > 1 - CARRY_SHARE
            steps = steps + lost * tools.draw(value, CARRY_STEPS)
        offset = shared + tools.draw(value, 0.5 if is_shared else 0.0)
        moved = levels + steps.round()
        moved = moved + (offset if tools.is_number(offset) else offset.round())
        return tools.to_type(moved.clamp(self.low, self.high), value)


@dataclass(frozen=True)
class Split:
    """The second operand of a product of two activations of 16 bits: its levels have no more than
    MOST_SPLIT, and the error of ``moved``, if they are those of a computed value."""

    moved: Moved | None

    def add(self, value: Value, operand: Value, tools: Tools) -> Value:
        """Return the levels with their error, limited to those that QNN can split."""
        levels = self.moved.add(value, operand, tools) if self.moved else value
        return tools.to_type(tools.to_float(levels).clamp(-math.inf, MOST_SPLIT), value)


def roll_steps(like: Value, power: Value, tools: Tools) -> Value:
    """Return random steps with this mean square: some elements by one step, or all by more."""
    rolled = tools.draw(like, 1.0)
    some = rolled.sign() * (rolled.abs() > 1 - power)
    if not tools.is_number(power):
        return tools.choose(power > 1.0, rolled * (UNIFORM * power**0.5), some)
    return UNIFORM * power**0.5 * rolled if power > 1 else some


class _Errors:
    """Finds the errors of a graph's values."""

    def __init__(self, graph: Graph, terms: Terms, on_cpu: Collection[str] = ()) -> None:
        self.graph, self.terms, self.on_cpu = graph, terms, frozenset(on_cpu)
        self.makers = graph.list_makers()
        self.reads = Counter(name for node in graph.nodes for name in node.reads)
        self.reads.update(graph.outputs)
        self.float16 = find_float16(graph, self.on_cpu)
        self.handed_over = {
            name for node in graph.nodes if is_computed_in(node, self.on_cpu) for name in node.reads
        }

    def list_given(self) -> Iterator[tuple[str, Change]]:
        """Yield the name of each changed input or constant, and the change."""
        # Seen with QNN 2.49.40 through both front ends: in models that only move, join or clamp
        # 8-bit inputs, about 1 % of the elements differ by a step. Inputs of 16 bits are exact.
        narrow = {
            node.reads[0]
            for node in self.graph.nodes
            if is_narrow(node) and not is_computed_in(node, self.on_cpu)
        }
        # Without the states: an error would make a copy of a buffer that the model writes through a
        # view, and the write would be lost.
        changed = (self.float16 | narrow) - self.makers.keys() - self.graph.states
        for name in sorted(changed - {""}):
            constant = self.graph.constants.get(name)
            if name in self.float16:
                if constant is None or has_inexact(constant()):
                    yield name, Change(Rounded(NO_TERM, is_given=True).add)
            elif constant is None:
                yield name, Change(read_input)

    def list_computed(self) -> Iterator[tuple[str, Change]]:
        """Yield the name of each changed result, and the change."""
        for node in self.graph.nodes:
            if is_computed_in(node, self.on_cpu):
                for name in node.results:
                    if name in self.float16:  # rounded when QNN reads it
                        yield name, Change(Rounded(NO_TERM, is_given=True).add)
            elif is_quantizer(node.operator):
                if change := self._find_quantized(node):
                    yield node.results[0], change
            else:
                yield from self._list_in_float16(node)

    def _list_in_float16(self, node: Node) -> Iterator[tuple[str, Change]]:
        is_chosen = node.operator.strip("_") in CHOOSES
        if not is_chosen and not is_dequantizer(node.operator) and not rounds(node.operator):
            return
        for place, name in enumerate(node.results):
            if name in self.float16:
                change = round_chosen if is_chosen else self._find_rounded(node, name, place).add
                yield name, Change(change)

    def _find_quantized(self, node: Node) -> Change | None:
        """Return the change of what a quantizer returns, if QNN's differs."""
        source = self.makers.get(node.reads[0])
        move = None
        if source and rounds(source.operator) and "zero_point" in node.numbers:
            move = self._find_moved(node, source)
        if self._is_split(node):
            return Change(Split(move).add, for_floats=False)
        return Change(move.add, for_floats=False) if move else None

    def list_fused(self) -> Iterator[tuple[str, Node, Change]]:
        """Yield the result of each fused activation, its node, and the change that adds its
        error."""
        for node in self.graph.nodes:
            if not rounds(node.operator) or is_layer(node.operator):
                continue
            if is_computed_in(node, self.on_cpu):
                continue
            for place, name in enumerate(node.results):
                rounded = self._find_rounded(node, name, place)
                if rounded.term.after and name in self.float16:
                    yield name, node, Change(rounded.add)

    def _find_rounded(self, node: Node, name: str, place: int) -> Rounded:
        # HTP fuses sigmoid, tanh and GELU with a layer or a sum in front of them. The result then
        # has an absolute error of 0.001 to 0.003 instead of a relative one.
        operator, after = node.operator.strip("_"), self._find_predecessor(node, name)
        is_given = is_dequantizer(node.operator) or not node.reads  # as a constant of a file
        # Of this one, only the sigmoid is fused, and the product is computed afterwards.
        is_scaled = operator == "silu" and after in {LAYER, ADD}
        return Rounded(
            take_term(self.terms, "sigmoid" if is_scaled else operator, FLOAT16, after),
            is_given=is_given,
            is_scaled=is_scaled,
            is_cell=node.operator in CELLS,
            is_state=node.operator in CELLS and place == STATE,
            is_handed_over=name in self.handed_over,
            limits=RANGES.get(operator, EVERYWHERE),
        )

    def _find_moved(self, node: Node, source: Node) -> Moved:
        low, high = (node.numbers[name][0] for name in ("quant_min", "quant_max"))
        bits = 8 if is_narrow(node) else 16
        levels, is_unsigned = self._find_weights(source)
        term = take_term(self.terms, source.operator.strip("_"), str(bits))
        if bits == 8 and self._is_last_of_products(node, source):
            term = structs.replace(term, bias=term.bias + PRODUCT_BIAS, varies=VARIES)
        return Moved(
            term,
            bits,
            node.numbers["zero_point"][0],
            low,
            high,
            weight_bits=0 if not levels else 4 if levels < FEW else 16 if levels > MANY else 8,
            channel=-1 if source.operator == "linear" else 1,
            loses_carry=self.graph.front_end == ONNXRUNTIME and is_unsigned and bits == 16,
        )

    def _is_split(self, node: Node) -> bool:
        """Return whether QNN splits what a quantizer returns into bytes, see MOST_SPLIT."""
        is_signed = [*node.numbers.get("quant_max", ())] == [INT16_MOST]
        if self.graph.front_end != EXECUTORCH or not is_signed:
            return False
        pending = [*node.results]
        for value in pending:  # which grows
            for reader in self.graph.nodes:
                if reader.operator in PRODUCTS and value in reader.reads[1:2]:
                    return True
                if value in reader.reads[:1] and not rounds(reader.operator):
                    pending += reader.results
        return False

    def _is_last_of_products(self, node: Node, source: Node) -> bool:
        """Return whether ``node`` quantizes an output of the model that ``source`` computes with
        weights, directly from several products of two computed tensors."""
        if source.operator not in PRODUCTS | {"linear"} or len(source.reads) < 2:
            return False
        if not self._find_weights(source)[0] or not self._is_output(node.results[0]):
            return False
        maker = self.makers.get(source.reads[0])
        while maker and (
            is_quantizer(maker.operator)
            or is_dequantizer(maker.operator)
            or maker.operator in FUSED_THROUGH - {"cat"}
        ):
            maker = self.makers.get(maker.reads[0])
        if maker is None or maker.operator not in PRODUCTS or self._find_weights(maker)[0]:
            return False
        return math.prod(self.graph.shapes.get(maker.results[0], ())[:-2]) > 1

    def _is_output(self, name: str) -> bool:
        """Return whether a quantized value is an output, behind dequantizers and views."""
        pending = [name]
        for value in pending:  # which grows
            if value in self.graph.outputs:
                return True
            for reader in self.graph.nodes:
                is_view = is_dequantizer(reader.operator) or reader.operator in FUSED_THROUGH
                if is_view and value in reader.reads[:1]:
                    pending.append(reader.results[0])
        return False

    def _find_weights(self, source: Node) -> tuple[float, bool]:
        """Return the number of levels of a layer's weights, and whether they are unsigned or
        activations, for which the error is the same. The number is 0 for activations, for other
        nodes and for weights that are not quantized.

        Block-quantized weights count as weights of 8 bits, however few they have, because their
        only error is the rounding of the scales, which is known.
        """
        if not is_layer(source.operator) or len(source.reads) < 2:
            return 0, False
        maker = self.makers.get(source.reads[1])
        if maker is None or not is_dequantizer(maker.operator):
            return 0, False
        stored = maker.reads[0]
        quantizer = self.makers.get(stored)
        if quantizer and is_quantizer(quantizer.operator):
            stored = quantizer.reads[0]  # as AIMET writes weights
        if stored not in self.graph.constants:
            return 0, True
        if maker.operator == BLOCKED:
            return LEVELS_OF_8_BITS, False
        low, high = (maker.numbers[name][0] for name in ("quant_min", "quant_max"))
        return high - low, low == 0 and high - low < MANY

    def _find_predecessor(self, node: Node, name: str) -> str:
        """Return what HTP fuses with the node that computes a value: LAYER, ADD, TALL or ""."""
        source = node.reads[0] if node.reads else ""
        if self._is_fused(source):
            return LAYER
        maker = self.makers.get(source)
        while maker and maker.operator in FUSED_THROUGH and maker.operator != "cat":
            source = maker.reads[0]
            maker = self.makers.get(source)
        if maker is None or maker.operator != "add" or is_computed_in(maker, self.on_cpu):
            return ""
        if self._is_summand_absorbed(maker):
            return ""
        if self.reads[source] > 1:  # the sum is needed, as the cell state of an LSTM is
            return ""
        shape = self.graph.shapes.get(name)
        rows = LEAST_TALL if shape is None else math.prod(shape[:-1]) if math.prod(shape) else 0
        return ADD if rows < LEAST_TALL else TALL

    def _is_summand_absorbed(self, node: Node) -> bool:
        """Return whether a sum has a constant that HTP does not add in the fused operator. Measured
        with QNN 2.51 through LiteRT: a constant of the shape of the sum is added there (48 dB
        before a sigmoid, as a sum of two tensors; 70 if it is broadcast)."""
        constants = [read for read in node.reads[:2] if read in self.graph.constants]
        is_whole = self.graph.front_end == LITERT and all(
            self.graph.shapes.get(read) == self.graph.shapes.get(node.results[0])
            for read in constants
        )
        return bool(constants) and not is_whole

    def _is_fused(self, name: str) -> bool:
        """Return whether a value is the result of a layer that HTP fuses with the operator behind
        it. Between them, only views, concatenations and the addition of a constant are allowed.
        After a convolution, a constant factor is also allowed, because it is folded into the
        weights."""
        is_scaled = False
        node = self.makers.get(name)
        while node and not is_layer(node.operator):
            if is_computed_in(node, self.on_cpu):
                return False
            is_factor = node.operator in FACTORS and self._reads_constant(node)
            if not (is_factor or node.operator in FUSED_THROUGH or self._adds_constant(node)):
                return False
            is_scaled = is_scaled or is_factor
            computed = [read for read in node.reads if read in self.makers]
            node = self.makers[computed[0]] if computed else None
        if node is None or is_computed_in(node, self.on_cpu):
            return False
        return "conv" in node.operator or not is_scaled

    def _adds_constant(self, node: Node) -> bool:
        return node.operator == "add" and self._reads_constant(node)

    def _reads_constant(self, node: Node) -> bool:
        return any(read in self.graph.constants for read in node.reads[:2])


def has_inexact(array: Array) -> bool:
    """Return whether float16 cannot represent some floating-point elements."""
    if array.dtype.kind != "f" or array.dtype == np.float16:
        return False
    with np.errstate(over="ignore"):
        return bool((array.astype(np.float16) != array).any())


def is_narrow(node: Node) -> bool:
    """Return whether a node quantizes to 8 bits or fewer."""
    if not is_quantizer(node.operator) or "quant_min" not in node.numbers:
        return False
    return node.numbers["quant_max"][0] - node.numbers["quant_min"][0] < NARROW
