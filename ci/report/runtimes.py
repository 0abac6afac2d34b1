"""Compare the reports of several runtimes for the same models: a row per model, SoC, runtime and
scheme, what only one runtime does, and which row to ship. Nothing is run or judged here."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from ci.facts.finding import Certainty, Proof, shorten
from ci.report.columns import show_estimate
from ci.report.document import PLOT_HEIGHT, PLOT_WIDTH, Card, Document, Plot, Point, Row, Table
from ci.report.schema import (
    MADE_PROVES,
    RANKS,
    Case,
    FallbackOp,
    PredictedTime,
    Report,
    Status,
)
from ci.report.text import count, show_bytes, show_decibels

T = TypeVar("T")
SCHEMA_VERSION = 1
TITLES = {"executorch": "ExecuTorch", "onnxruntime": "ONNX Runtime", "litert": "LiteRT"}
KEYS = ("runtime", "scheme")  # the first columns
FIGURES = ("verdict", "SQNR dB", "estimated ms", "size", "on CPU")
METRIC, METRIC_PLACE = "metric", 2  # that of the user; the number of figures before it
NUMBER = re.compile(r"-?\d+(\.\d+)?")
PLACE = re.compile(r" \[[^\[\]]*\]$")  # at the end of a headline
SCHEMES = "\0"  # in a reason, where the names of the schemes are
NOTHING = "-"  # of a figure that is not known, or of a case that was not judged
# Of a name in the picture, in its units: on a phone, its font has 18, and a letter of "ExecuTorch
# 8a8w" in DejaVu Sans, a wide font, is 0.59 of it. Its point has a RING.
NAME_HEIGHT, LETTER_WIDTH, RING = 20.0, 10.7, 10.0
HEADLINE_CHARS = 300  # longer ones are messages of a tool
CERTAIN = frozenset({Certainty.PROVEN, Certainty.KNOWN})  # causes that are shown
ROUNDING = 1e-6  # of sums of such sizes
ABOVE, LEFT, RIGHT = 15.0, 80.0, 30.0  # what the picture has beside its axes, see parts.html.j2
LESS_BYTES = 0.95  # of a program's size, from which on another one is called smaller
ALIKE_DB = 1.0  # SQNRs that differ by less are not distinguished


class RuntimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A case of one runtime. ``ms``, ``low_ms`` and ``high_ms`` are the predicted time and its
    interval, None if there is none; ``ms`` is None, too, if only an upper bound is known.
    ``cpu_nodes`` are the nodes that stay on the CPU, and ``cpu_operators`` what they compute.
    ``headline`` and ``remedy`` are of the first finding, and ``faults`` the names that the runtimes
    have for the known fault that is its cause. ``cause`` is another cause, if it is certain, and
    ``is_other_row`` is whether the remedy is to take
    another scheme, which is another row. ``exact`` is whether the outputs are
    equal, which is better than any SQNR. ``shown_db`` and ``shown_ms`` are as the runtime's own
    report shows them. ``metric`` is the value of the user's metric. ``device`` is whose time it is,
    ``time_obstacle`` is why no time is predicted, and ``made_inputs`` describes generated inputs.
    ``warnings`` are the case's."""

    model: str
    soc: str
    runtime: str
    scheme: str
    status: Status
    sqnr_db: float | None = None
    exact: bool = False
    ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    size_bytes: int | None = None
    cpu_nodes: int | None = None
    cpu_operators: tuple[str, ...] = ()
    headline: str = ""
    cause: str = ""
    faults: tuple[str, ...] = ()
    remedy: str = ""
    is_proven: bool = False
    is_other_row: bool = False
    metric: float | None = None
    shown_db: str = NOTHING
    shown_ms: str = NOTHING
    device: str = ""
    time_obstacle: str = ""
    made_inputs: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def likely_ms(self) -> float:
        """Return the predicted time or, if it is only bounded, the bound; infinite if unknown."""
        likely = self.high_ms if self.ms is None else self.ms
        return math.inf if likely is None else likely

    @property
    def longest_ms(self) -> float:
        """Return the longest time that the row may take; infinite if unknown."""
        return math.inf if self.high_ms is None else self.high_ms

    @property
    def accuracy_db(self) -> float | None:
        """Return the SQNR, infinite if the outputs are equal; None if nothing was compared."""
        return math.inf if self.exact else self.sqnr_db

    @property
    def shown_accuracy(self) -> str:
        """Return the SQNR as text."""
        return f"{self.shown_db} dB" if self.sqnr_db is not None else self.shown_db

    @property
    def shown_size(self) -> str:
        """Return the size of the program as text."""
        return NOTHING if self.size_bytes is None else show_bytes(self.size_bytes)

    @property
    def shown_time(self) -> str:
        """Return the estimated time and its interval as text that fits into parentheses."""
        ms, _, interval = self.shown_ms.rstrip(")").partition(" (")
        return f"{ms} ms, {interval}" if interval else f"{ms} ms"

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the cells of FIGURES."""
        nodes = NOTHING if self.cpu_nodes is None else str(self.cpu_nodes)
        return (self.status.value, self.shown_db, self.shown_ms, self.shown_size, nodes)

    @property
    def shown_metric(self) -> str:
        """Return the metric as the runtime's own report shows it."""
        return NOTHING if self.metric is None else f"{self.metric:.4g}"

    def list_figures(self, *, has_metric: bool) -> tuple[str, ...]:
        """Return the cells of FIGURES, with the metric at its place if the table has one."""
        figures = self.figures
        if not has_metric:
            return figures
        return (*figures[:METRIC_PLACE], self.shown_metric, *figures[METRIC_PLACE:])

    @property
    def label(self) -> str:
        """Return the runtime and the scheme."""
        return f"{TITLES[self.runtime]} {self.scheme}"


class RuntimesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a comparison (docs/schemas/runtimes.schema.json). ``answers`` has a sentence per
    model and SoC, and ``clauses`` the parts of each. ``reports`` are the reports of the runtimes,
    and ``not_run`` the reasons of those that were not run. ``unknown_socs`` are the requested SoCs
    that a runtime does not compile for."""

    rows: tuple[RuntimeRow, ...]
    answers: tuple[str, ...]
    reports: dict[str, str]
    not_run: dict[str, str]
    unknown_socs: dict[str, tuple[str, ...]] = {}
    clauses: tuple[tuple[str, ...], ...] = ()
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


def list_rows(
    runtime: str, report: Report, fault_names: Mapping[str, tuple[str, ...]]
) -> Iterator[RuntimeRow]:
    """Yield a row per case of a runtime's report. ``fault_names`` has the names of each known fault
    in all runtimes."""
    for case in report.cases:
        time = find_time(case)
        finding = case.judgement.findings[0] if case.judgement.findings else None
        remedy = finding.remedies[0] if finding and finding.remedies else None
        cause = finding.causes[0] if finding and finding.causes else None
        names_cause = cause and not cause.name and cause.certainty in CERTAIN
        yield RuntimeRow(
            model=case.model,
            soc=case.soc,
            runtime=runtime,
            scheme=case.scheme,
            status=case.judgement.status,
            sqnr_db=case.judgement.sqnr_db,
            exact=case.judgement.sqnr_db is None and case.judgement.max_abs == 0,
            ms=time.ms if time and not time.is_bound else None,
            low_ms=time.low_ms if time else None,
            high_ms=time.high_ms if time else None,
            size_bytes=case.program.pte_bytes,
            cpu_nodes=case.program.fallback_nodes,
            cpu_operators=tuple(name_operators(case.program.fallback_ops)),
            headline=shorten(finding.whole_headline, HEADLINE_CHARS) if finding else "",
            cause=shorten(cause.text, HEADLINE_CHARS) if cause and names_cause else "",
            faults=fault_names.get(cause.name, ()) if cause else (),
            remedy=remedy.text if remedy else "",
            is_proven=bool(remedy and remedy.proof is not Proof.SUGGESTED),
            is_other_row=bool(remedy and remedy.proof is Proof.TRIED and not remedy.rewrites),
            metric=case.judgement.metric,
            shown_db=show_decibels(case.judgement.sqnr_db, case.judgement.max_abs),
            shown_ms=show_estimate(case),
            device=time.device if time else "",
            time_obstacle=case.program.estimate.unknown if case.program.estimate else "",
            made_inputs=case.asked.made_inputs,
            warnings=case.judgement.warnings,
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


def list_clauses(group: Group, absent: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the clauses of the sentence that says which row of a group to ship: the only one that
    passed, or the fastest, the smallest and the most accurate of those that did, and what would
    have to change for a better one. ``absent`` are the runtimes that could have a row, with the
    reasons why they have none."""
    if not group.green:
        causes = group_by_fault(row for row in group.rows if row.headline)
        reasons = "; ".join(f"{join_labels(rows)}: {rows[0].headline}" for rows in causes)
        parts = [f"no row passed ({reasons})" if reasons else "no row passed"]
        if len(causes) == 1 and len(group.rows) == len(causes[0]) > 1:  # labels would say nothing
            parts = [f"no row passed: {causes[0][0].headline}"]
    elif len(group.green) == 1:
        parts = [*describe_only(group.green[0], group)]
    else:
        parts = [*describe_fastest(group.green)]
        parts += describe_smallest(group.green)
        parts += describe_most_accurate(group.green)
        parts += describe_untimed(group.green)
    parts += describe_better(group)
    if absent:
        parts.append(f"not compared: {', and '.join(absent)}")
    return tuple(parts)


