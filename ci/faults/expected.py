"""Runs the graphs of known faults again, and compares the results with those in
manifests/policies/faults.toml. A mended graph is expected to be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from msgspec import Struct, structs

from ci.cases.request import Request
from ci.faults.known import ENDS, INTEGERS, RIGHT, WRONG, Fault, Frontend, Tried
from ci.faults.results import Item, Result
from ci.report.document import make_markdown_table

SEEDS = (21, 22, 23)
GRAPH, MENDED = "graph", "mended"
Try = Callable[[str, Sequence[Item]], Iterable[Result]]  # from a scheme and items to results


@dataclass(frozen=True, kw_only=True)
class FaultsRequest(Request):
    """A request to run known faults again."""

    filters: tuple[str, ...] = ()  # globs for names of faults
    front_ends: tuple[Frontend, ...] = ()


class Rerun(Struct, frozen=True, kw_only=True):
    """The result of a fault's graph, or of its mended form, with all SEEDS. ``form`` is ``graph``
    or ``mended``. ``rewrite`` is the rewrite of ci.mend that made the mended form, or "" if it is
    the one in the table of faults.

    ``expected`` is the result in the table of faults, or empty if the table has none for this
    version of QNN. ``end`` is the first result that differs from ``expected``. If none differs, or
    if ``expected`` is empty, it is the result with the first seed. ``sqnr_db`` and ``predicted_db``
    are from the worst seed with the result ``end``. They are None unless ``end`` is ``right`` or
    ``wrong``.
    """

    fault: str
    form: str
    frontend: str
    scheme: str
    qnn: str
    end: str
    expected: str
    sqnr_db: float | None = None
    predicted_db: float | None = None
    why: str = ""
    rewrite: str = ""

    @property
    def title(self) -> str:
        """Return the fault's name and the form."""
        by = f" by {self.rewrite}" * bool(self.rewrite)
        return f"{self.fault} ({self.form}{by})"

    @property
    def problem(self) -> str:
        """Return how the result differs from the expected one; empty if it does not differ, or if
        no result is expected."""
        if not self.expected or self.end == self.expected:
            return ""
        if self.form == MENDED:
            return f"the mended graph is {self.end}, not right{self._figures}"
        gone = "the fault is gone" if self.end == RIGHT else "the result differs"
        if self.expected == RIGHT:
            gone = f"the fault is new in QNN {self.qnn}"
        return f"{gone}: {self.end} instead of {self.expected}{self._figures}"

    @property
    def _figures(self) -> str:
        if self.sqnr_db is None:
            return f" ({self.why})" if self.why else ""
        return f" ({self.sqnr_db:.1f} dB, {self.predicted_db:.1f} dB predicted)"


def rerun(
    faults: Sequence[Fault],
    frontend: str,
    qnn: str,
    attempt: Try,
    find_rewrites: Callable[[Fault, str], Sequence[str]] = lambda *_: (),
) -> Iterator[Rerun]:
    """Run the graphs of known faults with a front end, and yield the results. Each fault's graph
    and its mended form run in every scheme in which the fault was tried with this front end.
    ``attempt`` runs graphs in a scheme. ``find_rewrites`` returns the rewrites that cure a fault in
    a scheme. The mended form is the graph with the first of them that makes it right; without a
    rewrite, it is the one in the table of faults."""
    for fault, tried in list_runnable(faults, frontend):
        yield _run(fault, tried, attempt, Item(fault.graph, 0), qnn=qnn, form=GRAPH)
        candidates = [Item(fault.graph, 0, name) for name in find_rewrites(fault, tried.scheme)]
        if fault.mended:
            candidates.append(Item(fault.mended, 0))
        mended: Rerun | None = None  # the first right one, or the first one if none is right
        for candidate in candidates:
            result = _run(fault, tried, attempt, candidate, qnn=qnn, form=MENDED)
            if mended is None or result.end == RIGHT:
                mended = result
            if result.end == RIGHT:
                break
        if mended:
            yield mended


def _run(fault: Fault, tried: Tried, attempt: Try, item: Item, *, qnn: str, form: str) -> Rerun:
    expected = tried.find_end(qnn) if form == GRAPH else RIGHT
    results = list(attempt(tried.scheme, [structs.replace(item, seed=seed) for seed in SEEDS]))
    ends = [result.end for result in results]
    end = next((end for end in ends if end != expected), ends[0])
    worst = min((result for result in results if result.end == end), key=lambda r: r.sqnr_db)
    has_db = end in {WRONG, RIGHT}
    return Rerun(
        fault=fault.name,
        form=form,
        frontend=tried.frontend,
        scheme=tried.scheme,
        qnn=qnn,
        end=end,
        expected=expected,
        sqnr_db=round(worst.sqnr_db, 1) if has_db else None,
        predicted_db=round(worst.predicted_db, 1) if has_db else None,
        why=worst.why,
        rewrite=item.rewrite,
    )


