"""The bars of index.html: accuracy, delegation, size and times by case, and the run's phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ci.report.schema import Case, Report, Status
from ci.report.text import show_bytes, show_decibels, show_seconds, show_share


@dataclass(frozen=True)
class Bar:
    """One figure: a ``label``, and ``segments`` end to end, each with its class.

    ``limit`` is a line that the bar has to reach, ``marker`` a second figure. ``note`` is shown
    after the label, ``hint`` when a pointer is on it.
    """

    label: str = "-"
    segments: tuple[tuple[float, str], ...] = ()
    limit: float | None = None
    marker: float | None = None
    note: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Figure:
    """A column of bars on one scale."""

    title: str
    bars: tuple[Bar, ...]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The ends of the scale, which has zero, every bar, limit and marker on it."""
        values = [0.0]
        for bar in self.bars:
            values.append(sum(length for length, _ in bar.segments))
            values += [mark for mark in (bar.limit, bar.marker) if mark is not None]
        return min(values), max(values)

    @cached_property
    def has_notes(self) -> bool:
        return any(bar.note for bar in self.bars)

    def place(self, value: float) -> float:
        """Return where a value is on the scale, in percent of its width."""
        low, high = self.ends
        return round(100 * (value - low) / ((high - low) or 1), 2)

    def place_segments(self, bar: Bar) -> list[tuple[float, float, str]]:
        """Return each segment's start and width in percent, and its class."""
        found, reached = [], 0.0
        for length, tone in bar.segments:
            start, end = sorted((self.place(reached), self.place(reached + length)))
            found.append((start, round(end - start, 2), tone))
            reached += length
        return found


def make_figures(report: Report) -> list[Figure]:
    """Return a figure for each question of a reader, with a bar for each case: is it right, does
    it run on the NPU, how big is it, how long does it take?"""
    draw: dict[str, Callable[[Case], Bar]] = {
        "SQNR, dB": lambda case: _draw_sqnr(report, case),
        "nodes on the NPU": _draw_delegation,
        "program": _draw_size,
        "lower, s": lambda case: _draw_time(case.lower_s, cached=case.cached),
        "run, s": lambda case: _draw_time(case.run_s),
    }
    return [Figure(title, tuple(map(make, report.cases))) for title, make in draw.items()]


def make_phase_figure(report: Report) -> Figure:
    """Return where the wall clock went, with a bar for each phase."""
    wall_s = report.summary.wall_s
    phases = report.summary.phases
    return Figure("s", tuple(_draw_time(phase.seconds, whole_s=wall_s) for phase in phases))


def _draw_sqnr(report: Report, case: Case) -> Bar:
    rule, quantized = report.threshold_for(case), case.sqnr_db_quantized
    limit = rule.min_sqnr_db if rule else None
    label = show_decibels(case.sqnr_db, case.max_abs)
    if label == "-":
        return Bar("-" if case.status is Status.PASSED else case.status.value)
    return Bar(
        label,
        ((case.sqnr_db or 0.0, "bad" if case.status is Status.FAILED else "value"),),
        limit,
        quantized,
        "" if limit is None else f"\N{GREATER-THAN OR EQUAL TO} {limit:g}",
        "" if quantized is None else f"{quantized:.1f} dB against the quantized model",
    )


def _draw_delegation(case: Case) -> Bar:
    delegated, fallback = case.delegated_nodes or 0, case.fallback_nodes or 0
    label = show_share(case.delegated_nodes, case.fallback_nodes)
    return Bar(label, ((delegated, "value"), (fallback, "fallback")))


def _draw_size(case: Case) -> Bar:
    size = case.pte_bytes
    if size is None:
        return Bar()
    return Bar(show_bytes(size), ((size, "value"),), hint=f"{size:,} bytes")


def _draw_time(seconds: float | None, *, cached: bool = False, whole_s: float = 0.0) -> Bar:
    if seconds is None:
        return Bar()
    note = "cached" if cached else f"{seconds / whole_s:.0%}" if whole_s else ""
    return Bar(show_seconds(seconds), ((seconds, "cached" if cached else "value"),), note=note)
