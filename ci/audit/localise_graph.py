"""Divides a model into parts: describes its operators, records their results, and chooses the
inputs of a part. What a part's inputs are is recorded in a run of the whole model. Also finds
ranges and biases of a quantized model that can make QNN's program differ from the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ci.analysis.clipping import find_range
from ci.analysis.grids import read_scale
from ci.audit.localise_search import Cut, Mend, Operator, Row
from ci.graphs.graph import EXECUTORCH, Array, Bias, Constants, Graph, Node
from ci.graphs.operators import SELECTS, computes, is_dequantizer, is_quantizer
from ci.graphs.run import Program, Recipe
from ci.judging.figures import measure_pooled
from ci.models.tensors import limit_db

Range = tuple[float, float]
FIXED = frozenset({"shape", "size"})  # they do not depend on the values of their operands
BIAS = 2  # the place of a layer's bias among its operands
LAYERS = frozenset({"conv1d", "conv2d", "conv3d", "linear", "addmm"})
WIDER = 1.01  # an additional factor, because values may grow when other ranges change
STEP = 2**-15  # rounding alone may exceed a bound by this share
EQUAL_DB = 120.0  # the highest SQNR that is reported; it also stands for equal values


class Part(NamedTuple):
    """A part of a model, which computes ``outputs`` from ``inputs``. Both are names of values; the
    keys of ``outputs`` are the operators that compute them. ``scales`` are those that quantizers
    and dequantizers get instead of theirs, and ``biases`` what layers get. Their keys are names of
    results."""

    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    scales: Mapping[str, Array] = MappingProxyType({})
    biases: Mapping[str, Bias] = MappingProxyType({})


@dataclass(frozen=True)
class Division:
    """A model to divide, with the names of its ``inputs`` and with samples. ``program`` is what is
    lowered, and has one method. If it was quantized from a float model, ``float32`` is that one,
    and ``alike`` are the values of the program that it has, too, under its own names.

    ``modules`` are the paths of the innermost modules that call operators, and ``names`` the nodes
    that users know, both by the operators' results. ``aliases`` are the operators of steps
    with other names.

    An operator has the name of its result. One with several results is listed once for each result
    that is used. Quantizers and dequantizers belong to the operator whose result they round.
    """

    program: Program
    inputs: Sequence[str]
    sets: Sequence[Any]
    float32: Program | None = None
    alike: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def graph(self) -> Graph:
        """Return the graph of the only method."""
        (graph,) = self.program.graphs.values()
        return graph

    @cached_property
    def makers(self) -> dict[str, Node]:
        """Return the node that computes each value, by the value's name."""
        return self.graph.list_makers()

    @cached_property
    def constants(self) -> Constants:
        """Return the values of the graph that depend on no input."""
        return Constants(self.graph)

    @cached_property
    def operators(self) -> dict[str, Node]:
        """Return the nodes that compute an activation, in the graph's order. The keys are the names
        of their results."""
        live = {*self.inputs}
        for node in self.graph.nodes:
            if node.operator not in FIXED and not live.isdisjoint(node.reads):
                live.update(node.results)
        used = {name for node in self.graph.nodes for name in node.reads} | {*self.graph.outputs}
        return {
            name: node
            for node in self.graph.nodes
            for name in node.results
            if name and name in live and name in used and not rounds(node)
        }

    @cached_property
    def results(self) -> dict[str, str]:
        """Map each operator to the value that other nodes read: its result or, if that is rounded,
        the rounded value."""
        results: dict[str, str] = {}
        for name in (*self.graph.outputs, *self.makers):
            source, node = self.find_source(name), self.makers.get(name)
            is_read = node is not None and is_dequantizer(node.operator)
            if source in self.operators and (is_read or name in self.graph.outputs):
                results.setdefault(source, name)
        return {**{name: name for name in self.operators}, **results}

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the operators whose results are the model's outputs."""
        sources = map(self.find_source, self.graph.outputs)
        return tuple(dict.fromkeys(source for source in sources if source in self.operators))

    def find_source(self, name: str) -> str:
        """Return the value that a quantizer or dequantizer rounds, even if several of them follow
        each other. Any other value is returned unchanged."""
        while (node := self.makers.get(name)) is not None and rounds(node):
            name = node.reads[0]
        return name

    def find_inputs(self, name: str) -> list[str]:
        """Return the operators and the inputs of the model that an operator reads."""
        sources: dict[str, None] = {}
        pending = [*reversed(self.operators[name].reads)]
        visited = set[str]()
        while pending:
            source = self.find_source(pending.pop())
            if source in self.operators or source in self.inputs:
                sources[source] = None
            elif source in self.makers and source not in visited:
                visited.add(source)
                pending += reversed(self.makers[source].reads)
        return [*sources]

    def record(self, names: Collection[str]) -> Iterator[Mapping[str, Array]]:
        """Yield the values with these names, for one sample after the other."""
        (method,) = self.program.graphs
        run = self.program.prepare({method: Recipe(decisions=names)})
        for inputs in self.sets:
            yield run.record([inputs])[0][method].values

    def describe(self) -> list[Operator]:
        """Return the operators with the properties that the search needs. Infinite results, such
        as those of an attention mask, have no predictable noise, and are not compared."""
        ranges = {name: self.find_range(result) for name, result in self.results.items()}
        sizes: dict[str, int] = {}
        infinite: set[str] = set()
        clipped = dict.fromkeys(self.operators, 0.0)
        for values in self.record(self.operators):
            if not sizes:
                sizes = {name: value.nbytes for name, value in values.items()}
                infinite = {name for name, value in values.items() if not np.isfinite(value).all()}
            for name, value in values.items():
                clipped[name] = max(clipped[name], measure_clipping(value, ranges[name]))
            if not any(ranges.values()):
                break  # the other samples are only for what is clipped
        operators = []
        for name, node in self.operators.items():
            if name not in sizes:
                continue  # it is no tensor
            operator = Operator(
                name=name,
                kind=node.label.partition(" ")[0],
                node=self.names.get(name, ""),
                line=str(node.place) if node.place.line else "",
                module=self.modules.get(name, ""),
                inputs=tuple(read for read in self.find_inputs(name) if read in sizes),
                computes=computes(node.operator) and name not in infinite,
                size_bytes=sizes[name],
                range=ranges[name],
                clipped=0.0 if self.is_limited(name) else clipped[name],
                bias_off=self.find_bias_off(name),
            )
            operators.append(operator)
        return operators

    def find_range(self, name: str) -> Range | None:
        """Return the lowest and the highest value that a rounded result can have, or None if it is
        not rounded, or to an unknown range."""
        node = self.makers.get(name)
        if node is not None and is_dequantizer(node.operator) and "scale" not in node.numbers:
            node = self.makers.get(node.reads[0])  # that of ONNX reads its scale
        if node is None or not rounds(node) or not {"scale", "zero_point"} <= node.numbers.keys():
            return None
        bounds = find_range(node)
        return bounds.low, bounds.high

    def is_limited(self, name: str) -> bool:
        """Return whether a quantizer limits a result, because the front end removed an operator
        such as relu behind it."""
        node = self.makers.get(name)
        is_removed = node is not None and node.operator not in SELECTS
        return is_removed and name in self.program.limited

    def find_bias_off(self, name: str) -> float:
        """Return the relative difference between the scale of a layer's bias and the product of the
        scales of its input and its weights; 0 if the operator is not a quantized layer with a
        bias."""
        scales = self._read_scales(name)
        if scales is None:
            return 0.0
        bias_scale, product_scale = scales
        return float(np.abs(bias_scale / product_scale - 1).max())

    def _read_scales(self, name: str) -> tuple[Array, Array] | None:
        """Return two scales of a layer's bias, per channel: the actual scale, and the product of
        the scales of the layer's input and weights. Return None if the operator is not a quantized
        layer with a bias."""
        node = self.operators[name]
        if node.operator not in LAYERS or len(node.reads) <= BIAS:
            return None
        makers = [self.makers.get(read) for read in node.reads[: BIAS + 1]]
        if not all(maker and is_dequantizer(maker.operator) for maker in makers):
            return None
        entry, weight, bias = (maker and self._read_scale(maker) for maker in makers)
        if entry is None or weight is None or bias is None or entry.size > 1:
            return None
        return bias, (np.ravel(entry)[0] * weight).astype(bias.dtype)

    def _read_scale(self, dequantizer: Node) -> Array | None:
        scale = read_scale(self.constants, dequantizer)
        return None if scale is None else np.asarray(scale, np.float32)

    def rank_losses(self) -> list[Row]:
        """Return a row for each operator, and for each range of a quantized input or result, that
        loses SQNR against the float model in the worst sample. The loss at an operator includes the
        effect of its quantized weights. The rows that add the most noise come first. If the model
        was not quantized here, there are no rows."""
        if self.float32 is None:
            return []
        float_division = Division(self.float32, (), self.sets)
        rounded = {
            self.find_source(name): name
            for name, node in self.makers.items()
            if is_dequantizer(node.operator)
        }
        reached_db = self._compare(float_division, rounded)
        reached: dict[str, float] = {}
        rows = []
        # The loss at an operator starts from what the model's inputs had lost.
        inputs = [Operator(name=name, kind=f"input {name}", computes=False) for name in self.inputs]
        for operator in (*inputs, *self.describe()):
            name = operator.name
            sources = self.find_inputs(name) if name in self.operators else []
            before = min((reached[x] for x in sources if x in reached), default=EQUAL_DB)
            for value in filter(None, [name, rounded.get(name)]):
                if value in reached_db:
                    behind = reached_db[value]
                    rows.append(Row(operator, before, behind, before - behind, value != name))
                    before = behind
            reached[name] = before
        return sorted(
            (row for row in rows if row.lost_db > 0), key=lambda row: row.added, reverse=True
        )

    def _compare(self, float_division: Division, rounded: Mapping[str, str]) -> dict[str, float]:
        """Return the SQNR of inputs and results against the float model in the worst sample, before
        and after they are rounded, by the values' names."""
        pairs = {}  # the value of the float model, by that of the program
        for name, float_name in self.alike.items():
            pairs[name] = float_name
            if name in rounded:
                pairs[rounded[name]] = float_name
        # Only what the quantizer's range limits is the value of the float model.
        limits: dict[str, Range] = {}
        for name in pairs:
            limit = self.find_range(rounded.get(name, ""))
            if limit and self.is_limited(name):
                limits[name] = limit
        reached_db = dict.fromkeys(pairs, EQUAL_DB)
        runs = zip(self.record(pairs), float_division.record(set(pairs.values())), strict=True)
        compared = set[str]()
        for values, float_values in runs:
            for name, float_name in pairs.items():
                right, actual = float_values.get(float_name), values.get(name)
                if right is not None and actual is not None and right.dtype.kind == "f":
                    compared.add(name)
                    if name in limits:
                        actual = np.clip(actual, *limits[name])
                    reached_db[name] = min(reached_db[name], measure_db(right, actual))
        return {name: reached_db[name] for name in pairs if name in compared}

    def cut(self, cut: Cut) -> tuple[Part, list[tuple[Array, ...]]]:
        """Return the part of the model that ``cut`` keeps, with the changes in ``cut.mended``, and
        its inputs per sample. These are inputs of the model and recorded results of operators that
        are not kept."""
        part_operators = {*cut.operators}
        outputs = {name: self.results[name] for name in cut.outputs}
        visited, boundary = set[str](), set[str]()
        pending = [*outputs.values()]
        while pending:
            name = pending.pop()
            if name in self.inputs or (name in self.operators and name not in part_operators):
                boundary.add(name)
            elif name in self.makers and name not in visited:
                visited.add(name)
                pending += self.makers[name].reads
        inputs = tuple(name for name in (*self.inputs, *self.operators) if name in boundary)
        scales: dict[str, Array] = {}
        biases: dict[str, Bias] = {}
        if Mend.RANGES in cut.mended:
            scales = self._widen()
        if Mend.BIASES in cut.mended:
            rescaled = {name: self._rescale_bias(name) for name in cut.operators}
            biases = {name: bias for name, bias in rescaled.items() if bias}
        values = [self.results.get(name, name) for name in inputs]
        sets = [tuple(recorded[name] for name in values) for recorded in self.record(values)]
        return Part(inputs, outputs, scales, biases), sets

    def _rescale_bias(self, name: str) -> Bias | None:
        """Return the bias of a layer with the product of the scales of its input and weights as its
        scale; None if it has it, or if it is unknown."""
        _, product_scale = self._read_scales(name) or (None, None)
        if product_scale is None or not self.find_bias_off(name):
            return None
        dequantizer = self.makers[self.operators[name].reads[BIAS]]
        integers = self.constants.find(dequantizer.reads[0])
        scale = read_scale(self.constants, dequantizer)
        if integers is None or scale is None:
            return None
        steps = np.round(integers * (scale.astype(np.float64) / product_scale))
        return Bias(steps.astype(integers.dtype), product_scale)

    def _widen(self) -> dict[str, Array]:
        """Return the scales for all quantizers and dequantizers whose range clips values. Operators
        may share a range: the value that exceeds it most counts."""
        exceeded: dict[Range, float] = {}
        for operator in self.describe():
            if operator.range and operator.clipped:
                most = max(exceeded.get(operator.range, 0.0), operator.clipped)
                exceeded[operator.range] = most
        scales = {}
        for name, node in self.makers.items():
            bounds = self.find_range(name) if rounds(node) else None
            scale = read_scale(self.constants, node) if bounds in exceeded else None
            if bounds and scale is not None:
                scales[name] = scale * ((1 + exceeded[bounds]) * WIDER)
        return scales


