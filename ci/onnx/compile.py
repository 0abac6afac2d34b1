"""Turns a float ONNX model into a quantized one and a context binary, and writes the references.

The artifact contains:

- quantized.onnx, if the scheme quantizes
- program/model.onnx, with the context binary inside or next to it
- the files that ci.cases.cache describes
- saver_output/, the files of QNN's Saver, if they are requested
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from msgspec import structs

from ci.analysis.clipping import find_clipped
from ci.analysis.exponents import measure_low, try_to_measure_low
from ci.analysis.grids import add_grids, find_grids
from ci.analysis.layers import find_float16_loss, find_loss
from ci.analysis.noise import predict_noise
from ci.analysis.parts import find_parts
from ci.analysis.steps import Step, describe_steps, list_unread
from ci.analysis.ties import find_ties
from ci.analysis.undefined import name_undefined
from ci.cases.engine import (
    FLOAT,
    INPUTS,
    QUANTIZED,
    Compiled,
    Delegation,
    Staging,
    needed,
    require_export,
)
from ci.cases.forked import redirected
from ci.cases.qnn_files import make_footprint, measure_peak
from ci.cases.spec import CaseSpec
from ci.graphs.candidates import Candidate
from ci.graphs.onnx_file import list_candidates, list_graphs, read_constants
from ci.graphs.onnx_program import read_onnx
from ci.graphs.onnx_reader import read_file
from ci.graphs.onnx_session import open_reference, run_sets
from ci.models.file_checks import describe_random, require_fixed_shapes
from ci.models.file_samples import Arrays
from ci.models.lowering_options import Part
from ci.models.rounding import find_version, is_poor
from ci.models.schemes import Scheme
from ci.models.tensors import (
    Layer,
    Loss,
    OutputPart,
    Retyped,
    add_parts,
    count_types,
    describe_tensor,
    digest_sets,
    find_retyped,
)
from ci.models.user_code import working_directory
from ci.models.user_models import name_made
from ci.onnx.contexts import check_context, seal_context
from ci.onnx.fallback import (
    CPU,
    ONNXRUNTIME,
    PROVIDER_LOG,
    QNN,
    count_nodes,
    count_operators,
    name_operator,
    read_reasons,
    stage,
)
from ci.onnx.layers import expose_layers
from ci.onnx.models import Shapes, external_files, read_model
from ci.onnx.options import find_backend
from ci.onnx.precision import find_asked, list_tensors, name_types
from ci.onnx.preparation import copy_file, quantize_file, write_normal_form
from ci.onnx.session import RECORD_ASSIGNMENT, open_session
from ci.onnx.source import Source, from_file, from_torch
from ci.report.schema import Clipped, Footprint, TypeShare
from provisioning.doctor.survey.context_binaries import ContextBinary, list_context_binaries
from provisioning.documents import read_window
from provisioning.errors import FailedError
from provisioning.manifest.targets import read_all_socs

DRAWS = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
}
# Part of onnxruntime's error for a context that lacks nodes which the provider has compiled
FORGOTTEN_NODE = "Encountered an invalid node while compiling a model"
Bounds = tuple[list[Arrays], list[Arrays]]


PROGRAM, CONTEXT = "program", "model.onnx"
QUANTIZED_MODEL = "quantized.onnx"
GRAPHS = "qnn_graphs"  # descriptions of QNN's graphs, which are not kept
SAVER_LOG = "saver.log"
EXPORTER = "torch.onnx.export"


def load_source(spec: CaseSpec) -> Source:
    """Return the model and the inputs of a case, with their digest. The model comes from the suite,
    a user's function or a file."""
    if spec.is_file:
        path = Path(spec.reference)
        shapes = spec.source.shapes
        model = read_model(path, shapes)
        external = external_files(model, path)
        if spec.source.float_model:
            plain = Path(spec.source.float_model)
            external += [plain, *external_files(read_model(plain, shapes), plain)]
        return from_file(path, model, external, spec.source)
    from ci.models.model import load_digested  # it imports torch, which .onnx files do not need

    return from_torch(*load_digested(spec.reference, spec.source))


