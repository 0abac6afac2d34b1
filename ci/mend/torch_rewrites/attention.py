"""Attention: joint projections of query, key and value, and constant masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

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


# The range of masked scores extends to the mask, so that one step of 8 or 16 bits is larger than
# the differences between scores: 1.4 dB with finfo.min (Gemma), and 27.8 dB in 8a8w after.
@rewrites("mask-after-softmax")
def mask_after_softmax(edit: Editor) -> None:
    """Multiply the result of a softmax by a constant mask of ones and zeros and divide it by its
    sum, instead of masking the scores with a value that takes their range. Blocked scores become
    the mean of the others of their row, so that none of them exceeds all others."""
    for node in edit.find(aten.softmax.int):
        scores, allowed = _split_mask(edit, edit.source(node.args[0]))
        shape = shape_of(node)
        axis = node.args[1] % len(shape) - len(shape)
        if allowed is None or allowed.ndim < -axis:
            continue
        if allowed.expand(shape).any(axis).all():  # otherwise, the sum of a row is 0
            edit.replace(node, _normalize(edit, scores, axis, allowed), MASK_LATE)
    for node in edit.find(aten.scaled_dot_product_attention.default):
        query, key, value = node.args[:3]
        allowed = _find_allowed(edit, node)
        has_options = argument(node, "enable_gqa") or argument(node, "dropout_p")
        if has_options or allowed is None or not allowed.any(-1).all():
            continue
        scale = argument(node, "scale")
        scale = 1 / math.sqrt(shape_of(query)[-1]) if scale is None else scale
        scores = edit.mul(edit.matmul(query, edit.transpose(key, -2, -1)), scale)
        new = edit.matmul(_normalize(edit, scores, -1, allowed), value)
        edit.replace(node, new, f"attention with {MASK_LATE}")


def _normalize(edit: Editor, scores: fx.Node, axis: int, allowed: Tensor) -> fx.Node:
    """Compute a softmax of the allowed scores, see MASK_LATE."""
    factor = allowed.to(value_of(scores).dtype)
    share = (1 - factor) * factor.shape[axis] / factor.sum(axis, keepdim=True)
    factor = edit.constant(factor)
    scores = edit.mul(scores, factor)
    scores = edit.add(scores, edit.mul(edit.mean(scores, [axis], True), share))
    weights = edit.mul(edit.softmax(scores, axis), factor)
    return edit.div(weights, edit.sum(weights, [axis], True))


def _split_mask(edit: Editor, node: Any) -> tuple[Any, Tensor | None]:
    """Return the scores that a node masks, and which of them are allowed, or None if it does not
    mask by a constant."""
    if not isinstance(node, fx.Node) or len(node.args) < 2 or not edit.is_used_once(node):
        return None, None
    scores, mask, *fill = node.args
    if node.target is aten.add.Tensor and not node.kwargs:
        scores, mask = (mask, scores) if edit.value(mask) is None else (scores, mask)
        allowed = _read_allowed(edit.value(mask))
    elif node.target in MASKED and _is_low(edit, fill[0]):
        blocked = edit.value(mask)
        allowed = None if blocked is None else ~blocked
    elif node.target in CHOICES and _is_low(edit, fill[0]):
        condition, scores = node.args[:2]
        allowed = edit.value(condition)
    else:
        return None, None
    is_same = isinstance(scores, fx.Node) and shape_of(scores) == shape_of(node)
    return scores, allowed if is_same else None


def _find_allowed(edit: Editor, node: fx.Node) -> Tensor | None:
    """Return which scores of an attention its constant mask allows."""
    mask = argument(node, "attn_mask")
    if argument(node, "is_causal"):
        return torch.ones(shape_of(node)[-2], shape_of(node.args[1])[-2]).tril().bool()
    return _read_allowed(edit.value(mask))


def _read_allowed(mask: Tensor | None) -> Tensor | None:
    """Return which scores a mask allows, or None if it has values other than 0 and large ones."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    allowed = mask == 0
    is_mask = bool((allowed | (mask <= -LARGE)).all() and not allowed.all())
    return allowed if is_mask else None


def _is_low(edit: Editor, fill: Any) -> bool:
    """Return whether the value that replaces blocked scores is a large negative number."""
    stored = edit.value(fill)
    highest = fill if stored is None else stored.max().item()
    return isinstance(highest, int | float) and highest <= -LARGE


# This changes the function, but helps where the mask is an input: (1 - mask) * -1e4 has 8.6 dB in
# 8a8w, and 27.7 dB after.
@rewrites("mask-of-30", aten.scaled_dot_product_attention.default, aten.add.Tensor, *FILLS)
def raise_mask(edit: Editor, node: fx.Node) -> None:
    """Replace the large negative numbers that a softmax gets from a mask by -30, whose range leaves
    steps for the scores. A blocked score then counts e ** -30 instead of 0."""
    places: Sequence[int] = (0, 1) if node.target is aten.add.Tensor else (1, 2)
    if node.target is aten.scaled_dot_product_attention.default:
        places = (3,)
    elif not _reaches_softmax(edit, node):
        return
    if new := _raise_argument(edit, node, places):
        edit.replace(node, new, f"a mask of {LOW:g}")


def _raise_argument(edit: Editor, node: fx.Node, places: Sequence[int]) -> fx.Node | None:
    """Return a call like ``node`` with a raised mask as one of its arguments, or None."""
    for place in places:
        raised = _raise(edit, node.args[place]) if place < len(node.args) else None
        if raised is not None:
            return edit.call_again(node, *node.args[:place], raised)
    return None


def _raise(edit: Editor, mask: Any) -> Any:
    """Return a mask with LOW instead of what blocks, or None if nothing in it does."""
    if isinstance(mask, int | float):
        return LOW if mask <= -LARGE else None
    stored = edit.value(mask)
    if stored is not None:
        has_blocked = stored.is_floating_point() and (stored <= -LARGE).any()
        return torch.where(stored <= -LARGE, LOW, stored) if has_blocked else None
    if not isinstance(mask, fx.Node) or not edit.is_used_once(mask):
        return None
    if mask.target in VIEWS or mask.target is aten.expand.default or is_idle(mask):
        return _raise_argument(edit, mask, (0,))
    if mask.target is aten.mul.Tensor or mask.target in FILLS:
        return _raise_argument(edit, mask, (1, 2))  # (1 - mask) * -1e4, or a filled tensor
    return None


def _reaches_softmax(edit: Editor, node: fx.Node) -> bool:
    """Return whether a softmax is the only use of a node, directly or behind views and clamps."""
    user = edit.user(node)
    while user is not None and user.target in {*VIEWS, aten.clamp.default, aten.maximum.default}:
        user = edit.user(user)
    return user is not None and user.target is aten.softmax.int
