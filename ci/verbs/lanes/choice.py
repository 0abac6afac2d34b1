"""Which lane compiles the models of a call that several runtimes can take: that of --runtime or,
without it, that of the models' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.models.schemes import RUNTIMES
from ci.verbs.environments import find_runtime, find_suffix
from ci.verbs.lanes import emulator, litert, onnx
from ci.verbs.lanes.lane import Lane
from ci.verbs.user_policy import choose_policy
from provisioning.errors import UsageError

LANES: dict[str, Lane[Any]] = {
    lane.schemes.runtime: lane for lane in (emulator.LANE, onnx.LANE, litert.LANE)
}


def choose_lane(models: Sequence[str], policy: Path | None, runtime: str = "") -> Lane[Any]:
    """Return the lane of ``runtime`` or, if that is "", the one that compiles the requested
    ``models``, or all of the policy's if there are none. Raises UsageError for files that the
    runtime does not compile."""
    suffix = find_suffix(models, choose_policy(policy))
    of_files = next((lane for lane in RUNTIMES.values() if suffix and lane.suffix == suffix), None)
    if runtime and of_files and of_files.runtime != runtime:
        raise UsageError(
            f"--runtime {runtime} is not for {suffix} files",
            why=f"{of_files.title} compiles them, {RUNTIMES[runtime].title} does not",
            fix="leave out --runtime, or pass file.py:factory",
        )
    chosen = of_files.runtime if of_files else find_runtime(models, choose_policy(policy))
    return LANES[runtime or chosen]


def name_verb(runtime: str) -> str:
    """Return the verb that judges models by a runtime."""
    return LANES[runtime].session.replace("_", "-")
