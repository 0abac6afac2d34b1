"""The one builder: a plan becomes artifacts, or is found to be up to date."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.build.artifacts import find_artifacts, publish_artifacts, stage_artifacts
from ci.build.inputs import Snapshot, digest_snapshot, hash_file, take_snapshot
from ci.build.overlay import explain_full_disk, sync_overlay
from ci.build.plan import Plan, Request
from ci.build.state import Built, State, has_artifacts, read_state, write_state
from ci.build.steps import run_stage
from provisioning.progress import Progress

SOURCE = "source"


@dataclass(frozen=True)
class Result:
    """A finished build: its artifacts and what was done for them. Times in seconds."""

    plan: Plan
    inputs_sha256: str
    up_to_date: bool
    changed_files: int
    stage_s: Mapping[str, float]
    wall_s: float

    @property
    def artifacts(self) -> tuple[Path, ...]:
        """The published files, sorted."""
        return tuple(sorted(self.plan.place.artifacts.iterdir()))


def run_build(
    plan: Plan,
    request: Request,
    inputs: Mapping[str, Path],
    skip: frozenset[str],
    progress: Progress,
) -> Result:
    """Build what ``plan`` says unless nothing has changed since it was last built.

    ``inputs`` are the directories besides the source that count, ``skip`` the parts of the
    source that do not. Raises UnfitError, ToolError or FailedError; then what was published
    before stays as it was.
    """
    started = time.monotonic()
    place = plan.place
    with explain_full_disk(place.root), place.locked():
        before = State() if request.clean else read_state(place.state)
        snapshots = _take_snapshots(plan.source, inputs, skip, before)
        digest = _digest_all(snapshots)
        now = State(plan.settings_digest, snapshots, digest, before.artifacts)
        if (before.settings, before.digest) == (now.settings, now.digest) and has_artifacts(
            place.artifacts, before
        ):
            write_state(place.state, now)
            return Result(plan, digest, True, 0, {}, time.monotonic() - started)
        changed, times = _build(plan, before, now, progress)
        _publish(plan, request, now)
    return Result(plan, digest, False, changed, times, time.monotonic() - started)


def _take_snapshots(
    source: Path, inputs: Mapping[str, Path], skip: frozenset[str], before: State
) -> dict[str, Snapshot]:
    snapshots = {SOURCE: take_snapshot(source, before.inputs.get(SOURCE), skip)}
    for name, directory in inputs.items():
        snapshots[name] = take_snapshot(directory, before.inputs.get(name))
    return snapshots


def _digest_all(snapshots: Mapping[str, Snapshot]) -> str:
    rows = (f"{name}\0{digest_snapshot(snapshots[name])}" for name in sorted(snapshots))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _build(
    plan: Plan, before: State, now: State, progress: Progress
) -> tuple[int, dict[str, float]]:
    place = plan.place
    if before.settings != now.settings:
        shutil.rmtree(place.stages, ignore_errors=True)
        shutil.rmtree(place.prefix, ignore_errors=True)
    write_state(place.state, State("", now.inputs, "", before.artifacts))
    place.log.unlink(missing_ok=True)
    progress.step(f"building {plan.target.name} in {place.root}")
    changed = sync_overlay(plan.source, plan.overlay, now.inputs[SOURCE], place.tree_record)
    times = {stage.name: run_stage(plan, stage, progress) for stage in plan.stages}
    return changed, times


def _publish(plan: Plan, request: Request, now: State) -> None:
    fresh = stage_artifacts(plan, find_artifacts(plan, request.extras))
    built = tuple(Built(path.name, hash_file(path)) for path in sorted(fresh.iterdir()))
    publish_artifacts(plan, fresh)
    write_state(plan.place.state, State(now.settings, now.inputs, now.digest, built))