def list_tried(faults: Sequence[Fault], frontend: str) -> Iterator[Rerun]:
    """Yield the results that the table of faults contains for a front end, without running the
    graphs."""
    for fault, tried in _list_rows(faults, frontend):
        row: dict[str, Any] = {"form": GRAPH, "frontend": frontend, "scheme": tried.scheme}
        for end in ENDS:
            for qnn in tried[end]:
                yield Rerun(fault=fault.name, qnn=qnn, end=end, expected=end, **row)


def list_runnable(faults: Sequence[Fault], frontend: str) -> list[tuple[Fault, Tried]]:
    """Return the rows of the table of faults whose graphs a front end can run again. Graphs are not
    converted to quantized files, so that rows for these are left out."""
    return [
        (fault, row)
        for fault, row in _list_rows(faults, frontend)
        if row.scheme not in INTEGERS and not row.of_file
    ]


def _list_rows(faults: Sequence[Fault], frontend: str) -> list[tuple[Fault, Tried]]:
    return [(fault, row) for fault in faults for row in fault.tried if row.frontend == frontend]


class VersionsMatrix(Struct, frozen=True, kw_only=True):
    """The results of known faults with several versions of QNN. ``versions`` is sorted, oldest
    first. ``runs`` is in the order in which the graphs ran. Each text in ``regressions`` and
    ``fixes`` names a version with which the result of a graph became worse or better. ``failures``
    lists the reason for each version that could not be run."""

    versions: tuple[str, ...]
    runs: tuple[Rerun, ...]
    regressions: tuple[str, ...]
    fixes: tuple[str, ...]
    failures: tuple[str, ...] = ()
    schema_version: int = 1


def make_matrix(
    versions: Sequence[str], runs: Sequence[Rerun], failures: Sequence[str] = ()
) -> VersionsMatrix:
    """Return the matrix for the results in ``runs``. ``versions`` must be sorted, oldest first."""
    changes: dict[bool, list[str]] = {True: [], False: []}  # whether it is a regression
    for (name, form, scheme), row in _rows(runs).items():
        runs_by_age = [row[version] for version in versions if version in row]
        ends = [(run.qnn, run.end) for run in runs_by_age if run.end in ENDS]
        for (_, before), (version, now) in pairwise(ends):
            text = f"{name} ({form}) in {scheme}: {before} before QNN {version}, {now} with it"
            if now != before:
                changes[ENDS.index(now) > ENDS.index(before)].append(text)
    return VersionsMatrix(
        versions=tuple(versions),
        runs=tuple(runs),
        regressions=tuple(changes[True]),
        fixes=tuple(changes[False]),
        failures=tuple(failures),
    )


def _rows(runs: Sequence[Rerun]) -> dict[tuple[str, str, str], dict[str, Rerun]]:
    rows: dict[tuple[str, str, str], dict[str, Rerun]] = {}
    for run in runs:
        rows.setdefault((run.fault, run.form, run.scheme), {})[run.qnn] = run
    return rows


def render_matrix(matrix: VersionsMatrix) -> str:
    """Return the matrix as Markdown: changes and failures, followed by a table with a row per
    fault and scheme. Rows with different results come first."""
    lines = [f"- regression: {regression}" for regression in matrix.regressions]
    lines += [f"- fixed: {fix}" for fix in matrix.fixes]
    lines += [f"- not run: {failure}" for failure in matrix.failures]
    lines += [""] * bool(lines)
    forms = _rows(matrix.runs)
    rows = {(name, scheme): row for (name, form, scheme), row in forms.items() if form == GRAPH}
    changed = set()
    for key, row in rows.items():
        ends = {run.end for run in row.values()}
        if len(ends) > 1:
            changed.add(key)
    cells = []
    for name, scheme in sorted(rows, key=lambda key: (key not in changed, key)):
        shown = [show_end(rows[name, scheme].get(version)) for version in matrix.versions]
        mended = show_mended([*forms.get((name, MENDED, scheme), {}).values()])
        cells.append((name, scheme, *shown, mended))
    lines.append(make_markdown_table(("fault", "scheme", *matrix.versions, "mended?"), cells))
    return "".join(f"{line}\n" for line in lines)


def show_mended(runs: Sequence[Rerun]) -> str:
    """Return whether the mended form of a graph is right with every version with which it ran, such
    as ``yes, by flatten-rms-norm``."""
    ways = dict.fromkeys(run.rewrite or "hand" for run in runs if run.end == RIGHT)
    failed = [f"{run.end} with {run.qnn}" for run in runs if run.end != RIGHT]
    if failed:
        return f"no: {', '.join(failed)}"
    return f"yes, by {' or '.join(ways)}" if ways else "not run"


def show_end(run: Rerun | None) -> str:
    """Return a result as text, such as ``wrong, 2.0 dB``, or ``not run`` for None."""
    if run is None:
        return "not run"
    return run.end if run.sqnr_db is None else f"{run.end}, {run.sqnr_db:.1f} dB"
