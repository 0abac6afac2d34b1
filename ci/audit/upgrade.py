"""Compares the results of two runs with different versions of QNN or ExecuTorch. The differences
are shown in one table, worst first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Literal

from msgspec import Struct, field

from ci.faults.expected import Rerun, show_end
from ci.faults.known import ENDS
from ci.judging.budget import read_figures
from ci.report.comparison import SEEN_DB, compare_case, compare_reports
from ci.report.document import Document, Row, Table
from ci.report.schema import RANKS, Case, Footprint, Report, Status
from ci.report.text import count, show_decibels
from provisioning.errors import FailedError

MEASURED_SHARE = 0.1  # smaller changes of a figure that varies between runs are ignored
NAMES, MOST_ROWS = 4, 40
Verdict = Literal["worse", "better", "other"]
VERDICTS = ("worse", "better", "other")
# Differences in order of importance; figures of the footprint come after these.
SQNR, SQNR_Q = "SQNR", "SQNR q"  # in dB
ORDER = ("run", "status", "fault", "CPU", SQNR, SQNR_Q, "metric", "cycles")


class Difference(Struct, frozen=True):
    """A difference in one figure or text of a case, or a known fault. ``aspect``, in JSON ``what``,
    is what differs, such as ``status`` or ``read_bytes``. ``change`` is the relative change of a
    footprint's figure, or the change of an SQNR in dB; it is None for other differences, or if it
    is unknown."""

    subject: str
    aspect: str = field(name="what")
    before: str
    now: str
    verdict: Verdict
    change: float | None = None


class Total(Struct, frozen=True):
    """A figure summed over all cases that have it in both runs. ``moved`` is the number of cases in
    which it changed."""

    figure: str = field(name="what")
    before: int
    now: int
    moved: int
    cases: int


class UpgradeReport(Struct, frozen=True, kw_only=True):
    """The changes from ``old`` to ``new``, worst first. ``unchanged``, in JSON ``same``, is the
    number of cases without a difference."""

    old: str
    new: str
    differences: tuple[Difference, ...]
    totals: tuple[Total, ...] = ()
    unchanged: int = field(default=0, name="same")
    schema_version: int = 1

    @property
    def is_worse(self) -> bool:
        """Return whether a run or a case is missing, or whether the status of a case became
        worse."""
        grave = {"run", "status"}
        return any(row.verdict == "worse" and row.aspect in grave for row in self.differences)


def compare_faults(before: Iterable[Rerun], now: Iterable[Rerun]) -> Iterator[Difference]:
    """Yield the known faults whose result differs between two versions of QNN."""
    reruns = {(rerun.fault, rerun.form, rerun.frontend, rerun.scheme): rerun for rerun in now}
    for old in before:
        new = reruns.get((old.fault, old.form, old.frontend, old.scheme))
        if new and new.end != old.end and {old.end, new.end} <= {*ENDS}:
            subject = f"{old.fault} ({old.form}, {old.frontend} {old.scheme})"
            verdict: Verdict = "worse" if ENDS.index(new.end) > ENDS.index(old.end) else "better"
            yield Difference(subject, "fault", show_end(old), show_end(new), verdict)


def pair_cases(old: Report, new: Report) -> list[tuple[Case, Case]]:
    """Return the cases that are in both runs, as pairs of the old and the new result."""
    now = {case.name: case for case in new.cases}
    return [(case, now[case.name]) for case in old.cases if case.name in now]


def compare_runs(old: Report, new: Report) -> Iterator[Difference]:
    """Yield how the cases of two runs differ. Raises FailedError if they have no case in common."""
    pairs = pair_cases(old, new)
    if not pairs:
        raise FailedError(
            "the two reports have no case in common",
            why=f"both are from {old.title}, but their models, schemes or SoCs differ"
            if old.title == new.title
            else f"the old report is from {old.title}, the new one from {new.title}",
            fix="run the same models, schemes and SoCs with both versions",
        )
    comparison = compare_reports(old, new)
    for name in comparison.missing:
        yield Difference(str(name), "run", "judged", "missing", "worse")
    for name in comparison.new:
        yield Difference(str(name), "run", "missing", "judged", "other")
    for before, now in pairs:
        yield from compare_cases(before, now)


def compare_cases(before: Case, now: Case) -> Iterator[Difference]:
    """Yield how a case differs in status, operators, accuracy, metric and footprint."""
    subject, comparison = str(before.name), compare_case(before, now, same_host=True)
    if comparison.now is not comparison.before:
        old, new = (
            f"{case.judgement.status.value} {case.headline}".rstrip() for case in (before, now)
        )
        worse = RANKS[comparison.now] > RANKS[comparison.before]
        yield Difference(subject, "status", old, new, "worse" if worse else "better")
    for processor, place in (("cpu", "CPU"), ("npu", "NPU")):
        yield from _compare_operators(
            subject, place, before.program.footprint, now.program.footprint, processor
        )
    for figure, was, value in (
        (SQNR, _decibels(before), _decibels(now)),
        (SQNR_Q, before.judgement.sqnr_db_quantized, now.judgement.sqnr_db_quantized),
    ):
        if (
            was is not None
            and value is not None
            # The difference of two infinite figures is a NaN, which is below nothing.
            and not abs(value - was) < SEEN_DB
            and was != value
        ):
            old, new = _show_exactness(was), _show_exactness(value)
            apart = value - was if isfinite(value - was) else None
            yield Difference(subject, figure, old, new, "worse" if value < was else "better", apart)
    if comparison.metric:
        old, new = (f"{case.judgement.metric:.4g}" for case in (before, now))
        yield Difference(
            subject, "metric", old, new, "worse" if comparison.metric < 0 else "better"
        )
    if (apart := comparison.cycles) is not None:
        old, new = (_show_cycles(case) for case in (before, now))
        yield Difference(subject, "cycles", old, new, "worse" if apart > 0 else "better", apart)
    yield from _compare_figures(subject, before.program.footprint, now.program.footprint)


def _show_exactness(sqnr_db: float) -> str:
    return f"{show_decibels(sqnr_db)} dB" if isfinite(sqnr_db) else "exact"


def _show_cycles(case: Case) -> str:
    simulation = case.program.estimate and case.program.estimate.simulation
    return f"{simulation.cycles:,} simulated" if simulation else ""


def _decibels(case: Case) -> float | None:
    return math.inf if case.judgement.max_abs == 0 else case.judgement.sqnr_db


def _compare_operators(
    subject: str, place: str, before: Footprint | None, now: Footprint | None, processor: str
) -> Iterator[Difference]:
    """Yield a difference in the operators on one processor. More operators on the CPU are worse."""
    if before is None or now is None:
        return
    had, has = _count_operators(before, processor), _count_operators(now, processor)
    moved = [op for op in {**had, **has} if had[op] != has[op]]
    if moved:
        old = ", ".join(f"{op} {had[op]}" for op in moved[:NAMES])
        new = ", ".join(f"{op} {has[op]}" for op in moved[:NAMES])
        and_more = f" and {len(moved) - NAMES} more" if len(moved) > NAMES else ""
        apart = has.total() - had.total()
        verdict: Verdict = "other"
        if place == "CPU" and apart:
            verdict = "worse" if apart > 0 else "better"
        yield Difference(subject, place, f"{old}{and_more}", f"{new}{and_more}", verdict)


def _count_operators(footprint: Footprint, processor: str) -> Counter[str]:
    counts = {operator.op: int(getattr(operator, processor)) for operator in footprint.operators}
    return Counter(counts)


def _compare_figures(
    subject: str, before: Footprint | None, now: Footprint | None
) -> Iterator[Difference]:
    for name, row in read_figures().program.items():
        was, current = getattr(before, name, None), getattr(now, name, None)
        if was is not None and current is None and now:
            # Such as the DDR traffic: QNN 2.50.40 and 2.51.0 print no bandwidth summary under ONNX
            # Runtime. A figure that is not known is neither worse nor better.
            yield Difference(subject, name, f"{was:,}{row.unit}", "not known", "other")
        if was is None or current is None or was == current:
            continue
        change = current / was - 1 if was else None
        if row.measured and change is not None and abs(change) < MEASURED_SHARE:
            continue
        worse = current < was if row.least else current > was
        old, new = (f"{value:,}{row.unit}" for value in (was, current))
        yield Difference(subject, name, old, new, "worse" if worse else "better", change)


def add_figures(old: Report, new: Report) -> Iterator[Total]:
    """Yield each figure of the footprint that can be added, summed over the cases that have it in
    both runs."""
    for name, row in read_figures().program.items():
        if row.least or name == "vtcm_mb":  # their sums say nothing
            continue
        pairs = []
        for before, now in pair_cases(old, new):
            was = getattr(before.program.footprint, name, None)
            value = getattr(now.program.footprint, name, None)
            if was is not None and value is not None:
                pairs.append((was, value))
        if pairs:
            befores, nows = zip(*pairs, strict=True)
            moved = sum(was != value for was, value in pairs)
            yield Total(name, sum(befores), sum(nows), moved, len(pairs))


def rank(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the differences, worst first: by verdict, then by the importance of what differs, then
    by the size of the change."""
    order = {name: place for place, name in enumerate(ORDER)}

    def key(difference: Difference) -> tuple[int, int, float]:
        size = math.inf if difference.change is None else abs(difference.change)
        return VERDICTS.index(difference.verdict), order.get(difference.aspect, len(order)), -size

    return tuple(sorted(differences, key=key))


