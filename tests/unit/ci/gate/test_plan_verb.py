"""What a plan is made of, when a push runs everything, and how it is shown."""

from __future__ import annotations

import html
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ci.gate.render import (
    describe,
    describe_cases,
    show_fate,
    show_reason,
)
from ci.gate.schema import Plan, PlannedSession
from ci.report.schema import CaseName
from ci.verbs.plan import find_base
from provisioning.errors import UsageError


def make_session(name: str, *, run: bool = True, by_hand: str = "", **more: Any) -> PlannedSession:
    return PlannedSession(name=name, run=run, by_hand=by_hand, **{"reason": "why", **more})


def make_plan(*sessions: PlannedSession, **more: Any) -> Plan:
    usual = {"base": "", "head": "", "event": "", "everything": "", "changes": (), "jobs": ()}
    return Plan(sessions=sessions, **{**usual, "cases": (), **more})


CASES = tuple(
    CaseName(*one) for one in (("a", "fp16", "S1"), ("b", "fp16", "S1"), ("b", "8a8w", "S2"))
)


@pytest.mark.parametrize(
    ("event", "counts", "everything"),
    [
        ("push", (9, 10), "this is due every 10 commits of main, here at commit 10"),
        ("push", (10, 19), ""),
        ("push", (3, 25), "this is due every 10 commits of main, here at commit 10"),
        ("pull_request", (9, 10), ""),
        ("", (9, 10), ""),
    ],
)
def test_one_in_so_many_commits_of_a_push_runs_everything(
    event: str, counts: tuple[int, int], everything: str
) -> None:
    for head in ("head", ""):
        numbers = dict(zip(("base", head or "HEAD"), counts, strict=True))
        repository: Any = SimpleNamespace(
            find_base=lambda base, head, wanted=head: base if head == wanted else "",
            count_commits=numbers.__getitem__,
            rules=SimpleNamespace(branch="main", every_nth=10),
        )
        args = Namespace(base="base", event=event)
        assert find_base(args, repository, head) == ("base", everything)


@pytest.mark.parametrize("event", ["push", "pull_request", ""])
def test_only_a_push_without_its_base_runs_everything(event: str) -> None:
    def fail(*_: str) -> str:
        raise UsageError("gone")

    repository: Any = SimpleNamespace(find_base=fail, resolve=lambda one: f"{one}!")
    args = Namespace(base="0123456789abcdef", event=event)
    if event == "push":
        for head, found in (("", "HEAD!"), ("topic", "topic!")):
            base, why = find_base(args, repository, head)
            assert (base, "0123456789ab cannot" in why) == (found, True)
        return
    with pytest.raises(UsageError):
        find_base(args, repository, "")


def test_a_plan_tells_trees_files_jobs_and_cases() -> None:
    jobs: Any = [SimpleNamespace(session=one) for one in ("lint", "tests", "tests")]
    plan = make_plan(
        base="a" * 40, head="b" * 40, changes=(1,), jobs=tuple(jobs), everything="new", cases=CASES
    )
    assert (
        describe(plan) == f"{'a' * 12} to {'b' * 12}: 1 file changed, 3 jobs; everything runs: new"
    )
    assert describe(make_plan(head="b" * 40)) == f"{'b' * 12}: 0 files changed, 0 jobs"
    fates = [
        show_fate(one, plan)
        for one in (
            make_session("lint"),
            make_session("tests"),
            make_session("tests", run=False),
            make_session("parity", by_hand="slow"),
            make_session("test_emulator"),  # no case depends on the change
        )
    ]
    assert fates == ["run", "run, 2 jobs", "-", "by hand", "run, 0 jobs"]
    files = ("a", "b", "c", "d")
    assert show_reason(make_session("x", files=files[:3])) == "a, b, c: why"
    assert show_reason(make_session("x", files=files)) == "a, b, c and 1 more: why"
    assert show_reason(make_session("x", by_hand="slow")) == "why (slow)"
    assert show_reason(replace(make_session("x", files=files[:1]), reason="")) == ""
    assert show_reason(make_session("x", run=False, by_hand="slow")) == "why"
    assert html.unescape(describe_cases(CASES)) == "Cases: 3 (a 1, b 2) on S1, S2"
