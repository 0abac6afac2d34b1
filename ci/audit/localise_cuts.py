"""Extracts parts of a model's graph as separate graphs. The inputs of a part are recorded in a run
of the whole graph. Also finds ranges and biases of a quantized graph that can make QNN's program
differ from the graph, and changes the graph so that the difference disappears."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from ci.audit.localise_search import Cut, Mend, Operator, Row, take_values
from ci.graphs.torch_calls import name_operator
from ci.graphs.torch_reader import computes_node
from ci.judging.figures import decibels
from ci.models.eager import copy_inputs, keep_state
from ci.models.factory import Inputs
from ci.models.tensors import limit_db
from ci.models.user_code import find_origin, name_module
from provisioning.errors import UsageError

Range = tuple[float, float]
ROUNDS = ("quantize_per_tensor", "dequantize_per_tensor")
LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
RELEASED = re.compile(r";  .* = None$", re.MULTILINE)  # in the code that torch generates
WIDER = 1.01  # an additional factor, because values may grow when other ranges change


def find_range(node: Node) -> Range | None:
    """Return the lowest and the highest value that a quantizer or dequantizer of a whole tensor can
    represent; None for other nodes."""
    if not _rounds(node):
        return None
    scale, zero, low, high = (float(str(number)) for number in node.args[1:5])
    return (low - zero) * scale, (high - zero) * scale


def measure_clipping(value: Tensor, bounds: Range | None) -> float:
    """Return how far values exceed a bound of a range, as a share of the bound; 0 if they do not. A
    bound of 0 is ignored, because it comes from a fused activation such as ReLU."""
    if bounds is None or not value.is_floating_point():
        return 0.0
    low, high = bounds
    lowest, highest = float(value.min()), float(value.max())
    shares = [highest / high - 1 if high > 0 else 0.0, lowest / low - 1 if low < 0 else 0.0]
    step = 2**-15  # rounding alone may exceed a bound by this share
    return max((share for share in shares if share > step), default=0.0)


def find_bias_off(module: GraphModule, node: Node) -> float:
    """Return the relative difference between the scale of a layer's bias and the product of the
    scales of its input and its weights; 0 if the node is not a quantized layer with a bias."""
    scales = _read_scales(module, node)
    if scales is None:
        return 0.0
    bias_scale, product_scale = scales
    return float((bias_scale / product_scale - 1).abs().max())


def mend_biases(module: GraphModule) -> None:
    """Give a separate bias to each layer whose bias does not have the scale that QNN expects: the
    product of the scales of the layer's input and weights."""
    for node in list(module.graph.nodes):
        if find_bias_off(module, node):
            _, product_scale = _read_scales(module, node) or (None, None)
            rounded: Any = node.args[2]
            integers, scale = (_read(module, arg) for arg in rounded.args[:2])
            steps = (integers * scale.double() / product_scale).round().to(integers.dtype)
            values = {"bias": steps, "scale": product_scale}
            with module.graph.inserting_before(node):
                constants = []
                for kind, value in values.items():
                    module.register_buffer(f"{node.name}_{kind}", value)
                    constants.append(module.graph.get_attr(f"{node.name}_{kind}"))
                dequantize = module.graph.call_function(
                    rounded.target, (*constants, *rounded.args[2:])
                )
            node.update_arg(2, dequantize)
    module.recompile()


def widen_ranges(module: GraphModule, clipped: Mapping[Range | None, float]) -> None:
    """Widen quantization ranges so that the values found by measure_clipping are not clipped.
    ``clipped`` is its result: it maps a range to how far values exceed it, as a share of the
    exceeded bound."""
    for node in module.graph.nodes:
        exceeded = clipped.get(find_range(node))
        if exceeded:
            scale: Any = node.args[1]
            node.update_arg(1, scale * (1 + exceeded) * WIDER)
    module.recompile()