def join_clauses(model: str, socs: Iterable[str], clauses: Iterable[str]) -> str:
    """Return the sentence about a model on SoCs."""
    return f"{name_place(model, socs)}: {'; '.join(clauses)}"


def name_place(model: str, socs: Iterable[str]) -> str:
    """Return a model and its SoCs as text."""
    return f"{model} on {', '.join(socs)}"


def describe_only(row: RuntimeRow, group: Group) -> Iterator[str]:
    """Yield the figures of the only row of a group that passed, and why its time is not known."""
    figures = []
    if row.high_ms is not None:
        figures.append(row.shown_time)
    if row.size_bytes is not None:
        figures.append(row.shown_size)
    if row.accuracy_db is not None:
        figures.append(row.shown_accuracy)
    shown_figures = f" ({'; '.join(figures)})" if figures else ""
    word = "only " if len(group.rows) > 1 else ""
    yield f"{word}{row.label} passed{shown_figures}"
    yield from describe_inputs([row])
    yield from describe_untimed([row])


def describe_fastest(rows: Sequence[RuntimeRow]) -> Iterator[str]:
    """Yield which row is the fastest, and those that cannot be distinguished from it, because their
    intervals overlap."""
    timed = [row for row in rows if row.high_ms is not None]
    if not timed:
        return
    fastest, *alike = find_fastest(rows)
    tie = f", which cannot be distinguished from {join_labels(alike)}" if alike else ""
    yield f"fastest: {fastest.label} ({fastest.shown_time}){tie}"
    if len({row.device for row in timed}) > 1:
        places = ", ".join(f"{row.label} on {row.device}" for row in timed)
        yield f"these times are of different devices: {places}"


def describe_untimed(rows: Sequence[RuntimeRow]) -> Iterator[str]:
    """Yield which rows have no time: one of them could be the fastest."""
    untimed = [row for row in rows if row.high_ms is None]
    if untimed:
        names_all = len(untimed) < len(rows)
        yield f"no time is known{explain_no_times(untimed, names_all=names_all)}"


def find_fastest(rows: Sequence[RuntimeRow]) -> list[RuntimeRow]:
    """Return the fastest row, and those whose intervals overlap with its own; none if no time is
    known."""
    timed = [row for row in rows if row.high_ms is not None]
    if not timed:
        return []
    fastest = min(timed, key=lambda row: row.likely_ms)
    return [fastest, *(row for row in timed if row is not fastest and overlaps(row, fastest))]


def join_labels(rows: Iterable[RuntimeRow]) -> str:
    """Return the labels of rows as text."""
    return ", ".join(row.label for row in rows)


def explain_no_times(rows: Sequence[RuntimeRow], *, names_all: bool) -> str:
    """Return for which rows no time is predicted, with each reason once, and what would show the
    times. Rows with a single reason are named only with ``names_all``."""
    by_reason: dict[str, list[RuntimeRow]] = {}
    for row in rows:
        # A reason can name the scheme: it is the same one for another scheme.
        reason = re.sub(rf"\b{re.escape(row.scheme)}\b", SCHEMES, row.time_obstacle)
        by_reason.setdefault(reason, []).append(row)
    parts = []
    for reason, peers in by_reason.items():
        *names, last_name = (row.label for row in peers)
        # A comma alone would leave the reason to the last one, as other reasons follow.
        labels = f"{', '.join(names)} and {last_name}" if names else last_name
        schemes = " and ".join(dict.fromkeys(row.scheme for row in peers))
        shown_reason = f" ({reason.replace(SCHEMES, schemes)})" if reason else ""
        names_rows = names_all or len(by_reason) > 1
        parts.append(f"{labels}{shown_reason}" if names_rows else shown_reason.lstrip())
    advice = ": measure it on a device, docs/guides/device.md" if any(by_reason) else ""
    word = " for " if names_all or len(by_reason) > 1 else " "
    return f"{word}{', '.join(parts)}{advice}".rstrip()


def overlaps(first: RuntimeRow, second: RuntimeRow) -> bool:
    """Return whether the intervals of two times have a time in common."""
    low = max(first.low_ms or 0.0, second.low_ms or 0.0)
    high = min(first.high_ms or math.inf, second.high_ms or math.inf)
    return low <= high


def describe_smallest(rows: Sequence[RuntimeRow]) -> Iterator[str]:
    """Yield which row has the smallest program, and those whose sizes are shown alike."""
    if smallest_rows := find_smallest(rows):
        smallest, *alike = smallest_rows
        tie = f", as small as {join_labels(alike)}" if alike else ""
        yield f"smallest: {smallest.label} ({smallest.shown_size}){tie}"