def summarize_upgrade(report: UpgradeReport) -> str:
    """Return the number of differences per verdict, and the number of cases without a
    difference."""
    counts = Counter[str](difference.verdict for difference in report.differences)
    named = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return f"{report.old} -> {report.new}: {named}, {count(report.unchanged, 'case')} unchanged"


def make_document(report: UpgradeReport) -> Document:
    """Return the table of differences and, if both versions have figures, that of the totals."""
    tones = {"worse": Status.FAILED.value, "better": Status.PASSED.value, "other": ""}
    rows = []
    for difference in report.differences:
        cells = (
            difference.subject,
            difference.aspect,
            difference.verdict,
            difference.before,
            difference.now,
            _show_change(difference),
        )
        rows.append(Row(cells, tones[difference.verdict]))
    head = ("of", "what", "verdict", "before", "now", "change")
    tables = [Table("Differences", "Worst first", head, tuple(rows), 2, frozenset({5}), MOST_ROWS)]
    if report.totals:
        head = ("figure", "cases", "before", "now", "change", "moved")
        title = "Sums over the cases that have the figure in both runs"
        sums = tuple(map(_make_total_row, report.totals))
        tables.append(Table("Totals", title, head, sums, numbers=frozenset(range(1, 6))))
    return Document(f"{report.old} to {report.new}", summarize_upgrade(report), tuple(tables))


