"""Make a plan from changes: the sessions that have to run, each with its reason, the suite's cases
that have to run, and the jobs for them.

The cases are split into shards, and the jobs become GitHub's matrix. Each case is in exactly one
shard. The shards have nearly equal expected durations, and the same plan always results in the same
shards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from ci.gate.rules import ALL, CaseRule, GateRules, Rule
from ci.gate.schema import Change, Difference, Kind, Plan, PlannedJob, PlannedSession
from ci.models.suite import DEFAULT_SOC, expect_s
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from ci.report.schema import CaseName
from ci.report.text import count
from provisioning.errors import UsageError

T = TypeVar("T")
FILE = "plan.json"
# Characters allowed in a matrix: its values become environment variables and names of artifacts.
SAFE = re.compile(r"[A-Za-z0-9_./=,:@ -]*")


def list_jobs(
    sessions: Iterable[PlannedSession],
    cases: Sequence[CaseName],
    rules: GateRules,
    suites: Mapping[str, tuple[CaseName, ...]] = MappingProxyType({}),
) -> tuple[PlannedJob, ...]:
    """Return the jobs of the sessions that have to run and that CI can run. ``suites`` maps each
    session that always runs all its cases to these cases."""
    jobs = []
    for name in (session.name for session in sessions if session.run and not session.by_hand):
        rule = rules.session_rule(name)
        plain = PlannedJob(
            id=name,
            session=name,
            python=rules.python,
            timeout_minutes=rule.timeout_minutes,
            report=rule.report,
            policy=rule.policy,
            cases=suites.get(name, ()),
        )
        if rules.cases and name == rules.planned:
            durations_s = [expect_s(case.model, case.scheme) for case in cases]
            number = count_shards(durations_s, rules.cases.shard_s, rules.cases.max_shards)
            shards = split_cases(cases, number, lambda case: expect_s(case.model, case.scheme))
            for index, part in enumerate(shards, 1):
                shard, job = f"{index}/{number}", f"{name}-{index}-of-{number}"
                arguments = ("--plan", FILE, "--shard", shard)
                jobs.append(replace(plain, id=job, words=arguments, shard=shard, cases=part))
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


def count_shards(durations_s: Sequence[float], shard_s: float, max_shards: int) -> int:
    """Return how many shards to use so that each takes about ``shard_s`` seconds: at most
    ``max_shards``, and at most one per case. Return 0 without cases."""
    needed = math.ceil(sum(durations_s) / shard_s)
    return min(max(needed, 1), max_shards, len(durations_s))


MODELS = "ci/models/suite/{}.py"
POLICY, SOCS = "manifests/policies/emulator.toml", "manifests/socs.toml"
BASELINES = "manifests/baselines/*.toml"


def list_cases(suite: Mapping[str, Iterable[str]]) -> tuple[CaseName, ...]:
    """Return the cases of a suite, in its order. ``suite`` maps each model to its schemes."""
    return tuple(
        CaseName(model, scheme, DEFAULT_SOC)
        for model, schemes in suite.items()
        for scheme in schemes
    )


def choose_cases(path: str, difference: Difference, rule: CaseRule) -> tuple[CaseName, ...] | None:
    """Return the cases to run because the file ``path`` has changed:

    - for a file in ``CHOOSERS``, the cases of its changed rows;
    - for the module of a model, the cases of each model whose module imports it;
    - for any other file on which the session of the cases depends, all cases.

    Return None if no case depends on the file. The result is empty if the suite no longer has the
    cases that depend on it.
    """
    suite = list_cases(difference.head.suite)
    keys = difference.keys.get(path)
    for pattern, choose in CHOOSERS.items():
        if keys is not None and matches(path, (pattern,)):
            chosen = (case for key in keys for case in choose(key, suite, rule.probe))
            return tuple(dict.fromkeys(chosen))
    models = [model for tree in difference.trees for model in tree.models]
    if path in map(MODELS.format, models):
        reached = {
            model
            for tree in difference.trees
            for model, reach in tree.models.items()
            if path in reach
        }
        return tuple(case for case in suite if case.model in reached)
    for tree in difference.trees:
        inputs = tree.sessions.get(rule.session)
        if inputs and (
            inputs.explain(path) or any(inputs.explain_key(path, key) for key in keys or ())
        ):
            return suite
    return None


# Tables whose rows are named after a part of a case, and the functions that return this part.
NAMES: Mapping[str, Callable[[CaseName], str]] = {
    "suite": lambda case: case.model,
    "schemes": lambda case: case.scheme,
    "cases": str,
}
Suite = tuple[CaseName, ...]
Chooser = Callable[[str, Suite, str], Iterable[CaseName]]


def _by_name(key: str, suite: Suite, _probe: str) -> Iterable[CaseName]:
    """Return the cases that a changed key concerns. For ``suite.mlp``, these are the cases of the
    model mlp. A key that is not a row of a table in ``NAMES`` concerns all cases."""
    table, _, name = key.partition(".")
    find = NAMES.get(table) if name else None
    return [case for case in suite if find(case) == name] if find else suite


def _by_soc(key: str, suite: Suite, probe: str) -> Iterator[CaseName]:
    soc = key.partition(".")[0]
    for case in suite:
        # The key of a file that is no TOML is `?`: any row may have changed.
        if soc in {DEFAULT_SOC, "?"}:
            yield case
        elif case.model == probe:
            yield CaseName(case.model, case.scheme, soc)


# Files with keys that determine which cases depend on them.
CHOOSERS: Mapping[str, Chooser] = {
    POLICY: _by_name,
    BASELINES: _by_name,
    SOCS: _by_soc,
}


NOTHING = "nothing that the session uses has changed"
NO_CHANGE = "nothing changed"
UNKNOWN = "what it uses is neither recorded nor described, so every change needs it"
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
            needs.everything = f"no rule or dependency covers {path}"
    if event not in PLANNED_EVENTS:
        everything = everything or f"the event is {event}"
    needs.everything = everything or needs.everything
    sessions, cases = tuple(needs.list_sessions()), needs.list_cases()
    suites = {name: list_cases(suite) for name, suite in difference.head.suites.items()}
    return Plan(
        base=base,
        head=head,
        event=event,
        everything=needs.everything,
        changes=difference.changes,
        sessions=sessions,
        cases=cases,
        jobs=list_jobs(sessions, cases, rules, suites),
    )


@dataclass
class Needs:
    """The sessions and cases that changes need, collected change by change.

    ``sessions`` maps each needed session to the changed files that need it, each with the reason.
    ``everything`` is the reason why all sessions are needed, or empty if they are not.
    """

    difference: Difference
    rules: GateRules
    sessions: dict[str, dict[str, str]] = field(default_factory=dict)
    cases: set[CaseName] = field(default_factory=set)
    everything: str = ""

    def note(self, session: str, path: str, why: str) -> None:
        """Note that a session is needed because of a file. Only the first reason is kept."""
        self.sessions.setdefault(session, {}).setdefault(path, why)

    def note_change(self, path: str) -> bool:
        """Note what a changed path needs. Return whether rules or dependencies cover all of the
        change."""
        fitting = self._note_rules(path, path)
        for name, session in self.rules.sessions.items():
            if session.always:
                self.note(name, path, "every change needs the session")
            elif session.whole and not any(rule.alone for rule in fitting):
                self.note(name, path, "the session uses every file")
        keys = self.difference.keys.get(path, frozenset())
        explained = {key for key in keys if self._note_key(path, key)}
        if any(rule.alone for rule in fitting):
            return True
        is_used = self._note_uses(path)
        if self._is_split(path):
            return explained == keys
        return bool(fitting or is_used or explained)

    def _note_rules(self, path: str, part: str) -> list[Rule]:
        """Note the sessions of the rules that match ``part``, which is a path or ``PATH#KEY``.
        Return these rules.

        The session ``*`` stands for all sessions. If a rule names the session with planned cases,
        all cases are noted, too."""
        fitting = [rule for rule in self.rules.rule if matches(part, rule.files)]
        for name, reason in ((name, rule.reason) for rule in fitting for name in rule.sessions):
            if name == ALL:
                self.everything = self.everything or f"{path}: {reason}"
                continue
            self.note(name, path, reason)
            if name == self.rules.planned:
                self.cases.update(list_cases(self.difference.head.suite))
        return fitting

    def _note_key(self, path: str, key: str) -> bool:
        """Note what a changed part of a file needs. Return whether a rule or session covers it."""
        explained = bool(self._note_rules(path, f"{path}#{key}"))
        for tree in self.difference.trees:
            for name, inputs in tree.sessions.items():
                if why := inputs.explain_key(path, key):
                    explained = True
                    if name != self.rules.planned:
                        self.note(name, path, why)
        return explained

    def _note_uses(self, path: str) -> bool:
        """Note the sessions and cases that depend on a file, and sessions with unknown
        dependencies. Return whether any session or case is known to depend on the file."""
        is_used, planned = False, self.rules.planned
        for tree in self.difference.trees:
            for name, inputs in tree.sessions.items():
                rule = self.rules.session_rule(name)
                if not (inputs.is_known or rule.always or rule.whole):
                    self.note(name, path, UNKNOWN)
                elif name != planned and (why := inputs.explain(path)):
                    self.note(name, path, why)
                    is_used = True
        if self.rules.cases and planned in self.difference.head.sessions:
            cases = choose_cases(path, self.difference, self.rules.cases)
            self.cases.update(cases or ())
            if cases:
                models = ", ".join(dict.fromkeys(case.model for case in cases))
                why = f"{count(len(cases), 'case depends', 'cases depend')} on it: {models}"
                if set(cases) >= set(list_cases(self.difference.head.suite)):
                    why = "every case depends on it"
                self.note(planned, path, why)
            is_used = is_used or cases is not None
        return self._note_neighbours(path) or is_used

    def _note_neighbours(self, path: str) -> bool:
        """Note, for an added file, the sessions that use files in the nearest directory above it in
        which any recorded session does. Return whether there is one: a recorded run cannot have
        opened a file that did not exist."""
        rows = [
            session for session in self.difference.head.sessions.values() if session.record.files
        ]
        is_added = Change(path, Kind.ADDED) in self.difference.changes
        folder = directory_of(path) if is_added else ""
        while folder and not any(folder in row.reach.folders for row in rows):
            folder = directory_of(folder)
        near = [row.name for row in rows if folder and folder in row.reach.folders]
        for name in near:
            self.note(name, path, f"the session uses files in {folder}/")
            if name == self.rules.planned and path not in map(
                MODELS.format, self.difference.head.suite
            ):
                self.cases.update(list_cases(self.difference.head.suite))
        return bool(near)

    def _is_split(self, path: str) -> bool:
        """Return whether the keys of a file are handled one by one, because a rule or session names
        one of them."""
        if path not in self.difference.keys or matches(path, (*CHOOSERS,)):
            return False
        rows = (row for tree in self.difference.trees for row in tree.sessions.values())
        used = [use.partition("#")[0] for row in rows for use in row.uses]
        return matches(path, self.rules.split) or path in used

    def list_sessions(self) -> Iterator[PlannedSession]:
        """Yield every session of the head with the reason why it runs or does not run."""
        nothing = NOTHING if self.difference.changes else NO_CHANGE
        for name in self.difference.head.sessions:
            files = self.sessions.get(name, {})
            yield PlannedSession(
                name=name,
                run=bool(files or self.everything),
                reason=self.everything or next(iter(files.values()), nothing),
                files=tuple(files),
                by_hand=self.rules.session_rule(name).by_hand,
            )

    def list_cases(self) -> tuple[CaseName, ...]:
        """Return the cases to run: first the suite's cases, in its order, then cases for other
        SoCs."""
        if self.rules.planned not in self.difference.head.sessions:
            return ()
        suite = list_cases(self.difference.head.suite)
        chosen = {*self.cases, *(suite if self.everything else ())}
        return (*(case for case in suite if case in chosen), *sorted(chosen - set(suite)))
