"""Builds what was asked of a run of cases, and the tools that do it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from ci.cases.judged import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy

ASKED = {one.name for one in fields(Options)}


def make_options(lane: str = "emulator", **own: Any) -> Options:
    """Options with this project's policy for ``lane``, and 9 s for each job."""
    policy = own.pop("policy", None) or read_emulator_policy(lane=lane)
    return Options(**{"policy": policy, "timeout_s": 9.0, **own})


def make_setup(work: Path, engine: Any, runner: Any, pool: Any, **own: Any) -> Setup:
    """A setup whose fields, and those of its options, are ``own``."""
    asked = {name: own.pop(name) for name in ASKED & own.keys()}
    options = own.pop("options", None) or make_options(**asked)
    given = {"cache": work / "cache", "work": work / "work", **own}
    return Setup(options=options, engine=engine, runner=runner, pool=pool, **given)
