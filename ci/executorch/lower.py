"""PyTorch module -> QNN program, with the references that it is judged by."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.serialization.qc_schema_serialize import (
    flatbuffer_to_option,
    option_to_flatbuffer,
)
from executorch.backends.qualcomm.utils.utils import to_edge_transform_and_lower_to_qnn
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from msgspec import structs

from ci.cases.artifact import (
    FLOAT,
    HIGH,
    INPUTS,
    LOW,
    PROGRAM,
    QUANTIZED,
    SAVER,
    SAVER_CALLS,
    Delegation,
    Lowered,
    MethodInfo,
    TensorInfo,
    add_delegations,
    describe_tensor,
    hash_files,
    write_record,
    write_sets,
    write_tensor,
)
from ci.cases.engine import LowerJob, LowerResult
from ci.cases.forked import run_forked
from ci.cases.publishing import describe_error, publish_lowering
from ci.cases.stages import Stages
from ci.executorch.context_digest import sign_by_content
from ci.executorch.delegation import audit_delegation, qnn_errors, record_refusals
from ci.executorch.quantize import quantize_model
from ci.executorch.specification import compiler_spec
from ci.models.eager import keep_state, run_eager
from ci.models.integer_bounds import find_joined, find_ties
from ci.models.methods import split_inputs, split_module
from ci.models.model import Model
from ci.models.schemes import Scheme
from ci.models.user_code import Inputs, working_directory
from provisioning.errors import FailedError, QnnCiError
from provisioning.files import scratch_directory


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
    """QNN's own error lines, the exception that ExecuTorch made of them, its cause, and where; what
    is of our own tells that itself."""
    if isinstance(error, QnnCiError):
        return str(error)
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
            module = quantize_model(model, job.scheme, job.soc, job.source.choices, job.backend)
            with keep_state(module):
                quantized = run_eager(module, model.evaluation)
            write_reference(staging / QUANTIZED, module, model, job.scheme, quantized)
    if job.source.choices.saver:
        with stages.measure("Saver"):
            run_forked(lambda: write_calls(module, model, job, staging / SAVER))
    with stages.measure("passes"), stages.measure_qnn():
        program, delegation = compile_program(module, model, job)
    with stages.measure("passes"):
        unshared = len(compile_unshared(module, model, job, len(program)))
    (staging / PROGRAM).write_bytes(program)
    lowered = Lowered(
        key=staging.name,
        model=job.model,
        scheme=job.scheme.value,
        soc=job.soc,
        sets=len(model.evaluation),
        inputs=tuple(map(describe_tensor, model.evaluation[0])),
        outputs=describe_outputs(model),
        delegation=delegation,
        methods=describe_methods(model),
        unshared_bytes=unshared,
        lower_s=round(time.monotonic() - started, 3),
        pte_bytes=len(program),
        files=hash_files(staging),
    )
    write_record(staging, lowered)
    return lowered


def compile_program(module: Any, model: Model, job: LowerJob) -> tuple[bytes, Delegation]:
    """The program of a float or quantized module, and what QNN took of it."""
    choices = job.source.choices
    with record_refusals(Path(job.log), choices) as refusals:
        spec = compiler_spec(job.scheme, job.soc, choices, job.backend)
        edge = lower_edge(module, model, job, spec)
    refusals.require_skipped()
    graphs = [edge.exported_program(name).graph_module for name in sorted(edge.methods)]
    delegation = add_delegations(audit_delegation(graph, refusals, job.backend) for graph in graphs)
    return sign_by_content(edge.to_executorch(keep_initial_state(edge)).buffer), delegation


def lower_edge(module: Any, model: Model, job: LowerJob, spec: list[Any]) -> Any:
    """What ExecuTorch makes of a module before it is a program."""
    choices = job.source.choices
    # Without gradients, or a model that switches them off itself, as Hugging Face's Llama does,
    # is exported with a node that ExecuTorch's passes do not know. A DLC is written to where the
    # process stands.
    with (
        torch.no_grad(),
        scratch_directory(Path(job.cache), "compiling") as scratch,
        working_directory(scratch),
    ):
        return to_edge_transform_and_lower_to_qnn(
            split_module(module),
            split_inputs(module, model.evaluation[0]),
            spec,
            skip_node_id_set=set(choices.skip_nodes),
            skip_node_op_set=set(choices.skip_ops),
            convert_linear_to_conv2d=job.scheme.recipe.linear_as_convolution,
            # Seen with ExecuTorch 1.5.1: a mutable buffer that is delegated holds what the
            # memory held before (SQNR -90 dB).
            skip_mutable_buffer=True,
        )


def write_calls(module: Any, model: Model, job: LowerJob, directory: Path) -> None:
    """QNN's calls as C, by its Saver in place of a compiler, which ends with SystemExit.

    Only in a fork: HTP's compiler is to be the first that a process loads.
    """
    (spec,) = compiler_spec(job.scheme, job.soc, job.source.choices, saver=True)
    options = flatbuffer_to_option(spec.value)
    options.saver_output_dir = str(directory.absolute())
    spec.value = option_to_flatbuffer(options)
    with suppress(SystemExit):
        lower_edge(module, model, job, [spec])
    if not (directory / SAVER_CALLS).is_file():
        raise FailedError(f"QNN's Saver wrote no {SAVER_CALLS}")


def compile_unshared(module: Any, model: Model, job: LowerJob, shared_bytes: int) -> bytes:
    """The same program with a copy of the weights a method; empty where none are to be shared.

    Raises FailedError where sharing made nothing smaller.
    """
    if not job.source.choices.weight_sharing:
        return b""
    choices = structs.replace(job.source.choices, weight_sharing=False)
    plain = structs.replace(job, source=structs.replace(job.source, choices=choices))
    program, _ = compile_program(module, model, plain)
    if len(program) <= shared_bytes:
        raise FailedError(f"QNN shared no weights: {shared_bytes} bytes, {len(program)} without")
    return program


def describe_methods(model: Model) -> tuple[MethodInfo, ...]:
    """The methods of a program that has several."""
    methods = split_inputs(model.module, model.evaluation[0])
    rows = (MethodInfo(name, len(inputs)) for name, inputs in methods.items())
    return tuple(rows) if len(methods) > 1 else ()


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
    names = []
    for method in sorted(edge.methods):
        signature = edge.exported_program(method).graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        names += [name for name, buffer in signature.inputs_to_buffers.items() if buffer in mutated]
    return ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(names)] if names else [])


def describe_outputs(model: Model) -> tuple[TensorInfo, ...]:
    """dtype and shape of each output, and the parts of those that are concatenations."""
    with keep_state(model.module):
        joined = find_joined(model.module, model.evaluation[0])
    return tuple(
        describe_tensor(tensor, *origin)
        for tensor, origin in zip(model.reference[0], joined, strict=True)
    )
