"""Applies the rewrites of both lanes to ONNX models."""

from __future__ import annotations

import functools

import onnx

from ci.graphs.edit import GraphEditor
from ci.graphs.onnx_edit import OnnxLane
from ci.mend.graph_rewrites import DEFINITIONS
from ci.mend.graph_rewrites.definition import Definition
from ci.mend.rewrite import Change, OnnxRewrite


def edit_model(definition: Definition, model: onnx.ModelProto) -> tuple[Change, ...]:
    """Apply a rewrite to a model whose shapes have been inferred in place, and return what it
    changed."""
    edit = GraphEditor(OnnxLane(model))
    definition(edit)
    return tuple(Change(nodes, None, before, after) for nodes, _, before, after in edit.finish())


DEFINED_REWRITES: dict[str, OnnxRewrite] = {
    name: functools.partial(edit_model, definition) for name, definition in DEFINITIONS.items()
}
