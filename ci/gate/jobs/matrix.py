"""A plan's sessions as jobs: one a Python, one a shard; and GitHub's matrix of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ci.gate.jobs.shards import count_shards
from ci.gate.plan import session_rule
from ci.gate.rules import GateRules
from ci.gate.schema import PlannedCase, PlannedJob, PlannedSession
from ci.models.suite import expect_s

FILE = "plan.json"
# What a matrix may hold: it ends up in a shell's environment, and in names of artifacts.
SAFE = re.compile(r"[A-Za-z0-9_./=,:@ -]*")


def list_jobs(
    sessions: Iterable[PlannedSession], cases: Sequence[PlannedCase], rules: GateRules
) -> tuple[PlannedJob, ...]:
    """The jobs of the sessions that run, and that CI can run."""
    chosen = [one.name for one in sessions if one.run and not one.by_hand]
    return tuple(job for name in chosen for job in _list_jobs_of(name, cases, rules))


def _list_jobs_of(
    name: str, cases: Sequence[PlannedCase], rules: GateRules
) -> Iterator[PlannedJob]:
    rule = session_rule(rules, name)
    if rules.cases and name == rules.cases.session:
        if not cases:
            return
        durations_s = [expect_s(case.model, case.scheme) for case in cases]
        count = count_shards(durations_s, rules.cases.shard_s, rules.cases.max_shards)
        for index in range(1, count + 1):
            shard = f"{index}/{count}"
            yield PlannedJob(
                id=f"{name}-{index}-of-{count}",
                session=name,
                python=rules.python,
                words=("--plan", FILE, "--shard", shard),
                shard=shard,
                timeout_minutes=rule.timeout_minutes,
                report=rule.report,
            )
        return
    for python in rule.pythons or (rules.python,):
        yield PlannedJob(
            id=f"{name}-{python}" if rule.pythons else name,
            session=name,
            python=python,
            timeout_minutes=rule.timeout_minutes,
            report=rule.report,
        )


def render_matrix(jobs: Iterable[PlannedJob]) -> dict[str, Any]:
    """What GitHub's ``strategy.matrix`` takes. Raises ValueError for a value that is not SAFE."""
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
    for value in (value for row in rows for value in row.values() if isinstance(value, str)):
        if not SAFE.fullmatch(value):
            raise ValueError(f"{value!r} is nothing for a matrix")
    return {"include": rows}
