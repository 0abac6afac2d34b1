"""Finds the operators of a quantized model whose roundings cost the most accuracy. A mixture of
schemes that gives them more bits is suggested.

Roundings are tried in groups of neighbours: only those of one group round, and the noise of the
outputs is that of the group. The group with the most noise is tried in halves, and so on, until it
is a single rounding. A model of 1,000 roundings needs no more runs than one of 100.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ci.graphs.graph import Array, Graph, Node
from ci.graphs.operators import computes, is_dequantizer, is_quantizer
from ci.graphs.run import Program, Recipe

# Of the operators that a mixture is suggested for: the share of the noise that their roundings
# cause, and their number.
MOST_SHARE, MOST_NODES = 0.8, 8
MOST_GROUPS = 16  # that are tried first
MOST_RUNS = 96
HALVES = 2
MOST_COMPUTED = 1 << 30  # elements of the results in all runs together

Names = tuple[str, ...]


class RoundedValue(NamedTuple):
    """A value that a method computes with a quantizer or a dequantizer."""

    method: str
    value: str


def choose_rounded(program: Program, inputs: Any) -> Names:
    """Return the operators that compute and read the results whose rounding causes MOST_SHARE of
    all noise on one sample, or at most about MOST_NODES of them, as the parts of a mixture select
    them. The operator that reads a result may be the one that amplifies its noise, so that more
    bits for other results of it are of no use."""
    roundings = list_roundings(program)
    everywhere = frozenset[RoundedValue]().union(*roundings.values())
    if not everywhere:
        return ()

    def run(rounding: Collection[RoundedValue]) -> Sequence[Array]:
        recipes = {}
        for method in program.graphs:
            left_out = [name for rounded, name in everywhere - {*rounding} if rounded == method]
            recipes[method] = Recipe(unrounded=left_out)
        return program.prepare(recipes).run([inputs])[0]

    exact = run(())

    def measure(group: Sequence[Names]) -> float:
        outputs = run(frozenset[RoundedValue]().union(*(roundings[names] for names in group)))
        return sum(map(measure_noise, exact, outputs))

    return choose_loudest([*roundings], measure, count_runs(program))


def run_without(program: Program, inputs: Any, operators: Collection[str]) -> Sequence[Array]:
    """Return the outputs of a quantized model on one sample, with each rounding except those that
    only these ``operators`` compute and read, as choose_rounded names them."""
    recipes = {}
    left_out: dict[str, list[str]] = {method: [] for method in program.graphs}
    for names, values in list_roundings(program).items():
        if {*names} <= {*operators}:
            for method, value in values:
                left_out[method].append(value)
    for method, values_of_method in left_out.items():
        recipes[method] = Recipe(unrounded=values_of_method)
    return program.prepare(recipes).run([inputs])[0]


def count_runs(program: Program) -> int:
    """Return how many runs a model of this size may take."""
    size = 1
    for graph in program.graphs.values():
        size += sum(math.prod(graph.shapes.get(name, ())) for name in graph.dtypes)
    return min(max(MOST_COMPUTED // size, MOST_GROUPS), MOST_RUNS)


class Tried(NamedTuple):
    """Roundings that were tried together, and the power of the noise that they cause."""

    power: float
    group: Sequence[Names]


def choose_loudest(
    roundings: Sequence[Names], measure: Callable[[Sequence[Names]], float], most_runs: int
) -> Names:
    """Return the operators of the roundings that cause MOST_SHARE of all noise, or at most about
    MOST_NODES of them, those with the most noise first. ``measure`` returns the power of the noise
    that some roundings cause together. It is called ``most_runs`` times at most, or MOST_GROUPS
    times if that is more."""

    def try_groups(groups: Sequence[Sequence[Names]]) -> list[Tried]:
        powers = map(measure, groups)
        # NaN is not above 0, either.
        return [
            Tried(power if power > 0 else 0.0, group)
            for power, group in zip(powers, groups, strict=True)
        ]

    tried = try_groups(split_evenly(roundings, MOST_GROUPS))
    runs = len(tried)
    chosen, undecided = choose_singles(tried)
    while undecided and runs + HALVES <= most_runs:
        tried.remove(undecided)
        while len(undecided.group) > 1 and runs + HALVES <= most_runs:
            halves = try_groups(split_evenly(undecided.group, HALVES))
            runs += HALVES
            undecided = max(halves, key=lambda half: half.power)
            tried += [half for half in halves if half is not undecided]
        tried.append(undecided)
        chosen, undecided = choose_singles(tried)
    if undecided:
        chosen, _ = choose_singles(tried, decides=True)
    return tuple(dict.fromkeys(itertools.chain(*chosen)))


def choose_singles(
    tried: Sequence[Tried], *, decides: bool = False
) -> tuple[list[Names], Tried | None]:
    """Return the single roundings to choose, the one with the most noise first, and the group of
    several that has to be tried in halves before more can be chosen, or None. If it ``decides``,
    such a group is passed over, and single roundings are chosen unless its average is louder."""
    chosen: list[Names] = []
    count, chosen_power, loudest_average = 0, 0.0, 0.0
    all_power = sum(power for power, _ in tried)
    for group in sorted(tried, key=lambda group: -group.power):
        power, roundings = group
        is_enough = chosen_power >= MOST_SHARE * all_power or count >= MOST_NODES
        if is_enough or power <= loudest_average:
            break
        if len(roundings) == 1:
            chosen += roundings
            count += len(roundings[0])
            chosen_power += power
        elif decides:
            loudest_average = max(loudest_average, power / len(roundings))
        else:
            return chosen, group
    return chosen, None


def split_evenly(roundings: Sequence[Names], count: int) -> list[Sequence[Names]]:
    """Return ``count`` groups of neighbours, or single ones if there are fewer."""
    ends = [len(roundings) * place // count for place in range(count + 1)]
    pairs = itertools.pairwise(ends)
    return [roundings[start:end] for start, end in pairs if end > start]


def measure_noise(expected: Array, actual: Array) -> float:
    """Return the power of the noise of a floating-point output, relative to the output's power."""
    if expected.dtype.kind != "f":
        return 0.0
    right = expected.astype(np.float64)
    signal, noise = float(np.sum(right**2)), float(np.sum((right - actual) ** 2))
    return noise / signal if signal else 0.0


