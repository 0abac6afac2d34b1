"""Lowers a PyTorch module to a QNN program, and writes the references for judging it."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from ci.analysis.clipping import find_clipped
from ci.analysis.exponents import measure_low
from ci.analysis.grids import NO_GRID, add_grids, find_grids
from ci.analysis.layers import find_float16_loss, find_loss
from ci.analysis.noise import predict_noise
from ci.analysis.steps import Step
from ci.analysis.ties import find_ties
from ci.analysis.undefined import name_undefined
from ci.cases.engine import (
    FLOAT,
    INPUTS,
    QUANTIZED,
    Compiled,
    Delegation,
    Staging,
    list_places,
    needed,
)
from ci.cases.forked import describe_error, flush_stdio, run_forked
from ci.cases.qnn_files import SAVER, SAVER_CALLS, make_footprint, measure_peak
from ci.cases.spec import CaseSpec
from ci.executorch.compiled_types import TypeRecord, record_types
from ci.executorch.delegation import (
    audit_delegation,
    count_operators,
    find_failed,
    find_unmade,
    list_left,
    qnn_errors,
    record_refusals,
)
from ci.executorch.graph_reader import describe_module, find_module_parts
from ci.executorch.internals import (
    BuildQuantIo,
    ExecutorchBackendConfig,
    InitializedMutableBufferPass,
    MemoryPlanningPass,
    TagQuantIO,
    flatbuffer_to_option,
    option_to_flatbuffer,
    qc_schema,
    qnn_passes,
    utils,
)
from ci.executorch.layers import expose_layers
from ci.executorch.quantize import (
    check_dtypes,
    quantize_model,
    round_blocks,
)
from ci.executorch.toolchain import LIBRARY, find_qnn_version
from ci.facts.finding import Finding, Origin
from ci.facts.kinds import NOT_LOWERED
from ci.graphs.graph import Graph
from ci.graphs.torch_program import TorchProgram, read_graphs, read_torch
from ci.latency.profile_hook import SimulatorHook
from ci.latency.simulation import TRACE, choose_simulated, read_simulation
from ci.models.eager import find_frozen, keep_state, run_eager
from ci.models.factory import Inputs
from ci.models.lowering_options import LOG_LEVELS, NO_CHOICES, PROFILE_LEVELS, Choices
from ci.models.model import Model, digest_weights, split_inputs, split_module
from ci.models.rounding import is_poor
from ci.models.schemes import FLOAT16, Scheme
from ci.models.tensors import (
    Loss,
    OutputPart,
    TensorInfo,
    add_parts,
    count_types,
    describe_tensor,
    digest_sets,
    find_retyped,
)
from ci.models.user_code import working_directory
from ci.models.user_models import name_made
from ci.report.schema import Clipped, Footprint, OperatorCount
from provisioning.doctor.facts import HOST_DIRECTORY
from provisioning.doctor.survey.programs import HEADER, HEADER_MAGIC, parse_program
from provisioning.documents import read_window
from provisioning.elf.programs import find_misplaced
from provisioning.errors import FailedError
from provisioning.files import scratch_directory
from provisioning.manifest.targets import Backend

PROGRAM = "program.pte"
MOST_LEFT = 4
# ExecuTorch's quantizer prints this for an operator that it does not quantize. Operators that
# compute nothing, such as dropout in eval mode, are ignored.
IDLE = r"aten\.(?:dropout|contiguous|clone|detach|alias|lift_fresh)"
NO_RULE = re.compile(rf"^No quant config .* for op, (?!{IDLE})(\S+)", re.MULTILINE)
TARGETS = {Backend.LPAI: "kX86", Backend.LPAI_ARM: "kArm"}


def compiler_spec(
    scheme: Scheme,
    soc: str,
    choices: Choices = NO_CHOICES,
    backend: Backend = Backend.HTP,
    *,
    saver: bool = False,
) -> list[Any]:
    """Return ExecuTorch's compile specification. Graphs for the GPU are always prepared on the
    device, as in ExecuTorch's examples."""
    generate = getattr(utils, f"generate_{backend.kind}_compiler_spec")
    level = choices.profile_level
    traced = {"profile_level": PROFILE_LEVELS[level]} if level else {}  # 1.2.0 has no such key
    spec: list[Any] = utils.generate_qnn_executorch_compiler_spec(
        soc_model=qc_schema.QcomChipset[soc],
        backend_options=generate(**_options(scheme, choices, backend)),
        saver=saver,
        online_prepare=choices.online_prepare or backend is Backend.GPU,
        shared_buffer=choices.shared_buffer,
        dump_intermediate_outputs=choices.dump_intermediate_outputs,
        **traced,
    )
    if choices.log_level:
        change_options(spec, log_level=LOG_LEVELS.index(choices.log_level))
    return spec


