"""The search for the operators of a model that need more bits. It is the same for all lanes, which
only measure the mixtures that it tries (torch_mixtures, onnx_mixtures, litert_mixtures)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Literal, NamedTuple, Protocol

from ci.graphs.graph import LITERT, ONNXRUNTIME, Graph, Node
from ci.graphs.operators import computes, is_layer, is_quantizer
from ci.judging.figures import Array, is_floating, measure_pooled
from ci.models.lowering_options import Choices

MOST_TRIALS = 39  # evaluations of the quantized model
MOST_GROUPS, MOST_SPLITS, MOST_SETS = 20, 4, 4
RESERVES_DB = (1.0, 4.0, 8.0)  # above the target, because the program adds noise
Selector = Literal["node", "tensor"]
# Which operands of a recurrent layer of ONNX and of a cell of torch are weights
RECURRENT = {"gru": (1, 2), "lstm": (1, 2), "gru_cell": (2, 3), "lstm_cell": (3, 4)}


@dataclass(frozen=True)
class Unit:
    """An operator, and those that only move its result. ``nodes`` are their names, ``cost`` is the
    number of its multiplications, and ``module`` the path of its module."""

    nodes: tuple[str, ...]
    cost: float = 1.0
    module: str = ""


class Selectable(NamedTuple):
    """How the parts of a mixture select an operator: by these ``names``. ``module`` is the path of
    its module."""

    names: tuple[str, ...]
    module: str


def list_units(
    graph: Graph, selectable: Mapping[str, Selectable], costs: Mapping[str, float]
) -> list[Unit]:
    """Return the units of a graph: its operators that compute, each with those that only move its
    result. ``selectable`` are the operators that parts can select, and ``costs`` the numbers of
    their multiplications, by their first results. Others are left out."""
    owners: dict[str, str] = {}  # the first result of each result's unit
    names_of_unit: dict[str, dict[str, None]] = {}  # in order, each one once
    for node in graph.nodes:
        first = node.results[0]
        if first not in selectable:
            continue
        moves = not computes(node.operator) and not is_quantizer(node.operator)
        moved = (owners[read] for read in node.reads if read in owners) if moves else iter(())
        owner = next(moved, first)
        owners |= dict.fromkeys(node.results, owner)
        names_of_unit.setdefault(owner, {}).update(dict.fromkeys(selectable[first].names))
    return [
        Unit(tuple(names), costs[owner], selectable[owner].module)
        for owner, names in names_of_unit.items()
    ]


def count_products(graph: Graph) -> dict[str, float]:
    """Return how many multiplications each result needs, at least one per element, by its name."""
    costs = {}
    for node in graph.nodes:
        factor, axis = 1.0, _find_channels(graph, node)
        for read in _list_weights(node):
            size = graph.shapes.get(read, ())
            if read in graph.constants and len(size) > 1:
                factor *= math.prod(size) / size[axis]
        for result in node.results:
            costs[result] = max(math.prod(graph.shapes.get(result, ())) * factor, 1.0)
    return costs


def _list_weights(node: Node) -> Sequence[str]:
    """Return the operands of a call that may be weights."""
    if node.operator in RECURRENT:
        return [node.reads[place] for place in RECURRENT[node.operator]]
    return node.reads if is_layer(node.operator) else ()


def _find_channels(graph: Graph, node: Node) -> int:
    """Return the axis of the output channels of a call's weights."""
    is_transposed = node.operator.startswith("conv_transpose") and graph.front_end != LITERT
    if node.operator in ("gru", "lstm") or is_transposed:
        return 1
    if graph.front_end == LITERT and any(n > 1 for n in node.numbers.get("groups", ())):
        return -1  # a convolution of each channel
    has_outputs_first = graph.front_end != ONNXRUNTIME or any(node.numbers.get("transB", ()))
    is_linear = node.operator == "linear" and has_outputs_first
    return 0 if is_linear or node.operator.startswith("conv") or "_cell" in node.operator else -1


Measure = Callable[[Collection[Unit]], float]
Sets = Sequence[Sequence[Array]]  # the outputs of each sample


class OverError(Exception):
    """Raised if the trials or the time are used up."""


def choose_mixtures(
    units: Sequence[Unit], measure: Measure, target_db: float
) -> list[tuple[Unit, ...]]:
    """Return sets of units in the higher precision, the cheapest first, with which the SQNR should
    reach the target. ``measure`` returns the SQNR in dB for a set, and raises OverError after the
    last trial. The result is empty if all units in the higher precision do not suffice."""
    search = _Search(units, measure, target_db)
    with suppress(OverError):
        search.run()
    return search.list_chosen()


