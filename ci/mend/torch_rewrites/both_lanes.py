"""Applies the rewrites of both lanes to exported programs."""

from __future__ import annotations

import functools

from torch import fx

from ci.graphs.edit import GraphEditor
from ci.graphs.torch_calls import name_operator
from ci.graphs.torch_edit import TorchLane, TorchModule
from ci.mend.graph_rewrites.definition import DEFINITIONS, OPERATORS
from ci.mend.rewrite import Change
from ci.mend.torch_rewrites.editing import REWRITES


def edit_module(name: str, module: fx.GraphModule) -> tuple[Change, ...]:
    """Apply a rewrite to a module in place, and return what it changed."""
    operators = {name_operator(node) for node in module.graph.nodes}
    if OPERATORS[name] and OPERATORS[name].isdisjoint(operators):
        return ()  # reading the graph takes a second for 2,000 nodes
    writable = TorchModule(module)
    edit = GraphEditor(TorchLane(writable))
    DEFINITIONS[name](edit)
    changes = []
    for nodes, node, before, after in edit.finish():
        changes.append(Change(nodes, next(iter(node.place.places), None), before, after))
    writable.clean_up()
    return tuple(changes)


REWRITES.update({name: functools.partial(edit_module, name) for name in DEFINITIONS})
