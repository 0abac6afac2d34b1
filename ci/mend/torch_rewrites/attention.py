"""Attention: joint projections of query, key and value, and constant masks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from ci.mend.torch_rewrites.editing import (
    Editor,
    aten,
    is_idle,
    rewrites,
    shape_of,
)
from ci.mend.torch_rewrites.ranks import PARTS, PERMUTATIONS, VIEWS

SEPARATE = "a separate nn.Linear for each of query, key and value"


# QNN cannot prepare the joint projection of nn.MultiheadAttention in fp16, and torch.export makes
# torch's fused fast path of an encoder layer one operator.
@rewrites("separate-projections", aten.linear.default)
def separate_projections(edit: Editor, node: fx.Node) -> None:
    """Write a linear layer whose output is cut into blocks of features, such as query, key and
    value, as one layer for each block."""
    operand, *parameters = node.args
    stored = [edit.value(parameter) for parameter in parameters if parameter is not None]
    shape = shape_of(node)
    ends = _find_parts(edit, node, torch.arange(math.prod(shape)).reshape(shape))
    if None in stored or len(ends) < 2:
        return
    blocks = []
    for _, part in ends:
        block = _find_block(part, shape[-1])
        if block is None:
            return
        blocks.append(block)
    for (end, _), (features, sizes, order) in zip(ends, blocks, strict=True):
        with edit.at(end):
            rows = [parameter[features] for parameter in stored if parameter is not None]
            new = edit.reshape(edit.linear(operand, *rows), sizes)
            new = edit.permute(new, order) if order != sorted(order) else new
        edit.replace(end, new, SEPARATE)


def _find_parts(edit: Editor, node: fx.Node, places: Tensor) -> list[tuple[fx.Node, Tensor]]:
    """Return the nodes that select parts of a node, behind views and permutations, and the places
    of their elements in it. ``places`` are those of the node's own elements. Return [] if an
    operator uses the whole."""
    parts: list[tuple[fx.Node, Tensor]] = []
    for user in node.users:
        ends = []
        if user.target in PARTS:
            parts_of_places = _run(user, places)
            ends = [(item, parts_of_places[item.args[1]]) for item in user.users]
        elif user.target is aten.select.int:
            ends = [(user, _run(user, places))]
        elif user.target in VIEWS | PERMUTATIONS or is_idle(user):
            ends = _find_parts(edit, user, _run(user, places))
        if not ends or edit.written.intersection((node, user)):
            return []
        parts += ends
    return [(end, part) for end, part in parts if end.users]


def _run(node: fx.Node, tensor: Tensor) -> Any:
    """Compute a view, a permutation or a selection of another tensor."""
    return node.target(tensor, *node.args[1:], **node.kwargs)


def _find_block(part: Tensor, length: int) -> tuple[slice, list[int], list[int]] | None:
    """Return the features that a part consists of, and the shape and the order of axes that make
    the part of these features, or None if it is not a block of features at all positions. ``part``
    are the places of its elements in a tensor whose last axis has this ``length``."""
    rows, features = part // length, part % length
    start, stop = int(features.min()), int(features.max()) + 1
    places = rows * (stop - start) + features - start  # in a tensor of only these features
    first = places.flatten()[0]
    steps = []  # from one element to the next along each axis
    for axis, size in enumerate(places.shape):
        steps.append(int(places.select(axis, 1).flatten()[0] - first) if size > 1 else 0)
    axes = sorted(range(places.ndim), key=lambda axis: -steps[axis])
    sizes, order = [places.shape[axis] for axis in axes], [*map(axes.index, range(len(axes)))]
    rebuilt = torch.arange(places.numel()).reshape(sizes).permute(order)
    return (slice(start, stop), sizes, order) if torch.equal(rebuilt, places) else None
