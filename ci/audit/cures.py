"""Tells which versions of a compiler mend a red case, from a report per version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite

from msgspec import Struct

from ci.report.comparison import SEEN_DB
from ci.report.document import Document, Row, Table
from ci.report.schema import RANKS, Case, CaseName, Report, Status
from ci.report.text import count, name_models, show_decibels

NOT_RUN = "not run"
SCHEMA_VERSION = 1
MOST_ROWS = 60


class Result(Struct, frozen=True, kw_only=True):
    """What became of a case with a version: its ``status``, or NOT_RUN if the version has no report
    of it, and why in a few words. ``is_worse`` is true if the status is worse than at present, or
    if the SQNR is lower by what is more than chance."""

    version: str
    status: str
    sqnr_db: float | None = None
    why: str = ""
    is_worse: bool = False

    @property
    def is_green(self) -> bool:
        """Return whether the case passed."""
        return self.status == Status.PASSED.value


class Cure(CaseName, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A case that is red at present, with its result per version, oldest first, and the ``verdict``
    in words. ``green_from`` is the version from which on all tried ones are green, or empty.
    ``known`` are the known faults that the report of the present version names as causes, with the
    version that mends them, if one is known."""

    verdict: str
    green_from: str = ""
    results: tuple[Result, ...]
    known: tuple[str, ...] = ()


class CureReport(Struct, frozen=True, kw_only=True):
    """The JSON that `upgrade-report --model` prints (docs/schemas/upgrade-cures.schema.json).
    ``current`` is the installed version, ``versions`` are all that were tried, oldest first, and
    ``failures`` say why a version has no report."""

    current: str
    versions: tuple[str, ...]
    cases: tuple[Cure, ...]
    failures: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION

    @property
    def is_cured(self) -> bool:
        """Return whether some version is green for each case."""
        return all(any(result.is_green for result in case.results) for case in self.cases)


def find_red(report: Report) -> list[Case]:
    """Return the failed cases of a report."""
    return [case for case in report.cases if case.judgement.status is Status.FAILED]


def compare_versions(
    current: str,
    versions: Sequence[str],
    reports: Mapping[str, Report],
    failures: Mapping[str, str],
    find_mended: Callable[[str, str], str] = lambda _fault, _scheme: "",
) -> CureReport:
    """Return what became of the red cases of the version ``current`` in all ``versions``, oldest
    first, which contain it. ``reports`` and ``failures`` are by version; each version has one.
    ``find_mended`` takes a known fault and a scheme, and returns what mends it, or nothing."""
    cures = []
    for case in find_red(reports[current]):
        results = []
        for version in versions:
            report = reports.get(version)
            peers = {peer.name: peer for peer in report.cases} if report else {}
            results.append(_compare(version, case, peers.get(case.name), failures.get(version, "")))
        verdict, green_from = summarize_results(current, results)
        cures.append(
            Cure(
                model=case.model,
                scheme=case.scheme,
                soc=case.soc,
                verdict=verdict,
                green_from=green_from,
                results=tuple(results),
                known=tuple(_list_known(case, find_mended)),
            )
        )
    return CureReport(
        current=current, versions=tuple(versions), cases=tuple(cures), failures=dict(failures)
    )


def _list_known(case: Case, find_mended: Callable[[str, str], str]) -> Iterator[str]:
    causes = [cause for finding in case.judgement.findings[:1] for cause in finding.causes]
    for name in dict.fromkeys(cause.name for cause in causes if "known fault" in cause.text):
        mended = find_mended(name, case.scheme)
        yield f"{name}: mended in {mended}" if mended else name


def _compare(version: str, before: Case, now: Case | None, failure: str) -> Result:
    if now is None:
        return Result(version=version, status=NOT_RUN, why=failure or "it has no such case")
    had, has = before.judgement.sqnr_db, now.judgement.sqnr_db
    is_lower = had is not None and (has is None or has < had - SEEN_DB)
    status = now.judgement.status
    return Result(
        version=version,
        status=status.value,
        sqnr_db=has if has is not None and isfinite(has) else None,
        why="" if status is Status.PASSED else now.headline,
        is_worse=RANKS[status] > RANKS[before.judgement.status]
        or (status is not Status.PASSED and is_lower),
    )


def summarize_results(current: str, results: Sequence[Result]) -> tuple[str, str]:
    """Return the verdict over the results of a case, oldest version first, and the version from
    which on all that were run are green, or empty. The version ``current`` is red."""
    run = [result for result in results if result.status != NOT_RUN]
    names = [result.version for result in run]
    place = names.index(current)
    green_from = ""
    for result in reversed(run[place + 1 :]):
        if not result.is_green:
            break
        green_from = result.version
    green = [result.version for result in run if result.is_green]
    if green_from:
        verdict = f"green from {green_from} on"
        green = [name for name in green if names.index(name) < names.index(green_from)]
        verdict += f", and in {', '.join(green)}" if green else ""
    elif green:
        verdict = f"green only in {', '.join(green)}"
    else:
        verdict = "red in all" if len(run) > 1 else "no other version was run"
    if worse := [result.version for result in run if result.is_worse]:
        verdict += f"; worse in {', '.join(worse)}"
    if missing := [result.version for result in results if result.status == NOT_RUN]:
        verdict += f"; not run: {', '.join(missing)}"
    return verdict, green_from


def summarize_cures(report: CureReport) -> str:
    """Return how many red cases some version mends."""
    mended = sum(bool(case.green_from) for case in report.cases)
    red = count(len(report.cases), "red case")
    if not report.cases:
        return f"nothing to mend: all cases are green with {report.current}"
    return f"{red} with {report.current}; a newer version mends {mended}"


def make_document(report: CureReport) -> Document:
    """Return the table of verdicts, and that of the results per version."""
    names = name_models(case.model for case in report.cases)
    verdicts, rows = [], []
    for case in report.cases:
        subject = f"{names[case.model]} {case.scheme} {case.soc}"
        tone = Status.PASSED.value if case.green_from else Status.FAILED.value
        verdicts.append(Row((subject, case.verdict, "; ".join(case.known)), tone))
        for result in case.results:
            reached = "" if result.sqnr_db is None else f"{show_decibels(result.sqnr_db)} dB"
            installed = " (installed)" * (result.version == report.current)
            cells = (subject, f"{result.version}{installed}", result.status, reached, result.why)
            rows.append(Row(cells, result.status if result.status != NOT_RUN else ""))
    tables = (
        Table("Cures", "", ("case", "verdict", "known fault"), tuple(verdicts), 1),
        Table(
            "Results per version",
            "Oldest first",
            ("case", "version", "status", "SQNR", "why"),
            tuple(rows),
            2,
            frozenset({3}),
            MOST_ROWS,
        ),
    )
    return Document("Which version mends it", summarize_cures(report), tables)
