"""Turn a plan's sessions into jobs, its cases into shards, and the jobs into GitHub's matrix.

Each case is in exactly one shard. The shards have nearly equal expected durations, and the same
plan always results in the same shards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from ci.gate.rules import GateRules
from ci.gate.schema import PlannedJob, PlannedSession
from ci.models.suite import expect_s
from ci.report.schema import CaseName
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
    chosen = [one.name for one in sessions if one.run and not one.by_hand]
    return tuple(
        job for name in chosen for job in _list_jobs_of(name, cases, rules, suites.get(name, ()))
    )


def _list_jobs_of(
    name: str, cases: Sequence[CaseName], rules: GateRules, own: tuple[CaseName, ...]
) -> Iterator[PlannedJob]:
    rule = rules.session_rule(name)
    plain = PlannedJob(
        id=name,
        session=name,
        python=rules.python,
        timeout_minutes=rule.timeout_minutes,
        report=rule.report,
        policy=rule.policy,
        cases=own,
    )
    if rules.cases and name == rules.planned:
        durations_s = [expect_s(case.model, case.scheme) for case in cases]
        count = count_shards(durations_s, rules.cases.shard_s, rules.cases.max_shards)
        shards = split_cases(cases, count, lambda one: expect_s(one.model, one.scheme))
        for index, part in enumerate(shards, 1):
            shard = f"{index}/{count}"
            words, job = ("--plan", FILE, "--shard", shard), f"{name}-{index}-of-{count}"
            yield replace(plain, id=job, words=words, shard=shard, cases=part)
    elif rule.pythons:
        for python in rule.pythons:
            yield replace(plain, id=f"{name}-{python}", python=python)
    else:
        yield plain


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
    for value in (value for row in rows for value in row.values() if isinstance(value, str)):
        if not SAFE.fullmatch(value):
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
    for one in sorted(range(len(cases)), key=lambda one: (-expect_s(cases[one]), one)):
        shard = min(range(count), key=lambda index: (loads[index], index))
        loads[shard] += max(expect_s(cases[one]), 1e-6)
        shards[shard].append(one)
    return tuple(tuple(cases[one] for one in sorted(shard)) for shard in shards)


def count_shards(durations_s: Sequence[float], shard_s: float, most: int) -> int:
    """Return how many shards to use so that each takes about ``shard_s`` seconds: at most ``most``,
    and at most one per case. Return 0 without cases."""
    wanted = math.ceil(sum(durations_s) / shard_s)
    return min(max(wanted, 1), most, len(durations_s))
