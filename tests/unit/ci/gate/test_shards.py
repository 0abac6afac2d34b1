"""Cases in shards, and the part of a run that is a shard's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.gate.plan import list_cases, list_jobs, parse_shard, split_cases
from ci.gate.rules import read_rules
from ci.gate.schema import PlannedSession
from ci.models.schemes import Scheme
from ci.verbs.lanes.emulator import list_planned, take_shard
from provisioning.errors import UsageError

POLICY = read_emulator_policy()
SPECS = select_cases(POLICY.suite, ["SM8650"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.data())
def test_every_case_is_in_one_shard(durations_s: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(durations_s)))
    cases = list(enumerate(durations_s))
    shards = split_cases(cases, count, lambda case: case[1])
    assert sorted(case for shard in shards for case in shard) == cases
    assert all(shards)
    assert all(list(shard) == sorted(shard) for shard in shards)
    assert shards == split_cases(cases, count, lambda case: case[1])
    loads = []
    for shard in shards:
        _, shard_durations_s = zip(*shard, strict=True)
        loads.append(sum(shard_durations_s))
    assert max(loads) - min(loads) <= max(durations_s) + 1e-3


NO_SHARDS = ["", "0/2", "3/2", "1", "1/0", "1/2/3", "-1/2", "a/b", "1/ 2", "1/1000", "01/2", "1/2 "]


@pytest.mark.parametrize("text", NO_SHARDS)
def test_an_invalid_shard_argument_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shard(text)
    assert caught.value.what == f"{text!r} is not a shard"
    assert caught.value.fix == "write 2/3 for the second of three shards"


def test_shards_are_balanced_and_more_shards_than_cases_are_refused() -> None:
    assert split_cases("abcd", 2, "xdcba".index) == (("a", "d"), ("b", "c"))
    assert split_cases([0.9, 0.3, 0.3, 0.2], 2, float) == ((0.9,), (0.3, 0.3, 0.2))
    with pytest.raises(UsageError, match=r"more shards \(3\) than cases \(2\)"):
        split_cases("ab", 3, lambda _: 1.0)


def test_a_planned_shard_has_the_cases_that_the_session_runs() -> None:
    suite = {model: tuple(map(str, schemes)) for model, schemes in POLICY.suite.items()}
    session = PlannedSession(name="test_emulator", run=True, reason="")
    jobs = list_jobs([session], read_rules(), {"test_emulator": list_cases(suite)})
    assert len(jobs) > 1
    for job in jobs:
        specs, _ = take_shard(SPECS, job.shard, POLICY, "python")
        assert [(case.model, case.scheme, case.soc) for case in job.cases] == [
            (spec.model, spec.scheme.value, spec.soc) for spec in specs
        ]


def test_shard_marks_record_positions_and_a_digest_of_the_policy() -> None:
    taken = [take_shard(SPECS, f"{index}/3", POLICY, "python") for index in (1, 2, 3)]
    marks = [mark for _, mark in taken]
    assert sorted(place for mark in marks for place in mark.positions) == [*range(len(SPECS))]
    for specs, mark in taken:
        assert [SPECS[place] for place in mark.positions] == specs
    assert len({(mark.whole, mark.policy, mark.count) for mark in marks}) == 1
    assert take_shard(SPECS, "1/3", POLICY, "cpp")[1].policy != marks[0].policy
    changed = {
        "unsupported": (),
        "reference": replace(POLICY.reference, min_rms=1.0),
        "schemes": {
            scheme: replace(limits, max_abs=1.0) for scheme, limits in POLICY.schemes.items()
        },
    }
    for name, value in changed.items():
        changed_policy = replace(POLICY, **{name: value})
        assert take_shard(SPECS, "1/3", changed_policy, "python")[1].policy != marks[0].policy
    assert take_shard(SPECS[1:], "1/3", POLICY, "python")[1].whole != marks[0].whole


def test_cases_of_a_plan_are_read_and_wrong_ones_refused(tmp_path: Path) -> None:
    plan = {"base": "a", "head": "b", "cases": [{"model": "mlp", "scheme": "fp16", "soc": "X"}]}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    assert list_planned(path) == [CaseSpec("mlp", Scheme.FP16, "X")]
    path.write_text(json.dumps({**plan, "cases": []}))
    with pytest.raises(UsageError, match="contains no case"):
        list_planned(path)
    path.write_text(json.dumps(plan).replace("fp16", "1a1w"))
    with pytest.raises(UsageError, match=path.name) as caught:
        list_planned(path)
    assert "1a1w" in caught.value.why
