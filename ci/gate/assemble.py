"""A difference to a whole plan: needs, sessions, cases, jobs."""

from __future__ import annotations

from ci.gate.facts import Difference
from ci.gate.jobs.matrix import list_jobs
from ci.gate.plan import find_needs, list_cases, list_sessions
from ci.gate.rules import GateRules
from ci.gate.schema import Plan

# Events of GitHub that have no changes to plan by.
WHOLE_EVENTS = frozenset({"schedule", "workflow_dispatch", "repository_dispatch", "release"})


def make_plan(
    difference: Difference,
    rules: GateRules,
    *,
    base: str = "",
    head: str = "",
    event: str = "",
    everything: str = "",
) -> Plan:
    """The plan of a difference; ``everything`` is a reason from outside to run all."""
    needs = find_needs(difference, rules)
    if event in WHOLE_EVENTS:
        everything = everything or f"the event is {event}"
    needs.everything = everything or needs.everything
    sessions = list_sessions(needs, difference, rules)
    cases = list_cases(needs, difference, rules)
    return Plan(
        base=base,
        head=head,
        event=event,
        everything=needs.everything,
        changes=difference.changes,
        sessions=sessions,
        cases=cases,
        jobs=list_jobs(sessions, cases, rules),
    )


def count_due(first: int, last: int, every_nth: int) -> int:
    """The first multiple of ``every_nth`` among the commits after ``first`` up to ``last``; or 0.

    Both are counts of first-parent commits from the root.
    """
    due = (first // every_nth + 1) * every_nth
    return due if due <= last else 0