def change_options(spec: list[Any], **values: Any) -> None:
    """Set options for which generate_qnn_executorch_compiler_spec has no parameter."""
    (compile_spec,) = spec
    options = flatbuffer_to_option(compile_spec.value)
    for name, value in values.items():
        setattr(options, name, value)
    compile_spec.value = option_to_flatbuffer(options)


def _options(scheme: Scheme, choices: Choices, backend: Backend) -> Mapping[str, Any]:
    if backend is Backend.HTP:
        return {
            "use_fp16": scheme.recipe.activation_bits == FLOAT16.activation_bits,
            "use_weight_sharing": choices.weight_sharing,
        }
    if backend is Backend.GPU:
        return {"precision": qc_schema.QnnExecuTorchGpuPrecision.kGpuPrecisionFp16}
    return {"target_env": qc_schema.QnnExecuTorchLpaiTargetEnv[TARGETS[backend]]}


@dataclass(frozen=True)
class Lowering:
    """Lowers a model to a program in ``staging``. Each of the ``constants`` becomes a method that
    returns it. With ``runner_io``, the program is made for upstream's runner for language models:
    quantized inputs and outputs are integers, in memory that the caller allocates."""

    model: Model
    spec: CaseSpec
    staging: Staging
    backend: Backend = Backend.HTP
    constants: Mapping[str, Any] | None = None
    runner_io: bool = False

    def write(self) -> Compiled:
        """Quantize the model if the scheme requires it, lower it, and write the program and its
        references."""
        spec, model = self.spec, self.model
        self.staging.write_float(model.reference, model.made_inputs)  # first: may raise FailedError
        steps: tuple[Step, ...] = ()
        if not spec.layers:  # before quantizing, which clips the model's own constants
            with self.staging.notes.of("the model's operators"):
                steps = describe_module(model.module, model.evaluation[0], self.staging.notes)
            # Before the compilation, so that a case whose compiler refuses the model, dies or never
            # ends can name a known fault, too.
            self.staging.note_steps(steps)
        if spec.scheme.quantized:
            self.staging.enter("quantize")
        module = self.quantize()
        if not spec.layers:
            return self.write_program(module, steps)
        module, layers = expose_layers(module, model.evaluation[0])
        outputs = tuple(run_eager(module, model.evaluation))
        exposed = replace(self, model=replace(model, module=module, reference=outputs))
        return structs.replace(exposed.write_program(module), layers=layers)

    def quantize(self) -> Any:
        """Return the model's module, quantized if the scheme requires it."""
        spec = self.spec
        choices = spec.source.choices
        return quantize_model(self.model, spec.scheme.base, spec.soc, choices, self.backend)

    def simulate(self) -> Compiled:
        """Lower the model for a SoC that QNN's simulator knows, and return what it predicts. The
        trace is written to the staging directory. Raises FailedError if there is no prediction."""
        spec, soc = self.spec, choose_simulated(self.spec.soc)
        module = self.quantize()
        hook = SimulatorHook(Path(os.environ["QNN_SDK_ROOT"]) / HOST_DIRECTORY / LIBRARY)
        hook.install()
        lowering = replace(self, spec=replace(spec, soc=soc))
        # The simulator runs while this host compiles. With online_prepare, the device compiles, and
        # Saver only records calls.
        options = {"profile_level": "optrace", "online_prepare": False, "saver": False}
        traced = structs.replace(spec.source.choices, **options)
        origins: dict[str, Origin] = {}
        program, delegation, footprint, _ = lowering.compile(module, traced, origins)
        observed = hook.observe()
        (self.staging.directory / TRACE).write_bytes(gzip.compress(observed.traces))
        simulation = read_simulation(observed, soc, delegation.partitions, origins)
        return Compiled(
            program=TRACE,
            binary=TRACE,
            size_bytes=len(program),
            delegation=delegation,
            footprint=footprint,
            simulation=simulation,
        )

    def write_program(self, module: Any, steps: tuple[Step, ...] = ()) -> Compiled:
        """Lower the float or quantized ``module``, write the program and its references, and return
        the program's description. ``steps`` are those of the float model."""
        model, scheme, choices = self.model, self.spec.scheme, self.spec.source.choices
        self.staging.enter("reference")
        loss: Loss | None = None
        clipped: tuple[Clipped, ...] = ()
        weights = digest_weights(model.module)
        self.staging.write(INPUTS, model.evaluation)
        self.staging.write_float(model.reference, model.made_inputs)
        self.write_bounds(FLOAT, model.module, model.reference)
        if scheme.quantized:
            exact = round_blocks(module) if scheme.recipe.block else module
            with keep_state(exact):
                quantized = run_eager(exact, model.evaluation)
            # Without this, such a model was reported as a bug of this project.
            check_dtypes(Path(model.name).name, model.reference[0], quantized[0])
            self.staging.write(QUANTIZED, quantized)
            self.write_bounds(QUANTIZED, exact, quantized)
        else:
            exact = module
        float16 = scheme.recipe.activation_bits == FLOAT16.activation_bits
        # Without what is needed, there is no verdict. What only explains a result becomes a note
        # instead.
        with needed("the predicted rounding noise"):
            read = read_torch(exact, model.evaluation[0])
            noise = predict_noise(read, model.evaluation, qnn=find_qnn_version())
        self.staging.write_noise(
            noise, partial(name_undefined, read, model.evaluation, qnn=find_qnn_version())
        )
        if scheme.quantized:
            with self.staging.notes.of("the layer at which quantization costs the most"):
                first, *further = model.evaluation
                read_float = partial(read_torch, model.module, first)
                loss = find_loss(read, first, model.reference[0], further, read_float)
            with self.staging.notes.of("the tensors that leave their calibrated ranges"):
                clipped = find_clipped(read, model.evaluation)
        if float16 and not self.spec.layers:
            # The predicted noise has no error of numbers that float16 cannot hold.
            with self.staging.notes.of("the layer at which float16 costs the most"):
                is_lossy = is_poor(noise, model.reference)
                loss = find_float16_loss(read, model.evaluation, is_lossy=is_lossy)
            with self.staging.notes.of("the numbers that exponential functions read"):
                steps = measure_low(steps, lambda: read, model.evaluation)
        parts: list[tuple[OutputPart, ...]] = []
        with self.staging.notes.of("the parts of the outputs"):
            # Before the lowering, after which torch.export records no lines.
            parts += find_module_parts(model.module, model.evaluation[0])
        self.staging.enter("lower")
        if choices.saver:
            run_forked(lambda: self.write_calls(module))
        methods = tuple(split_module(model.module))
        compiled = self.write_compiled(
            module,
            choices,
            sets=len(model.evaluation),
            inputs=tuple(map(describe_tensor, model.evaluation[0])),
            methods=methods if len(methods) > 1 else (),
            loss=loss,
            clipped=clipped,
            steps=steps,
            frozen=self.find_frozen(module) if scheme.quantized else (),
            made_inputs=name_made(
                model.made_inputs, model.made_calibration, quantized=scheme.quantized
            ),
            weights=weights,
            calibration=digest_sets(model.calibration) if scheme.quantized else "",
        )
        unshared = self.compile_unshared(module, compiled.size_bytes)
        with needed("the description of the outputs"):
            quantized_parts = split_module(module) if scheme.quantized else {}
            graphs = read_graphs(quantized_parts).values()
            outputs = describe_outputs(model, graphs, compiled.delegation.on_host)
        outputs = add_parts(outputs, parts)
        return structs.replace(compiled, outputs=outputs, unshared_bytes=len(unshared))

    def find_frozen(self, module: Any) -> tuple[str, ...]:
        """Return the buffers of which the quantized ``module`` has the first values only."""
        frozen: list[str] = []
        with self.staging.notes.of("the buffers that quantization freezes"):
            frozen += find_frozen(self.model.module, module, self.model.evaluation[0])
        self.staging.note_frozen(frozen)
        return tuple(frozen)

    def write_compiled(self, module: Any, choices: Choices, **facts: Any) -> Compiled:
        """Lower a module, write the program, and return its description, which also has these
        ``facts``. Raises FailedError if the program cannot be mapped into memory."""
        program, delegation, footprint, types = self.compile(module, choices)
        if misplaced := find_misplaced(program):
            raise FailedError(f"the program {misplaced}")
        (self.staging.directory / PROGRAM).write_bytes(program)
        return Compiled(
            program=PROGRAM,
            binary=PROGRAM,
            size_bytes=len(program),
            delegation=delegation,
            footprint=footprint,
            types=count_types(types.tensors),
            retyped=find_retyped(types.asked, types.tensors),
            **facts,
        )

    def write_bounds(self, kind: str, module: Any, outputs: Sequence[Inputs]) -> None:
        """Write bounds for outputs that are not floating-point, because small errors can change
        their values."""
        if all(tensor.is_floating_point() for tensor in outputs[0]):
            return
        with needed("the bounds of outputs that are not floating-point"):
            program = TorchProgram(module, split_module(module))
            bits = self.spec.scheme.recipe.activation_bits
            bounds = find_ties(program, self.model.evaluation, outputs, bits)
        self.staging.write_bounds(kind, *bounds)

    def compile(
        self, module: Any, choices: Choices, origins: dict[str, Origin] | None = None
    ) -> tuple[bytes, Delegation, Footprint | None, TypeRecord]:
        """Return the program of a float or quantized module, its delegation, its footprint and the
        types of its tensors. The origin of each examined node is added to ``origins``."""
        log, start = self.staging.log, self.staging.log.stat().st_size
        with measure_peak() as peak:
            with record_refusals(log, choices) as refusals, record_types() as types:
                spec = compiler_spec(self.spec.scheme.base, self.spec.soc, choices, self.backend)
                edge = self.lower_edge(module, spec)
            refusals.require_skipped()
            if origins is not None:
                origins.update(refusals.origins)
            # Before to_executorch, which adds allocations and copies of state to these graphs.
            # With them, a model with state fails full delegation because of copy_.default.
            graphs = [edge.exported_program(name).graph_module for name in sorted(edge.methods)]
            with needed("the delegation of the nodes"):
                delegation = audit_delegation(graphs, refusals, self.backend)
            operators: tuple[OperatorCount, ...] = ()
            with self.staging.notes.of("the number of operators"):
                operators = tuple(count_operators(graphs))
            config = keep_initial_state(edge)
            if self.runner_io:
                config.passes.append(BuildQuantIo())
                config.memory_planning_pass = MemoryPlanningPass(
                    alloc_graph_input=False, alloc_graph_output=False
                )
            program = sign_by_content(edge.to_executorch(config).buffer)
        # QNN prints the DDR bandwidth summary of each graph at every log level, through C's stdio.
        # The footprint reads it from the log.
        flush_stdio()
        footprint: Footprint | None = None
        with self.staging.notes.of("the sizes of the program"):
            parsed = parse_program(memoryview(program), PROGRAM)
            footprint = make_footprint(
                program_bytes=len(program),
                partitions=delegation.partitions,
                contexts=parsed.contexts if parsed else (),
                segments=parsed.segments if parsed else (),
                log=read_window(log, start),
                operators=operators,
                peak=peak,
            )
        return program, delegation, footprint, types

    def lower_edge(self, module: Any, spec: list[Any]) -> Any:
        """Return ``module`` in ExecuTorch's edge dialect. The nodes that QNN accepts are delegated
        to QNN."""
        choices = self.spec.source.choices
        # Without torch.no_grad, a model that disables gradients itself, such as Hugging Face's
        # Llama, is exported with a node that ExecuTorch's passes do not support. The working
        # directory is changed because a DLC is written to it.
        with (
            torch.no_grad(),
            scratch_directory(self.staging.cache, "compiling") as scratch,
            working_directory(scratch),
        ):
            return utils.to_edge_transform_and_lower_to_qnn(
                split_module(module),
                split_inputs(module, self.model.evaluation[0]),
                spec,
                constant_methods=dict(self.constants) if self.constants else None,
                passes_job=tag_quantized() if self.runner_io else None,
                skip_node_id_set=set(choices.skip_nodes),
                skip_node_op_set=set(choices.skip_ops),
                convert_linear_to_conv2d=self.spec.scheme.recipe.linear_as_convolution,
                # Seen with ExecuTorch 1.5.1: a delegated mutable buffer starts with arbitrary
                # contents of its memory (SQNR -90 dB).
                skip_mutable_buffer=True,
            )

    def write_calls(self, module: Any) -> None:
        """Write C code with the calls to QNN's API that build the model's graph. QNN's Saver, a
        backend that records calls instead of compiling, writes the code. The lowering then ends
        with SystemExit. Raises FailedError if Saver wrote no code.

        Call this only in a fork, because HTP's compiler must be the first compiler that a process
        loads.
        """
        directory = self.staging.directory / SAVER
        scheme, choices = self.spec.scheme.base, self.spec.source.choices
        spec = compiler_spec(scheme, self.spec.soc, choices, saver=True)
        change_options(spec, saver_output_dir=str(directory.absolute()))
        with suppress(SystemExit):
            self.lower_edge(module, spec)
        if not (directory / SAVER_CALLS).is_file():
            raise FailedError(f"QNN's Saver wrote no {SAVER_CALLS}")

    def compile_unshared(self, module: Any, shared_bytes: int) -> bytes:
        """Return the program with a separate copy of the weights for each method, or b"" without
        the option weight_sharing. Raises FailedError if sharing did not reduce the size."""
        choices = self.spec.source.choices
        if not choices.weight_sharing:
            return b""
        program, *_ = self.compile(module, structs.replace(choices, weight_sharing=False))
        if len(program) <= shared_bytes:
            raise FailedError(
                f"QNN shared no weights: {shared_bytes} bytes with sharing, {len(program)} without"
            )
        return program


