"""How mend measures mixtures of a quantized .tflite file: files in which some operators compute in
float, as its float model does, on LiteRT's CPU interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ci.analysis.steps import Step, describe_steps
from ci.cases.spec import CaseSpec
from ci.graphs.channels_first import put_channels_first
from ci.graphs.litert_file import BEFORE_ACTIVATION, list_entries, read_model
from ci.graphs.litert_float import mix_floats
from ci.graphs.litert_pairs import Side, find_counterparts, has_other_layers
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_reader import COMPUTED, LitertGraph
from ci.graphs.litert_session import Reference
from ci.litert.compile import Judged, restore_sets, run_float_model
from ci.litert.source import LitertSource, load_litert, read_litert
from ci.mend.litert_files import LitertFile, copy_samples, open_file, require_single_entry
from ci.mend.litert_form import LitertSubject
from ci.mend.mixture_search import (
    MOST_SETS,
    Selectable,
    Selector,
    Unit,
    count_products,
    list_units,
    measure_sqnr,
)
from ci.models.file_checks import describe_mismatch
from ci.models.lowering_options import Choices, Part
from provisioning.errors import UsageError
from provisioning.files import write_whole

INNER = BEFORE_ACTIVATION.decode()


class MixableLitert:
    """A quantized file, of which operators can be computed in float, see
    ci.mend.mixture_search.Mixable. ``rewrites`` change the float model first, and what they change
    is always computed in float."""

    selector: Selector = "tensor"  # LiteRT's operators have no names

    def __init__(self, source: LitertSource, rewrites: Sequence[str] = ()) -> None:
        self.source, (self.entry,) = source, source.entries
        float_file = LitertFile(Path(source.name), source.float_data)
        self.float_data, changes = float_file.rewrite(rewrites)
        float_model = read_model(self.float_data)
        (float_entry,) = list_entries(float_model)
        self.quantized = Side(source.data, self.entry)
        self.plain = Side(self.float_data, float_entry)
        sets = source.evaluation[:MOST_SETS]
        self.judged = Judged(source.data, source.model, source.entries, sets)
        float_sets = restore_sets(self.judged, float_model, [float_entry])
        counterparts = find_counterparts(self.quantized, self.plain, (sets[0], float_sets[0]))
        self.graph = parse_whole(source.data)
        self.is_of_other = has_other_layers(self.quantized, self.plain, (sets[0], float_sets[0]))
        self.drifted = [
            self.graph.names[each.results[0][0]] for each in counterparts if each.is_drifted
        ]
        self.counterparts = {self.graph.names[each.results[0][0]]: each for each in counterparts}
        changed: set[str] = set()
        for changes_of_rewrite in changes:
            for change in changes_of_rewrite:
                changed.update(change.nodes)
        self.rewritten = {
            name: each
            for name, each in self.counterparts.items()
            if not changed.isdisjoint(self.plain.names[number] for _, number in each.results)
        }
        self.units: Sequence[Unit] = self._list_units()
        self.exact_outputs = run_float_model(source, self.judged)

    def _list_units(self) -> list[Unit]:
        """Return the operators that can be computed in float, with those that move their
        results."""
        plain_graph = parse_whole(self.float_data)
        products = count_products(plain_graph.graph)
        operators = self.plain.subgraph.operators
        selectable, costs = {}, {}
        for name, counterpart in self.counterparts.items():
            result = COMPUTED.format(name)
            selectable[result] = Selectable((name,), "")
            costs[result] = sum(
                products.get(plain_graph.names[int(operators[place].outputs[0])], 1.0)
                for place in counterpart.operators
            )
        return list_units(self.graph.graph, selectable, costs)

    def measure(self, choices: Choices) -> float:
        """Return the lowest SQNR of an output in dB. The samples are judged ones: a .tflite file
        has no others, and nothing is calibrated by them."""
        data = self.write(choices.parts)
        model = read_model(data)
        outputs = Reference(data, model, list_entries(model)).run(self.judged.sets)
        return measure_sqnr(self.exact_outputs, outputs)

    def write(self, parts: Sequence[Part]) -> bytes:
        """Return the file in which the operators of these parts compute in float, and those that
        the rewrites change."""
        chosen = {part.tensor: self.counterparts[part.tensor] for part in parts}
        return mix_floats(self.quantized, self.plain, [*(self.rewritten | chosen).values()])

    def describe(self) -> tuple[tuple[Step, ...], dict[str, str]]:
        """Return the steps of the quantized model, and by what parts select them, by the steps'
        names. The others cannot be computed in float."""
        steps: list[Step] = []
        for graph in LitertProgram(self.source.data).graphs.values():
            steps += describe_steps(put_channels_first(graph))
        names = {name: name for name in self.counterparts}
        names |= {name + INNER: name for name in self.counterparts}  # what an activation reads
        return tuple(steps), names


def parse_whole(data: bytes) -> LitertGraph:
    """Return the graph of a file with one signature, with its operators as they are."""
    program = LitertProgram(data, keeps_operators=True)
    return program.parsed[name_method(program.entries[0])]


def open_quantized(spec: CaseSpec, rewrites: Sequence[str] = ()) -> MixableLitert:
    """Return the file of a case whose operators can be computed in float, as ``rewrites`` change
    them. Raises UsageError if they cannot, and the errors of load_litert."""
    name = Path(spec.reference).name
    if not spec.source.float_model:
        raise UsageError(
            f"{name} is quantized, and its float model is not known",
            why="mend computes operators of a quantized file in float, as its float model does",
            fix="name it as `float_model` in the model's entry of a policy, or mend the float model"
            " and quantize the result",
        )
    require_single_entry(name, read_model(read_litert(Path(spec.reference))))
    model = MixableLitert(load_litert(spec), rewrites)
    if not model.counterparts or model.is_of_other:
        float_name = Path(spec.source.float_model).name
        raise describe_mismatch(
            float_name,
            f"no layer of {name} has the same operands, and the same weights up to rounding, as one"
            " of it"
            if model.is_of_other
            else f"no operator of {name} has the same operands as one of it",
        )
    return model


def open_float_subject(spec: CaseSpec) -> LitertSubject:
    """Return the float model of a case with a quantized file, to which rewrites are applied, on the
    judged samples. Raises UsageError if rewrites cannot be applied to it, and the errors of
    load_litert."""
    source, file = load_litert(spec), open_file(Path(spec.source.float_model))
    model = read_model(file.data)
    judged = Judged(source.data, source.model, source.entries, source.evaluation)
    return LitertSubject(file, restore_sets(judged, model, list_entries(model)))


def write_quantized(
    spec: CaseSpec, rewrites: Sequence[str], parts: Sequence[Part], target: Path
) -> None:
    """Write the file of a case to ``target`` with operators in float, and the samples that are next
    to the user's."""
    write_whole(target, open_quantized(spec, rewrites).write(parts))
    copy_samples(Path(spec.reference), target)
