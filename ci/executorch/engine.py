"""A lowering that is asked for: found among what was lowered before, or made.

Needs torch alone. ExecuTorch's compiler, whose import takes seconds, is loaded for the first
program that has to be made.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
import sys
from pathlib import Path

import msgspec
import torch
from msgspec import structs

from ci.cases.artifact import artifact_path, read_artifact
from ci.cases.engine import LowerJob, LowerResult
from ci.cases.forked import run_forked
from ci.cases.stages import Stages
from ci.models.degenerate import require_proof
from ci.models.graph_digest import digest_graph
from ci.models.lowering_options import NO_CHOICES, Choices
from ci.models.model import Model, digest_model, load_model
from ci.models.numerics import NUMERICS, fix_numerics, name_instructions
from ci.models.user_models import Source, is_suite
from provisioning.files import digest_sources

COMPILER = "ci.executorch.lower"
# These say which programs are wanted, and nothing of how one is made; models count by their graphs.
CHOOSING = {"spec.py", "engine.py", "schemes.py", "suite"}
ROOMS = ("models", "cases", "executorch")


def run_lower_job(job: LowerJob) -> LowerResult:
    """Lower, or find what was lowered before.

    The process serves more jobs: QNN is only loaded in forks of it, and so is a user's model,
    which brings modules of its own. Raises UsageError for a wrong model reference, FailedError
    when its outputs prove nothing, StoreError where there is no room.
    """
    if is_suite(job.model) and not job.source.has_data:
        stages = Stages()
        with stages.measure("models"):
            model, digest = load_suite_model(job.model, job.source.choices)
            entry = find_entry(model, digest, job)
        entry = msgspec.structs.replace(entry, stages=stages.seconds)
        if entry.lowered:
            return entry
        with stages.measure("imports"):
            warm_compiler(plain=job.plain)
        return run_forked(lambda: _lower(model, job, entry))
    if COMPILER not in sys.modules:
        entry = run_forked(lambda: _find(job)[1])
        if entry.lowered:
            return entry
    warm_compiler(plain=job.plain)
    return run_forked(lambda: _find_or_lower(job))


def _find(job: LowerJob) -> tuple[Model, LowerResult]:
    model = load_model(job.model, job.source)
    return model, find_entry(model, digest_model(model), job)


def _find_or_lower(job: LowerJob) -> LowerResult:
    model, entry = _find(job)
    return entry if entry.lowered else _lower(model, job, entry)


def _lower(model: Model, job: LowerJob, entry: LowerResult) -> LowerResult:
    from ci.executorch.lower import lower_and_publish

    return lower_and_publish(model, job, entry)


def warm_compiler(*, plain: bool) -> None:
    """Load the compiler, and let it do once what is slow the first time."""
    from ci.executorch.patches import warm_up

    for note in warm_up(plain=plain):
        logging.getLogger(__name__).warning(note)


def warm_export() -> None:
    """Let torch.export do once, before all forks, what is slow the first time."""
    fix_numerics()
    digest_graph(torch.nn.Identity(), (torch.ones(1),))


@functools.cache
def load_suite_model(name: str, choices: Choices = NO_CHOICES) -> tuple[Model, str]:
    """A model of the suite and its digest, once a process."""
    model = load_model(name, Source(choices=structs.replace(NO_CHOICES, methods=choices.methods)))
    return model, digest_model(model)


def find_entry(model: Model, digest: str, job: LowerJob) -> LowerResult:
    """The entry of the cache: whole, with its record, or where it would be.

    Raises FailedError for outputs of the float32 model that no program could be judged by.
    """
    if job.reference:
        reference = [[tensor.numpy() for tensor in tensors] for tensors in model.reference]
        require_proof(reference, job.reference)
    return find_artifact(digest, job)


def find_artifact(digest: str, job: LowerJob) -> LowerResult:
    """The entry of the cache for a model of this digest."""
    directory = artifact_path(Path(job.cache), digest_key(digest, job))
    known = read_artifact(directory) if job.use_cache else None
    return LowerResult(
        str(directory),
        known,
        cached=known is not None,
        repaired=job.use_cache and known is None and directory.exists(),
    )


def digest_key(model_digest: str, job: LowerJob) -> str:
    """SHA-256 over all that decides about a program and its references.

    Of the schemes, only what this one is lowered with: a new row changes no other's key. What
    functions of the user's do is in no key: with one of them everything is lowered again.
    """
    choices = job.source.choices
    words = (
        model_digest,
        *job.toolchain,
        digest_compiler(),
        NUMERICS,
        name_instructions(),
        msgspec.json.encode(job.scheme.recipe).decode(),
        job.soc,
        job.backend.value,
        "plain" if job.plain else "",
        msgspec.json.encode(choices).decode(),
        secrets.token_hex() if choices.functions else "",
    )
    return hashlib.sha256("".join(f"{len(word)}:{word}" for word in words).encode()).hexdigest()


@functools.cache
def digest_compiler() -> str:
    """Of the rooms that make a program."""
    rooms = (Path(__file__).parents[1] / room for room in ROOMS)
    places = (place for room in rooms for place in room.iterdir())
    return digest_sources(*(place for place in places if place.name not in CHOOSING))