def compile_source(
    source: Source,
    spec: CaseSpec,
    staging: Staging,
    options: Mapping[str, str],
    *,
    embed: bool | None,
    saver: str,
) -> Compiled:
    """Export the model, quantize it if the scheme requires that, compile it, and write all files.

    ``options`` are the provider's options. ``saver`` is the library that records QNN's calls, or
    empty. If ``embed`` is true, the context binary is stored in the ONNX file. If it is None, the
    program is the model itself instead of a context. Raises FailedError if the model's outputs
    cannot be used to judge the program, or if the export changed them. Raises StageError if a tool
    fails.
    """
    require_float16(spec, options)
    plain = write_float(source, staging.directory.with_name("float.onnx"), spec.source.shapes)
    is_float = not spec.scheme.quantized
    calibrated = not is_float and spec.scheme is not Scheme.ASIS
    steps, parts = describe_file(
        plain, staging, () if calibrated else source.evaluation, has_layers=spec.layers
    )
    model, reference, float32, owners = write_references(source, plain, spec, staging)
    with needed("the description of the outputs"):
        infos = tuple(map(describe_tensor, reference[0]))
        infos = add_parts(infos, parts)
    layers: tuple[Layer, ...] = ()
    if spec.layers:
        exposed = staging.directory.with_name("exposed.onnx")
        layers, model = expose_layers(model, exposed), exposed
        reference = run_reference(model, source.evaluation)
        added = map(describe_tensor, reference[0][len(infos) :])
        infos = (*infos, *added)
        staging.write_float(reference)
        if not is_float:
            staging.write(QUANTIZED, reference)
    staging.enter("reference")
    disturbed = staging.directory.with_name("disturbed.onnx")
    # Without what is needed, there is no verdict. What only explains a result becomes a note
    # instead.
    with needed("the predicted rounding noise"):
        qnn = find_version(Path(options.get("backend_path", "")))
        read = read_onnx(model, disturbed, plain if calibrated else None)
        noise = predict_noise(read, source.evaluation, reference, qnn=qnn)
    staging.write_noise(noise, partial(name_undefined, read, source.evaluation, qnn=qnn))
    loss: Loss | None = None
    if is_float and not spec.layers:
        with staging.notes.of("the layer at which float16 costs the most"):
            is_lossy = is_poor(noise, reference)
            loss = find_float16_loss(read, source.evaluation, is_lossy=is_lossy)
    clipped: tuple[Clipped, ...] = ()
    if calibrated and not spec.layers:
        with staging.notes.of("the tensors that leave their calibrated ranges"):
            clipped = find_clipped(read, source.evaluation)
        with staging.notes.of("the layer at which quantization costs the most"):
            first, *further = source.evaluation
            loss = find_loss(
                read,
                first,
                float32,
                further,
                partial(read_onnx, plain, disturbed.with_name("float_copy.onnx")),
            )
    staging.enter("lower")
    program = staging.directory / PROGRAM
    delegation, footprint, (types, retyped) = write_typed(
        model, program, staging, spec, options, embed=embed, owners=owners
    )
    if saver and delegation.partitions:
        # Absolute, because write_calls changes the working directory.
        write_calls(model.absolute(), staging, {**options, "qnn_saver_path": saver})
    if not is_float:
        cpu_operators = {operator.op for operator in footprint.operators if operator.cpu}
        with needed("the quantization steps of the outputs"):
            infos = add_grids(infos, find_grids(read.graphs.values(), cpu_operators))
    files = [*program.iterdir()]
    # In embed mode 0, the provider writes NAME_qnn.bin next to the model.
    binary = next((path.name for path in files if path.suffix == ".bin"), CONTEXT)
    return Compiled(
        program=f"{PROGRAM}/{CONTEXT}",
        binary=f"{PROGRAM}/{binary}",
        size_bytes=sum(path.stat().st_size for path in files),
        sets=len(source.evaluation),
        inputs=tuple(map(describe_tensor, source.evaluation[0])),
        outputs=infos,
        delegation=delegation,
        footprint=footprint,
        loss=loss,
        clipped=clipped,
        layers=layers,
        made_inputs=name_made(source.made_inputs, source.made_calibration, quantized=calibrated),
        weights=digest_source(source),
        calibration=digest_sets(source.calibration) if calibrated else "",
        steps=steps,
        types=types,
        retyped=retyped,
    )


