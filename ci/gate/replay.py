"""Plan past commits again, to find out how much plans save and whether they skip a needed
session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.gate.cases import CHOOSERS
from ci.gate.changes import Difference
from ci.gate.plan import make_plan
from ci.gate.rules import GateRules, Recorded
from ci.gate.schema import Plan
from ci.parity.policy import matches


@dataclass(frozen=True)
class Step:
    """A commit compared with its parent."""

    commit: str
    difference: Difference


@dataclass(frozen=True)
class Replayed:
    """The replay of one step: the plan that a pull request with this commit would get, the number
    of all cases, and the sessions that the plan skips although they are needed."""

    commit: str
    plan: Plan
    cases: int
    missed: tuple[str, ...] = ()


def replay_step(step: Step, rules: GateRules, recorded: Mapping[str, Recorded]) -> Replayed:
    """Plan a past commit, and find sessions that its plan should not have skipped: those whose
    recorded run opened a file that the commit changes."""
    plan = make_plan(step.difference, rules, head=step.commit)
    whole = make_plan(step.difference, rules, everything="all")
    return Replayed(step.commit, plan, len(whole.cases), tuple(find_missed(plan, rules, recorded)))


def find_missed(plan: Plan, rules: GateRules, recorded: Mapping[str, Recorded]) -> Iterator[str]:
    """Yield the sessions that a plan skips although their recorded run
    opened files that have changed. Each is followed by up to three of these files.

    Files that a rule with ``alone`` handles, and those whose keys are planned one by one, are left
    out.
    """
    planned = {one.name for one in plan.sessions if one.run}
    skipped = (*rules.split, *(one for rule in rules.rule if rule.alone for one in rule.files))
    paths = [one.path for one in plan.changes if not matches(one.path, (*skipped, *CHOOSERS))]
    for session in (one.name for one in plan.sessions if one.name not in planned):
        if found := [path for path in paths if recorded.get(session, Recorded()).covers(path)]:
            yield f"{session}: {', '.join(found[:3])}"


@dataclass(frozen=True)
class Savings:
    """The result of a replay. ``sessions`` and ``cases`` are pairs: the number that would run, and
    the total number."""

    steps: tuple[Replayed, ...]

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(f"{one.commit[:12]} {name}" for one in self.steps for name in one.missed)

    @property
    def sessions(self) -> tuple[int, int]:
        """The number of sessions that would run if each commit were a pull request, and the total
        number. Sessions that CI cannot run are not counted."""
        every = [one for step in self.steps for one in step.plan.sessions if not one.by_hand]
        return sum(one.run for one in every), len(every)

    @property
    def cases(self) -> tuple[int, int]:
        """The number of cases that would run if each commit were a pull request, and the total
        number."""
        ran = sum(len(set(one.plan.cases)) for one in self.steps)
        return ran, sum(one.cases for one in self.steps)

    @property
    def whole(self) -> int:
        """The number of commits for which everything would run."""
        return sum(bool(one.plan.everything) for one in self.steps)


def list_sessions_saved(steps: Sequence[Replayed]) -> dict[str, int]:
    """Return, for each session that CI can run, the number of commits for which it would run."""
    names = {one.name for step in steps for one in step.plan.sessions if not one.by_hand}
    return {
        name: sum(any(one.name == name and one.run for one in step.plan.sessions) for step in steps)
        for name in sorted(names)
    }
