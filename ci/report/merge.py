"""Merge the reports of all shards of one run into one report. A report that is missing or belongs
to another run is an error.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from ci.report.schema import CaseName, Phase, Report, ShardMark, summarize
from provisioning.errors import UsageError

SHOWN = 8  # of the missing shards
Shards = Sequence[tuple[Report, ShardMark]]


def digest_names(names: Iterable[CaseName]) -> str:
    """Return the SHA-256 over the names of all cases of a run, in order."""
    return hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()


def merge_reports(reports: Sequence[Report]) -> Report:
    """Return the report of the whole run, with the cases in the order of a run without shards, and
    the limits in the order of the first case that each applies to.

    Raises UsageError unless the reports are all the shards of one run.
    """
    faults = find_faults(reports)
    if faults:
        raise UsageError(
            "these reports are not the shards of one run",
            why="; ".join(faults),
            fix="pass the report of each shard once",
        )
    places = {
        case.name: position
        for report in reports
        if report.shard
        for case, position in zip(report.cases, report.shard.positions, strict=True)
    }
    pairs = [(case, report.threshold_for(case)) for report in reports for case in report.cases]
    pairs.sort(key=lambda pair: places[pair[0].name])
    cases = tuple(case for case, _ in pairs)
    controls = [control for report in reports for control in report.controls]
    controls.sort(key=lambda control: places.get(control.name, len(places)))
    # Shards run in parallel, so the longest time of a phase counts.
    longest: dict[str, float] = {}
    for phase in (phase for report in reports for phase in report.summary.phases):
        longest[phase.name] = max(phase.seconds, longest.get(phase.name, 0.0))
    phases = [Phase(name=name, seconds=seconds) for name, seconds in longest.items()]
    wall_s = max(report.summary.wall_s for report in reports)
    return msgspec.structs.replace(
        min(reports, key=attrgetter("started")),
        thresholds=tuple({(r.scheme, r.model): r for _, r in pairs if r}.values()),
        cases=cases,
        controls=tuple(controls),
        summary=summarize(cases, controls, wall_s, phases),
        remarks=tuple(dict.fromkeys(remark for report in reports for remark in report.remarks)),
        shard=None,
        comparison=None,
        uncompared="",
    )


def find_faults(reports: Sequence[Report], planned: Collection[CaseName] = ()) -> list[str]:
    """Return why ``reports`` are not all the shards of one run. With ``planned`` cases, also return
    which of these they lack and which others they have."""
    shards = [(report, report.shard) for report in reports if report.shard]
    if not shards or len(shards) < len(reports):
        return [
            "one of the reports does not belong to a shard" if reports else "there are no reports"
        ]
    views: dict[str, set[object]] = {
        "sessions": {report.session for report in reports},
        "backends": {report.backend for report in reports},
        "toolchains": {report.toolchain for report in reports},
        "policies or options": {mark.policy for _, mark in shards},
        "numbers of shards": {mark.count for _, mark in shards},
        "lists of cases": {mark.whole for _, mark in shards},
    }
    faults = [
        f"they have different {attribute}" for attribute, values in views.items() if len(values) > 1
    ]
    count = shards[0][1].count
    indexes = Counter(mark.index for _, mark in shards)
    missing = [f"shard {index}/{count}" for index in range(1, count + 1) if not indexes[index]]
    if missing:
        further = f" and {len(missing) - SHOWN} others" if len(missing) > SHOWN else ""
        verb = "is" if len(missing) == 1 else "are"
        faults.append(f"{', '.join(missing[:SHOWN])}{further} {verb} missing")
    for index, times in sorted(indexes.items()):
        if times > 1:
            faults.append(f"shard {index}/{count} was passed {times} times")
    for report, mark in shards:
        if report.unjudged:
            faults.append(f"shard {mark.index}/{count} was cut short")
    return faults or [*_check_cases(shards, planned)]


def _check_cases(shards: Shards, planned: Collection[CaseName]) -> Iterator[str]:
    rows = [
        (position, case.name)
        for report, mark in shards
        for case, position in zip(report.cases, mark.positions, strict=False)
    ]
    names = [name for _, name in sorted(rows)]
    if any(len(report.cases) != len(mark.positions) for report, mark in shards):
        yield "a shard does not have exactly the cases that were assigned to it"
    elif [position for position, _ in sorted(rows)] != list(range(len(rows))):
        yield "a case is missing or duplicated"
    elif digest_names(names) != shards[0][1].whole:
        yield "the cases differ from the cases of the whole run"
    for word, those in (
        ("planned cases are missing", set(planned) - set(names)),
        ("some cases are not planned", set(names) - set(planned)),
    ):
        if planned and those:
            yield f"{word} ({len(those)}): {', '.join(map(str, sorted(those)[:5]))}"
