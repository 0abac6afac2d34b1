"""The part of a run's cases that a plan and a shard leave to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ci.cases.policy import EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.gate.jobs import parse_shard, split_cases
from ci.gate.results import read_plan
from ci.models.schemes import Scheme
from ci.models.suite import expect_s
from ci.report.merge import digest_names
from ci.report.schema import ShardMark
from provisioning.errors import UsageError


def list_planned(path: Path) -> list[CaseSpec]:
    """The cases of a plan.json. Raises UsageError where there is none."""
    cases = read_plan(path).cases
    if not cases:
        raise UsageError(f"{path} plans no case", fix="leave --plan out to run all")
    try:
        return [CaseSpec(case.model, Scheme(case.scheme), case.soc) for case in cases]
    except ValueError as error:
        raise UsageError(f"{path} plans what is not there", why=str(error)) from error


def take_shard(
    specs: Sequence[CaseSpec], text: str, policy: EmulatorPolicy, runner: str
) -> tuple[list[CaseSpec], ShardMark]:
    """The cases of a shard such as ``2/3``, and its mark. Raises UsageError."""
    shard = parse_shard(text)
    parts = split_cases(specs, shard.count, lambda one: expect_s(one.model, one.scheme.value))
    chosen = parts[shard.index - 1]
    mark = ShardMark(
        index=shard.index,
        count=shard.count,
        positions=tuple(position for position, spec in enumerate(specs) if spec in set(chosen)),
        whole=digest_names((spec.model, spec.scheme.value, spec.soc) for spec in specs),
        policy=digest_policy(policy, specs, runner),
    )
    return list(chosen), mark


def digest_policy(policy: EmulatorPolicy, specs: Sequence[CaseSpec], runner: str) -> str:
    """SHA-256 over all that cases are lowered with and judged by, and what runs them."""
    chosen = [str(spec.source.choices) for spec in specs]
    limits = policy.describe_limits(specs)
    parts = (chosen, limits, policy.reference, policy.unsupported, runner)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
