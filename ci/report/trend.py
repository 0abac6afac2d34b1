"""The trend: how the figures of each case changed over the reports in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ci.report.bars import Bar
from ci.report.columns import NOTHING, list_charts
from ci.report.html import render_page
from ci.report.schema import Case, CaseName, Report, Status, Threshold
from ci.report.text import count, keep_end, name_case, name_models
from ci.report.write import read_report
from provisioning.console.progress import Progress
from provisioning.console.terminal import clean
from provisioning.errors import UsageError

PAGE = "trend.html"
NAME_CHARS = 46
MARKS = {Status.PASSED: ".", Status.FAILED: "F", Status.UNSUPPORTED: "-", None: " "}


@dataclass(frozen=True)
class Line:
    """A figure of a case over the runs. ``bars`` contains a bar for each run, or None for a run
    without the case."""

    title: str
    bars: tuple[Bar | None, ...]

    @property
    def values(self) -> tuple[float | None, ...]:
        """Return the figure in each run, or None for a run without it."""
        return tuple(map(_find_value, self.bars))

    @property
    def label(self) -> str:
        """Return the figure of the last run that has it, as shown on the page, or ``-`` if no run
        has it."""
        labels = (bar.label for bar in reversed(self.bars) if bar)
        return next((label for label in labels if label != NOTHING), NOTHING)

    @property
    def points(self) -> list[tuple[int, float, float]]:
        """Return (run, x, y) for each run with the figure, in a box of 100 by 24.

        Later runs are further to the right, and larger figures are further up (smaller y).
        """
        measured = [(run, value) for run, value in enumerate(self.values) if value is not None]
        low = min((value for _, value in measured), default=0.0)
        span = max((value for _, value in measured), default=0.0) - low
        step = 100 / max(len(self.bars) - 1, 1)
        points = []
        for run, value in measured:
            # A margin of 2 above and below. A figure that never changes is a line in the middle.
            y = 22 - 20 * (value - low) / span if span else 12
            points.append((run, round(run * step, 2), round(y, 2)))
        return points

    @property
    def gaps(self) -> list[tuple[int, float]]:
        """Return (run, x) for each run without the figure."""
        step = 100 / max(len(self.bars) - 1, 1)
        missing = (run for run, value in enumerate(self.values) if value is None)
        return [(run, round(run * step, 2)) for run in missing]


@dataclass(frozen=True)
class CaseTrend:
    """A case of a session over the runs. ``statuses`` contains its status in each run, or None for
    a run without the case."""

    session: str
    name: CaseName
    statuses: tuple[Status | None, ...]
    lines: tuple[Line, ...]

    @property
    def last(self) -> Status | None:
        """Return the status in the last run that has the case, or None."""
        return next((status for status in reversed(self.statuses) if status), None)

    @property
    def flips(self) -> int:
        """Return how often the status changed between runs that have the case."""
        statuses = [status for status in self.statuses if status]
        return sum(before is not after for before, after in pairwise(statuses))


def read_reports(directory: Path, progress: Progress) -> list[Report]:
    """Return the reports below ``directory``, oldest first, and print a note for each that cannot
    be read.

    Raises UsageError if no report can be read.
    """
    paths = sorted(directory.rglob("report.json"))
    reports = list(filter(None, (_read_readable(path, progress) for path in paths)))
    if not reports:
        raise UsageError(
            f"there is no readable report.json below {directory}",
            fix=f"keep the report.json of each run in its own subdirectory of {directory}",
        )
    return sorted(reports, key=lambda report: report.started)


def _read_readable(path: Path, progress: Progress) -> Report | None:
    try:
        return read_report(path)
    except UsageError as error:
        progress.step(f"note: a report is left out because {error.what}: {error.why}")
        return None


def follow_cases(reports: Sequence[Report]) -> list[CaseTrend]:
    """Return each case over the reports: first the cases that failed in their last run, then the
    cases whose status changed most often."""
    runs = [_index_cases(report) for report in reports]
    # The newest run comes first, so that its order of the cases counts.
    keys = dict.fromkeys(key for run in reversed(runs) for key in run)
    charts = list_charts(reports)
    trends = []
    for session, name in keys:
        cases = [run.get((session, name)) for run in runs]
        statuses: list[Status | None] = []
        rules: list[Threshold | None] = []
        for report, case in zip(reports, cases, strict=True):
            statuses.append(case.judgement.status if case else None)
            rules.append(report.threshold_for(case) if case else None)
        lines = []
        for chart, draw in charts:
            bars: list[Bar | None] = []
            for case, rule in zip(cases, rules, strict=True):
                bars.append(draw(case, rule) if case else None)
            lines.append(Line(chart, tuple(bars)))
        trends.append(CaseTrend(session, name, tuple(statuses), tuple(lines)))
    return sorted(trends, key=lambda trend: (trend.last is not Status.FAILED, -trend.flips))


def _find_value(bar: Bar | None) -> float | None:
    """Return the length of a bar's first segment, which is the figure itself."""
    return bar.segments[0][0] if bar and bar.segments else None


def _index_cases(report: Report) -> dict[tuple[str, CaseName], Case]:
    return {(report.title, case.name): case for case in report.cases}


def render_trend(reports: Sequence[Report], rows: Sequence[CaseTrend]) -> bytes:
    """Return the content of trend.html."""
    page = render_page(
        "trend.html.j2",
        reports=reports,
        rows=rows,
        charts=[chart for chart, _ in list_charts(reports)],
        sessions=list(dict.fromkeys(report.title for report in reports)),
        names=name_models(row.name.model for row in rows),
    )
    return page.encode()


def describe_trend(reports: Sequence[Report], rows: Sequence[CaseTrend]) -> str:
    """Return the trend as text: a line for each case, with a mark for each run and the case's first
    and last SQNR. If there are several sessions, each line also names its session."""
    head = f"{count(len(reports), 'report')}, {reports[0].started} to {reports[-1].started}"
    several = len({row.session for row in rows}) > 1
    lines = [f"{head}; . passed, F failed, - unsupported"]
    names = name_models(row.name.model for row in rows)
    for row in rows:
        name = f"{name_case(row.name, names)} {row.session if several else ''}".rstrip()
        marks = "".join(MARKS[status] for status in row.statuses)
        values = [value for value in row.lines[0].values if value is not None]
        moved = f"  {values[0]:.1f} to {values[-1]:.1f} dB" if values else ""
        shown = keep_end(clean(name), NAME_CHARS)
        lines.append(f"  {shown:<{NAME_CHARS}}  {marks}{moved}".rstrip())
    return "\n".join(lines) + "\n"


def trend_data(reports: Sequence[Report], rows: Sequence[CaseTrend]) -> dict[str, Any]:
    """Return the runs, and for each case its status and figures in each run, as plain values.
    docs/schemas/trend.schema.json describes the format."""
    cases = []
    for row in rows:
        statuses = [status and status.value for status in row.statuses]
        figures = {line.title: list(line.values) for line in row.lines}
        cases.append(
            {
                "session": row.session,
                "case": str(row.name),
                "status": statuses,
                "figures": figures,
            }
        )
    return {
        "schema_version": 1,
        "runs": [{"started": report.started, "commit": report.source.commit} for report in reports],
        "cases": cases,
    }
