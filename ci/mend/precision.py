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
        self.known: dict[frozenset[Unit], float] = {}
        self.damage: dict[tuple[Unit, ...], float] = {}
        self.best = math.inf  # the noise with all units in the higher precision
        self.measured, self.raised = measure, list[tuple[Unit, ...]]()

    def measure(self, high: Collection[Unit]) -> float:
        """Return the noise with the units ``high`` in the higher precision, relative to the
        signal."""
        key = frozenset(high)
        if key not in self.known:
            if len(self.known) == MOST_TRIALS:
                raise OverError
            self.known[key] = 10 ** (-self.measured(key) / 10)
        return self.known[key]

    def run(self) -> None:
        best = self.measure(self.units)
        if best > 10 ** (-self.target_db / 10):
            return
        self.best = best
        self.damage = self.measure_damage(group_units(self.units, MOST_GROUPS))
        for group in self.choose(RESERVES_DB[0])[:MOST_SPLITS]:
            if len(group) > 1:
                found = self.measure_damage(group_units(group, MOST_SPLITS))
                del self.damage[group]
                self.damage |= found
        chosen = self.choose(RESERVES_DB[0])
        left = [
            one for one in sorted(self.damage, key=self.damage.__getitem__) if one not in chosen
        ]
        while self.measure([*chain(*chosen)]) > 10 ** (-self.target_db / 10) and left:
            self.raised.append(left.pop())  # damages do not quite add up
            chosen = [*chosen, self.raised[-1]]

    def measure_damage(self, groups: Sequence[tuple[Unit, ...]]) -> dict[tuple[Unit, ...], float]:
        """Return the noise that each group adds in the lower precision."""
        every = frozenset(self.units)
        return {group: max(self.measure(every - {*group}) - self.best, 0) for group in groups}

    def choose(self, reserve_db: float) -> list[tuple[Unit, ...]]:
        """Return the groups that stay in the higher precision, the most damaging one first. The
        others cost most for the noise that they add."""
        room = 10 ** (-(self.target_db + reserve_db) / 10) - self.best
        order = sorted(self.damage, key=lambda one: self.damage[one] / sum(u.cost for u in one))
        stay = []
        for one in order:
            if self.damage[one] <= room:
                room -= self.damage[one]
            else:
                stay.append(one)
        return sorted(stay, key=self.damage.__getitem__, reverse=True)

    def list_chosen(self) -> list[tuple[Unit, ...]]:
        """Return the units that stay, for each reserve, without those that need all of them."""
        made: dict[tuple[Unit, ...], None] = {}
        for reserve in RESERVES_DB if self.damage else ():
            groups = dict.fromkeys((*self.choose(reserve), *self.raised))
            chosen = tuple(unit for unit in self.units if unit in {*chain(*groups)})
            if 0 < len(chosen) < len(self.units):
                made[chosen] = None
        return list(made)


def group_units(units: Sequence[Unit], most: int) -> list[tuple[Unit, ...]]:
    """Return units in at most ``most`` groups of neighbours: single units if there are few, else
    those of a module, else parts of the same length."""
    if len(units) <= most:
        return [(unit,) for unit in units]
    deepest = max(unit.module.count(".") for unit in units) + 1
    for depth in range(deepest, 0, -1):
        grouped = groupby(units, lambda one: one.module.split(".")[:depth])  # noqa: B023
        found = [tuple(group) for _, group in grouped]
        if most // 2 < len(found) <= most:
            return found
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
        wanted = run_sets(model, model.module)

        def measure(high: Collection[Unit]) -> float:
            from ci.executorch.quantize import make_quantizer, quantize_method

            if time.monotonic() > deadline:
                raise OverError
            choices = Choices(parts=self.make_parts(high), observer=self.observer)
            made = quantize_method(model, self.scheme, choices, make_quantizer(self.soc))
            return measure_sqnr(wanted, run_sets(model, made))

        return [self.make_parts(one) for one in choose_mixtures(units, measure, self.target_db)]

    def make_parts(self, high: Collection[Unit]) -> tuple[Part, ...]:
        # Several operators of the quantizer's graph may come from one node of the model.
        names = sorted({name for unit in high for name in unit.nodes})
        return tuple(Part(self.higher, node=name) for name in names)


