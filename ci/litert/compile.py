"""Compiles a LiteRT model with the plugin for Qualcomm, and writes the references.

The artifact contains:

- program/compiled.tflite, which the plugin wrote
- program/source.npz, the samples on which it is judged, if they are those of the whole model
- program/source.tflite, the model itself, or its partitions if the interpreter does not know all of
  its operators; an empty file "split" or "part" says that it is not a user's model
- the files that ci.cases.cache describes
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ci.analysis.exponents import measure_low
from ci.analysis.grids import add_grids, find_grids
from ci.analysis.layers import find_float16_loss
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
    CompilerError,
    Delegation,
    Fallback,
    Staging,
    needed,
    require_export,
)
from ci.cases.qnn_files import Peak, make_footprint
from ci.cases.spec import CaseSpec
from ci.graphs.channels_first import put_channels_first
from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    CONTROL,
    RUN_HERE,
    Entry,
    has_data,
    is_custom,
    list_entries,
    list_numbers,
    name_operator,
    name_tensor,
    read_dtype,
    read_levels,
    read_model,
    restore_numbers,
)
from ci.graphs.litert_pairs import Side
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_session import Reference
from ci.litert.clipped import find_clipped_values
from ci.litert.compiled import DISPATCH, CompiledModel, check_target
from ci.litert.layers import expose_layers
from ci.litert.losses import find_quantization_loss
from ci.litert.plugin import CONVERTER, NothingTakenError, PluginResult, run_plugin
from ci.litert.source import LitertSource, check_model
from ci.litert.split import MAIN, SplitInputs, list_unknown, split_at_partitions
from ci.models.file_checks import require_fixed_shapes
from ci.models.rounding import find_version, is_poor
from ci.models.tensors import Layer, Loss, TensorInfo, add_parts, describe_tensor
from ci.report.schema import Clipped, Footprint, OperatorCount
from ci.report.text import count, name_some
from provisioning.errors import FailedError

PROGRAM, COMPILED, SOURCE, SAMPLES = "program", "compiled.tflite", "source.tflite", "source.npz"
SPLIT, PART = "split", "part"  # empty files, which say what the source is
TRANSLATES_NOT = "LiteRT's plugin cannot translate it for QNN"
OWN_OPERATOR = "it is a custom operator, of which LiteRT's plugin translates none"
# What converters call dynamic-range quantization. LiteRT's plugin takes a FULLY_CONNECTED of it.
HYBRID = "its weights are quantized and its activations are not, which QNN does not take here"


@dataclass(frozen=True)
class Judged:
    """The model whose outputs are judged: the source, or its partitions if ``is_split``."""

    data: bytes
    model: Any
    entries: Sequence[Entry]
    sets: Sequence[Sequence[Array]]
    is_split: bool = False


def compile_litert(
    source: LitertSource,
    spec: CaseSpec,
    staging: Staging,
    *,
    library: Path,
    timeout_s: float,
    is_part: bool = False,
) -> Compiled:
    """Compile the model of a case and write all files. ``library`` is QNN's backend. A part of a
    model runs here only. Raises FailedError if LiteRT does not load the model, or if the plugin
    refuses it."""
    # First, because the plugin compiles weights that are too short without a word.
    unknown = list_unknown(source.data, source.model)
    check_model(source.name, source.model)
    layers: tuple[Layer, ...] = ()
    if spec.layers:
        if unknown:
            raise FailedError("each partition is judged alone, so that its layers are not returned")
        source, layers = expose_layers(source)
    program = staging.directory / PROGRAM
    program.mkdir()
    (program / SOURCE).write_bytes(source.data)
    staging.enter("lower")
    try:
        result = run_plugin(
            program / SOURCE,
            staging.directory.with_name(COMPILED),
            spec.soc,
            library_folder=library.parent,
            log=staging.log,
            timeout_s=timeout_s,
        )
    except (CompilerError, NothingTakenError) as error:
        with staging.notes.of("the model's operators"):  # of which one may have a known fault
            staging.note_steps(list_steps(LitertProgram(source.data, source.signatures), staging))
        if isinstance(error, NothingTakenError):
            raise describe_untaken(source.model, error) from error
        raise
    staging.directory.with_name(COMPILED).rename(program / COMPILED)
    compiled = CompiledModel(program / COMPILED)
    is_shipped = not (spec.layers or is_part)
    contexts = check_target(compiled, spec.soc, is_shipped=is_shipped, source=source.model)
    delegation, operators = count_operators(source.model, compiled, result)
    footprint = make_footprint(
        program_bytes=(program / COMPILED).stat().st_size,
        partitions=delegation.partitions,
        contexts=contexts,
        log="",
        operators=operators,
        peak=Peak(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10),
    )
    judged = choose_judged(source, compiled, unknown, staging)
    if is_part:
        (program / PART).touch()
    elif not (layers or judged.is_split or list_skipped(source)):
        # Without its inputs, a kept file would be judged on random ones.
        arrays = map(np.stack, zip(*source.evaluation, strict=True))
        np.savez(program / SAMPLES, *arrays)
    if judged.is_split:
        (program / SOURCE).write_bytes(judged.data)
        (program / SPLIT).touch()
    return judge_program(
        source,
        judged,
        spec,
        staging,
        library=library,
        delegation=delegation,
        footprint=footprint,
        on_cpu=list_on_cpu(compiled),
        layers=layers,
        explains_loss=not (spec.scheme.quantized or layers or is_part),
    )


def choose_judged(
    source: LitertSource, compiled: CompiledModel, unknown: Sequence[str], staging: Staging
) -> Judged:
    """Return the source, or its partitions if the interpreter does not know some operators."""
    if skipped := list_skipped(source):
        staging.notes.append(
            f"only {name_some(source.signatures, 3)} of the model's signatures ran, because the"
            f" policy names them; {name_some(skipped, 3)} {'was' if len(skipped) == 1 else 'were'}"
            " compiled, and not judged"
        )
    staging.notes.extend(source.remarks)
    if not unknown:
        return Judged(source.data, source.model, source.entries, source.evaluation)
    if source.expected:
        raise FailedError(
            f"LiteRT's interpreter does not know {name_some(unknown, 4)}, which {CONVERTER} wrote",
            why="the converted model cannot be compared with the module without running it",
            fix="write these operators with others",
        )
    if source.entries[0].subgraph != MAIN:
        raise FailedError(
            f"the signature {source.entries[0].key} cannot be judged: the model has operators that"
            f" LiteRT's interpreter does not know ({name_some(unknown, 4)})",
            why="only the partitions of the first subgraph can then be judged alone",
            fix="name the signature of the first subgraph",
        )
    data = split_at_partitions(source.model, compiled)
    model = read_model(data)
    # The parts have the names of tensors, which signatures call otherwise.
    main = source.model.subgraphs[MAIN]
    inputs = SplitInputs(data, model, [name_tensor(main, at) for at in source.entries[0].inputs])
    sets = [inputs.make(arrays) for arrays in source.evaluation]
    random = inputs.list_random()
    fed = f"; random numbers stand for {name_some(random, 3)}, which they compute" if random else ""
    partitions = len(inputs.entries)
    judged = f"each of the {count(partitions, 'partition')}" if partitions > 1 else "its partition"
    staging.notes.append(
        f"LiteRT's interpreter does not know {name_some(unknown, 4)}, so there is no reference for"
        f" the whole: {judged} is judged alone{fed}"
    )
    return Judged(data, model, inputs.entries, sets, is_split=True)


def list_skipped(source: LitertSource) -> list[str]:
    """Return the signatures of a model that are not run."""
    keys = [entry.key for entry in list_entries(source.model)]
    return [key for key in keys if source.signatures and key not in source.signatures]


def judge_program(
    source: LitertSource,
    judged: Judged,
    spec: CaseSpec,
    staging: Staging,
    *,
    library: Path,
    delegation: Delegation,
    footprint: Footprint,
    on_cpu: Collection[tuple[int, str]],
    layers: tuple[Layer, ...],
    explains_loss: bool,
) -> Compiled:
    """Write the references of a compiled model, and return its description. ``on_cpu`` are the
    tensors that the CPU computes, as find_values takes them, and ``layers`` those to which its last
    outputs belong. It ``explains_loss`` if float16 costs much. Raises FailedError if
    the conversion from torch changed the model."""
    staging.enter("reference")
    staging.write(INPUTS, judged.sets)
    reference = run_reference(judged)
    # First, because the conversion may be what makes them infinite. A file has no module.
    require_export(CONVERTER, source.expected, reference, source.state)
    expected: Sequence[Sequence[Array]] = source.expected or reference
    if source.float_data:
        expected = run_float_model(source, judged)
    staging.write_float(expected, source.made_inputs)
    program = LitertProgram(judged.data, () if judged.is_split else source.signatures)
    bits = spec.scheme.recipe.activation_bits
    with needed("the bounds of outputs that are not floating-point"):
        ties = find_ties(program, judged.sets, reference, bits)
        staging.write_bounds(FLOAT, *((expected, expected) if source.float_data else ties))
        if spec.scheme.quantized:
            staging.write(QUANTIZED, reference)
            staging.write_bounds(QUANTIZED, *ties)
    with needed("the predicted rounding noise"):
        # The partitions of a split model are judged alone.
        values = program.find_values(() if judged.is_split else on_cpu)
        qnn = find_version(library)
        noise = predict_noise(program, judged.sets, reference, qnn=qnn, on_cpu=values)
    staging.write_noise(
        noise, partial(name_undefined, program, judged.sets, qnn=qnn, on_cpu=values)
    )
    loss: Loss | None = None
    if explains_loss:
        with staging.notes.of("the layer at which float16 costs the most"):
            is_lossy = is_poor(noise, reference)
            loss = find_float16_loss(program, judged.sets, is_lossy=is_lossy)
    clipped: tuple[Clipped, ...] = ()
    if source.float_data and not (judged.is_split or layers):
        with staging.notes.of("the tensors that leave their calibrated ranges"):
            clipped = find_clipped_of(source, judged)
        with staging.notes.of("the operator at which quantization costs the most"):
            loss = find_loss_of(source, judged)
    steps, infos = describe_model(program, reference[0], staging, layers)
    with staging.notes.of("the numbers that exponential functions read"):
        steps = measure_low(steps, lambda: program, judged.sets)
    return Compiled(
        program=f"{PROGRAM}/{COMPILED}",
        binary=f"{PROGRAM}/{COMPILED}",
        size_bytes=(staging.directory / PROGRAM / COMPILED).stat().st_size,
        sets=len(judged.sets),
        inputs=tuple(map(describe_tensor, judged.sets[0])),
        outputs=infos,
        delegation=delegation,
        footprint=footprint,
        loss=loss,
        clipped=clipped,
        made_inputs=source.made_inputs,
        weights=source.weights,
        steps=steps,
        layers=layers,
    )


def run_reference(judged: Judged) -> list[tuple[Array, ...]]:
    """Return the outputs of the judged model for each sample. Raises FailedError if LiteRT does not
    run it, or if the shape of an output depends on the sample."""
    try:
        outputs = Reference(judged.data, judged.model, judged.entries).run(judged.sets)
    except (RuntimeError, ValueError) as error:
        raise FailedError(
            "LiteRT's interpreter does not run the model on these inputs",
            why=" ".join(str(error).split()),
            fix="put samples that the model accepts next to it, in an .npz file of the same name",
        ) from error
    require_fixed_shapes(outputs, "WHERE or NON_MAX_SUPPRESSION_V4")
    return outputs


def run_float_model(source: LitertSource, judged: Judged) -> list[tuple[Array, ...]]:
    """Return the outputs of the float model, for inputs that stand for the same numbers."""
    model = read_model(source.float_data)
    entries = list_entries(model, source.signatures)
    sets = restore_sets(judged, model, entries)
    return Reference(source.float_data, model, entries).run(sets)


def find_clipped_of(source: LitertSource, judged: Judged) -> tuple[Clipped, ...]:
    """Return the values of a quantized model with one signature that leave their ranges."""
    sides, float_sets = open_sides(source, judged)
    return find_clipped_values(*sides, judged.sets, float_sets) if sides else ()


def find_loss_of(source: LitertSource, judged: Judged) -> Loss | None:
    """Return where a quantized model with one signature loses the most accuracy."""
    sides, float_sets = open_sides(source, judged)
    return find_quantization_loss(*sides, judged.sets[0], float_sets[0]) if sides else None


def open_sides(
    source: LitertSource, judged: Judged
) -> tuple[tuple[Side, Side] | None, list[list[Array]]]:
    """Return a quantized model and its float model, and the judged samples as inputs of the float
    model; None if the model has several signatures or a state."""
    model = read_model(source.float_data)
    entries = list_entries(model, source.signatures)
    if len(entries) != 1 or len(judged.entries) != 1 or judged.entries[0].states:
        return None, []
    sides = Side(judged.data, judged.entries[0]), Side(source.float_data, entries[0])
    return sides, restore_sets(judged, model, entries)


def restore_sets(judged: Judged, model: Any, entries: Sequence[Entry]) -> list[list[Array]]:
    """Return the judged samples as inputs of the float model, which stand for the same numbers."""
    tensors = [
        judged.model.subgraphs[entry.subgraph].tensors[number]
        for entry in judged.entries
        for number in entry.inputs
    ]
    float_tensors = [
        model.subgraphs[entry.subgraph].tensors[number]
        for entry in entries
        for number in entry.inputs
    ]
    sets = []
    for arrays in judged.sets:
        restored = []
        for tensor, float_tensor, array in zip(tensors, float_tensors, arrays, strict=True):
            is_passed_on = read_levels(float_tensor)
            restored.append(array if is_passed_on else restore_numbers(tensor, array))
        sets.append(restored)
    return sets


def describe_model(
    program: LitertProgram,
    outputs: Sequence[Array],
    staging: Staging,
    layers: Sequence[Layer],
) -> tuple[tuple[Step, ...], tuple[TensorInfo, ...]]:
    """Return the operators of a model, and its outputs with their parts and their steps; those of
    ``layers`` have no parts. What cannot be read or computed is empty, and is noted."""
    steps: list[Step] = []
    with staging.notes.of("the model's operators"):
        steps += list_steps(program, staging)
        staging.note_steps(steps)
        staging.notes.extend(note_control_flow(program))
    with needed("the description of the outputs"):
        infos = tuple(map(describe_tensor, outputs))
        graphs = [program.graphs[name_method(entry)] for entry in program.entries]
    with staging.notes.of("the parts of the outputs"):
        parts = [part for graph in graphs for part in find_parts(graph)]
        infos = add_parts(infos, parts[: len(infos) - len(layers)])
    with needed("the quantization steps of the outputs"):
        infos = add_grids(infos, find_grids(graphs))
    return tuple(steps), infos


def list_steps(program: LitertProgram, staging: Staging) -> list[Step]:
    """Return the operators of a model. What cannot be read is noted."""
    steps: list[Step] = []
    for graph in program.graphs.values():
        # The patterns of known faults have the channels of an image first, LiteRT last.
        torch_graph = put_channels_first(graph)
        staging.notes.extend(list_unread(torch_graph))
        steps += describe_steps(torch_graph)
    return steps


def note_control_flow(program: LitertProgram) -> list[str]:
    """Return what is not read of a model whose operators run other subgraphs; nothing if those are
    read."""
    model = program.model
    kinds = [
        name_operator(model, operator)
        for entry in (*program.entries, *program.bodies)
        for operator in model.subgraphs[entry.subgraph].operators or ()
    ]
    control = [kind for kind in dict.fromkeys(kinds) if kind in CONTROL - RUN_HERE]
    if not control:
        return []
    run = "runs" if len(control) == 1 else "run"
    note = (
        f"{name_some(control, 3)} {run} other subgraphs of the file:"
        " known faults are not looked for in them, and the predicted noise does not have the"
        " roundings of their operators"
    )
    return [note]


def count_operators(
    model: Any, compiled: CompiledModel, result: PluginResult
) -> tuple[Delegation, list[OperatorCount]]:
    """Return which operators of the source ``model`` QNN takes, and how many of each kind. All
    subgraphs count, because the branches of an IF have partitions, too."""
    places: dict[tuple[int, str], int] = {}  # of operators, by subgraph and result
    totals, on_cpu = Counter[str](), Counter[str]()
    for number, subgraph in enumerate(model.subgraphs):
        for place, operator in enumerate(subgraph.operators or ()):
            totals[name_operator(model, operator)] += 1
            for tensor in list_numbers(operator.outputs):
                places[number, name_tensor(subgraph, tensor)] = place
    fallbacks, partitions = [], 0
    for number, subgraph in enumerate(compiled.model.subgraphs):
        for operator in subgraph.operators or ():
            kind = name_operator(compiled.model, operator)
            if kind == DISPATCH:
                partitions += 1
                continue
            on_cpu[kind] += 1
            result_name = name_result(subgraph, operator)
            place = places.get((number, result_name), -1)
            fallbacks.append(
                Fallback(
                    kind,
                    find_reason(compiled.model, operator, result.refused, (number, place)),
                    name=result_name,
                )
            )
    counts = [
        OperatorCount(op=kind, npu=max(total - on_cpu[kind], 0), cpu=on_cpu[kind])
        for kind, total in totals.items()
    ]
    taken = sum(row.npu for row in counts)
    return Delegation(taken, len(fallbacks), partitions, tuple(fallbacks)), counts


def list_on_cpu(compiled: CompiledModel) -> set[tuple[int, str]]:
    """Return the tensors that operators of a compiled file compute on the CPU: the number of the
    subgraph and the name. Results of operators that run other subgraphs are computed there."""
    tensors = set()
    for number, subgraph in enumerate(compiled.model.subgraphs):
        for operator in subgraph.operators or ():
            if name_operator(compiled.model, operator) not in CONTROL | {DISPATCH}:
                for result in list_numbers(operator.outputs):
                    tensors.add((number, name_tensor(subgraph, result)))
    return tensors


def name_result(subgraph: Any, operator: Any) -> str:
    """Return the name of an operator's first result, "" if it has none."""
    results = list_numbers(operator.outputs)
    return name_tensor(subgraph, results[0]) if results else ""


