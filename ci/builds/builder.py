"""The one builder: a job becomes artifacts, or is found to be up to date."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ci.builds.artifacts import (
    Judged,
    collect_artifacts,
    publish_artifacts,
)
from ci.builds.cache import CacheCounts, read_counts
from ci.builds.inputs import (
    NO_FILE,
    Built,
    Snapshot,
    State,
    digest_snapshot,
    has_artifacts,
    read_record,
    sync_overlay,
    take_snapshot,
    write_state,
)
from ci.builds.place import Place
from ci.builds.plan import BuildJob, BuildPlan
from ci.builds.steps import run_stage
from provisioning.console.progress import Progress
from provisioning.files import write_whole
from provisioning.store.store import explain_errors

SOURCE = "source"


@dataclass(frozen=True)
class Result:
    """A finished build and what was done for it; times in seconds.

    ``published`` is false when an artifact broke its policy: then what was there before stays.
    """

    plan: BuildPlan
    inputs_sha256: str
    artifacts: tuple[Judged, ...]
    published: bool
    up_to_date: bool
    changed_files: int = 0
    stage_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0
    cache: CacheCounts | None = None

    @property
    def place(self) -> Place:
        return self.plan.place


def run_build(job: BuildJob, progress: Progress) -> Result:
    """Build what the job says unless nothing has changed since it was last built.

    What was published before stays as it was when it raises UnfitError, StoreError, ToolError or
    FailedError.
    """
    started = time.monotonic()
    place = job.plan.place
    job.check()
    with explain_errors(place.root), place.locked():
        write_whole(place.origin, str(job.plan.source))
        before = State() if job.request.clean else read_record(place.state, State)
        snapshots = _take_snapshots(job, before)
        rows = (f"{name}\0{digest_snapshot(snapshots[name])}" for name in sorted(snapshots))
        digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
        now = State(job.plan.settings_digest, snapshots, digest, before.artifacts)
        is_current = (before.settings, before.digest) == (now.settings, now.digest)
        if is_current and has_artifacts(place.artifacts, before):
            write_state(place.state, now)
            found = collect_artifacts(job.plan, job.request)
            return Result(job.plan, digest, found, True, True, wall_s=time.monotonic() - started)
        return _build(job, before, now, progress, started)


def _take_snapshots(job: BuildJob, before: State) -> dict[str, Snapshot]:
    snapshots = {SOURCE: take_snapshot(job.plan.source, before.inputs.get(SOURCE), job.skip)}
    for name, directory in job.inputs.items():
        snapshots[name] = take_snapshot(directory, before.inputs.get(name))
    return snapshots


def _build(job: BuildJob, before: State, now: State, progress: Progress, started: float) -> Result:
    plan, place = job.plan, job.plan.place
    if before.settings != now.settings:
        shutil.rmtree(place.stages, ignore_errors=True)
        shutil.rmtree(place.prefix, ignore_errors=True)
    write_state(place.state, State(now.settings, now.inputs, "", before.artifacts))
    for log in (place.log, place.cache_log):
        log.unlink(missing_ok=True)
    progress.step(f"building {plan.target.name} in {place.root}")
    changed = sync_overlay(plan.source, plan.overlay, now.inputs[SOURCE], place.tree_record)
    changed += sum(_count_changes(before.inputs.get(name), now.inputs[name]) for name in job.inputs)
    counts_before = read_counts(plan)
    times = {stage.name: run_stage(plan, stage, progress) for stage in plan.stages}
    judged = collect_artifacts(plan, job.request)
    good = not any(one.errors for one in judged)
    if good:
        publish_artifacts(plan, judged)
        built = tuple(Built(one.path.name, one.sha256) for one in judged)
        write_state(plan.place.state, State(now.settings, now.inputs, now.digest, built))
    counts = read_counts(plan)
    cache = counts.since(counts_before) if counts and counts_before else None
    wall_s = time.monotonic() - started
    return Result(plan, now.digest, judged, good, False, changed, times, wall_s, cache)


def _count_changes(before: Snapshot | None, now: Snapshot) -> int:
    """Files that came, went or have other bytes; none where there is nothing to compare with."""
    known = now if before is None else before
    return sum(
        known.get(path, NO_FILE).sha256 != now.get(path, NO_FILE).sha256
        for path in known.keys() | now.keys()
    )
