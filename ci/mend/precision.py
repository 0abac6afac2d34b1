"""Finds which operators of a model need another precision: those that QNN computes wrongly, or
those that add most noise. The quality of a mixture is that of the eager quantized model on the
calibration samples; the sets that are judged are not used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.judging.figures import decibels
from ci.models.lowering_options import Choices, Observer, Part
from ci.models.schemes import Scheme
from ci.models.user_models import Source

if TYPE_CHECKING:
    from ci.analysis.steps import Step
    from ci.models.model import Model

MOST_TRIALS = 39  # evaluations of the quantized model
MOST_GROUPS, MOST_SPLITS, MOST_SETS = 20, 4, 4
RESERVES_DB = (1.0, 4.0, 8.0)  # above the target, because the program adds noise


@dataclass(frozen=True)
class Unit:
    """An operator, and those that only move its result. ``nodes`` are their names, ``cost`` is the
    number of its multiplications, and ``module`` the path of its module."""

    nodes: tuple[str, ...]
    cost: float = 1.0
    module: str = ""


Measure = Callable[[Collection[Unit]], float]


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


@dataclass(frozen=True)
class Rewritten:
    """A model with rewrites, in a scheme."""

    reference: str
    source: Source
    rewrites: tuple[str, ...]
    scheme: Scheme

    def load(self) -> Model:
        """Load a PyTorch model, and rewrite it."""
        from ci.mend.rewrite import rewrite_module
        from ci.models.model import load_digested

        model, _ = load_digested(self.reference, self.source)
        if not self.rewrites:
            return model
        module = rewrite_module(model.module, model.evaluation[0], self.rewrites)
        return replace(model, module=module)


@dataclass(frozen=True)
class MixTrials(Rewritten):
    """A job that returns mixtures of a model with rewrites: parts in the scheme ``higher``. It ends
    after ``limit_s`` seconds with the best so far. ``observer`` calibrates."""

    higher: Scheme
    soc: str
    target_db: float
    limit_s: float
    observer: Observer = ""

    def __call__(self) -> list[tuple[Part, ...]]:
        model = self.load()
        deadline = time.monotonic() + self.limit_s
        units = list_units(model, self.soc, self.scheme)
        exact_outputs = run_sets(model, model.module)

        def measure(high: Collection[Unit]) -> float:
            from ci.executorch.quantize import make_quantizer, quantize_method

            if time.monotonic() > deadline:
                raise OverError
            choices = Choices(parts=self.make_parts(high), observer=self.observer)
            quantized = quantize_method(model, self.scheme, choices, make_quantizer(self.soc))
            return measure_sqnr(exact_outputs, run_sets(model, quantized))

        mixtures = choose_mixtures(units, measure, self.target_db)
        return [self.make_parts(high) for high in mixtures]

    def make_parts(self, high: Collection[Unit]) -> tuple[Part, ...]:
        """Return the parts of a mixture with these units in the higher scheme."""
        # Several operators of the quantizer's graph may come from one node of the model.
        names = sorted({name for unit in high for name in unit.nodes})
        return tuple(Part(self.higher, node=name) for name in names)


@dataclass(frozen=True)
class FaultTrials(Rewritten):
    """A job that returns mixtures of a model with rewrites: its operators with a known fault in
    ``scheme``, or else those of ``lines``, in one of the schemes ``alternatives``. ``path`` is a
    rewritten .onnx file, or None for a PyTorch model."""

    alternatives: tuple[Scheme, ...]
    lines: tuple[str, ...]
    path: Path | None = None

    def __call__(self) -> list[tuple[Part, ...]]:
        from ci.faults.match import match_faults

        steps, marked, selectable = self.describe()
        faults = match_faults(steps, self.scheme.value, "")
        selector = "tensor" if self.path else "node"
        mixtures = []
        for scheme in self.alternatives:
            remaining = {fault.fault for fault in match_faults(steps, scheme.value, "")}
            names = [] if faults else marked
            for fault in faults:
                if fault.fault not in remaining:
                    names += fault.nodes
            if selectable is not None:
                names = [name for name in names if name in selectable]
            mixture = tuple(Part(scheme, **{selector: name}) for name in dict.fromkeys(names))
            if mixture:
                mixtures.append(mixture)
        return mixtures

    def describe(self) -> tuple[tuple[Step, ...], list[str], set[str] | None]:
        """Return the steps of the rewritten model, the names of the nodes on the lines, and those
        of all nodes that a part can select, or None for a file. The quantizer's graph may lack
        nodes of the steps: a rewritten model is exported in another way than the original."""
        if self.path:
            from ci.analysis.steps import describe_steps
            from ci.graphs.onnx_reader import read_file

            return describe_steps(read_file(self.path)), [], None
        from ci.executorch.graph_reader import describe_module
        from ci.graphs.torch_candidates import list_candidates

        model = self.load()
        nodes = list_candidates(export_strictly(model).graph)
        marked = [node.name for node in nodes if not {*node.line}.isdisjoint(self.lines)]
        selectable = {name for candidate in nodes for name in candidate.node}
        return describe_module(model.module, model.evaluation[0]), marked, selectable


def run_sets(model: Model, module: Any) -> list[Any]:
    """Return a module's outputs for some of the model's calibration samples."""
    from ci.models.eager import keep_state, run_eager

    with keep_state(module):
        return run_eager(module, model.calibration[:MOST_SETS])


def measure_sqnr(exact_outputs: Sequence[Any], outputs: Sequence[Any]) -> float:
    """Return the lowest SQNR of a floating-point output in dB. Both arguments have a list of
    tensors per sample. An output of zeros counts as exact."""
    sqnrs_db = [math.inf]
    for exact, rounded in zip(chain(*exact_outputs), chain(*outputs), strict=True):
        if exact.is_floating_point():
            noise = float((exact.double() - rounded.double()).square().sum())
            signal = float(exact.double().square().sum())
            sqnrs_db.append(decibels(signal, noise) if signal else math.inf)
    return min(sqnrs_db)


def export_strictly(model: Model) -> Any:
    """Return a model's graph as ExecuTorch's quantizer gets it."""
    import torch

    with torch.no_grad():
        program = torch.export.export(model.module, model.evaluation[0], strict=True)
        # Otherwise, torch inserts a call of a guard behind the inputs, and ExecuTorch's
        # ConcatObserver gives an input that is concatenated another range than the result.
        return program.module(check_guards=False)


def list_units(model: Model, soc: str, scheme: Scheme) -> list[Unit]:
    """Return the units of a model, in the graph that ExecuTorch's quantizer annotates."""
    from ci.executorch.quantize import configure, make_quantizer
    from ci.graphs.torch_candidates import list_candidates, mark_origins
    from ci.graphs.torch_reader import computes_node

    exported = export_strictly(model)
    mark_origins(exported.graph)
    quantizer = make_quantizer(soc)
    quantizer.set_default_quant_config(**configure(scheme))
    graph = quantizer.transform_for_annotation(exported).graph
    candidates = {candidate.name: candidate for candidate in list_candidates(graph)}
    names_of_unit: dict[Any, list[Any]] = {}  # by the node that computes
    owners: dict[Any, Any] = {}  # the node of each node's unit
    for node in graph.nodes:
        if node.name not in candidates:
            continue
        owner = node
        if not computes_node(node):  # it moves the result of its first operand
            owner = next(
                (owners[operand] for operand in node.all_input_nodes if operand in owners), node
            )
        owners[node] = owner
        names_of_unit.setdefault(owner, []).append(candidates[node.name].node[-1])
    units = []
    for node, names in names_of_unit.items():
        module = next(reversed(candidates[node.name].module), "")
        units.append(Unit(tuple(dict.fromkeys(names)), count_products(node), module))
    return units


def count_products(node: Any) -> float:
    """Return how many multiplications an operator needs, at least one per element."""
    value = node.meta.get("val")
    products = float(value.numel()) if hasattr(value, "numel") else 1.0
    for operand in node.all_input_nodes:
        weight = operand.meta.get("val")
        if operand.op == "get_attr" and getattr(weight, "ndim", 0) > 1:
            products *= weight.numel() / weight.shape[0]
    return max(products, 1.0)
