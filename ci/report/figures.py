"""What the plots of a report show: each figure of its cases as a grid, models by schemes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ci.report.columns import name_models
from ci.report.geometry import Datum, Grid
from ci.report.schema import ANY_MODEL, Case, Report, Status, Threshold
from ci.report.text import clean_log_line, show_decibels, show_seconds, show_share, show_work


@dataclass(frozen=True)
class Measure:
    """One plot: ``draw`` gives a case's datum, or None where the case has no such figure."""

    name: str
    title: str
    unit: str
    note: str
    draw: Callable[[Case], Datum | None]
    legend: tuple[tuple[str, str], ...] = ()


def make_grids(report: Report) -> list[Grid]:
    """The plots, in the order of a reader's questions: right, on the NPU, how big, how long."""
    largest = max((case.pte_bytes or 0 for case in report.cases), default=0)
    unit, divisor = ("MiB", 2.0**20) if largest >= 1 << 20 else ("KiB", 1024.0)
    measures = (
        Measure(
            "sqnr",
            "Accuracy: SQNR against the float32 model",
            "dB",
            "Higher is better; 6 dB is one bit. A bar has to reach its threshold.",
            lambda case: _draw_sqnr(case, report.threshold_for(case)),
            (
                ("value", "emulator"),
                ("bad", "emulator, case failed"),
                ("limit", "threshold"),
                ("marker", "against the quantized model"),
            ),
        ),
        Measure(
            "delegation",
            "Delegation: nodes on the NPU and left to the CPU",
            "nodes",
            "What is left to the CPU runs outside QNN.",
            lambda case: _draw_delegation(case, report.threshold_for(case)),
            (("value", "delegated"), ("fallback", "left to the CPU")),
        ),
        Measure("size", "Size of the program", unit, "", lambda case: _draw_size(case, divisor)),
        Measure(
            "lower",
            "Time to lower",
            "s",
            "Of a cached program, the time that the run which lowered it took.",
            _draw_lowering,
            (("value", "lowered now"), ("cached", "cached")),
        ),
        Measure(
            "run",
            "Time to run",
            "s",
            "On the emulator, which says nothing about a device.",
            _draw_run,
        ),
    )
    return [_make_grid(report, measure) for measure in measures]


def _make_grid(report: Report, measure: Measure) -> Grid:
    rows = name_rows(report.cases)
    data: dict[tuple[str, str], Datum] = {}
    for index, case in enumerate(report.cases):
        place = (rows[index], clean_log_line(case.scheme))
        datum = measure.draw(case) or _absent(case)
        hint = f"{place[0]}, {place[1]}: {datum.hint}"
        data[place] = replace(datum, hint=hint, href=f"#case-{index}")
    return Grid(
        name=measure.name,
        title=measure.title,
        unit=measure.unit,
        note=measure.note,
        rows=_in_order([row for row, _ in data]),
        columns=_in_order([column for _, column in data]),
        data=data,
        heads=_show_limits(report) if measure.name == "sqnr" else {},
        legend=measure.legend,
    )


def _show_limits(report: Report) -> dict[str, str]:
    rules = [rule for rule in report.thresholds if rule.model == ANY_MODEL]
    return {
        clean_log_line(rule.scheme): f"\N{GREATER-THAN OR EQUAL TO} {rule.min_sqnr_db:g}"
        for rule in rules
        if rule.min_sqnr_db is not None
    }


def name_rows(cases: Sequence[Case]) -> list[str]:
    """A row's name a case: its model, without a path where that is clear, and its SoC where the
    run has several."""
    several = len({case.soc for case in cases}) > 1
    models = name_models(cases)
    return [
        clean_log_line(models[case.model] + (f" {case.soc}" if several else "")) for case in cases
    ]


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _absent(case: Case) -> Datum:
    word = {Status.UNSUPPORTED: "unsupported", Status.FAILED: "failed"}.get(case.status, "none")
    return Datum((), word, word, tone="bad" if case.status is Status.FAILED else "muted")


def _tone(case: Case) -> str:
    return "bad" if case.status is Status.FAILED else "value"


def _draw_sqnr(case: Case, rule: Threshold | None) -> Datum | None:
    label = show_decibels(case.sqnr_db, case.max_abs)
    if label == "-":
        return None
    limit = rule.min_sqnr_db if rule else None
    value = case.sqnr_db if case.sqnr_db is not None else 0.0
    parts = [f"{label} dB" if case.sqnr_db is not None else label]
    parts += [f"threshold {limit:.1f} dB"] if limit is not None else []
    if case.sqnr_db_quantized is not None:
        parts.append(f"{case.sqnr_db_quantized:.1f} dB against the quantized model")
    return Datum(
        ((value, _tone(case)),),
        label,
        ", ".join(parts),
        tone="bad" if _tone(case) == "bad" else "",
        limit=limit,
        marker=case.sqnr_db_quantized,
    )


def _draw_delegation(case: Case, rule: Threshold | None) -> Datum | None:
    if case.delegated_nodes is None or case.fallback_nodes is None:
        return None
    share = show_share(case.delegated_nodes, case.fallback_nodes)
    segments = ((float(case.delegated_nodes), "value"), (float(case.fallback_nodes), "fallback"))
    parts = f"{share} nodes delegated"
    if case.partitions is not None:
        parts += f" in {case.partitions} partition{'' if case.partitions == 1 else 's'}"
    tone = "bad" if case.fallback_nodes and rule and rule.full_delegation else ""
    return Datum(segments, share, parts, tone=tone)


def _draw_size(case: Case, divisor: float) -> Datum | None:
    if case.pte_bytes is None:
        return None
    size = case.pte_bytes / divisor
    label = f"{size:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
    return Datum(((size, "value"),), label, f"{case.pte_bytes:,} bytes")


def _draw_lowering(case: Case) -> Datum | None:
    if case.lower_s is None:
        return None
    label = show_seconds(case.lower_s)
    how = "cached" if case.cached else "value"
    return Datum(((case.lower_s, how),), label, f"{label} s{', cached' if case.cached else ''}")


def _draw_run(case: Case) -> Datum | None:
    if case.run_s is None:
        return None
    label = show_seconds(case.run_s)
    return Datum(((case.run_s, "value"),), label, f"{label} s")


def make_phase_grid(report: Report) -> Grid:
    """Where the wall clock went, a row a phase."""
    wall = report.summary.wall_s
    data: dict[tuple[str, str], Datum] = {}
    for phase in report.summary.phases:
        share = f", {phase.seconds / wall:.0%}" if wall else ""
        hint = f"{clean_log_line(phase.name)}: {show_seconds(phase.seconds)} s{share} of the run"
        label = f"{show_seconds(phase.seconds)}{share}"
        data[clean_log_line(phase.name), ""] = Datum(((phase.seconds, "value"),), label, hint)
    return Grid(
        name="phases",
        title="Where the time went",
        unit="s",
        note=f"Wall clock of the whole run: {show_seconds(wall)} s; {show_work(report)}.",
        rows=_in_order([row for row, _ in data]),
        columns=("",) if data else (),
        data=data,
    )