def find_smallest(rows: Sequence[RuntimeRow]) -> list[RuntimeRow]:
    """Return the row with the smallest program, and those whose sizes are shown alike; none if no
    size is known."""
    sized = [row for row in rows if row.size_bytes is not None]
    if not sized:
        return []
    smallest = min(sized, key=lambda row: row.size_bytes or 0)
    alike = [row for row in sized if row.shown_size == smallest.shown_size]
    return [smallest, *(row for row in alike if row is not smallest)]


def describe_most_accurate(rows: Sequence[RuntimeRow]) -> Iterator[str]:
    """Yield which row has the highest SQNR, and those within ALIKE_DB of it."""
    most_accurate_rows = find_most_accurate(rows)
    if not most_accurate_rows:
        return
    best, *alike = most_accurate_rows
    tie = f", which cannot be distinguished from {join_labels(alike)}" if alike else ""
    yield f"most accurate: {best.label} ({best.shown_accuracy}){tie}"
    yield from describe_inputs(rows)


def describe_inputs(rows: Iterable[RuntimeRow]) -> Iterator[str]:
    """Yield what a comparison with generated inputs proves, if rows have such inputs."""
    measured = [row for row in rows if row.accuracy_db is not None]
    if made_inputs := sorted({row.made_inputs for row in measured if row.made_inputs}):
        yield f"{' and '.join(made_inputs)}: the comparison {MADE_PROVES}"


def find_most_accurate(rows: Sequence[RuntimeRow]) -> list[RuntimeRow]:
    """Return the row with the highest SQNR, and those within ALIKE_DB of it; none if nothing was
    compared."""
    measured = [(row, row.accuracy_db) for row in rows if row.accuracy_db is not None]
    if not measured:
        return []
    best, best_db = max(measured, key=lambda pair: pair[1])
    alike = []
    for row, accuracy_db in measured:
        if row is not best and (accuracy_db == best_db or accuracy_db > best_db - ALIKE_DB):
            alike.append(row)
    return [best, *alike]


def name_best(group: Group) -> dict[str, str]:
    """Return what the rows that passed are best at, by label: the figures of the fastest, the
    smallest and the most accurate one, and of those that cannot be distinguished from it."""
    best: dict[str, list[str]] = {}
    for word, find in BEST.items():
        for row in find(group.green):
            best.setdefault(row.label, []).append(word)
    return {label: ", ".join(words) for label, words in best.items()}


BEST = {"time": find_fastest, "size": find_smallest, "SQNR": find_most_accurate}


def describe_better(group: Group) -> Iterator[str]:
    """Yield what would have to change for a better row: the red row that would be faster than all
    green ones whose times are known, and the one that would be smaller. If no row is green, yield
    the red ones with a proven remedy. Of alike rows, one with a proven remedy comes first."""
    red = [row for row in group.rows if row.status is Status.FAILED]
    if not group.green:
        rows_by_remedy: dict[str, list[RuntimeRow]] = {}
        for row in red:
            if row.is_proven:
                rows_by_remedy.setdefault(row.remedy, []).append(row)
        for remedy, rows in rows_by_remedy.items():
            # Of a model that was refused, such as for its inputs, nothing was wrong on the NPU.
            was_compiled = any(row.faults or row.size_bytes is not None for row in rows)
            word = "a proven cure" if was_compiled else "fix"
            names_rows = len(rows) == 1 or len(rows) < len(group.rows)
            yield f"{join_labels(rows)}: {word}: {remedy}" if names_rows else f"{word}: {remedy}"
        return
    limits = [row.low_ms for row in group.green if row.low_ms is not None]
    faster = [row for row in red if limits and row.longest_ms < min(limits)]
    sizes = [row.size_bytes for row in group.green if row.size_bytes is not None]
    small = LESS_BYTES * min(sizes, default=0)
    smaller = [row for row in red if (row.size_bytes or math.inf) < small]
    named = None
    if faster:
        named = min(faster, key=lambda row: (not row.is_proven, row.longest_ms))
        word = "faster and smaller" if named in smaller else "faster"
        timed = [row.label for row in group.green if row.high_ms is not None]
        than = f" than {', '.join(timed)}" if len(timed) < len(group.green) else ""
        figures = named.shown_time
        yield f"{named.label} would be {word} ({figures}){than}, but is red: {show_cure(named)}"
    smaller_rows = [row for row in smaller if row is not named]
    if smaller_rows and named not in smaller:
        best = min(smaller_rows, key=lambda row: (not row.is_proven, row.size_bytes))
        yield f"{best.label} would be smaller ({best.shown_size}), but is red: {show_cure(best)}"


