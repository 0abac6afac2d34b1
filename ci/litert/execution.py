"""Runs a compiled LiteRT file as it is: its partitions on QNN's emulator, and the operators that
stayed on the CPU by LiteRT's interpreter, one after another.

A partition becomes an EPContext node of an ONNX file, with which onnxruntime-qnn runs a context
binary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    Carried,
    Entry,
    cut_model,
    has_data,
    list_numbers,
    name_operator,
    name_tensor,
    number_tensors,
    read_constant,
    read_dtype,
    read_shape,
    restore_numbers,
    run_control,
)
from ci.graphs.litert_session import open_interpreter, run_interpreter
from ci.litert.compiled import CompiledModel, CpuStep, PartitionStep, Step
from ci.onnx.session import open_session
from provisioning.errors import FailedError

CONTEXT, NODE = "context_{}.bin", "partition_{}.onnx"
OPSET, IR_VERSION = 17, 10
MOST_LOOPS, MOST_CHARS = 1 << 16, 160
# An input or output: its name, numpy's name of its type, and its shape.
Port = tuple[str, str, Sequence[int]]
ERRORS = "error"  # at level warn, the provider writes two lines about features that it lacks


class Sessions:
    """The open sessions of partitions, by their files. The emulator has no memory for many contexts
    in a process: eight of 41 graphs each were too many. If it refuses one, the open sessions are
    closed, and opened again when they are needed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.sessions: dict[Path, Any] = {}

    def find(self, path: Path) -> Any:
        """Return the session of a partition's file."""
        if path not in self.sessions:
            try:
                # A refusal that closing the others cures must not be in the log as a cause.
                session = self._open(path, "off" if self.sessions else ERRORS)
            except Exception:  # onnxruntime has no common class of its errors
                if not self.sessions:
                    raise
                self.sessions.clear()
                session = self._open(path, ERRORS)
            self.sessions[path] = session
        return self.sessions[path]

    def _open(self, path: Path, log_level: str) -> Any:
        return open_session(path, self.options, {}, log_level=log_level)


