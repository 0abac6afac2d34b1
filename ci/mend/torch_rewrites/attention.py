"""Attention: joint projections of query, key and value, and constant masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.mend.torch_rewrites.editing import (
    Editor,
    argument,
    aten,
    is_idle,
    rewrites,
    shape_of,
    value_of,
)
from ci.mend.torch_rewrites.ranks import PARTS, PERMUTATIONS, VIEWS

SEPARATE = "a separate nn.Linear for each of query, key and value"
MASKED = {aten.masked_fill.Scalar, aten.masked_fill.Tensor}
CHOICES = {aten.where.self, aten.where.ScalarOther}
FILLS = MASKED | CHOICES
MASK_LATE = (
    "x = x * kept; x = x + x.mean(dim, True) * share; p = x.softmax(dim) * kept;"
    " p / p.sum(dim, True)"
)
LARGE = 1000.0  # masks of at least this size are blocked scores
LOW = -30.0  # exp(-30) is 1e-13


@rewrites("separate-projections", aten.linear.default)
def separate_projections(edit: Editor, node: Node) -> None:
    """Write a linear layer whose output is cut into blocks of features, such as query, key and
    value, as one layer for each block."""
    operand, *given = node.args
    stored = [edit.value(one) for one in given if one is not None]
    shape = shape_of(node)
    ends = _find_parts(edit, node, torch.arange(math.prod(shape)).reshape(shape))
    blocks = [one for _, part in ends if (one := _find_block(part, shape[-1]))]
    if None in stored or len(ends) < 2 or len(blocks) < len(ends):
        return
    for (end, _), (block, sizes, order) in zip(ends, blocks, strict=True):
        with edit.at(end):
            own = [one[block] for one in stored if one is not None]
            new = edit.reshape(edit.linear(operand, *own), sizes)
            new = edit.permute(new, order) if order != sorted(order) else new
        edit.replace(end, new, SEPARATE)


def _find_parts(edit: Editor, node: Node, places: Tensor) -> list[tuple[Node, Tensor]]:
    """Return the nodes that select parts of a node, behind views and permutations, and the places
    of their elements in it. ``places`` are those of the node's own elements. Return [] if an
    operator uses the whole."""
    found: list[tuple[Node, Tensor]] = []
    for user in node.users:
        ends = []
        if user.target in PARTS:
            ends = [(one, _run(user, places)[one.args[1]]) for one in user.users]
        elif user.target is aten.select.int:
            ends = [(user, _run(user, places))]
        elif user.target in VIEWS | PERMUTATIONS or is_idle(user):
            ends = _find_parts(edit, user, _run(user, places))
        if not ends or edit.written.intersection((node, user)):
            return []
        found += ends
    return [(end, part) for end, part in found if end.users]


def _run(node: Node, given: Tensor) -> Any:
    """Compute a view, a permutation or a selection of another tensor."""
    return node.target(given, *node.args[1:], **node.kwargs)


def _find_block(part: Tensor, length: int) -> tuple[slice, list[int], list[int]] | None:
    """Return the features that a part consists of, and the shape and the order of axes that make
    the part of these features, or None if it is not a block of features at all positions. ``part``
    are the places of its elements in a tensor whose last axis has this ``length``."""
    rows, features = part // length, part % length
    start, stop = int(features.min()), int(features.max()) + 1
    places = rows * (stop - start) + features - start
    first = places.flatten()[0]
    steps = [
        int(places.select(axis, 1).flatten()[0] - first) if size > 1 else 0
        for axis, size in enumerate(places.shape)
    ]
    axes = sorted(range(places.ndim), key=lambda axis: -steps[axis])
    sizes, order = [places.shape[axis] for axis in axes], [*map(axes.index, range(len(axes)))]
    made = torch.arange(places.numel()).reshape(sizes).permute(order)
    return (slice(start, stop), sizes, order) if torch.equal(made, places) else None


@rewrites("mask-after-softmax")
def mask_after_softmax(edit: Editor) -> None:
    """Multiply the result of a softmax by a constant mask of ones and zeros and divide it by its
    sum, instead of masking the scores with a value that takes their range. Blocked scores become
    the mean of the others of their row, so that none of them exceeds all others."""
    for node in edit.find(aten.softmax.int):
        scores, kept = _split_mask(edit, edit.source(node.args[0]))
        shape = shape_of(node)
        axis = node.args[1] % len(shape) - len(shape)
        if kept is not None and kept.expand(shape).any(axis).all() and kept.ndim >= -axis:
            edit.replace(node, _normalize(edit, scores, axis, kept), MASK_LATE)
    for node in edit.find(aten.scaled_dot_product_attention.default):
        query, key, value = node.args[:3]
        kept = _find_kept(edit, node)
        other = argument(node, "enable_gqa") or argument(node, "dropout_p")
        if other or kept is None or not kept.any(-1).all():
            continue
        scale = argument(node, "scale")
        scale = 1 / math.sqrt(shape_of(query)[-1]) if scale is None else scale
        scores = edit.mul(edit.matmul(query, edit.transpose(key, -2, -1)), scale)
        new = edit.matmul(_normalize(edit, scores, -1, kept), value)
        edit.replace(node, new, f"attention with {MASK_LATE}")


def _normalize(edit: Editor, scores: Node, axis: int, kept: Tensor) -> Node:
    factor = kept.to(value_of(scores).dtype)
    share = (1 - factor) * factor.shape[axis] / factor.sum(axis, keepdim=True)
    factor = edit.constant(factor)
    scores = edit.mul(scores, factor)
    scores = edit.add(scores, edit.mul(edit.mean(scores, [axis], True), share))
    weights = edit.mul(edit.softmax(scores, axis), factor)
    return edit.div(weights, edit.sum(weights, [axis], True))


def _split_mask(edit: Editor, node: Any) -> tuple[Any, Tensor | None]:
    """Return the scores that a node masks, and which of them are kept, or None if it does not mask
    by a constant."""
    if not isinstance(node, Node) or len(node.args) < 2 or not edit.is_used_once(node):
        return None, None
    scores, mask, *fill = node.args
    if node.target is aten.add.Tensor and not node.kwargs:
        scores, mask = (mask, scores) if edit.value(mask) is None else (scores, mask)
        kept = _read_kept(edit.value(mask))
    elif node.target in MASKED and _is_low(edit, fill[0]):
        blocked = edit.value(mask)
        kept = None if blocked is None else ~blocked
    elif node.target in CHOICES and _is_low(edit, fill[0]):
        scores, kept = mask, edit.value(scores)
    else:
        return None, None
    same = isinstance(scores, Node) and shape_of(scores) == shape_of(node)
    return scores, kept if same else None


def _find_kept(edit: Editor, node: Node) -> Tensor | None:
    """Return which scores of an attention its constant mask keeps."""
    mask = argument(node, "attn_mask")
    if argument(node, "is_causal"):
        return torch.ones(shape_of(node)[-2], shape_of(node.args[1])[-2]).tril().bool()
    return _read_kept(edit.value(mask))


def _read_kept(mask: Tensor | None) -> Tensor | None:
    """Return which scores a mask keeps, or None if it has values other than 0 and large ones."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    kept = mask == 0
    return kept if bool((kept | (mask <= -LARGE)).all() and not kept.all()) else None