@dataclass(frozen=True)
class FaultTrials(Rewritten):
    """A job that returns mixtures of a model with rewrites: its operators with a known fault in
    ``scheme``, or else those of ``lines``, in one of the schemes ``others``. ``path`` is a
    rewritten .onnx file, or None for a PyTorch model."""

    others: tuple[Scheme, ...]
    lines: tuple[str, ...]
    path: Path | None = None

    def __call__(self) -> list[tuple[Part, ...]]:
        from ci.faults.match import match_faults

        steps, marked, selectable = self.describe()
        known = match_faults(steps, self.scheme.value, "")
        selector = "tensor" if self.path else "node"
        made = []
        for other in self.others:
            still = {known_fault.fault for known_fault in match_faults(steps, other.value, "")}
            new = (fault for fault in known if fault.fault not in still)
            names = [name for fault in new for name in fault.nodes] if known else marked
            names = [name for name in names if selectable is None or name in selectable]
            made.append(tuple(Part(other, **{selector: one}) for one in dict.fromkeys(names)))
        return [*filter(None, made)]

    def describe(self) -> tuple[tuple[Step, ...], list[str], set[str] | None]:
        """Return the steps of the rewritten model, the names of the nodes on the lines, and those
        of all nodes that a part can select, or None for a file. The quantizer's graph may lack
        nodes of the steps: a rewritten model is exported in another way than the original."""
        if self.path:
            from ci.analysis.steps import describe_steps
            from ci.graphs.onnx_reader import read_file

            return describe_steps(read_file(self.path)), [], None
        from ci.executorch.graph_reader import describe_module
        from ci.models.parts import list_candidates

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


def measure_sqnr(wanted: Sequence[Any], given: Sequence[Any]) -> float:
    """Return the lowest SQNR of a floating-point output in dB."""
    found = [math.inf]
    for exact, made in zip(chain(*wanted), chain(*given), strict=True):
        if exact.is_floating_point():
            noise = float((exact.double() - made.double()).square().sum())
            signal = float(exact.double().square().sum())
            found.append(decibels(signal, noise) if signal else math.inf)
    return min(found)


def export_strictly(model: Model) -> Any:
    """Return a model's graph as ExecuTorch's quantizer gets it."""
    import torch

    with torch.no_grad():
        program = torch.export.export(model.module, model.evaluation[0], strict=True)
        return program.module(check_guards=False)


def list_units(model: Model, soc: str, scheme: Scheme) -> list[Unit]:
    """Return the units of a model, in the graph that ExecuTorch's quantizer annotates."""
    from ci.executorch.quantize import configure, make_quantizer
    from ci.graphs.torch_reader import computes_node
    from ci.models.parts import list_candidates, mark_origins

    exported = export_strictly(model)
    mark_origins(exported.graph)
    quantizer = make_quantizer(soc)
    quantizer.set_default_quant_config(**configure(scheme))
    graph = quantizer.transform_for_annotation(exported).graph
    found = {candidate.name: candidate for candidate in list_candidates(graph)}
    units: dict[Any, list[Any]] = {}
    owners: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.name in found:
            given = [owners[one] for one in node.all_input_nodes if one in owners]
            owners[node] = node if computes_node(node) or not given else given[0]
            units.setdefault(owners[node], []).append(found[node.name].node[-1])
    modules = {node: next(reversed(found[node.name].module), "") for node in units}
    return [
        Unit(tuple(dict.fromkeys(names)), count_products(node), modules[node])
        for node, names in units.items()
    ]


def count_products(node: Any) -> float:
    """Return how many multiplications an operator needs, at least one per element."""
    value = node.meta.get("val")
    size = float(value.numel()) if hasattr(value, "numel") else 1.0
    for one in node.all_input_nodes:
        held = one.meta.get("val")
        if one.op == "get_attr" and getattr(held, "ndim", 0) > 1:
            size *= held.numel() / held.shape[0]
    return max(size, 1.0)