class Partition:
    """A partition on the emulator."""

    def __init__(
        self,
        compiled: CompiledModel,
        subgraph: int,
        step: PartitionStep,
        *,
        folder: Path,
        number: int,
        sessions: Sessions,
    ) -> None:
        self.step, self.sessions = step, sessions
        tensors = compiled.model.subgraphs[subgraph].tensors
        self.shapes = [read_shape(tensors[tensor]) for tensor in step.outputs]
        self.names = compiled.name_tensors(subgraph, step.inputs)
        self.results = compiled.name_tensors(subgraph, step.outputs)
        context = folder / CONTEXT.format(step.span[0])
        if not context.exists():  # several partitions may share it
            context.write_bytes(compiled.take_context(step))
        ports = []
        for names, numbers in ((self.names, step.inputs), (self.results, step.outputs)):
            described = [
                (name, read_dtype(tensors[tensor]), read_shape(tensors[tensor]) or (1,))
                for name, tensor in zip(names, numbers, strict=True)
            ]
            ports.append(described)
        self.path = folder / NODE.format(number)
        write_context_model(self.path, step.name, *ports, context=context.name)
        sessions.find(self.path)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for inputs in the order of the operator."""
        session, feed = self.sessions.find(self.path), {}
        ports = {port.name: port for port in session.get_inputs()}
        for name, array in zip(self.names, arrays, strict=True):
            feed[name] = np.ascontiguousarray(array).reshape(ports[name].shape)
        outputs = session.run(self.results, feed)
        return [array.reshape(shape) for array, shape in zip(outputs, self.shapes, strict=True)]


def write_context_model(
    path: Path, name: str, inputs: Sequence[Port], outputs: Sequence[Port], *, context: str
) -> None:
    """Write an ONNX model that runs the graph ``name`` of the context binary in the file
    ``context``, which is next to the model."""
    node = helper.make_node(
        "EPContext",
        [port[0] for port in inputs],
        [port[0] for port in outputs],
        domain="com.microsoft",
        name=name,
        embed_mode=0,
        ep_cache_context=context,
        source="QNN",
        main_context=1,
        partition_name=name,
    )
    described_sides = []
    for side in (inputs, outputs):
        described_ports = []
        for port_name, dtype, shape in side:
            tensor_dtype = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            described_ports.append(helper.make_tensor_value_info(port_name, tensor_dtype, shape))
        described_sides.append(described_ports)
    graph = helper.make_graph([node], "partition", *described_sides)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), path)


class CpuPart:
    """Operators on the CPU that are open in LiteRT's interpreter. ``reads`` and ``results`` are the
    numbers of tensors of the compiled file. ``problem`` is why the compiled file's own operators do
    not load; those of the source are then used."""

    def __init__(
        self,
        compiled: CompiledModel,
        source: Any,
        subgraph: int,
        step: CpuStep,
        needed: frozenset[int],
    ) -> None:
        model = compiled.model
        operators = model.subgraphs[subgraph].operators
        step_operators = [operators[place] for place in step.operators]
        self.reads, self.results = find_ports(model, subgraph, step_operators, needed)
        self.problem = ""
        content = cut_model(model, subgraph, step.operators, self.reads, self.results)
        try:
            self.interpreter = open_interpreter(content)
        except (RuntimeError, ValueError) as error:
            # LiteRT lists each tensor; the first says enough.
            self.problem = " ".join(str(error).partition("\n")[0].split())[:MOST_CHARS]
            ports = {"reads": self.reads, "results": self.results}
            content = cut_source(source, model, subgraph, step_operators, **ports)
            self.interpreter = open_interpreter(content)

    def run(self, values: Mapping[int, Array]) -> dict[int, Array]:
        """Return the results by the numbers of their tensors."""
        arrays = run_interpreter(self.interpreter, [values[number] for number in self.reads])
        return dict(zip(self.results, arrays, strict=True))


def find_ports(
    model: Any, subgraph: int, operators: Sequence[Any], needed: frozenset[int]
) -> tuple[list[int], list[int]]:
    """Return the tensors that operators read from others, and those of their results that others
    need."""
    tensors = model.subgraphs[subgraph].tensors
    computed = {number for operator in operators for number in list_numbers(operator.outputs)}
    reads: list[int] = []
    for operator in operators:
        for number in list_numbers(operator.inputs):
            is_read = number >= 0 and number not in computed and number not in reads
            if is_read and not has_data(model, tensors[number]):
                reads.append(number)
    results = [
        number
        for operator in operators
        for number in list_numbers(operator.outputs)
        if number in needed
    ]
    return reads, results


def cut_source(
    source: Any,
    model: Any,
    subgraph: int,
    operators: Sequence[Any],
    *,
    reads: Sequence[int],
    results: Sequence[int],
) -> bytes:
    """Return the operators of the source file that compute the same tensors, by their names."""
    own_subgraph, subgraph_of_source = model.subgraphs[subgraph], source.subgraphs[subgraph]
    numbers = number_tensors(subgraph_of_source)
    result_names = {
        name_tensor(own_subgraph, number)
        for operator in operators
        for number in list_numbers(operator.outputs)
    }
    places = []
    for place, operator in enumerate(subgraph_of_source.operators):
        names = {
            name_tensor(subgraph_of_source, number) for number in list_numbers(operator.outputs)
        }
        if names & result_names:
            places.append(place)
    ports = []
    for own_numbers in (reads, results):
        names_of_ports = [name_tensor(own_subgraph, number) for number in own_numbers]
        if missing := [name for name in names_of_ports if name not in numbers]:
            raise FailedError(f"the source has no tensor {missing[0]}")
        ports.append([numbers[name] for name in names_of_ports])
    return cut_model(source, subgraph, places, *ports)


class Call(NamedTuple):
    """Something to run that takes ``inputs`` arrays. ``begin`` lets its states begin anew."""

    inputs: int
    run: Callable[[Sequence[Array]], list[Array]]
    begin: Callable[[], None] = lambda: None


class Execution:
    """A compiled file that is open. ``problems`` say which operators on the CPU do not load. With
    ``partitions_only``, they are not opened."""

    def __init__(
        self,
        compiled: CompiledModel,
        source: Any,
        folder: Path,
        options: Mapping[str, str],
        *,
        partitions_only: bool = False,
    ) -> None:
        self.compiled, self.model = compiled, compiled.model
        sessions = Sessions(options)
        self.parts: dict[tuple[int, int], Partition | CpuPart] = {}
        self.steps: dict[int, list[Step]] = {}
        self.problems: list[str] = []
        for subgraph in range(len(self.model.subgraphs)):
            steps = compiled.list_steps(subgraph)
            self.steps[subgraph] = steps
            for place, step in enumerate(steps):
                key = (subgraph, place)
                if isinstance(step, PartitionStep):
                    number = len(self.parts)
                    self.parts[key] = Partition(
                        compiled, subgraph, step, folder=folder, number=number, sessions=sessions
                    )
                elif not step.control and not partitions_only:
                    needed = self._find_needed(subgraph, place)
                    part = CpuPart(compiled, source, subgraph, step, needed)
                    self.parts[key] = part
                    if part.problem:
                        self.problems.append(part.problem)

    def _find_needed(self, subgraph: int, own_place: int) -> frozenset[int]:
        """Return the tensors that other steps of a subgraph read, and its outputs."""
        graph = self.model.subgraphs[subgraph]
        needed = set(list_numbers(graph.outputs))
        for place, step in enumerate(self.steps[subgraph]):
            if place == own_place:
                continue
            if isinstance(step, PartitionStep):
                needed.update(step.inputs)
            else:
                for operator in step.operators:
                    needed.update(list_numbers(graph.operators[operator].inputs))
        return frozenset(needed)

    def list_calls(self, entries: Sequence[Entry]) -> list[Call]:
        """Return the calls of the subgraphs of entries. Quantized outputs are restored."""
        calls = []
        for entry in entries:
            graph = self.model.subgraphs[entry.subgraph]
            run = partial(self.run_subgraph, entry.subgraph)
            carried = Carried(entry, self.model)
            if entry.states:
                run = partial(_run_carried, carried, run)
            restored = partial(_restore, graph, entry.outputs, run)
            calls.append(Call(len(entry.inputs), restored, carried.begin))
        return calls

    def list_alone(self, entries: Sequence[Entry]) -> list[Call]:
        """Return the calls of the partitions of the first subgraph, each alone, with the outputs
        that the ``entries`` of the same names have. Quantized outputs are restored."""
        judged = {entry.key: {*entry.output_names} for entry in entries}
        calls = []
        graph = self.model.subgraphs[0]
        for place, step in enumerate(self.steps[0]):
            part = self.parts.get((0, place))
            if isinstance(step, PartitionStep) and isinstance(part, Partition):
                reads = [
                    tensor
                    for tensor in step.inputs
                    if not has_data(self.model, graph.tensors[tensor])
                ]
                outputs = [
                    tensor
                    for tensor in step.outputs
                    if name_tensor(graph, tensor) in judged[step.name]
                ]
                run = partial(self._run_alone, part, reads, outputs)
                calls.append(Call(len(reads), partial(_restore, graph, outputs, run)))
        return calls

    def _run_alone(
        self,
        part: Partition,
        reads: Sequence[int],
        outputs: Sequence[int],
        arrays: Sequence[Array],
    ) -> list[Array]:
        values = dict(zip(reads, arrays, strict=True))
        graph = self.model.subgraphs[0]
        results = part.run([self.find(graph, tensor, values) for tensor in part.step.inputs])
        by_number = dict(zip(part.step.outputs, results, strict=True))
        return [by_number[tensor] for tensor in outputs]

    def run_subgraph(self, number: int, inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of a subgraph. Raises FailedError for control flow that is not
        supported."""
        graph = self.model.subgraphs[number]
        values: dict[int, Array] = dict(zip(list_numbers(graph.inputs), inputs, strict=True))
        for place, step in enumerate(self.steps[number]):
            part = self.parts.get((number, place))
            if isinstance(step, PartitionStep) and isinstance(part, Partition):
                arrays = [self.find(graph, tensor, values) for tensor in step.inputs]
                values.update(zip(step.outputs, part.run(arrays), strict=True))
            elif isinstance(part, CpuPart):
                values.update(part.run(_Known(self, graph, values)))
            else:
                (operator,) = step.operators  # type: ignore[union-attr]
                values.update(self._run_control(graph, graph.operators[operator], values))
        return [self.find(graph, tensor, values) for tensor in list_numbers(graph.outputs)]

    def _run_control(
        self, graph: Any, operator: Any, values: dict[int, Array]
    ) -> Iterator[tuple[int, Array]]:
        inputs = [self.find(graph, tensor, values) for tensor in list_numbers(operator.inputs)]
        results = run_control(self.model, operator, inputs, self.run_subgraph)
        yield from zip(list_numbers(operator.outputs), results, strict=True)

    def find(self, graph: Any, number: int, values: Mapping[int, Array]) -> Array:
        """Return the value of a tensor, which may be a constant."""
        if number in values:
            return values[number]
        tensor = graph.tensors[number]
        if has_data(self.model, tensor):
            return read_constant(self.model, tensor, self.compiled.data)
        name = name_tensor(graph, number)
        for operator in graph.operators:
            if number in list_numbers(operator.outputs):
                raise FailedError(
                    f"{name} is read before {name_operator(self.model, operator)} computes it",
                    why="LiteRT runs the operators of a file in their order, and its plugin wrote"
                    " them in another one",
                    fix="leave out composites, or change the model so that fewer operators stay on"
                    " the CPU",
                )
        raise FailedError(f"nothing computes the tensor {name}")


def _run_carried(
    carried: Carried,
    run: Callable[[Sequence[Array]], list[Array]],
    arrays: Sequence[Array],
) -> list[Array]:
    return carried.run(arrays, run)


def _restore(
    graph: Any,
    numbers: Sequence[int],
    run: Callable[[Sequence[Array]], list[Array]],
    arrays: Sequence[Array],
) -> list[Array]:
    """Return what ``run`` returns, with the numbers for which quantized ones stand."""
    outputs = []
    for number, array in zip(numbers, run(arrays), strict=True):
        outputs.append(restore_numbers(graph.tensors[number], array))
    return outputs


class _Known(dict[int, Array]):
    """The values of a subgraph, with its constants."""

    def __init__(self, execution: Execution, graph: Any, values: Mapping[int, Array]) -> None:
        super().__init__(values)
        self.execution, self.graph = execution, graph

    def __missing__(self, number: int) -> Array:
        return self.execution.find(self.graph, number, self)
