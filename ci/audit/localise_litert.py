"""Opens .tflite files for localise, and writes their parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from ci.analysis.exponents import try_to_measure_low
from ci.analysis.steps import Step, describe_steps
from ci.audit.localise_graph import Division
from ci.audit.localise_search import MOST_SETS, Cut
from ci.cases.spec import CaseSpec
from ci.graphs.channels_first import put_channels_first
from ci.graphs.graph import Array, Graph
from ci.graphs.litert_file import (
    BEFORE_ACTIVATION,
    list_entries,
    read_dtype,
    read_levels,
    read_model,
    restore_numbers,
)
from ci.graphs.litert_part import cut_entry
from ci.graphs.litert_program import METHOD, LitertProgram, LitertRun, name_method
from ci.graphs.litert_reader import COMPUTED, REAL
from ci.graphs.run import Recipe, Record
from ci.litert.source import LitertSource, load_litert
from ci.litert.split import list_unknown
from ci.report.text import name_some
from provisioning.errors import UsageError

INTEGERS = "{}/integers"  # of a result, in the graph that is divided


class EntryProgram(LitertProgram):
    """A model with a single entry, whose operators are those of the file. A quantized result has
    the name of its tensor, as a result in float has; its integers are ``NAME/integers``."""

    def __init__(self, data: bytes, signatures: Collection[str] = ()) -> None:
        super().__init__(data, signatures, keeps_operators=True)
        (self.entry,) = self.entries
        self.tensors = self.model.subgraphs[self.entry.subgraph].tensors
        self.names = self.parsed[name_method(self.entry)].names
        self.inputs = [self.names[number] for number in self.entry.inputs]
        self.numbers: dict[str, int] = {}  # of the tensors, by the names of their values
        for number, name in self.names.items():
            self.numbers |= {name: number, REAL.format(name): number, INTEGERS.format(name): number}

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The graph of the entry. The subgraphs that its operators run are not divided."""
        graph = self.parsed[name_method(self.entry)].graph
        renamed: dict[str, str] = {}
        for name in self.names.values():
            if COMPUTED.format(name) in graph.shapes:
                renamed |= {COMPUTED.format(name): name, name: INTEGERS.format(name)}
        return {METHOD: rename_values(graph, lambda name: renamed.get(name, name))}

    def prepare(self, recipes: Mapping[str, Recipe]) -> LitertRun:
        """Prepare runs that record values as numbers, except the model's inputs."""
        recipe = recipes.get(METHOD, Recipe())
        names = {self.names[self.numbers[value]] for value in recipe.decisions}
        return EntryRun(self, recipe.decisions, Recipe(decisions=names))


class EntryRun(LitertRun):
    """Records ``values`` of a model with a single entry."""

    def __init__(self, program: EntryProgram, values: Collection[str], recipe: Recipe) -> None:
        super().__init__(program, {name_method(program.entry): recipe})
        self.entry_program, self.values = program, values

    def record(self, sets: Sequence[Sequence[Array]]) -> list[dict[str, Record]]:
        """Return the outputs and the values for each sample."""
        program = self.entry_program
        records = []
        for methods in super().record(sets):
            record = methods[name_method(program.entry)]
            values = {}
            for value in self.values:
                number = program.numbers[value]
                array = record.values[program.names[number]]
                is_input = value in program.inputs
                tensor = program.tensors[number]
                values[value] = array if is_input else restore_numbers(tensor, array)
            records.append({METHOD: Record(record.outputs, values)})
        return records


def rename_values(graph: Graph, rename: Callable[[str], str]) -> Graph:
    """Return a graph whose values have other names."""
    nodes = [
        node._replace(
            reads=tuple(map(rename, node.reads)), results=tuple(map(rename, node.results))
        )
        for node in graph.nodes
    ]
    return replace(
        graph,
        nodes=nodes,
        outputs=[*map(rename, graph.outputs)],
        shapes={rename(name): shape for name, shape in graph.shapes.items()},
        dtypes={rename(name): dtype for name, dtype in graph.dtypes.items()},
    )


@cache
def divide_litert(spec: CaseSpec) -> Division:
    """Return the division of a case's model, with at most MOST_SETS of its samples. It is made once
    per process. Raises UsageError for a model with several signatures, or with operators that
    LiteRT's interpreter does not know."""
    source = load_litert(spec)
    if len(source.entries) > 1:
        keys = [entry.key for entry in source.entries]
        raise UsageError(
            f"localise cannot divide a model with several signatures ({name_some(keys, 3)}): name"
            f' one in the model\'s entry of a policy, as signatures = ["{keys[0]}"]',
        )
    if source.entries[0].states:
        raise UsageError(
            "localise cannot divide a model that keeps values between its runs",
            why="a part reads values that the run before left",
            fix="return the values as outputs, and pass them as inputs to the next run",
        )
    if unknown := list_unknown(source.data, source.model):
        raise UsageError(
            f"localise cannot divide a model with {name_some(unknown, 3)}: LiteRT's interpreter"
            " does not know these operators, so the values behind them are unknown",
        )
    stride = -(-len(source.evaluation) // MOST_SETS)
    return make_division(source, source.evaluation[::stride])


def make_division(source: LitertSource, sets: Sequence[Sequence[Array]]) -> Division:
    """Return the division of a model with a single entry."""
    program = EntryProgram(source.data, source.signatures)
    (graph,) = program.graphs.values()
    names = {name: node.name for node in graph.nodes for name in node.results}
    # Of an operator and the activation that it contains, each is a separate step.
    aliases = {f"{name}{BEFORE_ACTIVATION.decode()}": name for name in names}
    return Division(program, program.inputs, sets, names=names, aliases=aliases)


def read_litert_steps(spec: CaseSpec) -> tuple[Step, ...]:
    """Return the steps of a case's model, whose numbers are those of its samples, as far as they
    can be measured."""
    source = load_litert(spec)
    program = LitertProgram(source.data, source.signatures)
    # The patterns of known faults have the channels of an image first, LiteRT last.
    graphs = map(put_channels_first, program.graphs.values())
    steps = [step for graph in graphs for step in describe_steps(graph)]
    return try_to_measure_low(steps, lambda: program, source.evaluation)


def write_litert(division: Division, cut: Cut, name: str) -> LitertSource:
    """Return a part of a model, with its inputs. ``name`` is that of its file."""
    part, recorded = division.cut(cut)
    program: Any = division.program
    reads = [program.numbers[value] for value in part.inputs]
    data = cut_entry(
        program.model,
        program.data,
        program.entry,
        program.names,
        reads=reads,
        results=[program.numbers[value] for value in part.outputs.values()],
        biases={program.numbers[value]: bias for value, bias in part.biases.items()},
    )
    tensors = [program.tensors[number] for number in reads]
    sets = tuple(tuple(map(round_numbers, tensors, arrays)) for arrays in recorded)
    model = read_model(data)
    return LitertSource(name, data, model, tuple(list_entries(model)), f"{cut}", sets)


def round_numbers(tensor: Any, array: Array) -> Array:
    """Return the integers of a quantized tensor for numbers; other values as they are."""
    levels = read_levels(tensor)
    dtype = np.dtype(read_dtype(tensor))
    if levels is None or array.dtype == dtype:
        return array
    limits = np.iinfo(dtype)
    steps = np.round(array / levels.scales[0] + levels.zero_points[0])
    return np.clip(steps, limits.min, limits.max).astype(dtype)