def list_roundings(program: Program) -> Mapping[Names, frozenset[RoundedValue]]:
    """Return what rounds, in execution order, by the operators that compute and read the rounded
    value. All of these need more bits, or the value is rounded again."""
    roundings: dict[Names, frozenset[RoundedValue]] = {}
    for method, graph in program.graphs.items():
        readers = list_readers(graph)
        makers = graph.list_makers()
        for group in group_roundings(graph):
            values: dict[str, None] = {}  # in order, each one once
            for result in group:
                if is_quantizer(makers[result].operator):
                    values[makers[result].reads[0]] = None
            for result in group:
                if is_quantizer(makers[result].operator):
                    values |= dict.fromkeys(_list_further(result, readers))
            names = (name for value in values for name in program.name_operators(method, value))
            key = tuple(dict.fromkeys(names))
            rounded = frozenset(RoundedValue(method, result) for result in group)
            roundings[key] = roundings.get(key, frozenset()) | rounded
    return roundings


def list_readers(graph: Graph) -> dict[str, list[Node]]:
    """Return the calls that read each value."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in filter(None, node.reads):
            readers.setdefault(name, []).append(node)
    return readers


def _list_further(value: str, readers: Mapping[str, Sequence[Node]]) -> Iterator[str]:
    """Yield a result of each call that reads a value, behind quantizers and dequantizers."""
    pending = [*readers.get(value, ())]
    while pending:
        reader = pending.pop(0)
        if is_quantizer(reader.operator) or is_dequantizer(reader.operator):
            pending += readers.get(reader.results[0], ())
        else:
            yield next(filter(None, reader.results))


def group_roundings(graph: Graph) -> list[tuple[str, ...]]:
    """Return the results of each quantizer that rounds an activation, with those of the
    dequantizers that read it, also behind operators that move elements. What is written into a
    buffer is an activation, too. Quantizers whose results are moved together, such as those that a
    concatenation reads, are one group: they cannot be left out one by one."""
    makers = graph.list_makers()
    groups: dict[str, list[str]] = {}  # the group of each result
    for node in graph.nodes:
        if is_quantizer(node.operator) and node.reads[0] not in graph.constants:
            groups[node.results[0]] = [node.results[0]]
        elif is_dequantizer(node.operator):
            sources = [name for name in _list_moved(node.reads[0], makers) if name in groups]
            if not sources:
                continue
            group = groups[sources[0]]
            for source in sources[1:]:
                if groups[source] is not group:
                    group += groups[source]
                    groups |= dict.fromkeys(groups[source], group)
            group.append(node.results[0])
            groups[node.results[0]] = group
    single_groups = {id(group): group for group in groups.values()}
    return [tuple(group) for group in single_groups.values()]


def _list_moved(value: str, makers: Mapping[str, Node]) -> Iterator[str]:
    """Yield the quantized values whose elements a value has, behind operators that move them."""
    pending = [value]
    for name in pending:  # which grows
        maker = makers.get(name)
        if maker is None:
            continue
        if is_quantizer(maker.operator):
            yield name
        elif not computes(maker.operator):
            pending += [read for read in maker.reads if read and read not in pending]
