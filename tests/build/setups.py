"""Builds what was asked of a run of cases, and the tools that do it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from ci.cases.judged import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy

ASKED = {field.name for field in fields(Options)}


def make_options(lane: str = "emulator", **fields_given: Any) -> Options:
    """Options with this project's policy for ``lane``, and 9 s for each job."""
    policy = fields_given.pop("policy", None) or read_emulator_policy(lane=lane)
    return Options(**{"policy": policy, "timeout_s": 9.0, **fields_given})


def make_setup(work: Path, engine: Any, runner: Any, pool: Any, **fields_given: Any) -> Setup:
    """A setup whose fields, and those of its options, are ``fields_given``."""
    options_given = {name: fields_given.pop(name) for name in ASKED & fields_given.keys()}
    options = fields_given.pop("options", None) or make_options(**options_given)
    setup_fields = {"cache": work / "cache", "work": work / "work", **fields_given}
    return Setup(options=options, engine=engine, runner=runner, pool=pool, **setup_fields)
