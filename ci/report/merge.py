"""Merge the shards of one run into one report. Incomplete sets and mixed runs are refused."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from ci.report.schema import Case, CaseName, Phase, Report, ShardMark, Threshold, summarize
from provisioning.errors import UsageError


def digest_names(names: Iterable[CaseName]) -> str:
    """Return the SHA-256 over the names of a whole run's cases, in order."""
    return hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()


def merge_reports(reports: Sequence[Report]) -> Report:
    """Return the report of the whole run, with the cases in the order of a run without shards.

    Raises UsageError unless the reports are all the shards of one run.
    """
    faults = find_faults(reports)
    if faults:
        raise UsageError(
            "these are not the shards of one run",
            why="; ".join(faults),
            fix="pass the report of each shard once",
        )
    places = {
        case.name: position
        for report in reports
        for case, position in zip(report.cases, mark_of(report).positions, strict=True)
    }
    cases = sorted((case for one in reports for case in one.cases), key=lambda c: places[c.name])
    controls = sorted(
        (control for one in reports for control in one.controls),
        key=lambda control: places.get(control.name, len(places)),
    )
    first = min(reports, key=lambda one: one.started)
    wall_s = max(one.summary.wall_s for one in reports)
    return msgspec.structs.replace(
        first,
        thresholds=tuple(_order_thresholds(reports, cases)),
        cases=tuple(cases),
        controls=tuple(controls),
        summary=summarize(cases, controls, wall_s, _longest_phases(reports)),
        shard=None,
        comparison=None,
        uncompared="",
    )


def _order_thresholds(reports: Sequence[Report], cases: Iterable[Case]) -> Iterator[Threshold]:
    """Yield the limits in the order in which the cases need them."""
    rules = {
        case.name: rule
        for report in reports
        for case in report.cases
        if (rule := report.threshold_for(case))
    }
    ordered = (rules[case.name] for case in cases if case.name in rules)
    return iter({(one.scheme, one.model): one for one in ordered}.values())


def _longest_phases(reports: Sequence[Report]) -> list[Phase]:
    """Return each phase with its longest time in any shard, because shards run in parallel."""
    found: dict[str, float] = {}
    for phase in (phase for report in reports for phase in report.summary.phases):
        found[phase.name] = max(phase.seconds, found.get(phase.name, 0.0))
    return [Phase(name=name, seconds=seconds) for name, seconds in found.items()]


def find_faults(reports: Sequence[Report], wanted: Collection[CaseName] = ()) -> list[str]:
    """Return why reports are not the shards of one run, or do not cover the ``wanted`` cases."""
    marks = [report.shard for report in reports]
    if not reports or None in marks:
        return ["one of the reports is not of a shard" if reports else "there are no reports"]
    faults = list(_compare_runs(reports))
    count = mark_of(reports[0]).count
    indexes = Counter(mark_of(report).index for report in reports)
    faults += [f"shard {one}/{count} is missing" for one in range(1, count + 1) if not indexes[one]]
    faults += [
        f"shard {one}/{count} was passed {n} times" for one, n in sorted(indexes.items()) if n > 1
    ]
    faults += [
        f"shard {mark_of(one).index}/{count} was cut short" for one in reports if one.unjudged
    ]
    return faults or [*_check_cases(reports, wanted)]


def _compare_runs(reports: Sequence[Report]) -> Iterator[str]:
    """Yield each property that must be the same in all shards of one run but differs."""
    views: dict[str, set[object]] = {
        "sessions": {report.session for report in reports},
        "backends": {report.backend for report in reports},
        "toolchains": {report.toolchain for report in reports},
        "policies": {mark_of(report).policy for report in reports},
        "numbers of shards": {mark_of(report).count for report in reports},
        "lists of cases": {mark_of(report).whole for report in reports},
    }
    return (f"they have different {what}" for what, found in views.items() if len(found) > 1)


def _check_cases(reports: Sequence[Report], wanted: Collection[CaseName]) -> Iterator[str]:
    rows = [
        (position, case.name)
        for report in reports
        for case, position in zip(report.cases, mark_of(report).positions, strict=False)
    ]
    names = [name for _, name in sorted(rows)]
    if any(len(report.cases) != len(mark_of(report).positions) for report in reports):
        yield "a shard does not have exactly the cases that were assigned to it"
    elif [position for position, _ in sorted(rows)] != list(range(len(rows))):
        yield "a case is missing or duplicated"
    elif digest_names(names) != mark_of(reports[0]).whole:
        yield "the cases are not those of the whole run"
    for word, those in (
        ("planned", set(wanted) - set(names)),
        ("not planned", set(names) - set(wanted)),
    ):
        if wanted and those:
            yield f"{len(those)} {word}: {', '.join(map(str, sorted(those)[:5]))}"


def mark_of(report: Report) -> ShardMark:
    """Return the mark of a shard's report. Raises UsageError if the report is not of a shard."""
    if report.shard is None:
        raise UsageError("a report is not of a shard", fix="run its session with --shard")
    return report.shard