def describe_file(
    plain: Path, staging: Staging, sets: Sequence[Arrays], *, has_layers: bool
) -> tuple[tuple[Step, ...], list[tuple[OutputPart, ...]]]:
    """Return the steps of a float model, unless the case ``has_layers``, and the parts of its
    outputs. What cannot be read or computed is empty, and is noted. ``sets`` are the samples on
    which the numbers of the steps are measured, if any: in 8 and 16 bits, none of them matters."""
    steps: tuple[Step, ...] = ()
    parts: list[tuple[OutputPart, ...]] = []
    with staging.notes.of("the model's operators and the parts of its outputs"):
        graph = read_file(plain)
        staging.notes.extend(list_unread(graph))
        if not has_layers:
            with staging.notes.of("the model's operators"):
                steps = describe_steps(graph)
            # Before the compilation, so that a case whose compiler refuses the model, dies or never
            # ends can name a known fault, too.
            staging.note_steps(steps)
            with staging.notes.of("the numbers that exponential functions read"):
                read = partial(read_onnx, plain, staging.directory.with_name("measured.onnx"))
                steps = measure_low(steps, read, sets)
        with staging.notes.of("the parts of the outputs"):
            parts = find_parts(graph)
    return steps, parts


def measure_file(plain: Path, scratch: Path, sets: Sequence[Arrays]) -> tuple[Step, ...]:
    """Return the steps of a float model whose numbers are those of the samples ``sets``, as far as
    they can be measured. The file ``scratch`` is overwritten."""
    steps = describe_steps(read_file(plain))
    return try_to_measure_low(steps, partial(read_onnx, plain, scratch), sets)


def bound_outputs(
    model: Path, scratch: Path, sets: Sequence[Arrays], outputs: Sequence[Arrays], bits: int
) -> Bounds:
    """Return the result of find_ties. The file is not read if all outputs are floating-point."""
    if all(array.dtype.kind == "f" for array in outputs[0]):
        return list(outputs), list(outputs)
    return find_ties(read_onnx(model, scratch), sets, outputs, bits)


def write_references(
    source: Source, model: Path, spec: CaseSpec, staging: Staging
) -> tuple[Path, list[Arrays], Arrays, Mapping[str, Part]]:
    """Write the inputs, the outputs of the float model and, if the scheme quantizes, those of the
    quantized model. ``model`` is the file of write_float. Return the model to compile, its outputs
    for each sample, the float model's outputs for the first set, and the parts of the
    quantized model's tensors. Raises the errors of compile_source."""
    staging.write(INPUTS, source.evaluation)
    reference = expected = run_reference(model, source.evaluation)
    float32, plain = reference[0], model
    if spec.source.float_model:  # ``model`` is quantized already, so it is not what is expected
        plain = staging.directory.with_name("plain.onnx")
        plain = write_normal_form(Path(spec.source.float_model), plain, spec.source.shapes)
        expected = run_reference(plain, source.evaluation)
    # First, because the export may be what makes them infinite. A model from a file has no module.
    require_export(EXPORTER, source.reference, reference, source.state)
    staging.write_float(expected, source.made_inputs)
    disturbed = staging.directory.with_name("disturbed.onnx")
    bits = spec.scheme.recipe.activation_bits
    with needed("the bounds of outputs that are not floating-point"):
        bounds = bound_outputs(plain, disturbed, source.evaluation, expected, bits)
    staging.write_bounds(FLOAT, *bounds)
    if not spec.scheme.quantized:
        return model, reference, float32, {}
    quantized = staging.directory / QUANTIZED_MODEL
    staging.enter("quantize")
    owners = write_quantized(source, model, quantized, spec)
    reference = run_reference(quantized, source.evaluation)
    staging.write(QUANTIZED, reference)
    with needed("the bounds of outputs that are not floating-point"):
        ties = bound_outputs(quantized, disturbed, source.evaluation, reference, bits)
    staging.write_bounds(QUANTIZED, *ties)
    return quantized, reference, float32, owners


def write_quantized(
    source: Source, model: Path, target: Path, spec: CaseSpec
) -> Mapping[str, Part]:
    """Write the quantized model of ``model``, the float file of ``source``, to ``target``. A file
    that is quantized already is copied. Return the parts of the tensors, as quantize_file does."""
    if spec.scheme is Scheme.ASIS:
        copy_file(model, target)
        return {}
    choices = spec.source.choices
    return quantize_file(model, target, spec.scheme.base, source.calibration, choices)


