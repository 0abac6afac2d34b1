"""A file that LiteRT's plugin compiled: its partitions, each a context binary of QNN, and the
operators that stay on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatbuffers import flexbuffers

from ci.graphs.litert_file import (
    CONTROL,
    Entry,
    list_entries,
    list_numbers,
    name_operator,
    name_tensor,
    read_model,
)
from ci.report.text import name_some
from provisioning.doctor.survey import litert
from provisioning.doctor.survey.context_binaries import ContextBinary, parse_context_binary
from provisioning.doctor.survey.programs import Program
from provisioning.documents import MAPPED_BYTES, read_bytes
from provisioning.elf.programs import MAX_TEXT
from provisioning.errors import FailedError, UnfitError
from provisioning.manifest.targets import find_any_soc, read_all_socs

DISPATCH = "DISPATCH_OP"
OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class PartitionStep:
    """An operator that runs a graph of a context binary. ``span`` is where in the file the binary
    is; ``name`` is the graph's, and ``inputs`` and ``outputs`` are the numbers of its tensors."""

    span: tuple[int, int]
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class CpuStep:
    """Operators that follow each other and stay on the CPU, by their places in the subgraph.
    ``control`` is the name of a single one that runs other subgraphs, or ""."""

    operators: tuple[int, ...]
    control: str = ""


Step = PartitionStep | CpuStep