def _is_low(edit: Editor, given: Any) -> bool:
    stored = edit.value(given)
    low = given if stored is None else stored.max().item()
    return isinstance(low, int | float) and low <= -LARGE


@rewrites("mask-of-30", aten.scaled_dot_product_attention.default, aten.add.Tensor, *FILLS)
def raise_mask(edit: Editor, node: Node) -> None:
    """Replace the large negative numbers that a softmax gets from a mask by -30, whose range leaves
    steps for the scores. A blocked score then counts e ** -30 instead of 0."""
    places: Sequence[int] = (0, 1) if node.target is aten.add.Tensor else (1, 2)
    if node.target is aten.scaled_dot_product_attention.default:
        places = (3,)
    elif not _reaches_softmax(edit, node):
        return
    if new := _raise_argument(edit, node, places):
        edit.replace(node, new, f"a mask of {LOW:g}")


def _raise_argument(edit: Editor, node: Node, places: Sequence[int]) -> Node | None:
    """Return a call like ``node`` with a raised mask as one of its arguments, or None."""
    for place in places:
        made = _raise(edit, node.args[place]) if place < len(node.args) else None
        if made is not None:
            return edit.call_again(node, *node.args[:place], made)
    return None


def _raise(edit: Editor, given: Any) -> Any:
    """Return a mask with LOW instead of what blocks, or None if nothing in it does."""
    if isinstance(given, int | float):
        return LOW if given <= -LARGE else None
    stored = edit.value(given)
    if stored is not None:
        has_blocked = stored.is_floating_point() and (stored <= -LARGE).any()
        return torch.where(stored <= -LARGE, LOW, stored) if has_blocked else None
    if not isinstance(given, Node) or not edit.is_used_once(given):
        return None
    if given.target in VIEWS or given.target is aten.expand.default or is_idle(given):
        return _raise_argument(edit, given, (0,))
    if given.target is aten.mul.Tensor or given.target in FILLS:
        return _raise_argument(edit, given, (1, 2))  # (1 - mask) * -1e4, or a filled tensor
    return None


def _reaches_softmax(edit: Editor, node: Node) -> bool:
    """Return whether a softmax is the only use of a node, directly or behind views and clamps."""
    user = edit.user(node)
    while user is not None and user.target in {*VIEWS, aten.clamp.default, aten.maximum.default}:
        user = edit.user(user)
    return user is not None and user.target is aten.softmax.int