def digest_source(source: Source) -> str:
    """Return the SHA-256 of a model's weights: the parameters and buffers of a module, or the
    constants of a file."""
    if not isinstance(source.origin, Path):
        from ci.models.model import digest_weights

        return digest_weights(source.origin.module)
    digest = hashlib.sha256()
    for graph in list_graphs(onnx.load(source.origin).graph):
        for name, tensor in sorted(read_constants(graph).items()):
            array = onnx.numpy_helper.to_array(tensor)
            digest.update(f"{len(name)}:{name}{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def list_nodes(spec: CaseSpec) -> list[Candidate]:
    """Return the nodes that parts can select in the float model of a case, or the nodes of a file
    that is already quantized, with the types of their results."""
    with TemporaryDirectory() as scratch:
        path = write_float(load_source(spec), Path(scratch, "float.onnx"), spec.source.shapes)
        types = name_types(path)
        candidates = list_candidates(onnx.load(path, load_external_data=False))
    return [
        structs.replace(candidate, result_type=types.get(candidate.name, ""))
        for candidate in candidates
    ]


def write_float(source: Source, target: Path, shapes: Shapes = ()) -> Path:
    """Return the file of the float model. For a user's file, this is the result of
    write_normal_form with these ``shapes``. A torch module is exported to ``target``."""
    if isinstance(source.origin, Path):
        return write_normal_form(source.origin, target, shapes)

    from ci.onnx.export import export_module

    export_module(source.origin.module, source.origin.evaluation[0], target)
    return target


def run_reference(model: Path, sets: Sequence[Arrays]) -> list[Arrays]:
    """Return the model's outputs for each sample, computed by ONNX Runtime on the CPU. Raises
    StageError, with a FailedError as its cause if they are random or their shapes vary."""
    with stage(ONNXRUNTIME):
        session = open_reference(model)
    with stage(CPU):
        require_repeatable(model)
        outputs = run_sets(session, sets)
        require_fixed_shapes(outputs, "NonZero or NonMaxSuppression")
    return outputs


def require_repeatable(model: Path) -> None:
    """Raise FailedError if a model draws random numbers."""
    graph = onnx.load(model, load_external_data=False).graph
    for inner_graph in list_graphs(graph):
        for node in inner_graph.node:
            if node.op_type in DRAWS:
                raise describe_random(f"{node.op_type} {node.name or node.output[0]!r}")


def write_typed(
    model: Path,
    program: Path,
    staging: Staging,
    spec: CaseSpec,
    options: Mapping[str, str],
    *,
    embed: bool | None,
    owners: Mapping[str, Part],
) -> tuple[Delegation, Footprint, tuple[tuple[TypeShare, ...], tuple[Retyped, ...]]]:
    """Compile ``model`` as write_context does. Return also the types of the tensors in the graphs
    that QNN's provider describes, and those tensors that have fewer bits than requested."""
    graphs = staging.directory.with_name(GRAPHS)
    graphs.mkdir()
    dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(graphs.absolute())}
    delegation, footprint = write_context(
        model, program, staging.log, spec.soc, {**options, **dump}, embed=embed
    )
    if user_directory := options.get("json_qnn_graph_dir"):
        # The user's option was replaced by ours, so the user's directory gets copies.
        for path in graphs.iterdir():
            shutil.copyfile(path, Path(user_directory, path.name))
    types: tuple[tuple[TypeShare, ...], tuple[Retyped, ...]] = (), ()
    with staging.notes.of("the types of the program's tensors"):
        described = onnx.load(model, load_external_data=False)
        tensors = [*list_tensors(described, graphs)]
        requested = find_asked(described, owners) if spec.scheme.quantized else {}
        # A type can be lost without an error: users of AIMET report that layers in fp16 came out in
        # 8 bits (aimet 4102).
        types = count_types(tensors), find_retyped(requested, tensors)
    return delegation, footprint, types


