"""Compare the reports of several runtimes for the same models: a row per model, SoC, runtime and
scheme, what only one runtime does, and which row to ship. Nothing is run or judged here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ci.report.columns import show_estimate
from ci.report.document import PLOT_HEIGHT, PLOT_WIDTH, Card, Document, Plot, Point, Row, Table
from ci.report.schema import Case, FallbackOp, PredictedTime, Report, Status
from ci.report.text import count, show_bytes

SCHEMA_VERSION = 1
TITLES = {"executorch": "ExecuTorch", "onnxruntime": "ONNX Runtime", "litert": "LiteRT"}
HEAD = ("SoC", "runtime", "scheme", "verdict", "SQNR dB", "estimated ms", "size", "on CPU")
ALIKE_DB = 1.0  # SQNRs that differ by less are not distinguished


class RuntimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A case of one runtime. ``ms``, ``low_ms`` and ``high_ms`` are the predicted time and its
    interval, None if there is none; ``ms`` is None, too, if only an upper bound is known.
    ``cpu_nodes`` are the nodes that stay on the CPU, and ``cpu_operators`` what they compute.
    ``headline`` and ``remedy`` are of the first finding."""

    model: str
    soc: str
    runtime: str
    scheme: str
    status: Status
    sqnr_db: float | None = None
    ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    size_bytes: int | None = None
    cpu_nodes: int | None = None
    cpu_operators: tuple[str, ...] = ()
    headline: str = ""
    remedy: str = ""
    is_proven: bool = False
    shown_ms: str = ""

    @property
    def likely_ms(self) -> float:
        """Return the predicted time or, if it is only bounded, the bound; infinite if unknown."""
        likely = self.high_ms if self.ms is None else self.ms
        return math.inf if likely is None else likely

    @property
    def label(self) -> str:
        """Return the runtime and the scheme."""
        return f"{TITLES[self.runtime]} {self.scheme}"


class RuntimesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a comparison (docs/schemas/runtimes.schema.json). ``answers`` has a sentence per
    model and SoC. ``reports`` are the reports of the runtimes, and ``not_run`` the reasons of those
    that were not run."""

    rows: tuple[RuntimeRow, ...]
    answers: tuple[str, ...]
    reports: dict[str, str]
    not_run: dict[str, str]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Group:
    """The rows of a model on an SoC."""

    model: str
    soc: str
    rows: tuple[RuntimeRow, ...]

    @property
    def green(self) -> list[RuntimeRow]:
        """Return the rows that passed."""
        return [row for row in self.rows if row.status is Status.PASSED]


def list_rows(runtime: str, report: Report) -> Iterator[RuntimeRow]:
    """Yield a row per case of a runtime's report."""
    for case in report.cases:
        time = find_time(case)
        finding = case.judgement.findings[0] if case.judgement.findings else None
        remedy = finding.remedies[0] if finding and finding.remedies else None
        yield RuntimeRow(
            model=case.model,
            soc=case.soc,
            runtime=runtime,
            scheme=case.scheme,
            status=case.judgement.status,
            sqnr_db=case.judgement.sqnr_db,
            ms=time.ms if time and not time.is_bound else None,
            low_ms=time.low_ms if time else None,
            high_ms=time.high_ms if time else None,
            size_bytes=case.program.pte_bytes,
            cpu_nodes=case.program.fallback_nodes,
            cpu_operators=tuple(name_operators(case.program.fallback_ops)),
            headline=finding.headline if finding else "",
            remedy=remedy.text if remedy else "",
            is_proven=bool(remedy and remedy.proof.value != "suggested"),
            shown_ms=show_estimate(case),
        )


def find_time(case: Case) -> PredictedTime | None:
    """Return the predicted time on the first device with the case's SoC, or None."""
    estimate = case.program.estimate
    return estimate.times[0] if estimate and estimate.times else None


def name_operators(operators: Iterable[FallbackOp]) -> Iterator[str]:
    """Yield the names of operators, each once."""
    yield from dict.fromkeys(operator.op for operator in operators)