def find_alike(
    graph: Graph, float_graph: Graph, restore: Callable[[str], str] = str
) -> dict[str, str]:
    """Map inputs and results of a quantized model to those of the float model that are the same.
    ``restore`` returns the name that a value has in the float model.

    In a file, a value keeps its name, also if another operator computes it after operators were
    merged. But torch numbers the nodes of each graph: a result with the same name is the same only
    if the same operator computes it at the same source line."""
    makers, float_makers = graph.list_makers(), float_graph.list_makers()
    float_values = {*float_makers, *float_graph.list_inputs()}
    absorbed = dict(_list_absorbed(float_graph, makers))
    alike = {}
    for name in (*graph.list_inputs(), *makers):
        float_name = restore(name)
        if float_name not in float_values:
            continue
        calls = [
            node and (node.operator, node.place)
            for node in (makers.get(name), float_makers.get(float_name))
        ]
        if graph.front_end != EXECUTORCH or calls[0] == calls[1]:
            alike[name] = absorbed.get(float_name, float_name)
    return alike


def _list_absorbed(
    float_graph: Graph, quantized_values: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the result of each convolution of a float graph whose batch norm is not among the
    values of the quantized graph, and the result of this batch norm: the convolution absorbed
    it."""
    makers = float_graph.list_makers()
    for node in float_graph.nodes:
        source = makers.get(node.reads[0]) if node.operator.endswith("batch_norm") else None
        if (
            source
            and source.operator.startswith("conv")
            and node.results[0] not in quantized_values
        ):
            yield source.results[0], node.results[0]


def rounds(node: Node) -> bool:
    """Return whether a node quantizes or dequantizes."""
    return is_quantizer(node.operator) or is_dequantizer(node.operator)


def measure_clipping(value: Array, bounds: Range | None) -> float:
    """Return how far values exceed a bound of a range, as a share of the bound; 0 if they do not. A
    bound of 0 is ignored, because it comes from a fused activation such as ReLU."""
    if bounds is None or value.dtype.kind != "f" or not value.size:
        return 0.0
    low, high = bounds
    lowest, highest = float(value.min()), float(value.max())
    shares = [highest / high - 1 if high > 0 else 0.0, lowest / low - 1 if low < 0 else 0.0]
    return max((share for share in shares if share > STEP), default=0.0)


def measure_db(right: Array, actual: Array) -> float:
    """Return the SQNR in dB, limited to the range from -EQUAL_DB to EQUAL_DB."""
    if right.shape != actual.shape:
        return -EQUAL_DB
    return limit_db(measure_pooled(right, actual), EQUAL_DB)
