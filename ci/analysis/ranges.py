"""Measures what it costs a quantized model that it was calibrated with other numbers than those of
the judged inputs: it is run once more with the ranges that these need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ci.analysis.clipping import Bounds, choose_clipped, describe_range, find_range, watch
from ci.analysis.effects import group_roundings
from ci.graphs.graph import Array, Graph, Node
from ci.graphs.operators import is_dequantizer, is_quantizer
from ci.graphs.run import Change, Program, Recipe, Tools, Value
from ci.report.schema import Clipped

MOST_FITTED_DB = 30.0  # above it, the ranges cost too little to be measured
MISFIT = 2.0  # times the size that the judged inputs need
POWER_OF_TWO = 0.5  # the fraction of such a number in math.frexp


Numbers = tuple[float, ...]


class RoundedGroup(NamedTuple):
    """Values that are rounded together, see group_roundings: ``names`` are the results of its
    quantizers and dequantizers, and ``results`` those of the latter."""

    names: tuple[str, ...]
    quantizers: tuple[Node, ...]
    results: tuple[str, ...]


class FittedModel(NamedTuple):
    """The ``outputs`` of a quantized model on its first sample with ranges that fit, and the values
    whose calibrated ranges are those of other numbers, see list_misfits."""

    outputs: Sequence[Array]
    misfits: tuple[Clipped, ...]


def run_fitted(program: Program, sets: Sequence[Any]) -> FittedModel | None:
    """Return what a quantized model with one method computes if each value has the range that it
    has on ``sets``, in as many steps. None if no range was calibrated."""
    ((method, graph),) = program.graphs.items()
    groups = list_calibrated(graph)
    if not groups:
        return None
    all_names = [name for names in group_roundings(graph) for name in names]
    watched = [name for group in groups for name in group.results]
    exact = program.prepare({method: Recipe(unrounded=all_names, watched=watched, watch=watch)})
    values = [records[method].values for records in exact.record(sets)]
    needed: list[tuple[RoundedGroup, Bounds]] = []
    for group in groups:
        extremes = [sample[name] for sample in values for name in group.results if name in sample]
        if extremes and np.isfinite(extremes).all():
            bounds = Bounds(float(np.min(extremes)), float(np.max(extremes)))
            needed.append((group, bounds))
    needed_by_range = join_ranges(needed)
    changes: dict[str, Change] = {}
    unrounded: list[str] = []
    clipped: list[tuple[float, Clipped]] = []
    for group, _ in needed:
        bounds = needed_by_range[name_range(group)]
        unrounded += group.names
        changes |= dict.fromkeys(group.results, fit(group.quantizers[0], bounds))
        clipped += list_misfits(graph, group.quantizers, bounds)
    fitted = program.prepare({method: Recipe(changes, unrounded=unrounded)})
    return FittedModel(fitted.run(sets[:1])[0], choose_clipped(clipped))


def join_ranges(needed: Sequence[tuple[RoundedGroup, Bounds]]) -> dict[Numbers, Bounds]:
    """Return what each calibrated range needs to hold: the numbers of all values that have it, such
    as those that a concatenation joins. A constant of 0.2 beside numbers up to 4 was taken for one
    with the range of other numbers."""
    joined: dict[Numbers, Bounds] = {}
    for group, own in needed:
        others = joined.get(name_range(group), own)
        bounds = Bounds(min(own.low, others.low), max(own.high, others.high))
        joined[name_range(group)] = bounds
    return joined


def name_range(group: RoundedGroup) -> Numbers:
    """Return the step and the zero point of a group, by which values with one range are known."""
    numbers = group.quantizers[0].numbers
    return *numbers["scale"], *numbers["zero_point"]


def list_calibrated(graph: Graph) -> list[RoundedGroup]:
    """Return the groups of values whose range was calibrated."""
    makers = graph.list_makers()
    groups = []
    for names in group_roundings(graph):
        nodes = [makers[name] for name in names]
        quantizers = tuple(node for node in nodes if is_quantizer(node.operator))
        results = [name for name in names if is_dequantizer(makers[name].operator)]
        if results and all(is_calibrated(node, makers) for node in quantizers):
            groups.append(RoundedGroup(names, quantizers, tuple(results)))
    return groups


def is_calibrated(quantizer: Node, makers: Mapping[str, Node]) -> bool:
    """Return whether a quantizer has one range, and it was calibrated: a step of a computed value
    that is a power of two is that of a range that the front end knows, such as that of a sigmoid
    from 0 to 1."""
    if not {"scale", "zero_point"} <= quantizer.numbers.keys():
        return False
    steps, is_input = quantizer.numbers["scale"], quantizer.reads[0] not in makers
    return len(steps) == 1 and (is_input or math.frexp(float(steps[0]))[0] != POWER_OF_TWO)


def fit(quantizer: Node, needed: Bounds) -> Change:
    """Return the change that rounds a value as a quantizer does, but to the steps of the range that
    is needed. One whose range is symmetric keeps that."""
    least, most = (int(quantizer.numbers[name][0]) for name in ("quant_min", "quant_max"))
    low, high = min(needed.low, 0.0), max(needed.high, 0.0)
    if least < 0 and not quantizer.numbers["zero_point"][0]:
        step = max(-low, high) / most
        zero = 0
    else:
        step = (high - low) / (most - least)
        zero = least + round(-low / step) if step else 0
    step = step or float(quantizer.numbers["scale"][0])  # all numbers are zero
    return Change(partial(round_to_steps, step=step, lowest=least - zero, highest=most - zero))


def round_to_steps(
    value: Value, _: Value, __: Tools, *, step: float, lowest: int, highest: int
) -> Value:
    """Return the nearest multiples of a step, from ``lowest`` times the step on."""
    return (value * (1.0 / step)).round().clamp(float(lowest), float(highest)) * step


def list_misfits(
    graph: Graph, quantizers: Sequence[Node], needed: Bounds
) -> list[tuple[float, Clipped]]:
    """Return the values whose calibrated range is at least MISFIT times as large as it needs to be,
    or would have to be, with that ratio."""
    misfits = []
    for quantizer in quantizers:
        calibrated = find_range(quantizer)
        low, high = min(needed.low, 0.0), max(needed.high, 0.0)
        both = max(calibrated.high, high) - min(calibrated.low, low)
        sizes = [calibrated.high - calibrated.low, high - low]
        ratio = both / min(sizes) if min(sizes) > 0 else math.inf
        if math.isfinite(ratio) and ratio >= MISFIT:
            described = describe_range(graph, quantizer.reads[0], calibrated, needed)
            misfits.append((ratio, described))
    return misfits
