"""Make a plan from changes: the sessions that have to run, each with its reason, and the jobs for
them.

The jobs become GitHub's matrix. The cases of a session with shards are divided among its jobs, so
that each case is in exactly one shard. The shards have nearly equal expected durations, and the
same suite always results in the same shards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from ci.gate.rules import ALL, GateRules, Rule
from ci.gate.schema import Difference, Plan, PlannedJob, PlannedSession
from ci.models.suite import DEFAULT_SOC, expect_s
from ci.parity.policy import matches
from ci.report.schema import CaseName
from provisioning.errors import UsageError

T = TypeVar("T")
NO_SUITES: Mapping[str, tuple[CaseName, ...]] = MappingProxyType({})
# Characters allowed in a matrix: its values become environment variables and names of artifacts.
SAFE = re.compile(r"[A-Za-z0-9_./=,:@ -]*")


def list_jobs(
    sessions: Iterable[PlannedSession],
    rules: GateRules,
    suites: Mapping[str, tuple[CaseName, ...]] = NO_SUITES,
) -> tuple[PlannedJob, ...]:
    """Return the jobs of the sessions that have to run and that CI can run. ``suites`` maps each
    session that judges a policy's suite to its cases."""
    jobs = []
    for name in (session.name for session in sessions if session.run and not session.by_hand):
        rule, cases = rules.session_rule(name), suites.get(name, ())
        plain = PlannedJob(
            id=name,
            session=name,
            python=rules.python,
            timeout_minutes=rule.timeout_minutes,
            report=rule.report,
            policy=rule.policy,
            cases=cases,
        )
        count = min(rule.shards, len(cases))
        if count > 1:
            shards = split_cases(cases, count, lambda case: expect_s(case.model, case.scheme))
            for index, part in enumerate(shards, 1):
                shard, job = f"{index}/{count}", f"{name}-{index}-of-{count}"
                jobs.append(
                    replace(plain, id=job, words=("--shard", shard), shard=shard, cases=part)
                )
        elif rule.pythons:
            jobs += [
                replace(plain, id=f"{name}-{version}", python=version) for version in rule.pythons
            ]
        else:
            jobs.append(plain)
    return tuple(jobs)


def render_matrix(jobs: Iterable[PlannedJob]) -> dict[str, Any]:
    """Return the jobs as GitHub's ``strategy.matrix``. Raises UsageError for a value that is not
    SAFE."""
    rows = [
        {
            "job": job.id,
            "session": job.session,
            "python": job.python,
            "shard": job.shard,
            "words": " ".join(job.words),
            "timeout_minutes": job.timeout_minutes,
        }
        for job in jobs
    ]
    for value in (value for row in rows for value in row.values()):
        if isinstance(value, str) and not SAFE.fullmatch(value):
            raise UsageError(f"{value!r} has a character that is not allowed in a matrix")
    return {"include": rows}


def parse_shard(text: str) -> tuple[int, int]:
    """Parse text such as ``2/3`` into a shard's index, counted from 1, and the number of shards.
    Raises UsageError for any other text."""
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text, re.ASCII)
    if not match or int(match[1]) > int(match[2]):
        raise UsageError(f"{text!r} is not a shard", fix="write 2/3 for the second of three shards")
    return int(match[1]), int(match[2])


def split_cases(
    cases: Sequence[T], count: int, expect_s: Callable[[T], float]
) -> tuple[tuple[T, ...], ...]:
    """Split cases into ``count`` shards. The cases are assigned one by one, longest first, each to
    the shard with the shortest expected duration so far.

    Within a shard, cases keep their order in ``cases``. Raises UsageError if a shard would be
    empty.
    """
    if count > len(cases):
        raise UsageError(
            f"there are more shards ({count}) than cases ({len(cases)})",
            fix="use at most one shard per case",
        )
    loads = [0.0] * count
    shards: list[list[int]] = [[] for _ in range(count)]
    for position in sorted(
        range(len(cases)), key=lambda position: (-expect_s(cases[position]), position)
    ):
        shard = min(range(count), key=lambda index: (loads[index], index))
        # Cases that take no time are spread over the shards, too.
        loads[shard] += max(expect_s(cases[position]), 1e-6)
        shards[shard].append(position)
    return tuple(tuple(map(cases.__getitem__, sorted(positions))) for positions in shards)


