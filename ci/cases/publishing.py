"""A lowering in a scratch directory, published as one whole or refused with a reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from ci.cases.artifact import Lowered, publish_artifact
from ci.cases.engine import LowerJob, LowerResult
from ci.cases.stages import Stages
from provisioning.files import explain_no_room, explain_writes, scratch_directory

MAX_RAISED = 300


def publish_lowering(
    job: LowerJob,
    entry: LowerResult,
    lower: Callable[[Path, Stages], Lowered],
    describe: Callable[[Exception], str],
) -> LowerResult:
    """What ``lower`` writes into a directory, published as ``entry``, or beside the job's log where
    a good one is there already. What it raises is a refusal, which ``describe`` puts into words.
    Raises StoreError where there is no room.
    """
    cache, directory, stages = Path(job.cache), Path(entry.directory), Stages()
    cache.mkdir(parents=True, exist_ok=True)
    with explain_writes(cache), scratch_directory(cache, "lowering") as scratch:
        try:
            lowered = lower(scratch / directory.name, stages)
        except Exception as error:
            no_room = explain_no_room(error)
            if no_room:
                raise no_room from error
            return LowerResult(refused=describe(error))
        if not publish_artifact(scratch / directory.name, directory) and not job.use_cache:
            fresh = Path(job.log).with_name("lowered") / directory.name
            shutil.move(scratch / directory.name, fresh)
            directory = fresh
    seconds = {**entry.stages, **stages.seconds}
    return msgspec.structs.replace(entry, directory=str(directory), lowered=lowered, stages=seconds)


def describe_error(error: BaseException) -> str:
    """An exception on one line, at most MAX_RAISED characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
    return text if len(text) <= MAX_RAISED else f"{text[:MAX_RAISED]}..."
