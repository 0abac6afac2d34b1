"""A compilation that is asked for: found among what was compiled before, or made.

Everything that could stay behind in a process, QNN's libraries and a user's modules, is loaded in
forks of it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from ci.cases.engine import LowerResult
from ci.cases.forked import run_forked
from ci.cases.publishing import publish_lowering
from ci.executorch.engine import find_artifact, load_suite_model
from ci.models.model import digest_model, load_model
from ci.models.user_models import is_suite
from ci.onnx.compile import compile_source, describe_refusal
from ci.onnx.job import CompileJob
from ci.onnx.source import SUFFIX, Source, from_file, from_torch
from provisioning.files import digest_sources


def run_compile_job(job: CompileJob) -> LowerResult:
    """Compile, or find what was compiled before.

    Raises UsageError for a wrong model or data, FailedError where its outputs prove nothing,
    StoreError where there is no room.
    """
    job = name_lane(job)
    if is_suite(job.model):
        load_suite_model(job.model)  # before the fork, for all that follow
    entry = run_forked(lambda: find_artifact(load_source(job.model).digest, job))
    if entry.lowered:
        return entry
    if not job.model.endswith(SUFFIX):
        from ci.onnx.export import warm_exporter

        warm_exporter()
    return run_forked(lambda: _compile(job))


def _compile(job: CompileJob) -> LowerResult:
    source = load_source(job.model)
    return publish_lowering(
        job,
        find_artifact(source.digest, job),
        lambda staging, stages: compile_source(source, job, staging, stages),
        lambda error: describe_refusal(error, Path(job.log)),
    )


def load_source(model: str) -> Source:
    """A model of the suite, a user's factory or file, with the digest of what determines it."""
    if is_suite(model):
        return from_torch(*load_suite_model(model))
    if model.endswith(SUFFIX):
        from ci.onnx.models import external_files, read_model

        path = Path(model)
        return from_file(path, read_model(path), external_files(path))
    loaded = load_model(model)
    return from_torch(loaded, digest_model(loaded))


def name_lane(job: CompileJob) -> CompileJob:
    """The job with all that decides about a context besides the model, the scheme and the SoC."""
    options = {key: value for key, value in job.options.items() if key != "backend_path"}
    words = [digest_lane(), msgspec.json.encode(sorted(options.items())).decode(), str(job.embed)]
    words += ["saver"] * bool(job.saver)
    return msgspec.structs.replace(job, toolchain=(*job.toolchain, *words))


@functools.cache
def digest_lane() -> str:
    """Of what makes a model ready and sets its session up."""
    return digest_sources(Path(__file__).parent)
