"""Applies the rewrites of both lanes to exported programs."""

from __future__ import annotations

import functools

from torch import fx

from ci.graphs.edit import GraphEditor
from ci.graphs.torch_edit import TorchLane, TorchModule
from ci.mend.graph_rewrites.definition import DEFINITIONS, Definition
from ci.mend.rewrite import Change
from ci.mend.torch_rewrites.editing import REWRITES


def edit_module(definition: Definition, module: fx.GraphModule) -> tuple[Change, ...]:
    """Apply a rewrite to a module in place, and return what it changed."""
    writable = TorchModule(module)
    edit = GraphEditor(TorchLane(writable))
    definition(edit)
    changes = []
    for nodes, node, before, after in edit.finish():
        changes.append(Change(nodes, next(iter(node.place.places), None), before, after))
    writable.clean_up()
    return tuple(changes)


REWRITES.update(
    {name: functools.partial(edit_module, definition) for name, definition in DEFINITIONS.items()}
)
