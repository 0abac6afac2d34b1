"""Shards of a run, merged into one report."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ci.report.merge import find_faults, merge_reports
from ci.report.schema import (
    CaseName,
    Control,
    ControlKind,
    Phase,
    Report,
    Status,
    Threshold,
    Tool,
    summarize,
)
from provisioning.errors import UsageError
from tests.stand_ins.reports import change_case, make_report
from tests.stand_ins.shards import make_cases, make_shards

NAMES = [
    f"{model} {scheme} SM8650" for model in ("mlp", "lstm", "a") for scheme in ("fp16", "8a8w")
]
CASES = make_cases(*NAMES)


@pytest.mark.parametrize("count", range(1, 7))
def test_merged_shards_equal_the_report_of_the_whole_run(count: int) -> None:
    shards = make_shards(CASES, count)
    merged = merge_reports(list(reversed(shards)))
    assert merged == make_report(CASES)
    assert merged.shard is None
    assert merged.ok


NOWHERE = Control(model="mlp", scheme="fp16", kind=ControlKind.NOISE, rejected=True)  # of no SoC


def test_merged_shards_keep_failures_controls_limits_and_times() -> None:
    failed = change_case(CASES[2], status=Status.FAILED)
    cases = [*CASES[:2], failed, *CASES[3:]]
    controls = [
        Control(model=c.model, scheme=c.scheme, soc=c.soc, kind=ControlKind.ZEROS, rejected=True)
        for c in cases
    ]
    rules = [Threshold(scheme="fp16"), Threshold(scheme="8a8w")]
    rules.append(Threshold(scheme="fp16", model="a"))
    whole_run = make_report(cases, controls, thresholds=tuple(rules), wall_s=9.0)
    shards = []
    for number, part in enumerate(make_shards(cases, 3)):
        names_of_part = {case.name for case in part.cases}
        controls_of_part = tuple(control for control in controls if control.name in names_of_part)
        controls_of_part = (NOWHERE, *controls_of_part) if number == 0 else controls_of_part
        used = [whole_run.threshold_for(case) for case in part.cases]
        seconds = {"cases": [1.0, 2.0, 0.5][number], f"own{number}": 1.0}
        steps = [Phase(name=name, seconds=duration) for name, duration in seconds.items()]
        shards.append(
            replace(
                part,
                controls=controls_of_part,
                thresholds=tuple(rule for rule in rules if rule in used),
                remarks=("of all shards", f"of shard {number}"),
                started=f"2026-11-20T08:00:0{9 - number}Z",
                summary=summarize(part.cases, controls_of_part, 9.0 - number, steps),
            )
        )
    merged = merge_reports(shards)
    assert merged.cases == whole_run.cases
    assert merged.controls == (*whole_run.controls, NOWHERE)
    assert len(merged.thresholds) == len(whole_run.thresholds)
    assert all(threshold in whole_run.thresholds for threshold in merged.thresholds)
    assert (merged.summary.failed, merged.ok, merged.summary.wall_s) == (1, False, 9.0)
    assert merged.started == "2026-11-20T08:00:07Z"
    assert merged.remarks == ("of all shards", *(f"of shard {number}" for number in range(3)))
    phases = [(phase.name, phase.seconds) for phase in merged.summary.phases]
    assert phases == [("cases", 2.0), *((f"own{number}", 1.0) for number in range(3))]


def with_mark(report: Report, **changes: object) -> Report:
    assert report.shard
    return replace(report, shard=replace(report.shard, **changes))


ONE, TWO, THREE = make_shards(CASES, 3)
TOOL = (Tool(name="torch", version="1"),)


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([], "there are no reports"),
        ([ONE, TWO], "shard 3/3 is missing"),
        ([THREE], "shard 1/3, shard 2/3 are missing"),
        ([ONE, TWO, TWO, THREE], "shard 2/3 was passed 2 times"),
        ([ONE, replace(TWO, unjudged=1), THREE], "shard 2/3 was cut short"),
        ([ONE, TWO, make_report(CASES)], "not belong to a shard"),
        ([make_report(CASES)], "not belong to a shard"),
        ([ONE, TWO, replace(THREE, toolchain=TOOL)], "they have different toolchains"),
        ([ONE, TWO, replace(THREE, backend="lpai")], "they have different backends"),
        ([ONE, TWO, replace(THREE, session="other")], "they have different sessions"),
        ([ONE, TWO, with_mark(THREE, policy="1" * 64)], "they have different policies or options"),
        ([ONE, TWO, with_mark(THREE, whole="1" * 64)], "they have different lists of cases"),
        ([ONE, *make_shards(CASES, 2)], "they have different numbers of shards"),
        ([ONE, TWO, make_shards(CASES[:-1], 3)[2]], "they have different lists of cases"),
        (
            [ONE, TWO, replace(THREE, cases=THREE.cases[:1])],
            "a shard does not have exactly the cases that were assigned to it",
        ),
        (
            [ONE, TWO, replace(THREE, cases=(*THREE.cases[:1], ONE.cases[0]))],
            "differ from the cases of",
        ),
        ([ONE, TWO, with_mark(THREE, positions=(0, 3))], "a case is missing"),
        (
            [ONE, TWO, replace(THREE, cases=tuple(reversed(THREE.cases)))],
            "differ from the cases of the whole",
        ),
    ],
)
def test_shards_that_are_not_one_whole_run_are_refused(reports: list[Report], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        merge_reports(reports)
    assert why in caught.value.why
    assert caught.value.what == "these reports are not the shards of one run"
    assert caught.value.fix == "pass the report of each shard once"


def test_merged_shards_must_contain_the_planned_cases() -> None:
    shards = [ONE, TWO, THREE]
    planned = {case.name for case in CASES}
    not_run = {CaseName(f"gru{number}", "fp16", "SM8650") for number in range(7)}
    five = ", ".join(f"gru{number} fp16 SM8650" for number in range(5))
    for reports, plan, faults in (
        (shards, planned, []),
        (shards, planned | not_run, [f"planned cases are missing (7): {five}"]),
        (shards, planned - {CASES[0].name}, ["some cases are not planned (1): mlp fp16 SM8650"]),
        ([ONE, TWO], planned, ["shard 3/3 is missing"]),  # not its cases in addition
    ):
        assert find_faults(reports, plan) == faults


def test_few_of_many_missing_shards_are_listed() -> None:
    many = [with_mark(report, count=10_000) for report in (ONE, TWO)]
    with pytest.raises(UsageError) as caught:
        merge_reports(many)
    assert "and 9990 others are missing" in caught.value.why
    assert len(caught.value.why) < 400
