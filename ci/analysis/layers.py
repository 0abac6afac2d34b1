"""Finds the layer at which a model loses the most accuracy, by quantization or by float16.

The model is run once with rounding and once without. A value is compared with itself in both runs,
so each operator has an SQNR before it and behind it. The largest drop, as noise that is added, is
the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from ci.analysis.clipping import list_quantizers
from ci.analysis.effects import (
    RoundedValue,
    choose_rounded,
    group_roundings,
    list_roundings,
    run_without,
)
from ci.analysis.noise import find_errors_of, find_fused, has_inexact
from ci.analysis.ranges import MOST_FITTED_DB, run_fitted
from ci.facts.finding import NOWHERE
from ci.graphs.graph import ONNXRUNTIME, Array, Graph, Node
from ci.graphs.operators import computes, is_dequantizer, is_quantizer
from ci.graphs.run import Change, Changes, Program, Recipe, Record, Tools, Value
from ci.models.float16_range import LOST_DB, MOST_RANGED, SPLIT, RangeLoss, find_spoiling
from ci.models.rounding import FLOAT16_MAX, read_terms
from ci.models.tensors import (
    BEST_DB,
    CASTS,
    DECISIONS,
    FUSION_DB,
    LOGARITHMS,
    MOST_BYTES,
    MOST_LAYERS,
    PHASES,
    RANKS,
    READERS,
    RECIPROCALS,
    SMALL,
    Coarse,
    Decision,
    Loss,
    LostDecisions,
    LostFusions,
    Place,
    Reading,
    find_lost_decisions,
    limit_db,
    make_reading,
)
from ci.report.schema import Clipped

CONSTANT = "constant"  # an ONNX node with a number or a few, which are arguments
MOST_VALUES = 1 << 28  # elements that a run records; their sizes are known
COARSE_SHARE = 0.5  # of the numbers of a value that are not zero, and that its steps make zero


class Drop(NamedTuple):
    """A value that is less accurate than the values from which it is computed. ``node`` is the
    operator that loses, and ``source`` the value before it was rounded, or "" if the value is the
    result of an operator."""

    name: str
    node: Node | None
    source: str
    before_db: float
    behind_db: float


class Comparison:
    """The values of a method in a run with rounding, compared with those without it."""

    def __init__(self, graph: Graph, exact: Record, rounded: Record, method: str) -> None:
        self.graph, self.exact, self.rounded, self.method = graph, exact, rounded, method
        self.makers = graph.list_makers()
        self.reached_db = {
            name: measure_db(exact.values[name], rounded.values[name])
            for name in list_watched(graph)
            if is_float(exact.values.get(name)) and is_float(rounded.values.get(name))
        }

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """Return the names of the values that are made from each compared value. Values that are
        not compared, such as those of integers, are followed to the next ones."""
        results: dict[str, list[str]] = {}
        for node in self.graph.nodes:
            for name in filter(None, node.reads):
                results.setdefault(name, []).extend(node.results)
        readers: dict[str, list[str]] = {}
        for name in self.reached_db:
            pending = [*dict.fromkeys(results.get(name, ()))]
            for result in pending:  # which grows
                if result not in self.reached_db:
                    further = dict.fromkeys(results.get(result, ()))
                    pending += [reader for reader in further if reader not in pending]
            readers[name] = [result for result in pending if result in self.reached_db]
        return readers

    def list_drops(self) -> Iterator[Drop]:
        """Yield the values that are less accurate than those before them."""
        sources = find_rounded(self.graph)
        for name, behind_db in self.reached_db.items():
            source = sources.get(name, "")
            node = self.makers.get(source or name)
            if source:
                before = [source]
            elif node is None:
                continue
            else:
                node = self._find_hidden(node)
                before = [*node.reads]
            reached = [self.reached_db[read] for read in before if read in self.reached_db]
            loses = bool(reached) and behind_db < min(reached)
            if loses and (source or (node and computes(node.operator))):
                yield Drop(name, node, source, min(reached), behind_db)

    def list_losses(self, weights_db: float, harmless: Collection[str] = ()) -> Iterator[Loss]:
        """Yield the loss of each drop, except at ``harmless`` values."""
        for drop in self.list_drops():
            if drop.name not in harmless:
                label = drop.node.label if drop.node else name_input(drop.source)
                origin = drop.node.place if drop.node else NOWHERE
                yield Loss(
                    f"the range of {label}" if drop.source else label,
                    drop.before_db,
                    drop.behind_db,
                    weights_db,
                    origin,
                    largest=0.0 if drop.source else self._find_largest(drop.node),
                )

    def list_readings(self) -> Iterator[tuple[str, Reading]]:
        """Yield what the operators READERS read, with the name of that value."""
        operators = READERS
        # Quantized by onnxruntime, a Reciprocal of a number below 1 returns at most 1. Through
        # ExecuTorch, it is right.
        if self.graph.front_end != ONNXRUNTIME:
            operators = READERS - RECIPROCALS
        for node in self.graph.nodes:
            if node.operator in operators and node.results[0] in self.reached_db:
                source = node.reads[0]
                for reading in self._read(node, source, self.reached_db[node.results[0]]):
                    yield source, reading

    def find_beyond(self, wide: Record) -> Iterator[Reading]:
        """Yield the first value that float16 cannot hold, if that costs the outputs accuracy.
        ``wide`` is a run with as many significant bits as float16, and the range of float32."""
        reached_db = {
            name: measure_db(wide.values[name], self.rounded.values[name])
            for name in self.reached_db
            if name in wide.values
        }
        least_db = [
            find_least_db(self.exact.outputs, outputs)
            for outputs in (self.rounded.outputs, wide.outputs)
        ]
        loss = RangeLoss(reached_db, self.readers, self.graph.outputs, *least_db)
        first = loss.find_first()
        if not first:
            return
        node = self.makers.get(first)
        numbers, behind_db = self.exact.values[first], reached_db[first]
        if node is None:
            reading = make_reading("", name_input(first), numbers, behind_db)
        else:
            reading = make_reading(node.operator, node.label, numbers, behind_db, node.place)
        if reading:
            yield reading

    def find_harmless(self) -> set[str]:
        """Return the values that are lost without spoiling an output, such as a mask that float16
        cannot hold: it is zero behind a softmax."""
        lost = {name for name, db in self.reached_db.items() if db < LOST_DB}
        return lost - find_spoiling(self.reached_db, self.readers, self.graph.outputs)

    def list_changed_decisions(self) -> Iterator[tuple[str, Decision]]:
        """Yield the decisions on floating-point values that rounding changes, by their results."""
        for name in list_decisions(self.graph):
            node, exact = self.makers[name], self.exact.values.get(name)
            reads_floats = any(read in self.reached_db for read in node.reads)
            is_decision = node.operator in DECISIONS or (
                exact is not None and exact.dtype.kind != "f"
            )
            if exact is not None and exact.size and reads_floats and is_decision:
                changed = float(np.mean(exact != self.rounded.values[name]))
                if changed:
                    yield name, Decision(node.label, changed, node.place)

    def _read(self, node: Node, source: str, behind_db: float) -> Iterator[Reading]:
        if source in self.exact.values:
            numbers = self.exact.values[source]
            reading = make_reading(node.operator, node.label, numbers, behind_db, node.place)
            if reading:
                yield reading

    def _find_hidden(self, node: Node) -> Node:
        """Return the node whose result ``node`` only moves or converts, if that is no compared
        value, as that of a comparison. Otherwise return ``node``."""
        source = node
        while not computes(source.operator):
            reads = [read for read in source.reads if read and read not in self.graph.constants]
            if len(reads) != 1 or reads[0] in self.reached_db or reads[0] not in self.makers:
                return node
            source = self.makers[reads[0]]
        return source

    def _find_largest(self, node: Node | None) -> float:
        """Return the largest finite magnitude among the operands of a node, or 0 if there is
        none."""
        values = self.exact.values
        operands = [values[name] for name in (node.reads if node else ()) if name in values]
        return max((find_magnitude(operand) for operand in operands), default=0.0)


def find_loss(
    program: Program,
    inputs: Any,
    reference: Sequence[Any],
    further: Sequence[Any] = (),
    read_float: Callable[[], Program] | None = None,
) -> Loss | None:
    """Return where a quantized model loses the most accuracy on one sample. Without such a place,
    the Loss of a model with reciprocals or lost decisions has no name. ``reference`` are the
    float32 model's outputs. Decisions that the sample does not lose are searched in the first of
    ``further`` samples, too, and then in comparison with the float32 model, which ``read_float``
    returns. Return None if nothing is lost or rounded, or if there are more than MOST_VALUES
    elements."""
    comparisons = compare_rounding(program, inputs)
    losses: list[Loss] = []
    readings: list[Reading] = []
    expected_outputs = iter(reference)  # each method takes its own outputs
    weights_db = BEST_DB
    decided = find_decided(program, inputs, comparisons, {})
    if comparisons and not decided and any(map(list_decisions, program.graphs.values())):
        decided = find_decided_further(program, further[: MOST_RANGED - 1])
        if not decided and read_float:
            samples = [inputs, *further][:MOST_RANGED]
            decided = find_decided_by_weights(program, read_float(), samples)
    for comparison in comparisons:
        outputs = comparison.exact.outputs
        weights_db = find_least_db(
            [*map(np.asarray, islice(expected_outputs, len(outputs)))], outputs
        )
        losses += comparison.list_losses(weights_db)
        readings += list_tried_readings(program, inputs, comparison, {})
    greatest = max(losses, key=lambda loss: loss.added, default=None)
    if greatest is None:
        if decided or any(reading.operator in RECIPROCALS for reading in readings):
            # With 16 bits, the quantized model may lose nothing where QNN's program is wrong.
            nowhere = Loss("", BEST_DB, BEST_DB, weights_db)
            return structs.replace(nowhere, readings=tuple(readings), decided=decided)
        return None
    nodes = choose_rounded(program, inputs)
    exact_outputs = [*chain(*(comparison.exact.outputs for comparison in comparisons))]
    rounded_outputs = [*chain(*(comparison.rounded.outputs for comparison in comparisons))]
    output_db = find_least_db(exact_outputs, rounded_outputs)
    finer_db, fitted_db, coarse = None, None, []
    misfits: tuple[Clipped, ...] = ()
    # Of several methods, a run returns only the outputs of the first one.
    is_single = len(program.graphs) == 1
    if nodes and is_single:
        finer_db = find_least_db(exact_outputs, run_without(program, inputs, nodes))
        coarse = list_coarse(program, comparisons, nodes)
    is_lost = is_single and output_db < MOST_FITTED_DB
    if is_lost and (fitted := run_fitted(program, [inputs, *further])):
        fitted_db, misfits = find_least_db(exact_outputs, fitted.outputs), fitted.misfits
    return structs.replace(
        greatest,
        nodes=nodes,
        readings=tuple(readings),
        decided=decided,
        output_db=output_db,
        whole_db=find_least_db([*map(np.asarray, reference)], rounded_outputs),
        finer_db=finer_db,
        fitted_db=fitted_db,
        misfits=misfits,
        coarse=tuple(coarse),
    )


def list_coarse(
    program: Program, comparisons: Sequence[Comparison], operators: Collection[str]
) -> list[Coarse]:
    """Return the values that only these ``operators`` compute and read, as choose_rounded names
    them, and whose steps are too large for most of their numbers, because a few are much larger.
    Those with the largest share come first."""
    rounded = {
        value
        for names, values in list_roundings(program).items()
        if {*names} <= {*operators}
        for value in values
    }
    coarse: dict[str, Coarse] = {}
    for comparison in comparisons:
        for quantizer in list_quantizers(comparison.graph):
            source, steps = quantizer.reads[0], quantizer.numbers["scale"]
            node, numbers = comparison.makers.get(source), comparison.exact.values.get(source)
            is_chosen = RoundedValue(comparison.method, quantizer.results[0]) in rounded
            if not is_chosen or node is None or numbers is None or len(steps) != 1:
                continue
            sizes = np.abs(numbers[numbers != 0])
            share = float(np.mean(sizes < steps[0] / 2)) if sizes.size else 0.0
            if share >= COARSE_SHARE and np.isfinite(sizes).all():
                largest = float(sizes.max())
                coarse[source] = Coarse(node.label, float(steps[0]), largest, share, node.place)
    return sorted(coarse.values(), key=lambda value: -value.share)


def find_decided_further(program: Program, sets: Sequence[Any]) -> LostDecisions | None:
    """Return the decisions that cost a quantized model accuracy in the first of these samples that
    loses some: a single one near its limit may differ in one sample only."""
    for inputs in sets:
        decided = find_decided(program, inputs, compare_rounding(program, inputs), {})
        if decided:
            return decided
    return None


def find_decided_by_weights(
    program: Program, float_program: Program, sets: Sequence[Any]
) -> LostDecisions | None:
    """Return the decisions of a quantized model that differ from those of the float32 model, if
    that costs accuracy in the first of these samples that loses some. Rounded weights change
    decisions, too, and both runs of ``compare_rounding`` have them.

    A method is left out if its two graphs do not have the same operators that may decide, in the
    same order."""
    if is_too_large(program) or is_too_large(float_program):
        return None
    names: dict[str, list[str]] = {}
    float_names: dict[str, list[str]] = {}
    for method, graph in program.graphs.items():
        float_graph = float_program.graphs.get(method)
        if float_graph and name_deciders(graph) == name_deciders(float_graph):
            names[method], float_names[method] = list_decisions(graph), list_decisions(float_graph)
    recipes = {
        method: Recipe(watched=list_watched(program.graphs[method]), decisions=decisions)
        for method, decisions in names.items()
    }
    float_recipes = {method: Recipe(decisions=items) for method, items in float_names.items()}
    for inputs in sets:
        rounded = record(program, inputs, recipes)
        exact = record(float_program, inputs, float_recipes)
        for method, decisions in names.items():
            values = exact[method].values
            right = {
                name: values[float_name]
                for name, float_name in zip(decisions, float_names[method], strict=True)
                if float_name in values
            }
            # Only decisions are compared: other values of the float32 model have other names.
            values_to_compare = {**rounded[method].values, **right}
            comparable = exact[method]._replace(values=values_to_compare)
            comparison = Comparison(program.graphs[method], comparable, rounded[method], method)
            lost = find_decided_of(program, inputs, comparison, {})
            if lost:
                return lost
    return None


def name_deciders(graph: Graph) -> list[str]:
    """Return the names of the operators that may decide, in execution order."""
    makers = graph.list_makers()
    return [makers[name].operator for name in list_decisions(graph)]


def find_float16_loss(
    program: Program, sets: Sequence[Any], *, is_lossy: bool = True
) -> Loss | None:
    """Return where a float32 model loses the most accuracy if each result is rounded to float16: in
    the first sample with numbers that float16 cannot hold, of at most MOST_RANGED samples, or else
    in the first one. If the model is not ``is_lossy`` by its predicted noise, only such numbers
    are a loss."""
    losses: list[Loss | None] = []
    for inputs in sets[:MOST_RANGED]:
        loss = find_float16_loss_of(program, inputs, is_lossy=is_lossy and not losses)
        if loss and loss.beyond:
            return loss
        losses.append(loss)
    return losses[0] if is_lossy and losses else None


def find_float16_loss_of(program: Program, inputs: Any, *, is_lossy: bool) -> Loss | None:
    """Return where a float32 model loses the most accuracy in float16 on one sample. Fused
    activations are searched, which takes another run, only if the model ``is_lossy``."""
    if is_too_large(program):
        return None
    graphs = program.graphs
    runs = []
    decisions = {method: list_decisions(graph) for method, graph in graphs.items()}
    # The third run tells what the range of float16 costs, apart from its precision.
    for rounding in (None, Change(round_to_float16), Change(round_significand)):
        recipes = {}
        for method, graph in graphs.items():
            changes = round_values(graph, rounding) if rounding else {}
            recipes[method] = Recipe(
                changes, watched=list_watched(graph), decisions=decisions[method]
            )
        runs.append(record(program, inputs, recipes))
    exact, rounded, wide = runs
    comparisons = [
        Comparison(graph, exact[method], rounded[method], method)
        for method, graph in graphs.items()
    ]
    losses: list[Loss] = []
    readings: list[Reading] = []
    beyond: list[Reading] = []
    half = {
        method: round_values(graph, Change(round_to_float16)) for method, graph in graphs.items()
    }
    output_db = wide_db = BEST_DB
    for comparison in comparisons:
        expected_outputs = comparison.exact.outputs
        losses += comparison.list_losses(BEST_DB, comparison.find_harmless())
        readings += list_tried_readings(program, inputs, comparison, half)
        beyond += comparison.find_beyond(wide[comparison.method])
        output_db = min(output_db, find_least_db(expected_outputs, comparison.rounded.outputs))
        wide_db = min(wide_db, find_least_db(expected_outputs, wide[comparison.method].outputs))
    greatest = max(losses, key=lambda loss: loss.added, default=None)
    fused = find_lost_fusions(program, inputs, comparisons, half) if is_lossy else None
    decided = find_decided(program, inputs, comparisons, half)
    if is_lossy and not decided:
        decided = find_decided_by_errors(program, inputs, exact)
    if greatest is None and (fused or decided):  # rounding alone would lose nothing
        greatest = Loss("", BEST_DB, BEST_DB, BEST_DB)
    return greatest and structs.replace(
        greatest,
        readings=tuple(readings),
        is_float16=True,
        beyond=next(iter(beyond), None),
        decided=decided,
        fused=fused,
        output_db=output_db,
        wide_db=wide_db,
    )


def find_decided_by_errors(
    program: Program, inputs: Any, exact: Mapping[str, Record]
) -> LostDecisions | None:
    """Return the decisions of a float32 model that QNN's errors in float16 change, if that costs an
    output accuracy. A running sum of zeros and ones is whole if it is only rounded, but QNN's is
    not, and equals no number. ``exact`` is a run without errors."""
    graphs = program.graphs
    if not any(map(list_decisions, graphs.values())):
        return None
    errors = find_errors_of(program, "", {})
    recipes = {
        method: Recipe(errors[method], watched=list_watched(graph), decisions=list_decisions(graph))
        for method, graph in graphs.items()
    }
    noisy = record(program, inputs, recipes)
    comparisons = [
        Comparison(graph, exact[method], noisy[method], method) for method, graph in graphs.items()
    ]
    return find_decided(program, inputs, comparisons, errors)


def list_tried_readings(
    program: Program, inputs: Any, comparison: Comparison, changes: Mapping[str, Changes]
) -> list[Reading]:
    """Return what the operators READERS of a method read. Where their results are lost, it is
    tried what the outputs have if that value is exact: what all operators of a kind read, in
    one run for each kind. The rounded run had these ``changes``."""
    read_values = [*comparison.list_readings()]
    groups: dict[str, set[str]] = {}
    for source, reading in read_values:
        if reading.behind_db < LOST_DB:
            groups.setdefault(reading.operator, set()).add(source)
    for operator in LOGARITHMS & groups.keys():
        groups[operator] |= list_spanning(comparison, groups[operator])
    kept_db = {
        operator: measure_unrounded(
            program, inputs, comparison, sources, changes, is_exact=operator in PHASES
        )
        for operator, sources in groups.items()
    }
    return [
        structs.replace(reading, kept_db=kept_db[reading.operator])
        if reading.behind_db < LOST_DB
        else reading
        for _, reading in read_values
    ]


def list_spanning(comparison: Comparison, values: Collection[str]) -> set[str]:
    """Return the values from which others are computed, and whose smallest numbers are lost in
    their own steps, too: what a logarithm reads of a sum of exponentials is lost already in each
    of these."""
    graph, sources = comparison.graph, find_rounded(comparison.graph)
    steps = {node.reads[0]: max(node.numbers["scale"]) for node in list_quantizers(graph)}
    spanning: set[str] = set()
    pending = [*values]
    for name in pending:  # which grows
        node = comparison.makers.get(sources.get(name, name))
        for read in filter(None, node.reads if node else ()):
            source = sources.get(read, "")
            numbers = comparison.exact.values.get(source)
            if source not in steps or numbers is None or not numbers.size or read in spanning:
                continue
            if 0 < SMALL * numbers.min() < steps[source]:
                spanning.add(read)
                pending.append(read)
    return spanning


def measure_unrounded(
    program: Program,
    inputs: Any,
    comparison: Comparison,
    values: AbstractSet[str],
    changes: Mapping[str, Changes],
    *,
    is_exact: bool,
) -> float:
    """Return the least SQNR in dB of an output of a method if these values of it are not rounded,
    as they are in the rounded run with its ``changes``. If they must be ``is_exact``, neither is
    what they are computed from: a large angle is the product of a position and a frequency, whose
    rounding loses it, too."""
    method = comparison.method
    recipes = {name: Recipe(changes.get(name, {})) for name in program.graphs}
    own_changes = changes.get(method, {})
    kept_changes = {name: change for name, change in own_changes.items() if name not in values}
    unrounded = [
        name
        for group in group_roundings(comparison.graph)
        if not values.isdisjoint(group)
        for name in group
    ]
    fixed = {name: comparison.exact.values[name] for name in values} if is_exact else {}
    recipes[method] = Recipe(kept_changes, unrounded=unrounded, fixed=fixed)
    outputs = record(program, inputs, recipes)[method].outputs
    return find_least_db(comparison.exact.outputs, outputs)


def find_lost_fusions(
    program: Program, inputs: Any, comparisons: Sequence[Comparison], changes: Mapping[str, Changes]
) -> LostFusions | None:
    """Return the activations of a float32 model that HTP fuses with what is before them, if their
    errors cost an output at least FUSION_DB. The rounded run of the comparisons had these
    ``changes``."""
    terms = read_terms("")
    fused = {method: find_fused(graph, terms) for method, graph in program.graphs.items()}
    if not any(fused.values()):
        return None
    recipes = {}
    for method, activations in fused.items():
        errors = {name: change for name, (_, change) in activations.items()}
        recipes[method] = Recipe({**changes.get(method, {}), **errors})
    records = record(program, inputs, recipes)
    for comparison in comparisons:
        exact, method = comparison.exact, comparison.method
        apart_db = find_least_db(exact.outputs, comparison.rounded.outputs)
        reached_db = find_least_db(exact.outputs, records[method].outputs)
        if reached_db <= apart_db - FUSION_DB:
            # A method without any runs others that have them, such as the branches of an IF.
            methods = [method] if fused[method] else [*fused]
            places = {
                Place(node.label, node.place): None
                for name in methods
                for node, _ in fused[name].values()
            }
            return LostFusions(tuple(places), reached_db, apart_db)
    return None


def compare_rounding(program: Program, inputs: Any) -> list[Comparison]:
    """Return the comparison of each method of a quantized model with itself without the rounding of
    activations. There is none if the model rounds nothing, or is too large."""
    graphs = program.graphs
    unrounded = {
        method: frozenset(chain(*group_roundings(graph))) for method, graph in graphs.items()
    }
    if not any(unrounded.values()) or is_too_large(program):
        return []
    recipes = {}
    for name, graph in graphs.items():
        recipes[name] = Recipe(watched=list_watched(graph), decisions=list_decisions(graph))
    rounded = record(program, inputs, recipes)
    recipes = {name: recipes[name]._replace(unrounded=unrounded[name]) for name in graphs}
    exact = record(program, inputs, recipes)
    return [Comparison(graph, exact[name], rounded[name], name) for name, graph in graphs.items()]


def list_decisions(graph: Graph) -> list[str]:
    """Return the results of the operators that may decide, in execution order: those of DECISIONS,
    and casts."""
    names = []
    for node in graph.nodes:
        if node.operator in DECISIONS or node.operator in CASTS:
            is_rank = node.operator in RANKS and len(node.results) > 1
            names.append(node.results[1] if is_rank else node.results[0])
    return names


def find_decided(
    program: Program, inputs: Any, comparisons: Sequence[Comparison], changes: Mapping[str, Changes]
) -> LostDecisions | None:
    """Return the decisions of the first method with some that cost its outputs accuracy. The
    rounded run had these ``changes``."""
    for comparison in comparisons:
        lost = find_decided_of(program, inputs, comparison, changes)
        if lost:
            return lost
    return None


def find_decided_of(
    program: Program, inputs: Any, comparison: Comparison, changes: Mapping[str, Changes]
) -> LostDecisions | None:
    """Return the decisions of a method that cost its outputs accuracy, or None. The rounded run had
    these ``changes``."""
    method, exact, rounded = comparison.method, comparison.exact, comparison.rounded
    decisions = dict(comparison.list_changed_decisions())

    def keep_right(names: Collection[str]) -> float:
        recipes = {name: Recipe(changes.get(name, {})) for name in program.graphs}
        fixed = {name: exact.values[name] for name in names}
        recipes[method] = recipes[method]._replace(fixed=fixed)
        outputs = record(program, inputs, recipes)[method].outputs
        return find_least_db(exact.outputs, outputs)

    reached_db = find_least_db(exact.outputs, rounded.outputs)
    return find_lost_decisions(decisions, reached_db, keep_right)


def record(program: Program, inputs: Any, recipes: Mapping[str, Recipe]) -> Mapping[str, Record]:
    """Run a program on one sample, and return the records by method. What the run needs is freed
    before the next one is prepared."""
    return program.prepare(recipes).record([inputs])[0]


def list_watched(graph: Graph) -> list[str]:
    """Return the names of the inputs, and of the results that may be floating-point."""
    results: list[str] = []
    for node in graph.nodes:
        if node.operator != CONSTANT:
            results += filter(None, node.results)
    return [
        name
        for name in dict.fromkeys((*graph.list_inputs(), *results))
        if graph.dtypes.get(name, "float32").startswith("float") and name not in graph.constants
    ]


def is_too_large(program: Program) -> bool:
    """Return whether the watched values have more than MOST_VALUES elements."""
    sizes = (
        math.prod(graph.shapes.get(name, ()))
        for graph in program.graphs.values()
        for name in list_watched(graph)
    )
    return sum(sizes) > MOST_VALUES


class Exposed(NamedTuple):
    """An operator whose result a model returns besides its outputs. ``value`` is the result, or the
    rounded result."""

    node: Node
    value: str


def choose_exposed(graph: Graph, sizes: Mapping[str, int]) -> list[Exposed]:
    """Return the operators whose results a model should return besides its outputs: those that
    compute new elements or, in a quantized model, those of them whose result is rounded. ``sizes``
    are the numbers of elements of floating-point values. If there are more than MOST_LAYERS
    results, or if they exceed MOST_BYTES, only every nth is chosen, but at least one."""
    makers, rounded = graph.list_makers(), find_rounded(graph)
    outputs = {*graph.outputs, *(rounded[name] for name in graph.outputs if name in rounded)}
    values = {source: value for value, source in rounded.items()} or {name: name for name in sizes}
    layers = [
        Exposed(makers[source], value)
        for source, value in values.items()
        if sizes.get(value) and source in makers and source not in outputs
    ]
    layers = [layer for layer in layers if computes(layer.node.operator)]
    size_bytes = sum(4 * sizes[layer.value] for layer in layers)
    stride = max(-(-len(layers) // MOST_LAYERS), -(-size_bytes // MOST_BYTES), 1)
    return layers[stride - 1 :: stride] or layers[-1:]


def find_rounded(graph: Graph) -> dict[str, str]:
    """Map each result of a dequantizer that follows a quantizer to the value before rounding."""
    quantizers = {node.results[0]: node for node in graph.nodes if is_quantizer(node.operator)}
    return {
        node.results[0]: quantizers[node.reads[0]].reads[0]
        for node in graph.nodes
        if is_dequantizer(node.operator) and node.reads[0] in quantizers
    }


def round_values(graph: Graph, rounding: Change) -> Changes:
    """Return the changes that round inputs, constants of several elements, and computed values. A
    single number, such as the epsilon of a norm, is an argument of an operator, and stays."""
    changes = dict.fromkeys(graph.list_inputs(), rounding)
    for name, load in graph.constants.items():
        shape = graph.shapes.get(name, ())
        if math.prod(shape) > 1 and has_inexact(load()):
            changes[name] = rounding
    for node in graph.nodes:
        if computes(node.operator) and node.operator != CONSTANT:
            changes |= dict.fromkeys(filter(None, node.results), rounding)
    return changes


def round_to_float16(value: Value, _: Value, tools: Tools) -> Value:
    """Round to float16. Numbers beyond its range become its largest one, as QNN computes them."""
    return tools.round_to_half(value.clamp(-FLOAT16_MAX, FLOAT16_MAX))


def round_significand(value: Value, _: Value, tools: Tools) -> Value:
    """Round the significand to the bits of float16, and keep the exponent (Veltkamp's method)."""
    scaled = value * SPLIT
    rounded = scaled - (scaled - value)
    # Of the comparisons, values of both engines have only ``>``, see ci.graphs.run.
    is_finite = rounded.abs() * -1.0 > -math.inf
    return tools.choose(is_finite, rounded, value)


def name_input(name: str) -> str:
    """Return what the report calls an input, such as ``input 'x'``."""
    return f"input {name!r}"


def find_magnitude(values: Array) -> float:
    """Return the largest finite magnitude, or 0 if there is none."""
    finite = np.abs(np.nan_to_num(values, nan=0, posinf=0, neginf=0))
    return float(finite.max()) if finite.size else 0.0


def is_float(array: Array | None) -> bool:
    """Return whether there is an array, and it is floating-point."""
    return array is not None and array.dtype.kind == "f"


def find_least_db(expected_outputs: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Return the least SQNR of a floating-point output, BEST_DB if there is none. Outputs whose
    shapes differ are left out."""
    least_db = BEST_DB
    for expected, output in zip(expected_outputs, outputs, strict=False):
        if expected.dtype.kind == "f" and expected.shape == output.shape:
            least_db = min(least_db, measure_db(expected, output))
    return least_db


def measure_db(expected: Array, actual: Array) -> float:
    """Return the SQNR in dB, limited to the range from -BEST_DB to BEST_DB."""
    with np.errstate(all="ignore"):
        right = np.ravel(expected).astype(np.float64)
        error = right - np.ravel(actual)
        signal, noise = float(np.vdot(right, right)), float(np.vdot(error, error))
    if not noise:
        return BEST_DB
    ratio = signal / noise  # NaN for infinite values
    return limit_db(10 * math.log10(ratio)) if ratio > 0 else -BEST_DB