def list_cases(suite: Mapping[str, Iterable[str]]) -> tuple[CaseName, ...]:
    """Return the cases of a suite, in its order. ``suite`` maps each model to its schemes."""
    return tuple(
        CaseName(model, scheme, DEFAULT_SOC)
        for model, schemes in suite.items()
        for scheme in schemes
    )


NOTHING = "no changed file needs the session"
NO_CHANGE = "nothing changed"
# GitHub events for which changed files decide. A call on the command line has no event. Others,
# such as that of a merge queue, run everything.
PLANNED_EVENTS = frozenset({"", "push", "pull_request"})


def make_plan(
    difference: Difference,
    rules: GateRules,
    *,
    base: str = "",
    head: str = "",
    event: str = "",
    everything: str = "",
) -> Plan:
    """Return the plan for a difference. ``everything`` is the caller's reason to run all sessions.

    Additional changes never make a plan smaller.
    """
    needs = Needs(difference, rules)
    for path in sorted({change.path for change in difference.changes}):
        if not needs.note_change(path) and not needs.everything:
            needs.everything = f"no rule covers {path}"
    if event not in PLANNED_EVENTS:
        everything = everything or f"the event is {event}"
    needs.everything = everything or needs.everything
    sessions = tuple(needs.list_sessions())
    suites = {name: list_cases(suite) for name, suite in difference.suites.items()}
    jobs = list_jobs(sessions, rules, suites)
    sharded = dict.fromkeys(job.session for job in jobs if job.shard)
    return Plan(
        base=base,
        head=head,
        event=event,
        everything=needs.everything,
        changes=difference.changes,
        sessions=sessions,
        cases=tuple(case for name in sharded for case in suites[name]),
        jobs=jobs,
    )


@dataclass
class Needs:
    """The sessions that changes need, collected change by change.

    ``sessions`` maps each needed session to the changed files that need it, each with the reason.
    ``everything`` is the reason why all sessions are needed, or empty if they are not.
    """

    difference: Difference
    rules: GateRules
    sessions: dict[str, dict[str, str]] = field(default_factory=dict)
    everything: str = ""

    def note(self, session: str, path: str, why: str) -> None:
        """Note that a session is needed because of a file. Only the first reason is kept."""
        self.sessions.setdefault(session, {}).setdefault(path, why)

    def note_change(self, path: str) -> bool:
        """Note what a changed path needs. Return whether rules cover all of the change: the file,
        or each of its changed keys if a rule names a key of it."""
        rules_of_file = self._note_rules(path, path)
        is_alone = any(rule.alone for rule in rules_of_file)
        for name, session in self.rules.sessions.items():
            if session.always:
                self.note(name, path, "every change needs the session")
            elif session.whole and not is_alone:
                self.note(name, path, "the session uses every file")
        keys = self.difference.keys.get(path, frozenset())
        covered_keys = {key for key in keys if self._note_rules(path, f"{path}#{key}")}
        if rules_of_file:
            return True
        # Without any changed key, only a comment changed.
        return path in self.difference.keys and self._has_parts(path) and covered_keys == keys

    def _note_rules(self, path: str, part: str) -> list[Rule]:
        """Note the sessions of the rules that match ``part``, which is a path or ``PATH#KEY``.
        Return these rules. The session ``*`` stands for all sessions."""
        fitting = [rule for rule in self.rules.rule if matches(part, rule.files)]
        for name, reason in ((name, rule.reason) for rule in fitting for name in rule.sessions):
            if name == ALL:
                self.everything = self.everything or f"{path}: {reason}"
            else:
                self.note(name, path, reason)
        return fitting

    def _has_parts(self, path: str) -> bool:
        """Return whether a rule names a part of a file."""
        named = [file.partition("#") for rule in self.rules.rule for file in rule.files]
        return matches(path, tuple(file for file, mark, _ in named if mark))

    def list_sessions(self) -> Iterator[PlannedSession]:
        """Yield every session of the rules with the reason why it runs or does not run."""
        nothing = NOTHING if self.difference.changes else NO_CHANGE
        for name in self.rules.session_names:
            files = self.sessions.get(name, {})
            yield PlannedSession(
                name=name,
                run=bool(files or self.everything),
                reason=self.everything or next(iter(files.values()), nothing),
                files=tuple(files),
                by_hand=self.rules.session_rule(name).by_hand,
            )