def tag_quantized() -> Any:
    """Return ExecuTorch's passes. The pass that keeps quantized inputs and outputs as integers is
    enabled."""
    passes = qnn_passes.get_qnn_pass_manager_cls().get_capture_program_passes()
    passes[TagQuantIO]["activate"] = True
    passes[TagQuantIO]["args_kwargs_defaults"]["get_quant_io_dtype_fn"] = find_io_dtype
    return passes


def find_io_dtype(node: Any) -> torch.dtype | None:
    """Return the integer dtype of a graph's input or output in the program. Return None for a node
    that is neither, and for values that are not quantized to unsigned integers."""
    attributes = node.meta.get("quant_attrs")
    # torch.export puts these in front of the names of parameters, buffers and constants
    # (placeholder_prefixes in torch/_export/utils.py).
    is_input = node.op == "placeholder" and not node.name.startswith(("p_", "b_", "c_"))
    if (
        not attributes
        or attributes["quant_min"]
        or not (is_input or any(user.op == "output" for user in node.users))
    ):
        return None
    return torch.uint8 if attributes["quant_max"] < 2**8 else torch.uint16


def describe_refusal(error: Exception, log: Path) -> Finding:
    """Return why a lowering failed. The first line of list_refusals is the headline."""
    first, *details = list_refusals(error, log)
    unmade = find_unmade(error, read_window(log))
    places = dict.fromkeys((*find_failed(error), *unmade, *list_places(list_left(error))))
    return NOT_LOWERED.find(first, evidence="\n".join(details), places=places)


