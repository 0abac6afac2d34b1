"""Rewrites of .tflite files: those of all lanes, see ci.mend.graph_rewrites.
manifests/policies/rewrites.toml says which of them LiteRT has. Nothing here imports torch or
onnx."""

from __future__ import annotations

import functools

from ci.graphs.edit import GraphEditor
from ci.graphs.litert_edit import LitertLane
from ci.mend.graph_rewrites import DEFINITIONS
from ci.mend.graph_rewrites.definition import Definition
from ci.mend.litert_files import EditedFile
from ci.mend.rewrite import Change, LitertRewrite


def edit_file(definition: Definition, file: EditedFile) -> tuple[Change, ...]:
    """Apply a rewrite to a file in place, and return what it changed."""
    lane = LitertLane(file.data, file.entry)
    edit = GraphEditor(lane)
    definition(edit)
    changes = tuple(Change(nodes, None, before, after) for nodes, _, before, after in edit.finish())
    file.data = lane.written
    return changes


REWRITES: dict[str, LitertRewrite] = {
    name: functools.partial(edit_file, definition) for name, definition in DEFINITIONS.items()
}

__all__ = ["REWRITES"]