@stage(QNN)
def write_context(
    model: Path,
    directory: Path,
    log: Path,
    soc: str,
    options: Mapping[str, str],
    *,
    embed: bool | None,
) -> tuple[Delegation, Footprint]:
    """Compile ``model`` with QNN's provider, and return its delegation and footprint.

    The context is checked against ``soc`` and sealed. If QNN executes no node, no context is
    written. If ``embed`` is None, a copy of the model is written instead of a context. Raises
    StageError with an error of onnxruntime or check_context as its cause.
    """
    directory.mkdir()
    log = log.with_name(PROVIDER_LOG)
    target, entries = directory / CONTEXT, RECORD_ASSIGNMENT
    if embed is None:
        model = copy_file(model, target)
    else:
        entries = entries | {
            "ep.context_enable": "1",
            "ep.context_file_path": str(target),
            "ep.context_embed_mode": str(int(embed)),
        }
    try:
        # ONNX Runtime names QNN's graph after the path of the model as it is passed. That of a
        # scratch directory would give equal programs different bytes.
        with output_to(log), working_directory(model.parent), measure_peak() as peak:
            # At this level, the provider logs why it rejects a node (onnxruntime-qnn 2.5.0).
            session = open_session(Path(model.name), options, entries, log_level="verbose")
    except Exception as error:
        with stage(ONNXRUNTIME):  # the cause may be its optimizer, not QNN
            open_reference(model, optimize=True)
        require_no_branch(model)
        if FORGOTTEN_NODE in str(error):
            require_no_function(model, read_reasons(read_window(log)))
        raise
    contexts: tuple[ContextBinary, ...] = ()
    # There is no file if QNN executes no node.
    if embed is not None and target.is_file():
        contexts = list_context_binaries(memoryview(check_context(target, soc)))
        seal_context(target)
    parts = []
    for part in session.get_provider_graph_assignment_info():
        nodes = [(node.name, name_operator(node.domain, node.op_type)) for node in part.get_nodes()]
        parts.append((part.ep_name, nodes))
    text = read_window(log)
    delegation = count_nodes(parts, read_reasons(text), find_blocked(model))
    footprint = make_footprint(
        program_bytes=sum(path.stat().st_size for path in directory.iterdir()),
        partitions=delegation.partitions,
        contexts=contexts,
        log=text,
        operators=count_operators(parts),
        peak=peak,
    )
    return delegation, footprint


def require_float16(spec: CaseSpec, options: Mapping[str, str]) -> None:
    """Raise FailedError for a float model and an SoC whose HTP has no float16. QNN's provider
    rejects its nodes then without naming the cause."""
    soc = read_all_socs()[spec.soc]
    if not spec.scheme.quantized and not soc.float16 and find_backend(options) == "htp":
        raise FailedError(
            f"the HTP of {spec.soc} has no float16, in which a float model is computed",
            fix="choose a scheme that quantizes, such as --scheme u8, or another SoC",
        )


def require_no_branch(model: Path) -> None:
    """Raise FailedError if a model that QNN's provider refused has an If."""
    graph = onnx.load(model, load_external_data=False).graph
    for node in graph.node:
        if node.op_type == "If":
            raise FailedError(
                f"the If {node.name or node.output[0]!r} has a condition that the model computes",
                why="QNN takes an If only if it takes both of its branches whole",
                fix="export the model for one case, so that the condition is a constant, or compute"
                " both branches and select one with Where",
            )


def require_no_function(model: Path, reasons: Mapping[str, str]) -> None:
    """Raise FailedError if a model that onnxruntime writes no context of has an operator that is a
    function. ``reasons`` are those for which QNN's provider rejected nodes."""
    loaded = onnx.load(model, load_external_data=False)
    versions = {entry.domain: entry.version for entry in loaded.opset_import}
    for node in loaded.graph.node:
        has_schema = onnx.defs.has(node.op_type, node.domain)
        if node.name not in reasons or not has_schema:
            continue
        schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
        if schema.has_function or schema.has_context_dependent_function:
            raise FailedError(
                f"no context can be written of the {node.op_type} {node.name or node.output[0]!r}",
                why="onnxruntime replaces it by its definition only after QNN's provider has"
                " compiled the nodes around it, and does not find these in the context (onnxruntime"
                " 1.32.0, onnxruntime-qnn 2.5.0)",
                fix="write its definition into the model",
            )


def find_blocked(model: Path) -> str:
    """Return why QNN's provider does not take a model's quantizers, or "" if they have no
    blocks."""
    sizes = set()
    for node in onnx.load(model, load_external_data=False).graph.node:
        for attribute in node.attribute:
            if attribute.name == "block_size" and attribute.i:  # 0 is the default: no blocks
                sizes.add(attribute.i)
    return f"QNN takes no blocked quantizers (block_size {max(sizes)})" if sizes else ""


@stage(QNN)
def write_calls(model: Path, staging: Staging, options: Mapping[str, str]) -> None:
    """Record the API calls that QNN receives for ``model``, with QNN's Saver. Nothing is compiled.

    Saver writes to the working directory, so call this in a fork. Raises StageError with
    onnxruntime's error as its cause.
    """
    with output_to(staging.log.with_name(SAVER_LOG)), working_directory(staging.directory):
        open_session(model, options, {})


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Redirect the output of this process, including the output of C++ code, to ``log`` during the
    block."""
    with log.open("wb") as stream, redirected(stream.fileno(), 1, 2):
        yield