def find_reason(
    model: Any, operator: Any, refused: Mapping[tuple[int, int], str], place: tuple[int, int]
) -> str:
    """Return why an operator stays on the CPU."""
    if is_custom(model, operator):
        return OWN_OPERATOR
    if is_hybrid(model.subgraphs[place[0]], model, operator):
        return HYBRID
    return refused.get(place) or TRANSLATES_NOT


def is_hybrid(subgraph: Any, model: Any, operator: Any) -> bool:
    """Return whether an operator of a subgraph has quantized weights and float activations."""
    reads = list_numbers(operator.inputs)
    if len(reads) < 2 or min(reads[:2]) < 0:
        return False
    activation, weights = (subgraph.tensors[number] for number in reads[:2])
    is_float = read_dtype(activation) == "float32"
    return is_float and read_levels(weights) is not None and has_data(model, weights)


def describe_untaken(model: Any, error: NothingTakenError) -> FailedError:
    """Return the error for a model of which QNN takes no operator, with the cause that the model
    shows."""
    custom, hybrid, kinds = list[str](), list[str](), list[str]()
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or ():
            kind = name_operator(model, operator)
            kinds.append(kind)
            if is_custom(model, operator):
                custom.append(kind)
            elif is_hybrid(subgraph, model, operator):
                hybrid.append(kind)
    if len(custom) == len(kinds):
        return FailedError(
            error.what,
            why=f"{name_some(list(dict.fromkeys(custom)), 4)}: {OWN_OPERATOR}",
            fix="use operators of LiteRT instead",
        )
    if hybrid:
        return FailedError(
            error.what,
            why=f"{name_some(list(dict.fromkeys(hybrid)), 4)}: {HYBRID}",
            fix="quantize the activations, too (full-integer quantization), or keep the weights in"
            " float",
        )
    return error