class CompiledModel:
    """A compiled file, read and checked. Raises FailedError if it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, read_bytes(path, MAPPED_BYTES)
        self.program = survey_model(self.data, path.name)
        if self.program.damage and not is_compilers_damage(self.program):
            raise FailedError(f"{path.name} {self.program.damage}", fix="compile the model again")
        self.model = read_model(self.data)

    def list_steps(self, subgraph: int) -> list[Step]:
        """Return how a subgraph is executed."""
        steps: list[Step] = []
        waiting: list[int] = []

        def flush() -> None:
            if waiting:
                steps.append(CpuStep(tuple(waiting)))
                waiting.clear()

        for place, operator in enumerate(self.model.subgraphs[subgraph].operators or ()):
            kind = name_operator(self.model, operator)
            if kind == DISPATCH:
                flush()
                steps.append(read_partition(operator))
            elif kind in CONTROL:
                flush()
                steps.append(CpuStep((place,), kind))
            else:
                waiting.append(place)
        flush()
        return steps

    def list_partitions(self) -> Iterator[tuple[int, PartitionStep]]:
        """Yield the partitions of all subgraphs, each with the number of its subgraph."""
        for number in range(len(self.model.subgraphs)):
            for step in self.list_steps(number):
                if isinstance(step, PartitionStep):
                    yield number, step

    def take_context(self, step: PartitionStep) -> bytes:
        """Return the context binary of a partition."""
        start, size = step.span
        return self.data[start : start + size]

    def name_tensors(self, subgraph: int, numbers: Sequence[int]) -> list[str]:
        """Return the names of tensors as the context binary has them."""
        tensors = self.model.subgraphs[subgraph]
        return [clean_name(name_tensor(tensors, number)) for number in numbers]


def survey_model(data: bytes, name: str) -> Program:
    """Return what a file holds. No part of it is trusted while it is read."""
    return litert.parse_model(memoryview(data), name)


def is_compilers_damage(program: Program) -> bool:
    """Return whether the damage of a compiled file is that its CPU operators do not load: the
    plugin drops what says that weights are sparse. The partitions can still be run."""
    return bool(program.compiled_for) and "weights that are too short" in program.damage


def read_partition(operator: Any) -> PartitionStep:
    """Return the partition that an operator DISPATCH_OP runs."""
    options = flexbuffers.Loads(bytes(operator.customOptions))
    return PartitionStep(
        (int(options["bytecode_offset"]), int(options["bytecode_size"])),
        str(options["name"]),
        list_numbers(operator.inputs),
        list_numbers(operator.outputs),
    )


def clean_name(name: str) -> str:
    """Return the name that the plugin gives to a tensor in a context binary. With other names,
    onnxruntime binds tensors by their order, without a word."""
    return OTHER_CHARACTERS.sub("_", name)


def check_target(
    compiled: CompiledModel, soc: str, *, is_shipped: bool = True, source: Any = None
) -> tuple[ContextBinary, ...]:
    """Return the context binaries of a compiled file, after checking that each is for ``soc`` and
    has the graphs and the tensors that its operators name; no others, and in their order, too,
    unless the file is not ``is_shipped`` and runs here only. ``source`` is the model that was
    compiled, if it is known: an error then names its operators.

    Raises UnfitError for another SoC: the emulator runs it nevertheless. Raises FailedError if a
    context is damaged, belongs to another model, or has other tensors or another order of them.
    """
    required = find_any_soc(soc)
    contexts: dict[tuple[int, int], ContextBinary] = {}
    for number, step in compiled.list_partitions():
        if step.span not in contexts:
            data = memoryview(compiled.take_context(step))
            contexts[step.span] = parse_context_binary(data, step.span[0])
        context = contexts[step.span]
        if context.damage:
            raise FailedError(
                f"the context binary of {step.name} {context.damage}", fix="compile the model again"
            )
        names = {target.soc for target in context.targets} | ({context.soc} - {""})
        socs = read_all_socs()
        ids = {name: socs[name].id for name in names if name in socs}
        numbers = {*ids.values(), *([context.soc_id] if context.soc_id else [])}
        if numbers and required.id not in numbers:
            made_for = " and ".join(sorted(ids)) or f"the SoC number {context.soc_id}"
            raise UnfitError(
                f"{step.name} of {compiled.path.name} is compiled for {made_for}, not for {soc}",
                why="the emulator runs it nevertheless, but a device of another SoC refuses it",
                fix=f"compile the model for {soc}",
            )
        check_tensors(compiled, number, step, context, in_order=is_shipped, source=source)
    stamped = compiled.program.compiled_for.rpartition(" ")[2]
    if stamped and stamped.upper() != soc.upper():
        raise UnfitError(
            f"{compiled.path.name} says that it is compiled for {stamped}, not for {soc}",
            fix=f"compile the model for {soc}",
        )
    return tuple(contexts.values())


def check_order(name: str, model: Any, source: Any) -> None:
    """Raise FailedError if the compiled file ``name`` has the signatures, inputs or outputs of its
    ``source`` in another order. An application passes them by their places."""
    pairs = zip(list_orders(model), list_orders(source), strict=False)
    for names, source_names in pairs:
        if names != source_names and sorted(names) == sorted(source_names):
            raise FailedError(
                f"{name} has its inputs, outputs or signatures in another order than the model",
                why=f"it has {', '.join(names)}, but the model has {', '.join(source_names)}",
                fix="compile the model again",
            )


def list_orders(model: Any) -> list[list[str]]:
    """Return the signatures of a model in their order, and the inputs and the outputs of each, by
    the names of the signatures."""
    entries = list_entries(model)
    orders = [[f"signature {entry.key}" for entry in entries]]
    for entry in sorted(entries, key=lambda entry: entry.key):
        prefix = f"{entry.key}/" if entry.key else ""
        orders.append([f"{prefix}{port}" for port in entry.input_names])
        orders.append([f"{prefix}{port}" for port in entry.output_names])
    return orders


def check_states(name: str, entries: Sequence[Entry], source_entries: Sequence[Entry]) -> None:
    """Raise FailedError if the compiled file ``name`` has not the states of its source: then each
    run would begin anew."""
    if [len(entry.states) for entry in entries] != [len(entry.states) for entry in source_entries]:
        raise FailedError(
            f"{name} has not the states of the model that it was compiled from",
            why="their inputs, their outputs or the notes on them in its metadata are missing",
            fix="compile the model again",
        )


def check_tensors(
    compiled: CompiledModel,
    subgraph: int,
    step: PartitionStep,
    context: ContextBinary,
    *,
    in_order: bool,
    source: Any = None,
) -> None:
    """Raise FailedError if a context is not that of its operator, or, with ``in_order``, if its
    tensors have another order or it returns further ones. A context whose graphs cannot be listed
    is not checked."""
    if not context.graphs:
        return
    graph = next((graph for graph in context.graphs if graph.name == step.name), None)
    other_model = f"the context binary of {step.name} belongs to another model"
    if graph is None:
        listed = ", ".join(graph.name for graph in context.graphs)
        why = f"it has no graph {step.name}, but {listed}"
        raise FailedError(other_model, why=why, fix="compile the model again")
    for numbers, specs in ((step.inputs, graph.inputs), (step.outputs, graph.outputs)):
        # parse_context_binary cuts longer names.
        names_in_file = [name[:MAX_TEXT] for name in compiled.name_tensors(subgraph, numbers)]
        names = [clean_name(spec.name) for spec in specs]
        why = f"its tensors are {', '.join(names)}, but the file's are {', '.join(names_in_file)}"
        unread = sorted({*names} - {*names_in_file})
        if unread and numbers is step.outputs and len(names) == len(unread) + len(names_in_file):
            names = [name for name in names if name in names_in_file]
            if in_order and sorted(names) == sorted(names_in_file):
                raise describe_unread(step, unread, source)
        if sorted(names) != sorted(names_in_file):
            raise FailedError(other_model, why=why, fix="compile the model again")
        if in_order and names != names_in_file:
            raise FailedError(
                f"the context binary of {step.name} has its tensors in another order than the file",
                why=f"{why}: LiteRT on a device binds them by their places, and would exchange them"
                " (the emulator binds them by their names)",
                fix="let the model return its results in the order in which it computes them",
            )


def describe_unread(step: PartitionStep, unread: Sequence[str], source: Any) -> FailedError:
    """Return the error for a context that also returns results that no operator reads."""
    makers = [
        name_operator(source, operator)
        for subgraph in (source.subgraphs if source else ())
        for operator in subgraph.operators or ()
        for number in list_numbers(operator.outputs)
        if clean_name(name_tensor(subgraph, number))[:MAX_TEXT] in unread
    ]
    made_by = f" of {' and '.join(dict.fromkeys(makers))}" if makers else ""
    return FailedError(
        f"{step.name} returns {name_some(unread, 3)}{made_by} to LiteRT, which expects fewer"
        " results",
        why="LiteRT's plugin makes each result that no operator reads an output of QNN's graph, but"
        " not of the file: LiteRT on a device binds outputs by their places, so that outputs are"
        " exchanged, or one has no memory (the emulator binds them by their names)",
        fix="let the model return this result, too, or compute the others with an operator that has"
        " no such result",
    )