def _make_total_row(total: Total) -> Row:
    change = f"{100 * (total.now / total.before - 1):+.1f} %" if total.before else ""
    cells = (
        total.figure,
        str(total.cases),
        f"{total.before:,}",
        f"{total.now:,}",
        change,
        str(total.moved),
    )
    return Row(cells)


def _show_change(difference: Difference) -> str:
    if difference.change is None:
        return ""
    is_sqnr = difference.aspect in {SQNR, SQNR_Q}
    return f"{difference.change:+.1f} dB" if is_sqnr else f"{100 * difference.change:+.1f} %"


def compare(
    names: tuple[str, str],
    runs: tuple[Report | None, Report | None],
    failures: Sequence[Difference] = (),
) -> UpgradeReport:
    """Return the differences between two versions, which are called ``names``. The runs are
    compared if both exist. ``failures`` explain why a run is missing. Raises FailedError if the
    runs have no case in common."""
    differences, same_count = list(failures), 0
    totals: tuple[Total, ...] = ()
    before, now = runs
    if before and now:
        run_differences = list(compare_runs(before, now))
        changed = {difference.subject for difference in run_differences}
        same_count = sum(str(case.name) not in changed for case, _ in pair_cases(before, now))
        differences += run_differences
        totals = tuple(add_figures(before, now))
    return UpgradeReport(
        old=names[0],
        new=names[1],
        differences=rank(differences),
        totals=totals,
        unchanged=same_count,
    )