def show_cure(row: RuntimeRow) -> str:
    """Return why a row is red, and what cures it. Another row, which is less good, is no cure."""
    remedy = "" if row.is_other_row else show_remedy(row)
    return "; ".join(filter(None, [row.headline, remedy]))


def show_remedy(row: RuntimeRow) -> str:
    """Return what cures a row: ``fix`` if this is proven, else ``try``; empty if nothing is."""
    word = "fix" if row.is_proven else "try"
    return f"{word}: {row.remedy}" if row.remedy else ""


def list_differences(group: Group) -> Iterator[tuple[str, str]]:
    """Yield what differs between the rows of a group: operators that stay on the CPU in one runtime
    and not in another, what is wrong in red rows, if others passed, and the warnings about those
    that passed."""
    operators: dict[str, set[str]] = {}
    for row in group.rows:
        if row.cpu_nodes is not None:  # else it was not compiled, and left nothing anywhere
            operators.setdefault(row.runtime, set()).update(row.cpu_operators)
    everywhere = set.intersection(*operators.values()) if operators else set()
    left_names = {runtime: sorted(names - everywhere) for runtime, names in operators.items()}
    left_names = {runtime: names for runtime, names in left_names.items() if names}
    # Each runtime has its own name of an operator, such as aten.topk.default and TopK. So two of
    # them may leave the same one there.
    word = "alone leaves" if len(left_names) == 1 else "leaves"
    if len(operators) > 1:
        for runtime, names in left_names.items():
            yield "on the CPU", f"{TITLES[runtime]} {word} {', '.join(names)} there"
    passed = {row.runtime for row in group.green}
    # If none passed, the sentence says why.
    red = [row for row in group.rows if row.status is Status.FAILED and passed]
    causes_by_remedy: dict[tuple[str, str], list[str]] = {}
    for rows in group_by_fault(red):
        runtimes = {row.runtime for row in red if any(is_alike(row, peer) for peer in rows)}
        is_of_one = len(runtimes) == 1 and passed - runtimes
        word = f"only {TITLES[rows[0].runtime]}" if is_of_one else "red"
        for cured_rows in group_by_remedy(rows):
            first = next((row for row in cured_rows if row.is_proven), cured_rows[0])
            cause = f"{join_labels(cured_rows)}: {first.headline}"
            remedy = show_remedy(first)
            if remedy:
                causes_by_remedy.setdefault((word, remedy), []).append(cause)
            else:  # a cause without one has its own line
                causes_by_remedy[word, cause] = []
    for (word, last), causes in causes_by_remedy.items():
        yield word, "; ".join([*causes, last])
    yield from list_causes(group.rows)
    yield from list_warnings(group.green)


def list_causes(rows: Iterable[RuntimeRow]) -> Iterator[tuple[str, str]]:
    """Yield the causes of red rows that are certain, each once."""
    rows_by_cause: dict[str, list[RuntimeRow]] = {}
    for row in rows:
        if row.status is Status.FAILED and row.cause:
            rows_by_cause.setdefault(row.cause, []).append(row)
    for cause, peers in rows_by_cause.items():
        yield "why", f"{join_labels(peers)}: {cause}"


def group_by_fault(rows: Iterable[RuntimeRow]) -> list[list[RuntimeRow]]:
    """Return rows by what is wrong with them: those with the same headline, or with a known fault
    of which the runtimes have one name in common."""
    groups: list[list[RuntimeRow]] = []
    for row in rows:
        for peers in groups:
            if any(has_same_fault(row, peer) for peer in peers):
                peers.append(row)
                break
        else:
            groups.append([row])
    return groups


def group_by_remedy(rows: Sequence[RuntimeRow]) -> list[list[RuntimeRow]]:
    """Return rows with the same thing wrong by what cures them. A known fault has one cure in all
    runtimes, but the schemes that passed, for example, are those of each."""
    if any(row.faults for row in rows):
        return [[*rows]]
    groups: dict[str, list[RuntimeRow]] = {}
    for row in rows:
        groups.setdefault(show_remedy(row), []).append(row)
    without = groups.pop("", [])
    if not groups:
        return [without]
    first, *others = groups.values()
    return [[row for row in rows if row in (*first, *without)], *others]


def has_same_fault(first: RuntimeRow, second: RuntimeRow) -> bool:
    """Return whether the same is wrong with two rows."""
    # Each runtime has its own place for it, such as a line of Python or a node of a file.
    headlines = {PLACE.sub("", row.headline) for row in (first, second)}
    return len(headlines) == 1 or not {*first.faults}.isdisjoint(second.faults)


def is_alike(first: RuntimeRow, second: RuntimeRow) -> bool:
    """Return whether the same may be wrong with two rows, with other figures: the runtimes' limits
    differ."""
    return len({NUMBER.sub("", row.headline) for row in (first, second)}) == 1


