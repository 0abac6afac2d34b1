"""Writes a part of a torch graph as a graph module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._decomp import get_decompositions
from torch.fx import Graph, GraphModule, Node

from ci.graphs.graph import Array, Bias
from ci.graphs.torch_calls import name_operator, name_result

BIAS = 2  # the place of a layer's bias among its arguments


def cut_module(module: GraphModule, inputs: Sequence[str], outputs: Sequence[str]) -> GraphModule:
    """Return the part of a graph that computes the values ``outputs`` from the values
    ``inputs``, which are in the order in which it reads them."""
    nodes = {name_result(node): node for node in module.graph.nodes}
    graph = Graph()
    placeholders = {}
    for name in inputs:  # fx requires the inputs before all other nodes
        placeholders[name] = graph.placeholder(nodes[name].name)
        placeholders[name].meta = {**nodes[name].meta}
    needed: set[Node] = set()
    pending = [nodes[name] for name in outputs]
    while pending:
        node = pending.pop()
        if node not in needed and name_result(node) not in placeholders:
            needed.add(node)
            pending += node.all_input_nodes
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if name_result(node) in placeholders:
            copies[node] = placeholders[name_result(node)]
        elif node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[nodes[name]] for name in outputs))
    return GraphModule(module, graph)


def change_scales(
    module: GraphModule, scales: Mapping[str, Array], biases: Mapping[str, Bias]
) -> None:
    """Give quantizers and dequantizers other ``scales``, and layers separate ``biases``. The keys
    are the names of results."""
    for node in [*module.graph.nodes]:
        if node.name in scales:
            node.update_arg(1, scales[node.name].item())
        elif node.name in biases:
            _replace_bias(module, node, biases[node.name])
    module.recompile()


def _replace_bias(module: GraphModule, node: Node, bias: Bias) -> None:
    dequantizer: Any = node.args[BIAS]
    old_scale = read_constant(module, dequantizer.args[1])
    scale = torch.from_numpy(np.array(bias.scale)).to(old_scale.dtype)
    values = {"bias": torch.from_numpy(np.array(bias.integers)), "scale": scale}
    with module.graph.inserting_before(node):
        constants = []
        for kind, value in values.items():
            module.register_buffer(f"{node.name}_{kind}", value)
            constants.append(module.graph.get_attr(f"{node.name}_{kind}"))
        arguments = (*constants, *dequantizer.args[2:])
        rescaled = module.graph.call_function(dequantizer.target, arguments)
    node.update_arg(BIAS, rescaled)


def read_constant(module: GraphModule, value: Any) -> Any:
    """Return the tensor to which a get_attr node refers. Any other value is returned unchanged."""
    if not isinstance(value, Node):
        return value
    owner, _, name = str(value.target).rpartition(".")
    return getattr(module.get_submodule(owner), name)


def decompose(module: GraphModule, inputs: Sequence[Any], operator: str) -> GraphModule:
    """Return a part in which calls of an operator are those of its definition in torch. Raises
    ValueError if it has none."""
    names = {operator, f"_{operator}", f"native_{operator}"}
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    table = dict(get_decompositions(packets))
    for target, definition in torch.export.default_decompositions().items():
        if target.__name__.partition(".")[0] in names:
            table.setdefault(target, definition)
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), strict=True)
        decomposed: Any = program.run_decompositions(table).module(check_guards=False)
    if any(name_operator(node) in names for node in decomposed.graph.nodes):
        raise ValueError(f"torch has no definition of {operator}")
    graph = Graph()  # that of a program has functions that cannot be stored
    graph.output(graph.graph_copy(decomposed.graph, {}))
    return GraphModule(decomposed, graph)
