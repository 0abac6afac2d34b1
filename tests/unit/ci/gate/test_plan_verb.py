"""What a plan is made of, when a push runs everything, and how it is shown."""

from __future__ import annotations

import html
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ci.gate.render import (
    describe,
    describe_cases,
    render_markdown,
    render_table,
    show_fate,
    show_reason,
)
from ci.gate.schema import Plan, PlannedSession
from ci.report.schema import CaseName
from ci.verbs import plan as plan_verb
from ci.verbs.plan import find_base, plan_changes
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
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


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("event", ["pull_request", "nightly"])
@pytest.mark.parametrize(
    ("head", "is_bare", "wanted"),
    [("", False, ""), ("", True, "HEAD"), ("topic", False, "topic"), ("topic", True, "topic")],
)
def test_a_plan_is_for_the_head_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    everything: bool,
    head: str,
    is_bare: bool,
    wanted: str,
) -> None:
    asked: dict[str, Any] = {}
    checked: list[str] = []
    repository: Any = SimpleNamespace(
        is_bare=is_bare,
        rules="rules",
        resolve=lambda name: f"commit of {name}",
        require_history=lambda *_: checked.append("history"),
        find_base=lambda base, head: f"base of {base} and {head}",
        compare=lambda base, head: (base, head),
    )
    monkeypatch.setattr(
        plan_verb, "make_plan", lambda *words, **more: asked.update(more, words=words)
    )
    args = Namespace(head=head, base="main", event=event, everything=everything)
    plan_changes(args, repository)
    commit = f"commit of {wanted}" if wanted else ""
    base = f"base of main and {wanted}"
    is_compared = event in {"", "push", "pull_request"} and not everything
    if not is_compared:
        base = f"commit of {wanted or 'HEAD'}"
    assert checked == (["history"] if is_compared else [])
    assert asked == {
        "words": ((base, commit), "rules"),
        "base": base,
        "head": commit or "work tree",
        "event": event,
        "everything": "--everything" if everything else "",
    }


def test_a_plan_is_printed_as_a_table_or_as_markdown_and_written_to_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = make_plan(make_session("lint"), base="a" * 40, head="b" * 40)
    asked: list[Any] = []
    monkeypatch.setattr(plan_verb, "Repository", lambda place, rules: (place, rules))
    monkeypatch.setattr(plan_verb, "read_rules", lambda file: f"rules of {file}")
    monkeypatch.setattr(plan_verb, "plan_changes", lambda *words: asked.append(words) or plan)
    usual = {
        "source": ".",
        "rules": None,
        "record": None,
        "markdown": False,
        "out": None,
    }
    rows: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, render_table(plan)),
        ({"markdown": True}, render_markdown(plan)),
        ({"out": tmp_path / "plan.json"}, render_table(plan)),
    )
    for words, text in rows:
        args = Namespace(**{**usual, **words})
        wanted = Outcome(text, msgspec.to_builtins(plan), exact=args.markdown)
        assert plan_verb.execute(args, Progress()) == wanted
        assert asked.pop() == (args, (Path(), "rules of None"))
    assert msgspec.json.decode((tmp_path / "plan.json").read_bytes(), type=Plan) == plan