def list_refusals(error: Exception, log: Path) -> list[str]:
    """Return why a lowering failed: operators without quantization, nodes left to the CPU, QNN's
    error lines, and ExecuTorch's exception with its cause and file, which comes first if it has
    nothing to do with the others."""
    sys.stdout.flush()  # to the log
    text = read_window(log)
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) and cause not in chain:  # `raise error from error`
        chain.append(cause)
    # A cause that was never raised, as in `raise error from ValueError()`, has no frames.
    frames: list[traceback.FrameSummary] = []
    for exception in chain:
        frames += traceback.extract_tb(exception.__traceback__)
    place = f" [{frames[-1].filename.rpartition('site-packages/')[2]}]"
    raised = [f"{describe_error(chain[-1])}{place}"]  # the outer error often only repeats passes
    raised += [describe_error(error)] if len(chain) > 1 else []
    on_cpu = dict.fromkeys(f"{node.op}: {node.text}" for node in list_left(error))
    left = list(on_cpu)[:MOST_LEFT]
    floats = dict.fromkeys(NO_RULE.findall(text))
    bare = [f"{op} is not quantized: ExecuTorch has no rule for it" for op in floats]
    refusals = [*filter(None, [*left, qnn_errors(text, "; ".join(left))])]
    # Where QNN refused nothing, a missing rule is the cause only if a scale is missing too.
    lacks_scale = any(cause.args == ("scale",) for cause in chain)
    if refusals or lacks_scale or any(isinstance(cause, AssertionError) for cause in chain):
        return [*bare, *refusals, *raised]
    return [*raised, *bare]