def group_rows(rows: Iterable[RuntimeRow]) -> list[Group]:
    """Return the rows by model and SoC, in the order of the first row of each."""
    groups: dict[tuple[str, str], list[RuntimeRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.soc), []).append(row)
    return [Group(model, soc, tuple(peers)) for (model, soc), peers in groups.items()]


def answer(group: Group) -> str:
    """Return in one sentence which row of a group to ship: the fastest, the smallest and the most
    accurate of those that passed, and what would have to change for a faster one."""
    where = f"{group.model} on {group.soc}"
    if not group.green:
        reasons = "; ".join(f"{row.label}: {row.headline}" for row in group.rows if row.headline)
        return f"{where}: no row passed" + (f" ({reasons})" if reasons else "")
    parts = [*describe_fastest(group.green)]
    sized = [row for row in group.green if row.size_bytes is not None]
    if sized:
        smallest = min(sized, key=lambda row: row.size_bytes or 0)
        parts.append(f"smallest: {smallest.label} ({show_bytes(smallest.size_bytes or 0)})")
    parts += describe_most_accurate(group.green)
    parts += describe_better(group)
    return f"{where}: {'; '.join(parts)}"


def describe_fastest(rows: Sequence[RuntimeRow]) -> Iterator[str]:
    """Yield which row is the fastest, and those that cannot be distinguished from it, because their
    intervals overlap."""
    timed = [row for row in rows if row.high_ms is not None]
    if not timed:
        yield "no time is known"
        return
    fastest = min(timed, key=lambda row: row.likely_ms)
    alike = [row.label for row in timed if row is not fastest and overlaps(row, fastest)]
    tie = f", which cannot be distinguished from {', '.join(alike)}" if alike else ""
    yield f"fastest: {fastest.label} ({fastest.shown_ms} ms){tie}"
    if unknown := [row.label for row in rows if row.high_ms is None]:
        yield f"no time is known for {', '.join(unknown)}"


def overlaps(first: RuntimeRow, second: RuntimeRow) -> bool:
    """Return whether the intervals of two times have a time in common."""
    low = max(first.low_ms or 0.0, second.low_ms or 0.0)
    high = min(first.high_ms or math.inf, second.high_ms or math.inf)
    return low <= high


def describe_most_accurate(rows: Sequence[RuntimeRow]) -> Iterator[str]:
    """Yield which row has the highest SQNR, and those within ALIKE_DB of it."""
    measured = [row for row in rows if row.sqnr_db is not None]
    if not measured:
        return
    best = max(measured, key=lambda row: row.sqnr_db or 0.0)
    near = (best.sqnr_db or 0.0) - ALIKE_DB
    alike = [row.label for row in measured if row is not best and (row.sqnr_db or 0.0) > near]
    tie = f", which cannot be distinguished from {', '.join(alike)}" if alike else ""
    yield f"most accurate: {best.label} ({best.sqnr_db:.1f} dB){tie}"


def describe_better(group: Group) -> Iterator[str]:
    """Yield the red row that would be the fastest of all, with the remedy of its first finding."""
    limits = [row.low_ms for row in group.green if row.low_ms is not None]
    red = [row for row in group.rows if row.status is Status.FAILED and row.high_ms is not None]
    faster = [row for row in red if limits and (row.high_ms or math.inf) < min(limits)]
    if faster:
        best = min(faster, key=lambda row: row.high_ms or math.inf)
        cure = f"; {'fix' if best.is_proven else 'try'}: {best.remedy}" if best.remedy else ""
        reason = f"is red: {best.headline}{cure}"
        yield f"{best.label} would be faster ({best.shown_ms} ms), but {reason}"


def list_differences(group: Group) -> Iterator[tuple[str, str]]:
    """Yield what differs between the runtimes of a group: operators that stay on the CPU in one of
    them and not in another, and schemes in which one is red and another is not."""
    operators: dict[str, set[str]] = {}
    for row in group.rows:
        operators.setdefault(row.runtime, set()).update(row.cpu_operators)
    everywhere = set.intersection(*operators.values()) if operators else set()
    for runtime, names in operators.items():
        if own_names := sorted(names - everywhere):
            yield "on the CPU", f"{TITLES[runtime]} alone leaves {', '.join(own_names)} there"
    passed = {row.runtime for row in group.green}
    for row in group.rows:
        if row.status is Status.FAILED and passed - {row.runtime}:
            yield "red", f"{row.label}: {row.headline}"


