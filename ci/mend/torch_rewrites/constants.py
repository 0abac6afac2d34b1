"""Constants that are computed, and those around a tensor."""

from __future__ import annotations

import torch
from torch.fx import Node

from ci.mend.torch_rewrites.editing import Editor, aten, rewrites, shape_of, value_of


@rewrites
def fold_constants(edit: Editor) -> None:
    """Store what operators compute from constants alone, such as masks."""
    for node in [*edit.graph.nodes]:
        if node.op != "call_function" or not node.users or edit.value(node) is None:
            continue
        if all(edit.value(user) is not None for user in node.users):
            continue  # it is a part of a larger constant
        with edit.at(node):
            stored = edit.constant(edit.value(node))
        edit.replace(node, stored, "a buffer with the computed constant")


def surround(
    edit: Editor, operand: Node, before: list[int], after: list[int], value: float = 0.0
) -> Node:
    """Concatenate constants around the last axes of a node, the last axis first."""
    for axis, counts in enumerate(zip(before, after, strict=True), 1):
        shape = [*shape_of(operand)]
        parts: list[list[Node]] = []
        for count in counts:
            shape[-axis] = count
            block = torch.full(shape, value, dtype=value_of(operand).dtype)
            parts.append([edit.constant(block)] if count else [])
        if any(parts):
            operand = edit.call(aten.cat.default, [*parts[0], operand, *parts[1]], -axis)
    return operand