def keep_initial_state(edge: Any) -> ExecutorchBackendConfig:
    """Return a configuration with which a program's mutable buffers start with their values from
    the model. By default, they would start with zeros."""
    names = []
    # ExecuTorch's methods are a set, whose order differs between processes.
    for method in sorted(edge.methods):
        signature = edge.exported_program(method).graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        names += [name for name, buffer in signature.inputs_to_buffers.items() if buffer in mutated]
    return ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(names)] if names else [])


def describe_outputs(
    model: Model, graphs: Iterable[Graph], on_host: Sequence[bool] = ()
) -> tuple[TensorInfo, ...]:
    """Return the dtype and the shape of each output. For an output that QNN quantizes, its possible
    values are included. ``graphs`` are those of a quantized model's methods. ``on_host`` is the
    field of Delegation; results that are states come first."""
    infos = tuple(map(describe_tensor, model.reference[0]))
    grids = find_grids(graphs) or [NO_GRID] * len(infos)
    if any(on_host[-len(grids) :]):
        single = len(split_module(model.module)) == 1  # else, the order of the methods may differ
        hosted = on_host[-len(grids) :] if single else [True] * len(grids)
        quantized = list(grids)
        for index, is_on_host in enumerate(hosted):
            if is_on_host:
                quantized[index] = NO_GRID
        grids = quantized
    return add_grids(infos, grids)


def sign_by_content(program: bytes) -> bytes:
    """Return ``program`` with the signature of every context replaced by a digest of the context,
    so that the same lowering writes the same bytes.

    ExecuTorch's QnnContextCustomProtocol writes a header before each context binary: magic (u32),
    signature (u64) and size of the remainder (u64), little-endian and packed. The signature is the
    system time in nanoseconds. It only serves to distinguish contexts within a process. It is also
    the only difference between two lowerings of one model (seen with ExecuTorch 1.5.1).
    """
    data = bytearray(program)
    magic = HEADER_MAGIC.to_bytes(4, "little")
    start = data.find(magic)
    while 0 <= start <= len(data) - HEADER.size:
        begin = start + HEADER.size
        _, _, size = HEADER.unpack_from(data, start)
        if 0 < size <= len(data) - begin:
            digest = hashlib.sha256(memoryview(data)[begin : begin + size]).digest()
            HEADER.pack_into(data, start, HEADER_MAGIC, int.from_bytes(digest[:8], "little"), size)
            start = data.find(magic, begin + size)
        else:  # these bytes equal the magic, but no context follows
            start = data.find(magic, start + len(magic))
    return bytes(data)
