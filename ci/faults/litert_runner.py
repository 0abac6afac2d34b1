"""Converts several graphs to one .tflite file, compiles it with LiteRT's plugin, and runs it. Each
graph is a separate part of the file, with its own inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from msgspec import structs

from ci.analysis.noise import predict_noise
from ci.analysis.steps import describe_steps
from ci.cases.engine import Fallback, require_export
from ci.faults.match import match_faults
from ci.faults.results import LEFT, Edit, Item, Result, Runs, judge_graphs
from ci.faults.torch_graphs import bundle_items
from ci.graphs.channels_first import put_channels_first
from ci.graphs.litert_file import Entry, list_entries, list_numbers, name_tensor, read_model
from ci.graphs.litert_program import LitertProgram
from ci.graphs.litert_session import Reference
from ci.litert.compile import COMPILED, SOURCE, count_operators, list_on_cpu
from ci.litert.compiled import CompiledModel, check_order
from ci.litert.convert import convert_module
from ci.litert.execution import Execution
from ci.litert.plugin import CONVERTER, run_plugin
from ci.litert.source import fit_module, list_tensors
from ci.models.eager import run_eager
from ci.models.numerics import fix_numerics
from ci.models.rounding import find_version
from ci.models.schemes import Scheme
from ci.onnx.fallback import QNN, stage

PLUGIN_LIMIT_S = 3600.0  # the worker's own limit is lower, and ends the plugin, too


def run_converted(
    items: Sequence[Item],
    scheme: Scheme,
    soc: str,
    options: Mapping[str, str],
    edit: Edit | None = None,
) -> list[Result]:
    """Convert the graphs of ``items`` to one file, compile and run it, and return a result per
    graph. ``options`` are onnxruntime's, which runs the partitions. ``edit`` applies the rewrite of
    a single item to the module that is converted. Raises FailedError if the file computes something
    else than the graphs, StageError if it cannot be compiled or run, and the converter's errors.
    Any of the graphs may have caused an error."""
    fix_numerics()
    graphs, module, samples = bundle_items(items, edit)
    sets = tuple(tuple(map(torch.from_numpy, arrays)) for arrays in samples)
    data = convert_module(module, sets[0])
    model = read_model(data)
    entries = list_entries(model)
    expected = [[output.numpy() for output in outputs] for outputs in run_eager(module, sets)]
    for kind, arrays in (("input", samples[0]), ("output", expected[0])):
        fit_module(kind, arrays, list_tensors(model, entries, kind), {})
    # What the converter changes is no fault of the compiler, so the file itself is the reference.
    right = Reference(data, model, entries).run(samples)
    require_export(CONVERTER, expected, right)
    program = LitertProgram(data)
    with TemporaryDirectory(prefix="graphs") as directory, stage(QNN):
        compiled, on_cpu = compile_file(data, model, Path(directory), soc, options)
        execution = Execution(compiled, model, Path(directory), options)
        (call,) = execution.list_calls(list_entries(compiled.model))
        actual = [call.run(arrays) for arrays in samples]
    qnn = find_version(Path(options.get("backend_path", "")))
    values = program.find_values(list_on_cpu(compiled))
    noise = predict_noise(program, samples, right, qnn=qnn, on_cpu=values)
    counts = [len(graph.outputs) for graph in graphs]
    numbers = number_tensors(model, entries[0], counts)
    left = {numbers.get(fallback.name, 0): fallback.op + LEFT for fallback in on_cpu}
    steps = [0.0] * len(right[0])  # nothing is quantized
    results = judge_graphs(items, counts, Runs(right, actual, noise, steps), left, scheme)
    if any(result.is_suspect for result in results):
        faults = find_faults(program, counts, scheme, qnn)
        results = [
            structs.replace(result, faults=faults.get(number, ()))
            for number, result in enumerate(results)
        ]
    return results


def compile_file(
    data: bytes, model: Any, directory: Path, soc: str, options: Mapping[str, str]
) -> tuple[CompiledModel, Sequence[Fallback]]:
    """Compile a file into a directory. Return the compiled file, and the operators that stay on
    the CPU. Raises the errors of run_plugin."""
    source, target = directory / SOURCE, directory / COMPILED
    source.write_bytes(data)
    result = run_plugin(
        source,
        target,
        soc,
        library_folder=Path(options["backend_path"]).parent,
        log=directory / "plugin.log",
        timeout_s=PLUGIN_LIMIT_S,
    )
    compiled = CompiledModel(target)
    check_order(COMPILED, compiled.model, model)
    return compiled, count_operators(model, compiled, result)[0].fallback_ops


def number_names(
    outputs: Sequence[str], counts: Sequence[int], sources: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Return the number of the graph that computes each name. Graph n has ``counts[n]`` of the
    ``outputs``, and ``sources`` are the names that a name is computed from. Constants, which
    several graphs may share, have no sources."""
    numbers: dict[str, int] = {}
    waiting = []
    remaining = iter(outputs)
    for number, count in enumerate(counts):
        waiting += [(name, number) for name in islice(remaining, count)]
    while waiting:
        name, number = waiting.pop()
        if name in sources and name not in numbers:
            numbers[name] = number
            waiting += [(source, number) for source in sources[name]]
    return numbers


def number_tensors(model: Any, entry: Entry, counts: Sequence[int]) -> dict[str, int]:
    """Return the number of the graph to which each tensor of a file belongs, by the tensor's
    name."""
    subgraph = model.subgraphs[entry.subgraph]
    sources: dict[str, list[str]] = {}
    for operator in subgraph.operators:
        reads = [
            name_tensor(subgraph, place) for place in list_numbers(operator.inputs) if place >= 0
        ]
        for place in list_numbers(operator.outputs):
            sources[name_tensor(subgraph, place)] = reads
    outputs = [name_tensor(subgraph, place) for place in entry.outputs]
    return number_names(outputs, counts, sources)


def find_faults(
    program: LitertProgram, counts: Sequence[int], scheme: Scheme, qnn: str
) -> dict[int, tuple[str, ...]]:
    """Return the names of the known faults whose patterns are in the file, by the numbers of the
    graphs. The converter writes other operators than torch's, which some patterns have."""
    (graph,) = program.graphs.values()
    torch_graph = put_channels_first(graph)
    steps = describe_steps(torch_graph)
    sources = {step.name: step.sources for step in steps}
    numbers = number_names(torch_graph.outputs, counts, sources)
    faults: dict[int, tuple[str, ...]] = {}
    for known_fault in match_faults(steps, scheme.value, qnn):
        number = numbers.get(known_fault.nodes[0], 0)
        faults[number] = (*faults.get(number, ()), known_fault.fault)
    return faults
