"""A build that is ready to start: its plan and everything that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.build.plan.plan import BuildPlan, BuildRequest


def check_nothing() -> None:
    """For a build that needs nothing but a compiler."""


@dataclass(frozen=True)
class BuildJob:
    """``inputs`` are directories besides the plan's source; ``skip`` the parts of the source
    that do not count; ``variables`` what a program needs that uses the artifacts; ``check``
    raises UnfitError when the environment is not fit, and is called before anything is built."""

    plan: BuildPlan
    request: BuildRequest
    inputs: Mapping[str, Path]
    skip: frozenset[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], None] = check_nothing
