"""The report as one HTML file that needs nothing but itself, with bars: accuracy, delegation, size
and times by case, and the run's phases.

Jinja escapes every value, and the page's own policy lets no other script or style run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ci.report.annotation import repeat_command
from ci.report.columns import LIMITS, columns_of, name_models
from ci.report.schema import Case, Control, ControlKind, Report, Status
from ci.report.text import (
    show_bytes,
    show_counts,
    show_decibels,
    show_seconds,
    show_share,
    show_work,
)
from provisioning.console.terminal import clean

TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_html(report: Report) -> str:
    """index.html: the verdict, what failed and why, figures, every case, toolchain and controls."""
    style, script = (
        (TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    cases = list(enumerate(report.cases))
    page = _environment().get_template("index.html.j2")
    return page.render(
        report=report,
        counts=show_counts(report.summary),
        cases=cases,
        columns=columns_of(report.cases),
        limits=LIMITS,
        again=partial(repeat_command, report),
        broken=[(i, case) for i, case in cases if case.status is Status.FAILED],
        unsupported=[(i, case) for i, case in cases if case.status is Status.UNSUPPORTED],
        allowed=[(i, c) for i, c in cases if c.fallback_ops and c.status is Status.PASSED],
        passed_controls=[control for control in report.controls if not control.rejected],
        control_rows=group_controls(report.controls),
        kinds=[count_controls(report.controls, kind) for kind in ControlKind],
        names=name_models(report.cases),
        several_socs=len({case.soc for case in report.cases}) > 1,
        figures=make_figures(report),
        phases=make_phase_figure(report),
        work=show_work(report),
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


def group_controls(
    controls: tuple[Control, ...],
) -> dict[tuple[str, str, str], dict[ControlKind, Control]]:
    """Controls by (model, scheme, soc), then by kind."""
    rows: dict[tuple[str, str, str], dict[ControlKind, Control]] = {}
    for control in controls:
        place = (control.model, control.scheme, control.soc)
        rows.setdefault(place, {})[control.kind] = control
    return rows


@dataclass(frozen=True)
class KindCount:
    """The controls of a kind; ``closest`` is the highest SQNR among them, in dB."""

    kind: ControlKind
    total: int
    rejected: int
    closest: float | None


def count_controls(controls: tuple[Control, ...], kind: ControlKind) -> KindCount:
    """How the controls of ``kind`` fared, and how near the nearest came to passing."""
    own = [control for control in controls if control.kind is kind]
    ratios = [control.sqnr_db for control in own if control.sqnr_db is not None]
    rejected = sum(control.rejected for control in own)
    return KindCount(kind, len(own), rejected, max(ratios, default=None))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ratio": show_decibels, "seconds": show_seconds, "bytes": show_bytes}
    return environment


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