def _read_scales(module: GraphModule, node: Node) -> tuple[Tensor, Tensor] | None:
    """Return two scales of a layer's bias, per channel: the actual scale, and the product of the
    scales of the layer's input and weights. Return None if the node is not a quantized layer with a
    bias."""
    if name_operator(node) not in LAYERS:
        return None
    rounded = [arg for arg in node.args[:3] if isinstance(arg, Node)]
    kinds = [name_operator(node_of_arg).removeprefix("de") for node_of_arg in rounded]
    if kinds != ["quantize_per_tensor", "quantize_per_channel", "quantize_per_channel"]:
        return None
    entry, weight, bias = (_read(module, node_of_arg.args[1]) for node_of_arg in rounded)
    return bias, (entry * weight).to(bias.dtype)


def _read(module: GraphModule, value: Any) -> Any:
    """Return the tensor to which a get_attr node refers. Any other value is returned unchanged."""
    if not isinstance(value, Node):
        return value
    owner, _, name = str(value.target).rpartition(".")
    return getattr(module.get_submodule(owner), name)


EQUAL_DB = 120.0  # the highest SQNR that is reported; it also stands for equal values


@dataclass(frozen=True)
class Graphs:
    """The graph that is lowered (``module``), the graph of the float32 model, and the
    samples."""

    module: GraphModule
    float32: GraphModule
    sets: Sequence[Inputs]

    @cached_property
    def operators(self) -> dict[str, Node]:
        """Return the nodes that compute an activation. The keys are their names, in the graph's
        order.

        Quantizers and dequantizers belong to the operator whose result they round. A node with
        several results, such as a split, belongs to the operators that read it.
        """
        live = _find_live(self.module)
        names = {node.name for node in live}
        first = record(self.module, self.sets[:1], names)[0]
        return {
            node.name: node
            for node in self.module.graph.nodes
            if node in live
            and node.op == "call_function"
            and not _rounds(node)
            and isinstance(first.get(node.name), Tensor)
        }

    @cached_property
    def results(self) -> dict[str, Node]:
        """Return for each operator the node from which other nodes read its result. If the result
        is quantized, this is a dequantizer. The keys are the operators' names."""
        results: dict[str, Node] = {}
        for node in (*self._leaves, *self.module.graph.nodes):
            source = find_source(node)
            read = node is not source and name_operator(node).startswith("dequantize")
            is_own = source is self.operators.get(source.name)
            if is_own and (read or node in self._leaves):
                results.setdefault(source.name, node)
        return {**self.operators, **results}

    @property
    def _leaves(self) -> list[Node]:
        end = next(node for node in self.module.graph.nodes if node.op == "output")
        return [leaf for leaf in tree_leaves(end.args) if isinstance(leaf, Node)]

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the operators whose results are the model's outputs."""
        leaves = map(find_source, self._leaves)
        return tuple(dict.fromkeys(leaf.name for leaf in leaves if leaf.name in self.operators))

    def describe(self) -> list[Operator]:
        """Return the operators with the properties that the search needs."""
        values = record(self.module, self.sets, self.operators)
        operators = []
        for name, node in self.operators.items():
            bounds, origin = find_range(self.results[name]), find_origin(node)
            first_value = values[0][name]
            operator = Operator(
                name=name,
                kind=name_operator(node),
                line=str(origin) if origin.line else "",
                module=name_module(node),
                inputs=tuple(read for read in self._find_inputs(node) if read in self.operators),
                computes=computes_node(node),
                size_bytes=first_value.numel() * first_value.element_size(),
                range=bounds,
                clipped=max(measure_clipping(sample[name], bounds) for sample in values),
                bias_off=find_bias_off(self.module, node),
            )
            operators.append(operator)
        return operators

    def _find_inputs(self, node: Node) -> list[str]:
        """Return the names of the operators and of the model's inputs that an operator reads."""
        inputs: dict[str, None] = {}
        for source in map(find_source, node.all_input_nodes):
            if source.name in self.operators or source.op == "placeholder":
                inputs[source.name] = None
            elif source.op == "call_function":
                inputs.update(dict.fromkeys(self._find_inputs(source)))
        return [*inputs]

    def rank_losses(self) -> list[Row]:
        """Return a row for each operator, and for each range of a quantized input or result, that
        loses SQNR against the float32 model in the worst sample. The loss at an operator
        includes the effect of its quantized weights. The rows that add the most noise come first.
        If the model is not quantized, there are no rows."""
        if self.module is self.float32:
            return []
        nodes = self._list_comparable()
        rounded = {
            find_source(node).name: node for node in self.module.graph.nodes if _rounds(node)
        }
        read = {name: rounded[name].name for name in nodes if name in rounded}
        quantized = record(self.module, self.sets, {*nodes, *read.values()})
        right = record(self.float32, self.sets, nodes.values())
        reached: dict[str, float] = {}
        rows = []
        # The loss at an operator starts from what the model's inputs had lost.
        inputs = [
            Operator(name=node.name, kind=f"input {node.name}", computes=False)
            for node in self.module.graph.nodes
            if node.op == "placeholder"
        ]
        for operator in (*inputs, *self.describe()):
            name = operator.name
            sources = self._find_inputs(self.operators[name]) if name in self.operators else []
            before = min((reached[x] for x in sources if x in reached), default=EQUAL_DB)
            for node in filter(None, [name, read.get(name)]) if name in nodes else ():
                pairs = zip(right, quantized, strict=True)
                behind = min(
                    _decibels(float32[nodes[name]], rounded[node]) for float32, rounded in pairs
                )
                rows.append(Row(operator, before, behind, before - behind, node != name))
                before = behind
            reached[name] = before
        return sorted(
            (row for row in rows if row.lost_db > 0), key=lambda row: row.added, reverse=True
        )

    def _list_comparable(self) -> dict[str, str]:
        """Map the inputs and operators with floating-point results to the nodes of the float32
        graph that compute the same. A convolution that absorbed a batch norm computes what the
        batch norm does there. A name is left out if the two operators call different functions or
        come from different source lines."""
        alike = {node.name: node for node in self.float32.graph.nodes}
        inputs = {node.name: node for node in self.module.graph.nodes if node.op == "placeholder"}
        (first,) = record(self.float32, self.sets[:1], alike)
        return {
            name: _find_absorbed(alike[name], self.operators)
            for name, node in {**inputs, **self.operators}.items()
            if name in alike
            and alike[name].target == node.target
            and find_origin(alike[name]) == find_origin(node)
            and first[name].is_floating_point()
        }

    def cut(self, cut: Cut) -> tuple[GraphModule, list[Inputs]]:
        """Return the part of the graph that ``cut`` keeps, with the changes in ``cut.mended``, and
        its inputs per sample. These are inputs of the model and recorded results of operators
        that are not kept."""
        outputs = [self.results[name] for name in cut.outputs]
        operators, needed, inputs = set(cut.operators), set[Node](), set[Node]()
        left = list(outputs)
        while left:
            node = left.pop()
            if node in needed:
                continue
            needed.add(node)
            if node.op == "placeholder" or (
                node.name in self.operators and node.name not in operators
            ):
                inputs.add(node)
            else:
                left += node.all_input_nodes
        graph, copies = Graph(), dict[Node, Node]()
        for node in self.module.graph.nodes:
            if node in inputs:
                # fx requires the inputs before all other nodes.
                copies[node] = graph.placeholder(node.name)
                copies[node].meta = {**node.meta}
        for node in self.module.graph.nodes:
            if node in needed and node not in inputs:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        part = GraphModule(self.module, graph)
        names = [
            self.results.get(node.name, node).name
            for node in self.module.graph.nodes
            if node in inputs
        ]
        if Mend.BIASES in cut.mended:
            mend_biases(part)
        if Mend.RANGES in cut.mended:
            # Operators may share a range. The one that is clipped most comes last, and counts.
            by_clipping = sorted(self.describe(), key=lambda operator: operator.clipped)
            widen_ranges(
                part,
                {operator.range: operator.clipped for operator in by_clipping if operator.clipped},
            )
        recorded = record(self.module, self.sets, names)
        return part, [take_values(values, names) for values in recorded]

    def write(self, cut: Cut, file: Path) -> str:
        """Write the weights and inputs of a part to ``file``, and return the Python code of the
        part's ``forward`` method."""
        module, sets = self.cut(cut)
        weights: dict[str, Any] = {}
        names: dict[str, str] = {}
        graph, copies = Graph(), dict[Node, Node]()
        for node in module.graph.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                name = names.setdefault(str(node.target), f"weight_{len(names)}")
                weights[name] = _read(module, node).detach().clone()
                copies[node].target = name
            if node.op == "output":
                graph.lint()
        text = RELEASED.sub("", graph.python_code("self").src)
        file.parent.mkdir(parents=True, exist_ok=True)
        samples = list(map(_copy_tensors, sets))
        torch.save({"weights": weights, "inputs": samples}, file)
        return "\n".join(f"    {line}".rstrip() for line in text.strip().splitlines())


