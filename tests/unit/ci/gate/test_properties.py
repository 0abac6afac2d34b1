"""What holds for any set of changes, whatever they are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from ci.gate.plan import make_plan
from ci.gate.rules import read_rules
from ci.gate.schema import Change, Difference, Kind, Plan
from tests.stand_ins.small_project import FILES, PROJECT, compare, edit

RULES = read_rules()
# Two trees that differ in one file of each kind; a property takes any subset of the changes.
EDITS = {
    "ci/cases/policy.py": None,
    "ci/cases/session.py": "from ci.report import write\n",
    "ci/models/suite/lstm.py": None,
    "ci/models/suite/gru.py": "import ci.models.cell\n",
    "ci/builds/builder.py": "import provisioning.files\n",
    "pyproject.toml": PROJECT.replace("ruff==1", "ruff==2").replace("torch==2", "torch==3"),
    "manifests/socs.toml": "[SM8650]\nid = 57\n[SM8750]\nid = 70\n",
    "Makefile": "all:\n",
    "docs/new.md": "new\n",
}
PATHS = sorted({*FILES, *EDITS, "unknown/file.rs", "docs/other.md", "ci/new.py"})
KINDS = st.sampled_from([*Kind])
CHANGES = st.frozensets(st.builds(Change, st.sampled_from(PATHS), KINDS), max_size=6)


@cache
def compare_all() -> Difference:
    """The two trees, which are read when the first test asks: a mutant reads them otherwise."""
    return compare(edit(FILES, EDITS))


def plan_some(changes: frozenset[Change]) -> Plan:
    all_changes, paths = compare_all(), {change.path for change in changes}
    keys = {path: names for path, names in all_changes.keys.items() if path in paths}
    difference = replace(all_changes, changes=tuple(sorted(changes)), keys=keys)
    return make_plan(difference, RULES)


def list_running(plan: Plan) -> set[str]:
    return {session.name for session in plan.sessions if session.run}


@settings(max_examples=150, deadline=None)
@given(CHANGES, CHANGES)
def test_the_plan_of_a_union_covers_the_union_of_the_plans(
    first_changes: frozenset[Change], second_changes: frozenset[Change]
) -> None:
    first, second = plan_some(first_changes), plan_some(second_changes)
    union = plan_some(first_changes | second_changes)
    assert list_running(union) >= list_running(first) | list_running(second)
    assert bool(union.everything) >= bool(first.everything or second.everything)
    sessions = {job.session for job in union.jobs}
    assert sessions >= {job.session for job in (*first.jobs, *second.jobs)}


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_a_plan_has_a_job_for_each_session_that_runs_and_for_no_other(
    changes: frozenset[Change],
) -> None:
    plan = plan_some(changes)
    planned = {session.name for session in plan.sessions if session.run and not session.by_hand}
    assert {job.session for job in plan.jobs} == planned
    assert len({job.id for job in plan.jobs}) == len(plan.jobs)
    assert bool(plan.jobs) == bool(changes)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_a_plan_does_not_depend_on_the_order_of_changes(changes: frozenset[Change]) -> None:
    backwards = replace(compare_all(), changes=tuple(sorted(changes, reverse=True)))
    forwards = replace(compare_all(), changes=tuple(sorted(changes)))
    from_backwards, from_forwards = make_plan(backwards, RULES), make_plan(forwards, RULES)
    assert from_backwards.sessions == from_forwards.sessions
    assert from_backwards.jobs == from_forwards.jobs


def test_no_change_plans_no_session() -> None:
    plan = make_plan(Difference(()), RULES)
    assert list_running(plan) == set()
    assert plan.jobs == ()
