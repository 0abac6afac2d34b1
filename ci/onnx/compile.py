"""Float ONNX -> quantized ONNX -> context binary, with the references that it is judged by.

quantized.onnx, where the scheme quantizes, and program/model.onnx, whose context binary lies inside
or beside it, are in the artifact together with what ci.cases.artifact describes, and what Saver
wrote in saver_output/, where it was asked for.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ci.cases.artifact import (
    FLOAT,
    INPUTS,
    QUANTIZED,
    Delegation,
    Lowered,
    TensorInfo,
    describe_tensor,
    hash_files,
    write_record,
    write_sets,
)
from ci.cases.publishing import describe_error
from ci.cases.stages import Stages
from ci.judging.figures import decibels
from ci.models.degenerate import require_proof
from ci.models.user_code import working_directory
from ci.onnx.contexts import check_context, seal_context
from ci.onnx.fallback import count_nodes, read_reasons
from ci.onnx.job import CONTEXT, PROGRAM, CompileJob
from ci.onnx.operators import name_operator
from ci.onnx.preparation import find_joined, quantize_file, write_normal_form
from ci.onnx.session import (
    RECORD_ASSIGNMENT,
    VERBOSE,
    context_entries,
    open_reference,
    open_session,
)
from ci.onnx.source import Arrays, Source
from provisioning.errors import FailedError, QnnCiError

QUANTIZED_MODEL = "quantized.onnx"
PROVIDER_LOG, SAVER_LOG = "provider.log", "saver.log"
EXPORTED_DB = 60.0  # the exported model against torch; seen: 100 and more
# Lines of ONNX Runtime at error, and those that QNN prints itself.
SAID = re.compile(r"^(?:\x1b\[[\d;]*m)?\d{4}-.* \[E:onnxruntime:[^]]*\] (.*)", re.MULTILINE)
MAX_SAID = 600


def compile_source(source: Source, job: CompileJob, staging: Path, stages: Stages) -> Lowered:
    """Export, quantize where asked, compile, and write all into ``staging``, named by its key.

    Raises FailedError for a model that proves nothing, and what the tools raise.
    """
    started = time.monotonic()
    staging.mkdir()
    write_sets(staging / INPUTS, source.evaluation)
    model = staging.with_name("float.onnx")
    with stages.measure("export"):
        model = write_float(source, model)
        reference = run_reference(model, source.evaluation)
        if job.reference:
            require_proof(reference, job.reference)
        require_export(source, reference)
        write_sets(staging / FLOAT, reference)
    infos = describe_outputs(model, reference[0])
    if job.scheme.quantized:
        with stages.measure("quantizing"):
            quantize_file(model, staging / QUANTIZED_MODEL, job.scheme, source.calibration)
            model = staging / QUANTIZED_MODEL
            write_sets(staging / QUANTIZED, run_reference(model, source.evaluation))
    with stages.measure("QNN"):
        delegation = write_context(model, staging / PROGRAM, job)
    lower_s = round(time.monotonic() - started, 3)
    if job.saver and delegation.partitions:
        with stages.measure("Saver"):
            write_calls(model.absolute(), staging, job)
    lowered = Lowered(
        key=staging.name,
        model=job.model,
        scheme=job.scheme.value,
        soc=job.soc,
        sets=len(source.evaluation),
        inputs=tuple(map(describe_tensor, source.evaluation[0])),
        outputs=infos,
        delegation=delegation,
        lower_s=lower_s,
        pte_bytes=sum(path.stat().st_size for path in (staging / PROGRAM).iterdir()),
        files=hash_files(staging),
    )
    write_record(staging, lowered)
    return lowered


def write_float(source: Source, target: Path) -> Path:
    """The float model as a file: the user's own, or what is exported to ``target``."""
    if isinstance(source.origin, Path):
        return write_normal_form(source.origin, target)
    from ci.onnx.export import export_module

    export_module(source.origin.module, source.origin.evaluation[0], target)
    return target


def run_reference(model: Path, sets: Sequence[Arrays]) -> list[Arrays]:
    """What the CPU makes of each input set."""
    session = open_reference(model)
    names = [one.name for one in session.get_inputs()]
    return [
        tuple(map(np.asarray, session.run(None, dict(zip(names, arrays, strict=True)))))
        for arrays in sets
    ]


def require_export(source: Source, reference: Sequence[Arrays]) -> None:
    """Raises FailedError for an export that computes something else than the module."""
    for wanted, got in zip(source.reference, reference, strict=False):
        for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
            reached = _agree_db(one, other)
            if not reached >= EXPORTED_DB:
                raise FailedError(
                    f"torch.onnx.export gives another model: output {index} has {reached:.1f} dB"
                    f" against torch, {EXPORTED_DB:g} dB wanted",
                    why="both are float32 on the CPU, so that QNN has no part in it",
                )


def _agree_db(wanted: Any, got: Any) -> float:
    error = wanted.astype(np.float64) - got
    return decibels(float(np.sum(wanted.astype(np.float64) ** 2)), float(np.sum(error**2)))


def write_context(model: Path, directory: Path, job: CompileJob) -> Delegation:
    """Let QNN's provider compile ``model``, and name what it leaves to the CPU.

    The context is proven to be for the job's SoC, and sealed. Raises what onnxruntime and
    check_context raise. A model of which QNN takes nothing leaves no context.
    """
    directory.mkdir()
    log = Path(job.log).with_name(PROVIDER_LOG)
    entries = context_entries(directory / CONTEXT, embed=job.embed) | RECORD_ASSIGNMENT
    with output_to(log):
        session = open_session(model, job.options, entries, severity=VERBOSE)
    if (directory / CONTEXT).is_file():
        check_context(directory / CONTEXT, job.soc)
        seal_context(directory / CONTEXT)
    parts = [
        (
            part.ep_name,
            [(node.name, name_operator(node.domain, node.op_type)) for node in part.get_nodes()],
        )
        for part in session.get_provider_graph_assignment_info()
    ]
    return count_nodes(parts, read_reasons(log.read_text(encoding="utf-8", errors="replace")))


def write_calls(model: Path, directory: Path, job: CompileJob) -> None:
    """Let QNN's Saver write what it is called with for ``model``; nothing is compiled.

    It writes below the working directory, which is this fork's own. Raises what onnxruntime raises.
    """
    with output_to(Path(job.log).with_name(SAVER_LOG)), working_directory(directory):
        open_session(model, {**job.options, "qnn_saver_path": job.saver}, {})


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Let what this process prints, its C++ included, go to a file of its own for a while."""
    kept = [os.dup(number) for number in (1, 2)]
    held = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for number in (1, 2):
            os.dup2(held, number)
        yield
    finally:
        os.close(held)
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def describe_refusal(error: Exception, log: Path) -> str:
    """The provider's own error lines, and the exception that was made of them."""
    raised = str(error) if isinstance(error, QnnCiError) else describe_error(error)
    held = log.with_name(PROVIDER_LOG)
    text = held.read_text(encoding="utf-8", errors="replace") if held.is_file() else ""
    said = "; ".join(dict.fromkeys(line.strip() for line in SAID.findall(text)))[:MAX_SAID]
    return f"{said} ({raised})" if said and said not in raised else raised


def describe_outputs(model: Path, outputs: Arrays) -> tuple[TensorInfo, ...]:
    """dtype and shape of each output, and the parts of those that are concatenations."""
    joined = find_joined(onnx.load(model, load_external_data=False))
    return tuple(
        describe_tensor(array, *origin) for array, origin in zip(outputs, joined, strict=True)
    )