def _copy_tensors(inputs: Inputs) -> Inputs:
    return tuple(tensor.detach().clone() for tensor in inputs)


def _find_absorbed(node: Node, operators: Collection[str]) -> str:
    """Return the name of the batch norm after a convolution of the float32 graph if it is not one
    of the quantized graph's ``operators``; otherwise return the name of ``node``."""
    for user in node.users if name_operator(node).startswith("conv") else ():
        if name_operator(user).endswith("batch_norm") and user.name not in operators:
            return user.name
    return node.name


def make_graphs(module: nn.Module, float32: nn.Module, sets: Sequence[Inputs]) -> Graphs:
    """Return the graphs of a model with one method. ``module`` is ``float32`` or its quantized
    form. Raises UsageError if the model changes its buffers."""
    with torch.no_grad():
        program = torch.export.export(float32, sets[0], strict=True)
    plain: Any = program.module(check_guards=False)
    live = _find_live(plain)
    for node in plain.graph.nodes:
        # Since 2.6, torch.export keeps operators that write in place, and its signature names no
        # changed buffers.
        mutates = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        written = node.all_input_nodes[:1] if mutates else []
        if all(source in live for source in written):
            continue
        raise UsageError(
            "localise cannot divide a model that changes its buffers",
            why="the results for a sample depend on the sets before it",
            fix="pass the state as inputs and outputs, as ci/models/suite/decoder.py does",
        )
    return Graphs(module if isinstance(module, GraphModule) else plain, plain, sets)