def make_report(
    reports: Mapping[str, Report], places: Mapping[str, str], not_run: Mapping[str, str]
) -> RuntimesReport:
    """Return the comparison of reports by runtime. ``places`` are the directories of the
    reports."""
    rows = [row for runtime, report in reports.items() for row in list_rows(runtime, report)]
    ordered = [row for group in group_rows(rows) for row in group.rows]
    answers = tuple(answer(group) for group in group_rows(ordered))
    return RuntimesReport(
        rows=tuple(ordered), answers=answers, reports=dict(places), not_run=dict(not_run)
    )


def make_document(report: RuntimesReport) -> Document:
    """Return the tables, one per model, the pictures of accuracy against time, what differs, and
    the answers."""
    groups = group_rows(report.rows)
    parts: list[Table | Card] = []
    for model in dict.fromkeys(group.model for group in groups):
        rows = [show_row(row) for group in groups if group.model == model for row in group.rows]
        parts.append(Table(model, "", HEAD, tuple(rows), verdict=3, numbers=frozenset({4, 6, 7})))
    if not groups:
        parts.append(Table("models", "", HEAD, ()))
    for group in groups:
        lines = tuple(list_differences(group))
        plot = draw(group)
        lines = lines or (("", "nothing that only one runtime leaves on the CPU or gets wrong"),)
        if len({row.runtime for row in group.rows}) > 1 or plot:
            parts.append(Card("differences", f"{group.model} on {group.soc}", lines, plot))
    for runtime, reason in report.not_run.items():
        parts.append(Card("not run", TITLES[runtime], (("why", reason),)))
    for runtime, place in report.reports.items():
        parts.append(Card("report", TITLES[runtime], (("page", f"{place}/index.html"),)))
    red = sum(row.status is Status.FAILED for row in report.rows)
    passed = sum(row.status is Status.PASSED for row in report.rows)
    state = Status.FAILED if red or not report.rows else Status.PASSED
    result = f"{passed} rows passed, {red} failed, {count(len(report.not_run), 'runtime')} not run"
    return Document("Runtimes", result, tuple(parts), report.answers, state.value)


def show_row(row: RuntimeRow) -> Row:
    """Return the cells of a row."""
    size = "-" if row.size_bytes is None else show_bytes(row.size_bytes)
    sqnr = "-" if row.sqnr_db is None else f"{row.sqnr_db:.1f}"
    nodes = "-" if row.cpu_nodes is None else str(row.cpu_nodes)
    cells = (row.soc, TITLES[row.runtime], row.scheme, row.status.value, sqnr, row.shown_ms, size)
    return Row((*cells, nodes), row.status.value)


def draw(group: Group) -> Plot | None:
    """Return a point per row that has an SQNR and a time: accuracy upwards, time to the right. The
    fastest row that passed has a ring. None if there are fewer than two."""
    rows = [row for row in group.rows if row.sqnr_db is not None and row.high_ms is not None]
    if len(rows) < 2:
        return None
    longest = max(row.likely_ms for row in rows) or 1.0
    accuracies = [row.sqnr_db or 0.0 for row in rows]
    lowest, highest = min(0.0, *accuracies), max(accuracies)
    fastest = min(group.green, key=lambda row: row.likely_ms, default=None)
    points = []
    for row, accuracy in zip(rows, accuracies, strict=True):
        x = PLOT_WIDTH * row.likely_ms / longest
        y = PLOT_HEIGHT * (1 - (accuracy - lowest) / ((highest - lowest) or 1.0))
        label = f"{row.label}: {accuracy:.1f} dB, {row.shown_ms} ms, {row.status.value}"
        tone = "passed" if row.status is Status.PASSED else "failed"
        points.append(Point(x, y, tone, label, row is fastest))
    ends = ("0 ms", f"{longest:.3g} ms", f"{lowest:.0f} dB", f"{highest:.0f} dB")
    return Plot(
        tuple(points),
        (),
        ends,
        "accuracy against estimated time, a point per row; the ring is the fastest that passed",
    )
