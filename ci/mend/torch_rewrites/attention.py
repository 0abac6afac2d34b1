"""Attention: joint projections of query, key and value."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.mend.torch_rewrites.editing import Editor, aten, is_idle, rewrites, shape_of
from ci.mend.torch_rewrites.ranks import PARTS, PERMUTATIONS, VIEWS

SEPARATE = "a separate nn.Linear for each of query, key and value"


@rewrites
def separate_projections(edit: Editor) -> None:
    """Write a linear layer whose output is cut into blocks of features, such as query, key and
    value, as one layer for each block."""
    for node in edit.find(aten.linear.default):
        operand, *given = node.args
        stored = [edit.value(one) for one in given if one is not None]
        shape = shape_of(node)
        ends = _find_parts(edit, node, torch.arange(math.prod(shape)).reshape(shape))
        blocks = [_find_block(part, shape) for _, part in ends]
        if None in stored or len(ends) < 2 or None in blocks:
            continue
        for (end, _), block in zip(ends, blocks, strict=True):
            with edit.at(end):
                own = [edit.constant(one[block]) for one in stored if one is not None]
                new = edit.call(aten.linear.default, operand, *own)
                new = edit.call(aten.reshape.default, new, [*shape_of(end)])
            edit.replace(end, new, SEPARATE)


def _find_parts(edit: Editor, node: Node, places: Tensor) -> list[tuple[Node, Tensor]]:
    """Return the nodes that select parts of a node, behind views and permutations, and the places
    of their elements in it. ``places`` are those of the node's own elements. Return [] if an
    operator uses the whole."""
    found: list[tuple[Node, Tensor]] = []
    for user in node.users:
        if user.target in PARTS:
            ends = [(one, _run(user, places)[one.args[1]]) for one in user.users]
        elif user.target is aten.select.int:
            ends = [(user, _run(user, places))]
        elif user.target in VIEWS or user.target in PERMUTATIONS or is_idle(user):
            ends = _find_parts(edit, user, _run(user, places))
        else:
            ends = []
        if not ends or edit.written.intersection((node, user)):
            return []
        found += ends
    return [(end, part) for end, part in found if end.users]


def _run(node: Node, given: Tensor) -> Any:
    """Compute a view, a permutation or a selection of another tensor."""
    return node.target(given, *node.args[1:], **node.kwargs)


def _find_block(part: Tensor, shape: tuple[int, ...]) -> slice | None:
    """Return the features that a part consists of, or None if it is not a block of features in its
    order. ``part`` are the places of the part's elements in a tensor of ``shape``."""
    features = part % shape[-1]
    block = slice(int(features.min()), int(features.max()) + 1)
    whole = torch.arange(math.prod(shape)).reshape(shape)[..., block]
    return block if torch.equal(part.flatten(), whole.flatten()) else None