def find_source(node: Node) -> Node:
    """Return the node that computed the value that a quantizer or dequantizer rounds, even if
    several of them follow each other. Any other node is returned unchanged."""
    source: Any = node.args[0] if _rounds(node) else None
    return find_source(source) if isinstance(source, Node) else node


def _rounds(node: Node) -> bool:
    return name_operator(node) in ROUNDS


def _find_live(module: GraphModule) -> set[Node]:
    """Return the inputs of a graph, and the nodes that depend on them."""
    live: set[Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder" or any(source in live for source in node.all_input_nodes):
            live.add(node)
    return live


def _decibels(right: Tensor, actual: Tensor) -> float:
    """Return the SQNR in dB, limited to the range from -EQUAL_DB to EQUAL_DB."""
    if right.shape != actual.shape:
        return -EQUAL_DB
    signal = float(right.double().square().sum())
    noise = float((right.double() - actual).square().sum())
    return limit_db(decibels(signal, noise), EQUAL_DB)


def record(
    module: GraphModule, sets: Sequence[Inputs], names: Collection[str]
) -> list[dict[str, Any]]:
    """Run a graph on each sample, and return the results of the nodes with these names."""
    recorders = [_Recorder(module, names) for _ in sets]
    with torch.no_grad(), keep_state(module):
        for recorder, inputs in zip(recorders, sets, strict=True):
            recorder.run(*copy_inputs(inputs))
    return [recorder.values for recorder in recorders]


class _Recorder(Interpreter):
    def __init__(self, module: GraphModule, names: Collection[str]) -> None:
        super().__init__(module)
        self.names, self.values = set(names), dict[str, Any]()

    def run_node(self, n: Node) -> Any:
        """Return a node's result, and keep it if the node's name was requested."""
        result = super().run_node(n)
        if n.name in self.names:  # a copy, because a later operator may write to the result
            self.values[n.name] = result.clone() if isinstance(result, Tensor) else result
        return result