def describe_no_difference(group: Group) -> str:
    """Return what a group without differences has instead of them."""
    if len({row.runtime for row in group.rows}) == 1:
        return "no other runtime judged this model"
    compiled = {row.runtime for row in group.rows if row.cpu_nodes is not None}
    if len(compiled) < 2:  # the sentence says why
        names = [TITLES[name] for name in sorted(compiled)] or ["no runtime"]
        return f"{'only ' if compiled else ''}{names[0]} compiled this model"
    # If none passed, the sentence says what is wrong with each.
    wrong = " or gets wrong" if group.green else ""
    return f"nothing that only one runtime leaves on the CPU{wrong}"


def list_warnings(rows: Iterable[RuntimeRow]) -> Iterator[tuple[str, str]]:
    """Yield each warning with the rows that have it: a quantized program that computes nearly all
    in float16 says little about its scheme."""
    labels_by_warning: dict[str, list[str]] = {}
    for row in rows:
        for warning in row.warnings:
            labels_by_warning.setdefault(warning, []).append(row.label)
    for warning, labels in labels_by_warning.items():
        yield "warning", f"{', '.join(labels)}: {warning}"


def make_report(
    reports: Mapping[str, Report],
    places: Mapping[str, str],
    not_run: Mapping[str, str],
    unknown_socs: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    *,
    models: Sequence[str] = (),
    for_all: Collection[str] = (),
    fault_names: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> RuntimesReport:
    """Return the comparison of reports by runtime. ``places`` are the directories of the reports.
    Rows are in the order of ``models``, as far as it has them. Answers name those of the runtimes
    ``for_all``, which take every model, that have no row. ``fault_names`` are those of
    list_rows."""
    rows = [
        row
        for runtime, report in reports.items()
        for row in list_rows(runtime, report, fault_names)
    ]
    ranks = {model: rank for rank, model in enumerate(models)}
    rows.sort(key=lambda row: ranks.get(row.model, len(ranks)))
    ordered = [row for group in group_rows(rows) for row in group.rows]
    groups = group_rows(ordered)
    clauses = []
    for group in groups:
        absent = []
        for runtime in for_all:
            if runtime in not_run:
                absent.append(f"{TITLES[runtime]}, which was not run")
            elif group.soc in unknown_socs.get(runtime, ()):
                absent.append(f"{TITLES[runtime]}, which does not compile for {group.soc}")
        clauses.append(list_clauses(group, absent))
    answers = [
        join_clauses(group.model, [group.soc], parts)
        for group, parts in zip(groups, clauses, strict=True)
    ]
    return RuntimesReport(
        rows=tuple(ordered),
        answers=tuple(answers),
        reports=dict(places),
        not_run=dict(not_run),
        unknown_socs=dict(unknown_socs),
        clauses=tuple(clauses),
    )


def make_document(report: RuntimesReport) -> Document:
    """Return the table of all rows, the pictures of accuracy against time, what differs, and the
    answers. Those of several models, which would be long, are folded, one card per model and
    SoC."""
    groups = group_rows(report.rows)
    is_single = len({group.model for group in groups}) == 1
    parts: list[Table | Card] = []
    if groups:
        parts.append(make_table(groups, names_model=not is_single))
    else:
        parts.append(Table("models", "no model was judged", (*KEYS, *FIGURES), ()))
    clauses = {
        (group.model, group.soc): parts for group, parts in zip(groups, report.clauses, strict=True)
    }
    notes: list[str] = []
    for peers in group_by_model(groups):
        sentences = {group.soc: clauses[group.model, group.soc] for group in peers}
        if is_single:
            model = peers[0].model
            notes += [join_clauses(model, *sentence) for sentence in share(sentences)]
        parts += make_cards(peers, {} if is_single else sentences)
    for runtime, reason in report.not_run.items():
        parts.append(Card("not run", TITLES[runtime], (("why", reason),)))
    for runtime, names in report.unknown_socs.items():
        title = f"{TITLES[runtime]} on {', '.join(names)}"
        parts.append(Card("not run", title, (("why", "it does not compile for this SoC"),)))
    for runtime, place in report.reports.items():
        parts.append(Card("report", TITLES[runtime], (("page", f"{place}/index.html"),)))
    red = sum(row.status is Status.FAILED for row in report.rows)
    passed = sum(row.status is Status.PASSED for row in report.rows)
    state = Status.FAILED if red or not report.rows else Status.PASSED
    not_run = count(len(report.not_run), "runtime")
    result = f"{count(passed, 'row')} passed, {red} failed, {not_run} not run"
    return Document("Runtimes", result, tuple(parts), tuple(notes), state.value)


def group_by_model(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups of each model."""
    by_model: dict[str, list[Group]] = {}
    for group in groups:
        by_model.setdefault(group.model, []).append(group)
    return [*by_model.values()]


def share(lines_by_soc: Mapping[str, Sequence[T]]) -> list[tuple[tuple[str, ...], tuple[T, ...]]]:
    """Return lines with the SoCs that have them: first those of all SoCs, then those of each that
    has others, so that none is repeated per SoC."""
    first, *others = lines_by_soc.values()
    common = [line for line in first if all(line in lines for lines in others)]
    if not others or not common:
        return [((soc,), tuple(lines)) for soc, lines in lines_by_soc.items()]
    shared = [(tuple(lines_by_soc), tuple(common))]
    for soc, lines in lines_by_soc.items():
        if own_lines := tuple(line for line in lines if line not in common):
            shared.append(((soc,), own_lines))
    return shared


def make_cards(groups: Sequence[Group], clauses: Mapping[str, Sequence[str]]) -> Iterator[Card]:
    """Yield the cards of a model: what its SoCs have in common, then a card per SoC that has a
    picture or something else. Those with ``clauses`` by SoC are folded, and start with them."""
    sentences = dict(share(clauses)) if clauses else {}
    lines = dict(share({group.soc: list_card_lines(group) for group in groups}))
    group_by_place: dict[tuple[str, ...], Group] = {(group.soc,): group for group in groups}
    common = tuple(group.soc for group in groups)
    is_compared = any(len({row.runtime for row in group.rows}) > 1 for group in groups)
    for socs in dict.fromkeys([common, *group_by_place]):
        title = name_place(groups[0].model, socs)
        own_lines = lines.get(socs, ())
        group = group_by_place.get(socs)
        plot = draw(group) if group else None
        if clauses:
            if group:
                title += f": {len(group.green)} of {count(len(group.rows), 'row')} passed"
            if own_clauses := sentences.get(socs, ()):
                own_lines = (("", "; ".join(own_clauses)), *own_lines)
            if own_lines or group:
                yield Card("details", title, own_lines, plot, is_folded=True)
        elif plot or (own_lines and is_compared):
            yield Card("differences", title, own_lines, plot)


def list_card_lines(group: Group) -> tuple[tuple[str, str], ...]:
    """Return what differs between the rows of a group, and why red ones have no time."""
    lines = tuple(list_differences(group)) or (("", describe_no_difference(group)),)
    # The sentence says it of those that passed.
    not_green = [row for row in group.rows if row not in group.green]
    if untimed := [row for row in not_green if row.high_ms is None and row.time_obstacle]:
        lines += (("no time", explain_no_times(untimed, names_all=True).lstrip()),)
    return lines


def make_table(groups: Sequence[Group], *, names_model: bool) -> Table:
    """Return the table of models on SoCs: a row per model, runtime and scheme. One SoC has a column
    per figure, the verdict below the SoC's name; each of several has one column with all figures.
    With ``names_model``, the first column is the model, and the last one of a single SoC is what
    the row is best at, because the sentences of several models are not next to the table."""
    socs = [*dict.fromkeys(group.soc for group in groups)]
    cases: dict[tuple[str, str, str], dict[str, RuntimeRow]] = {}
    for group in groups:
        for row in group.rows:
            cases.setdefault((row.model, row.runtime, row.scheme), {})[row.soc] = row
    best = {group.model: name_best(group) for group in groups} if names_model else {}
    has_metric = any(row.metric is not None for group in groups for row in group.rows)
    titles = list_titles(has_metric=has_metric)
    rows = []
    for (model, runtime, scheme), judged in cases.items():
        worst = max((row.status for row in judged.values()), key=RANKS.__getitem__)
        keys = (*[model] * names_model, TITLES[runtime], scheme)
        if len(socs) == 1:
            row = judged[socs[0]]
            praise = best[model].get(row.label, "") if names_model else ""
            figures = row.list_figures(has_metric=has_metric)
            rows.append(Row((*keys, *figures, *[praise] * names_model), worst.value))
        else:
            cells = [show_figures(judged.get(soc)) for soc in socs]
            tones = [judged[soc].status.value if soc in judged else "" for soc in socs]
            rows.append(Row((*keys, *cells), worst.value, (*[""] * len(keys), *tones)))
    models = {group.model for group in groups}
    title = count(len(models), "model") if names_model else groups[0].model
    head = (*["model"] * names_model, *KEYS)
    if len(socs) == 1:
        first = len(head)
        is_text = {"verdict", "estimated ms"}
        places = (place for place, name in enumerate(titles, first) if name not in is_text)
        numbers = frozenset(places)
        head = (*head, socs[0], *titles[1:], *["best at"] * names_model)
        title = f"{title} on {socs[0]}"
        return Table(title, "", head, tuple(rows), verdict=first, numbers=numbers)
    caption = f"each cell: {', '.join(titles)}"
    # A narrow terminal would cut the last ones without a word.
    spare = tuple(reversed(range(len(head) + 1, len(head) + len(socs))))
    return Table(title, caption, (*head, *socs), tuple(rows), spare=spare)


def list_titles(*, has_metric: bool) -> tuple[str, ...]:
    """Return the titles of the figures, as RuntimeRow.list_figures returns their cells."""
    return (*FIGURES[:METRIC_PLACE], *[METRIC] * has_metric, *FIGURES[METRIC_PLACE:])


def show_figures(row: RuntimeRow | None) -> str:
    """Return all figures of a case as one cell, NOTHING if it was not judged."""
    if row is None:
        return NOTHING
    verdict, accuracy, time, size, nodes = row.figures
    units = [
        accuracy if accuracy in {NOTHING, "exact"} else f"{accuracy} dB",
        *[f"{METRIC} {row.shown_metric}"] * (row.metric is not None),
        time if time[:1].isalpha() or time == NOTHING else f"{time} ms",
        size,
        f"{nodes} on CPU",
    ]
    return f"{verdict}: {', '.join(units)}"


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
    points: list[Point] = []
    for row, accuracy in zip(rows, accuracies, strict=True):
        x = PLOT_WIDTH * row.likely_ms / longest
        y = PLOT_HEIGHT * (1 - (accuracy - lowest) / ((highest - lowest) or 1.0))
        label = f"{row.label}: {accuracy:.1f} dB, {row.shown_ms} ms, {row.status.value}"
        tone = "passed" if row.status is Status.PASSED else "failed"
        points.append(Point(x, y, tone, label, row is fastest, row.label))
    ring = "; the ring is the fastest that passed" if fastest in rows else ""
    ends = ("0 ms", f"{longest:.3g} ms", f"{lowest:.0f} dB", f"{highest:.0f} dB")
    bounded = "; a time with only an upper bound is at that bound"
    bound_note = bounded if any(row.ms is None for row in rows) else ""
    missing = [row.label for row in group.rows if row not in rows]
    left_out = f"; without a time or an SQNR: {', '.join(missing)}" if missing else ""
    # Red ones are drawn last: hollow, they leave a green one at the same place visible.
    ordered = sorted(spread_names(points), key=lambda point: point.tone == "failed")
    return Plot(
        tuple(ordered),
        (),
        ends,
        "accuracy against estimated time, a point per row, red ones hollow"
        f"{ring}{bound_note}{left_out}",
    )


class Box(NamedTuple):
    """A part of a picture that text or a point takes."""

    left: float
    right: float
    top: float
    bottom: float

    def covers(self, box: Box) -> bool:
        """Return whether two boxes have a part in common, not only an edge."""
        width = min(self.right, box.right) - max(self.left, box.left)
        height = min(self.bottom, box.bottom) - max(self.top, box.top)
        return min(width, height) > ROUNDING


def spread_names(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return points whose names cover neither each other nor points. A name is to the right of its
    point, or to the left in the right half, unless only the other side is free there. If neither
    is, it is moved up or down."""
    taken = [
        Box(point.x - RING, point.x + RING, point.y - RING, point.y + RING) for point in points
    ]
    placed = []
    for point in sorted(points, key=lambda point: point.y):
        places = list_places(point)
        boxes = [bound_name(place) for place in places]
        index = 0  # if none is free
        for number, box in enumerate(boxes):
            if not any(map(box.covers, taken)):
                index = number
                break
        taken.append(boxes[index])
        placed.append(places[index])
    return tuple(placed)


def list_places(point: Point) -> list[Point]:
    """Return a point with each place in the picture that its name can have, the best one first."""
    is_left = point.x > PLOT_WIDTH / 2
    places = []
    for step in range(round(2 * PLOT_HEIGHT / NAME_HEIGHT)):
        for move in dict.fromkeys((step, -step)):
            name_y = point.y + NAME_HEIGHT / 3 + move * NAME_HEIGHT / 2
            for side in (is_left, not is_left):
                place = replace(point, name_y=name_y, is_left=side)
                box = bound_name(place)
                is_between = box.left >= -LEFT and box.right <= PLOT_WIDTH + RIGHT
                if is_between and box.top >= -ABOVE and box.bottom <= PLOT_HEIGHT:
                    places.append(place)
    return places or [replace(point, name_y=point.y, is_left=is_left)]


def bound_name(point: Point) -> Box:
    """Return the box of a point's name."""
    width = len(point.name) * LETTER_WIDTH
    top, bottom = point.name_y - NAME_HEIGHT * 2 / 3, point.name_y + NAME_HEIGHT / 3
    left = point.name_x - width if point.is_left else point.name_x
    return Box(left, left + width, top, bottom)
