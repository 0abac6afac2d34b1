"""PyTorch module -> QNN HTP program, with the references that it is judged by."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

from ci.lowering.artifact import (
    FLOAT,
    HIGH,
    INPUTS,
    LOW,
    PROGRAM,
    QUANTIZED,
    REFERENCE,
    Delegation,
    Lowered,
    TensorInfo,
    hash_files,
    write_record,
)
from ci.lowering.audit import audit_delegation, qnn_errors, record_refusals
from ci.lowering.digests.context_digest import sign_by_content
from ci.lowering.factory import Inputs
from ci.lowering.job import LowerJob, LowerResult
from ci.lowering.model import Model
from ci.lowering.publishing import describe_error, publish_lowering
from ci.lowering.quantize import quantize_model
from ci.lowering.references.eager import keep_state, run_eager
from ci.lowering.references.ties import find_joined, find_ties
from ci.lowering.schemes import Scheme
from ci.lowering.stages import Stages


def lower_and_publish(model: Model, job: LowerJob, entry: LowerResult) -> LowerResult:
    """Lower, and publish it as ``entry``; beside the job's log where a good one is there already.

    Raises StoreError where there is no room.
    """
    return publish_lowering(
        job,
        entry,
        lambda staging, stages: lower_model(model, job, staging, stages),
        lambda error: describe_refusal(error, Path(job.log)),
    )


def describe_refusal(error: Exception, log: Path) -> str:
    """QNN's own error lines, the exception that ExecuTorch made of them, its cause, and where."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    root: BaseException = error
    while root.__cause__:
        root = root.__cause__
    raised = " <- ".join(dict.fromkeys([describe_error(error), describe_error(root)]))
    file = traceback.extract_tb(root.__traceback__)[-1].filename
    raised += f" [{file.rpartition('site-packages/')[2]}]"
    said = qnn_errors(text)
    return f"{said} ({raised})" if said else raised


def lower_model(model: Model, job: LowerJob, staging: Path, stages: Stages) -> Lowered:
    """Quantize where asked, lower, and write everything into ``staging``, named by its key."""
    started = time.monotonic()
    write_sets(staging / INPUTS, model.evaluation)
    module: Any = model.module
    with stages.measure("quantizing"):
        write_reference(staging / FLOAT, module, model, job.scheme, model.reference)
        if job.scheme.quantized:
            module = quantize_model(model, job.scheme, job.soc)
            with keep_state(module):
                quantized = run_eager(module, model.evaluation)
            write_reference(staging / QUANTIZED, module, model, job.scheme, quantized)
    with stages.measure("passes"), stages.measure_qnn():
        program, delegation = compile_program(module, model, job)
    (staging / PROGRAM).write_bytes(program)
    lowered = Lowered(
        key=staging.name,
        model=job.model,
        scheme=job.scheme.value,
        soc=job.soc,
        sets=len(model.evaluation),
        inputs=describe_tensors(model.evaluation[0]),
        outputs=describe_outputs(model),
        delegation=delegation,
        lower_s=round(time.monotonic() - started, 3),
        pte_bytes=len(program),
        files=hash_files(staging),
    )
    write_record(staging, lowered)
    return lowered


def compile_program(module: Any, model: Model, job: LowerJob) -> tuple[bytes, Delegation]:
    """The program of a float or quantized module, and what QNN took of it."""
    # Without gradients, or a model that switches them off itself, as Hugging Face's Llama does,
    # is exported with a node that ExecuTorch's passes do not know.
    with torch.no_grad(), record_refusals(Path(job.log)) as refusals:
        edge = to_edge_transform_and_lower_to_qnn(
            module,
            model.evaluation[0],
            compiler_spec(job.scheme, job.soc),
            convert_linear_to_conv2d=job.scheme.recipe.linear_as_convolution,
            # Seen with ExecuTorch 1.5.1: a mutable buffer that is delegated holds what the
            # memory held before (SQNR -90 dB).
            skip_mutable_buffer=True,
        )
    delegation = audit_delegation(edge.exported_program().graph_module, refusals)
    return sign_by_content(edge.to_executorch(keep_initial_state(edge)).buffer), delegation


def write_reference(
    directory: Path, module: Any, model: Model, scheme: Scheme, outputs: Sequence[Inputs]
) -> None:
    """What ``module`` computes, and between which values noise decides what is no magnitude."""
    write_sets(directory, outputs)
    if all(tensor.is_floating_point() for tensor in outputs[0]):
        return
    bounds = find_ties(module, model.evaluation, scheme, outputs)
    for pattern, sets in zip((LOW, HIGH), bounds, strict=True):
        for number, tensors in enumerate(sets):
            for index, tensor in enumerate(tensors):
                if not tensor.is_floating_point():
                    write_tensor(directory / pattern.format(number, index), tensor)


def keep_initial_state(edge: Any) -> ExecutorchBackendConfig:
    """Let mutable buffers start with their values; ExecuTorch alone lets them start at zero."""
    signature = edge.exported_program().graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    names = [name for name, buffer in signature.inputs_to_buffers.items() if buffer in mutated]
    return ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(names)] if names else [])


def compiler_spec(scheme: Scheme, soc: str) -> list[Any]:
    """ExecuTorch's compile specification for HTP."""
    options = generate_htp_compiler_spec(use_fp16=not scheme.quantized)
    spec: list[Any] = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[soc], backend_options=options
    )
    return spec


def write_sets(directory: Path, sets: Sequence[Inputs]) -> None:
    """<set>_<index>.raw for every tensor, row-major."""
    directory.mkdir(parents=True)
    for number, tensors in enumerate(sets):
        for index, tensor in enumerate(tensors):
            write_tensor(directory / REFERENCE.format(number, index), tensor)


def write_tensor(path: Path, tensor: torch.Tensor) -> None:
    path.write_bytes(tensor.detach().contiguous().numpy().tobytes())


def describe_tensors(tensors: Inputs) -> tuple[TensorInfo, ...]:
    """dtype and shape of each tensor."""
    return tuple(TensorInfo(str(tensor.numpy().dtype), tuple(tensor.shape)) for tensor in tensors)


def describe_outputs(model: Model) -> tuple[TensorInfo, ...]:
    """dtype and shape of each output, and the parts of those that are concatenations."""
    with keep_state(model.module):
        joined = find_joined(model.module, model.evaluation[0])
    return tuple(
        msgspec.structs.replace(info, joined_axis=axis, joined=parts)
        for info, (axis, parts) in zip(describe_tensors(model.reference[0]), joined, strict=True)
    )