class _Search:
    """Lowers one group of units at a time from the higher precision, then all whose noise together
    stays below the target. A group that stays is split, and its parts are tried in the same way."""

    def __init__(self, units: Sequence[Unit], measure: Measure, target_db: float) -> None:
        self.units, self.target_db = units, target_db
        self.measure_sqnr = measure
        self.noises: dict[frozenset[Unit], float] = {}  # by the units in the higher precision
        self.damage: dict[tuple[Unit, ...], float] = {}
        self.least_noise = math.inf  # with all units in the higher precision
        self.raised = list[tuple[Unit, ...]]()

    def measure(self, high: Collection[Unit]) -> float:
        """Return the noise with the units ``high`` in the higher precision, relative to the
        signal."""
        key = frozenset(high)
        if key not in self.noises:
            if len(self.noises) == MOST_TRIALS:
                raise OverError
            self.noises[key] = 10 ** (-self.measure_sqnr(key) / 10)
        return self.noises[key]

    def run(self) -> None:
        """Measure the groups, and raise more of them until all together reach the target."""
        target_noise = 10 ** (-self.target_db / 10)
        least_noise = self.measure(self.units)
        if least_noise > target_noise:
            return
        self.least_noise = least_noise
        self.damage = self.measure_damage(group_units(self.units, MOST_GROUPS))
        for group in self.choose(RESERVES_DB[0])[:MOST_SPLITS]:
            if len(group) > 1:
                damage_of_parts = self.measure_damage(group_units(group, MOST_SPLITS))
                del self.damage[group]
                self.damage |= damage_of_parts
        chosen = self.choose(RESERVES_DB[0])
        by_damage = sorted(self.damage, key=self.damage.__getitem__)
        remaining = [group for group in by_damage if group not in chosen]
        while self.measure([*chain(*chosen)]) > target_noise and remaining:
            self.raised.append(remaining.pop())  # damages do not quite add up
            chosen = [*chosen, self.raised[-1]]

    def measure_damage(self, groups: Sequence[tuple[Unit, ...]]) -> dict[tuple[Unit, ...], float]:
        """Return the noise that each group adds in the lower precision."""
        all_units = frozenset(self.units)
        damage = {}
        for group in groups:
            noise = self.measure(all_units - set(group))  # only the group in the lower precision
            damage[group] = max(noise - self.least_noise, 0)
        return damage

    def choose(self, reserve_db: float) -> list[tuple[Unit, ...]]:
        """Return the groups that stay in the higher precision, the most damaging one first. The
        others cost most for the noise that they add."""

        def damage_per_cost(group: tuple[Unit, ...]) -> float:
            return self.damage[group] / sum(unit.cost for unit in group)

        allowed_noise = 10 ** (-(self.target_db + reserve_db) / 10) - self.least_noise
        stay = []
        for group in sorted(self.damage, key=damage_per_cost):
            if self.damage[group] <= allowed_noise:
                allowed_noise -= self.damage[group]
            else:
                stay.append(group)
        return sorted(stay, key=self.damage.__getitem__, reverse=True)

    def list_chosen(self) -> list[tuple[Unit, ...]]:
        """Return the units that stay, for each reserve, without those that need all of them."""
        if not self.damage:
            return []
        mixtures: dict[tuple[Unit, ...], None] = {}  # a set in order
        for reserve_db in RESERVES_DB:
            high = {*chain(*self.choose(reserve_db), *self.raised)}
            mixture = tuple(unit for unit in self.units if unit in high)
            if 0 < len(mixture) < len(self.units):
                mixtures[mixture] = None
        return list(mixtures)


def group_units(units: Sequence[Unit], most: int) -> list[tuple[Unit, ...]]:
    """Return units in at most ``most`` groups of neighbours: single units if there are few, else
    those of a module, else parts of the same length."""
    if len(units) <= most:
        return [(unit,) for unit in units]
    deepest = max(unit.module.count(".") for unit in units) + 1
    for depth in range(deepest, 0, -1):
        by_module = groupby(units, lambda unit: unit.module.split(".")[:depth])  # noqa: B023
        groups = [tuple(group) for _, group in by_module]
        if most // 2 < len(groups) <= most:
            return groups
    size = -(-len(units) // most)
    return [tuple(units[start : start + size]) for start in range(0, len(units), size)]


class Mixable(Protocol):
    """A model of one lane whose mixtures are measured. ``units`` are in execution order, and
    ``selector`` says by what a Part selects them: by their nodes' names, or by a tensor's."""

    units: Sequence[Unit]
    selector: Selector

    def measure(self, choices: Choices) -> float:
        """Return the SQNR of the quantized model with these parts and this observer in dB, see
        measure_sqnr. The samples are those for calibration."""


def measure_sqnr(exact_outputs: Sets, outputs: Sets) -> float:
    """Return the lowest SQNR of a floating-point output in dB. Both arguments have the output
    arrays of each sample. An output of zeros counts as exact, and NaN as no signal."""
    sqnrs_db = [math.inf]
    for exact, rounded in zip(chain(*exact_outputs), chain(*outputs), strict=True):
        if is_floating(exact) and exact.any():
            sqnr_db = measure_pooled(exact, rounded)
            sqnrs_db.append(-math.inf if math.isnan(sqnr_db) else sqnr_db)
    return min(sqnrs_db)
