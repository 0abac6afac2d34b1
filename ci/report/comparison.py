"""Compare a report with an earlier one, the base, case by case."""

from __future__ import annotations

from typing import TypeVar

from ci.report.schema import RANKS, Case, Change, Comparison, Report, ToolChange
from ci.report.text import name_some

T = TypeVar("T", int, float)
NAMES = 6
# The sources of a case. The keys are the fields of Digests.
SOURCES = {
    "weights": "weights",
    "inputs": "inputs",
    "calibration": "calibration samples",
    "float_outputs": "outputs of the float32 model",
}
CYCLES_SHARE = 0.02  # smaller changes of the simulated cycles are ignored
SEEN_DB = 0.05  # the smallest difference that is visible with one decimal


def compare_reports(base: Report, report: Report) -> Comparison:
    """Return the differences between the cases of ``base`` and those of ``report``."""
    # The last bits of float32 outputs depend on the processor.
    same_host = base.host.processor == report.host.processor
    before = {case.name: case for case in base.cases}
    now = {case.name: case for case in report.cases}
    pairs = [(before[name], case) for name, case in now.items() if name in before]
    changes = [compare_case(*pair, same_host=same_host) for pair in pairs]
    changed = sorted(filter(is_shown, changes), key=_rank)
    # A tool that only one of the runs used is a change, too, with an empty version on one side.
    old_versions = {tool.name: tool.version for tool in base.toolchain}
    versions = {tool.name: tool.version for tool in report.toolchain}
    return Comparison(
        source=base.source,
        started=base.started,
        changed=tuple(changed),
        same=len(pairs) - len(changed),
        missing=tuple(name for name in before if name not in now),
        new=tuple(name for name in now if name not in before),
        tools=tuple(
            ToolChange(name=name, before=old_versions.get(name, ""), now=versions.get(name, ""))
            for name in {**old_versions, **versions}
            if old_versions.get(name, "") != versions.get(name, "")
        ),
    )


def compare_case(before: Case, now: Case, *, same_host: bool) -> Change:
    """Return how one case changed. A change in SQNR that is too small to be shown is ignored.

    The outputs of the float32 model are compared only if ``same_host`` is true, because their last
    bits depend on the processor.
    """
    sqnr_db = _subtract(now.judgement.sqnr_db, before.judgement.sqnr_db)
    same_metric = now.judgement.metric_name == before.judgement.metric_name
    return Change(
        case=now.name,
        before=before.judgement.status,
        now=now.judgement.status,
        sqnr_db=sqnr_db if abs(sqnr_db or 0.0) >= SEEN_DB else None,
        metric=_subtract(now.judgement.metric, before.judgement.metric) if same_metric else None,
        pte_bytes=_subtract(now.program.pte_bytes, before.program.pte_bytes),
        fallback_nodes=_subtract(now.program.fallback_nodes, before.program.fallback_nodes),
        cycles=compare_cycles(before, now),
        sources=tuple(
            name
            for name in now.asked.digests.differing(before.asked.digests)
            if same_host or name != "float_outputs"
        ),
    )


def compare_cycles(before: Case, now: Case) -> float | None:
    """Return the relative change of a case's simulated cycles. Return None if it is small, or if
    the simulations are not for the same SoC or lack the costs of operators."""
    simulations = [
        case.program.estimate.simulation for case in (before, now) if case.program.estimate
    ]
    complete = [
        simulation
        for simulation in simulations
        if simulation and not simulation.missing_ops and simulation.cycles
    ]
    if len(complete) < 2 or complete[0].soc != complete[1].soc:
        return None
    change = complete[1].cycles / complete[0].cycles - 1
    return change if abs(change) >= CYCLES_SHARE else None


def is_shown(change: Change) -> bool:
    """Return whether the case's status, accuracy, size, delegation, cycles or sources changed."""
    figures = change.sqnr_db, change.metric, change.pte_bytes, change.fallback_nodes, change.cycles
    return change.now is not change.before or any((*figures, change.sources))


def list_remarks(comparison: Comparison) -> tuple[str, ...]:
    """Return a warning for each kind of source, such as weights, that differs from the base in any
    case."""
    warnings = []
    for source, label in SOURCES.items():
        names = [str(change.case) for change in comparison.changed if source in change.sources]
        if names:
            warnings.append(f"warning: the {label} differ from the base: {name_some(names, NAMES)}")
    return tuple(warnings)


def _rank(change: Change) -> tuple[bool, float, float]:
    better = RANKS[change.now] <= RANKS[change.before]
    return better, change.metric or 0.0, change.sqnr_db or 0.0


def _subtract(now: T | None, before: T | None) -> T | None:
    return None if now is None or before is None else now - before
