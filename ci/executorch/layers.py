"""Makes torch models that also return the results of their layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten, tree_leaves

from ci.analysis.layers import choose_exposed, list_watched
from ci.graphs.graph import Node
from ci.graphs.run import Recipe
from ci.graphs.torch_calls import list_results
from ci.graphs.torch_candidates import ORIGIN
from ci.graphs.torch_program import TorchProgram
from ci.models.factory import Inputs
from ci.models.model import FORWARD
from ci.models.tensors import Layer


def expose_layers(module: nn.Module, inputs: Inputs) -> tuple[GraphModule, tuple[Layer, ...]]:
    """Return a copy of a model that also returns the results of its operators, after the model's
    own outputs. The second value lists these operators with their source lines.

    See choose_exposed for the choice. The model must have a single method.
    """
    part = copy.deepcopy(module)
    # What torch exported packs its results as its out_spec says. A part that was cut out of a
    # model, or a module that torch.fx traced, has no out_spec until it is exported.
    if not (isinstance(part, GraphModule) and isinstance(part.graph._codegen, _PyTreeCodeGen)):
        with torch.no_grad():
            # Without guards, as in ci.executorch.quantize.
            part = torch.export.export(part, inputs, strict=True).module(check_guards=False)
    program = TorchProgram(part, {FORWARD: part})
    graph = program.graphs[FORWARD]
    recipe = Recipe(watched=list_watched(graph))
    values = program.prepare({FORWARD: recipe}).record([inputs])[0][FORWARD].values
    layers = choose_exposed(graph, {name: array.size for name, array in values.items()})
    nodes = {name: node for node in part.graph.nodes for name in list_results(node)}
    by_name = {node.name: node for node in part.graph.nodes}
    end = next(node for node in part.graph.nodes if node.op == "output")
    leaves = (*tree_leaves(end.args[0]), *(nodes[layer.value] for layer in layers))
    end.args = (leaves,)
    # The generated forward packs its results as out_spec says.
    codegen: Any = part.graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=tree_flatten(leaves)[1])
    part.recompile()
    return part, tuple(_make_layer(layer.node, by_name[layer.node.name]) for layer in layers)


def _make_layer(node: Node, torch_node: Any) -> Layer:
    name = torch_node.meta.get(ORIGIN, (node.name,))[0]
    return Layer(node.operator, node.label, node.place, name)
