"""Builds what was asked of a run of cases, and the tools that do it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from ci.cases.facts import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy

ASKED = {field.name for field in fields(Options)}


def make_options(lane: str = "emulator", **values: Any) -> Options:
    """Options with this project's policy for ``lane``, and 9 s for each job."""
    policy = values.pop("policy", None) or read_emulator_policy(lane=lane)
    return Options(**{"policy": policy, "timeout_s": 9.0, **values})


def make_setup(work: Path, engine: Any, runner: Any, pool: Any, **values: Any) -> Setup:
    """A setup whose fields, and those of its options, are ``values``."""
    option_values = {name: values.pop(name) for name in ASKED & values.keys()}
    options = values.pop("options", None) or make_options(**option_values)
    setup_fields = {"cache": work / "cache", "work": work / "work", **values}
    return Setup(options=options, engine=engine, runner=runner, pool=pool, **setup_fields)
