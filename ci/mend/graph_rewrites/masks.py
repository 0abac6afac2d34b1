"""Masks of attention, in forms whose numbers the range of a scheme can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Array, Node
from ci.mend.graph_rewrites.definition import defines

LARGE = 1000.0  # the smallest magnitude of an element that blocks a score
LOW = 30.0  # exp(-30) is 1e-13
ATTENTION = "scaled_dot_product_attention"  # torch's: query, key, value and perhaps a mask
# The operands of each operator that may have such elements.
MASKS: Mapping[str, tuple[int, ...]] = {
    "add": (0, 1),
    "masked_fill": (2,),
    "mul": (0, 1),
    ATTENTION: (3,),
    "sub": (1,),
    "where": (1, 2),
}
# Operators that only pass a mask or masked scores on.
PASSES = frozenset(
    {
        *("_to_copy", "_unsafe_view", "add", "alias", "cat", "clamp", "clone", "contiguous"),
        *("dropout", "expand", "flatten", "maximum", "permute", "reshape", "squeeze", "to"),
        *("transpose", "type_as", "unflatten", "unsqueeze", "view"),
    }
)
ENDS = frozenset({"softmax", "exp"})  # of which a blocked score has almost nothing
MASK_LATE = (
    "x = x * kept; x = x + x.mean(dim, True) * share; p = x.softmax(dim) * kept;"
    " p / p.sum(dim, True)"
)


# The range of 8 or 16 bits extends from the mask to the scores: 5.7 dB in u8 with finfo.min in a
# Where, and 25.0 dB after (QNN 2.49.40). This changes the function, but helps where the mask is an
# input: (1 - mask) * -1e4 has 8.6 dB in 8a8w, and 27.7 dB after.
@defines("mask-of-30", *MASKS)
def lower_mask(edit: GraphEditor, node: Node) -> None:
    """Replace the large negative constants that a softmax or an exp receives, as the fill of masked
    scores, in a sum, or as a factor of a mask, by -30, whose range leaves steps for the scores. A
    blocked score then counts e ** -30 instead of 0."""
    (result,) = node.results
    sign = -1.0
    if node.operator == "sub" or (node.operator == "mul" and _is_subtracted(edit, result)):
        sign = 1.0  # the constant is positive
    if node.operator != ATTENTION and not _leads_to_exp(edit, result, differs=sign > 0):
        return
    for place in MASKS[node.operator]:
        mask = edit.value(node.reads[place]) if place < len(node.reads) else None
        if mask is None or mask.dtype.kind != "f":
            continue
        # In a graph of torch, the constant may contain a bias, such as that of ALiBi.
        may_vary = edit.graph.front_end == EXECUTORCH
        if not _blocks(mask, sign, may_vary=may_vary):
            continue
        lowered = np.where(sign * mask >= LARGE, sign * LOW, mask)
        new = edit.call_again(node, *node.reads[:place], lowered)
        before = f"a mask of {sign * float(np.max(sign * mask)):.4g} before a softmax"
        edit.replace(node, new, f"a mask of {sign * LOW:g}", before)
        break


def _blocks(mask: Array, sign: float, *, may_vary: bool = False) -> bool:
    """Return whether the elements of a constant are zero, or block a position: at least LARGE,
    after multiplication by ``sign``. If it ``may_vary``, the others need not be zero."""
    is_large = sign * mask >= LARGE
    is_mask = bool(mask.size and is_large.any())
    return is_mask and (may_vary or bool((is_large | (mask == 0)).all()))


def _is_subtracted(edit: GraphEditor, value: str) -> bool:
    """Return whether everything that reads a value subtracts it."""
    readers = edit.list_readers(value)
    return bool(readers) and all(
        reader.operator == "sub" and reader.reads[1] == value != reader.reads[0]
        for reader in readers
    )


def _leads_to_exp(edit: GraphEditor, value: str, *, differs: bool = False) -> bool:
    """Return whether everything that reads a value is a softmax, an exp or an attention whose mask
    it is, or passes the value on to one. Its largest number, which a softmax that is written out
    subtracts, is no masked one. With ``differs``, the value may be subtracted."""
    readers = [reader for reader in edit.list_readers(value) if reader.operator != "amax"]
    if not readers or value in edit.outputs:
        return False
    for reader in readers:
        is_mask = reader.operator == ATTENTION and value not in reader.reads[:3]
        if reader.operator in ENDS or is_mask:
            continue
        subtracts = reader.operator == "sub" and (differs or value != reader.reads[-1])
        if reader.operator not in PASSES and not subtracts:
            return False
        if not _leads_to_exp(edit, reader.results[0], differs=differs):
            return False
    return True


# The range of masked scores extends to the mask, so that one step of 8 or 16 bits is larger than
# the differences between scores: 1.4 dB with finfo.min (Gemma), and 27.8 dB in 8a8w after; 5.4 dB
# in u8 for attention with ALiBi and a causal mask, and 27.6 dB after.
@defines("mask-after-softmax", "softmax", ATTENTION)
def mask_after_softmax(edit: GraphEditor, node: Node) -> None:
    """Multiply the result of a softmax by a constant mask of ones and zeros and divide it by its
    sum, instead of masking the scores with a value that takes their range. Blocked scores become
    the mean of the others of their row, so that none of them exceeds all others."""
    if node.operator == ATTENTION:
        _mask_attention(edit, node)
        return
    scores, allowed = _split_mask(edit, node.reads[0])
    # ONNX's softmax before opset 13 is over several axes.
    if allowed is None or len(node.axes or ()) != 1:
        return
    (axis,) = node.axes or ()
    shape = edit.shape(scores)
    place = axis % len(shape) - len(shape)
    if allowed.ndim >= -place and _has_allowed(allowed, shape, place):
        before = f"softmax of scores with a mask of {[*allowed.shape]}"
        edit.replace(node, _normalize(edit, scores, place, allowed), MASK_LATE, before)


def _has_allowed(allowed: Array, shape: tuple[int, ...], axis: int) -> bool:
    """Return whether the mask has the shape of the scores, or is repeated along it, and allows a
    score of each row: otherwise, the sum of a row is 0."""
    if np.broadcast_shapes(allowed.shape, shape) != shape:
        return False
    return bool(np.broadcast_to(allowed, shape).any(axis).all())


def _mask_attention(edit: GraphEditor, node: Node) -> None:
    query, key, value, *masks = node.reads
    if edit.argument(node, "enable_gqa") or edit.argument(node, "dropout_p"):
        return
    sizes = edit.shape(query)[-2], edit.shape(key)[-2]
    allowed = _read_allowed(edit.value(masks[0])) if masks else None
    allowed = np.tri(*sizes, dtype=bool) if edit.argument(node, "is_causal") else allowed
    if allowed is None or not allowed.any(-1).all():
        return
    scale = edit.argument(node, "scale", 1 / math.sqrt(edit.shape(query)[-1]))
    order = [*range(len(edit.shape(key)))]
    transposed = edit.permute(key, dims=[*order[:-2], order[-1], order[-2]])
    scores = edit.mul(edit.matmul(query, transposed), scale)
    new = edit.matmul(_normalize(edit, scores, -1, allowed), value)
    edit.replace(node, new, f"attention with {MASK_LATE}", "attention with a mask")


def _normalize(edit: GraphEditor, scores: str, axis: int, allowed: Array) -> str:
    """Compute a softmax of the allowed scores, see MASK_LATE. ``axis`` is counted from the end."""
    mask = allowed.astype(np.float32)  # 1 for the allowed scores, otherwise 0
    share = (1 - mask) * mask.shape[axis] / mask.sum(axis, keepdims=True)
    factor = edit.hold(mask, edit.dtypes[scores])
    dim = axis % len(edit.shape(scores))
    scores = edit.mul(scores, factor)
    mean = edit.mean(scores, dim=[dim], keepdim=True)
    scores = edit.add(scores, edit.mul(mean, share))
    weights = edit.mul(edit.softmax(scores, dim=dim), factor)
    return edit.div(weights, edit.sum(weights, dim=[dim], keepdim=True))


def _split_mask(edit: GraphEditor, value: str) -> tuple[str, Array | None]:
    """Return the scores that a call masks, and which of them are allowed, or None if it does not
    mask by a constant."""
    node = edit.maker(value, "add", "masked_fill", "where")
    if node is None:
        return "", None
    scores, allowed = "", None
    if node.operator == "add" and edit.argument(node, "alpha", 1.0) == 1.0:
        scores, mask = edit.operands(node) or ("", None)
        allowed = _read_allowed(mask)
    elif node.operator == "masked_fill" and _is_low(edit, node.reads[2]):
        blocked = edit.value(node.reads[1])
        scores, allowed = node.reads[0], None if blocked is None else ~blocked
    elif node.operator == "where":
        condition = edit.value(node.reads[0])
        # It selects operand 1 if its condition is true, else operand 2. Either may be the fill.
        for place, allowed_value in ((1, False), (2, True)):
            if condition is not None and _is_low(edit, node.reads[place]):
                scores, allowed = node.reads[3 - place], condition == allowed_value
    is_same = bool(scores) and edit.is_float(scores) and edit.shape(scores) == edit.shape(value)
    return (scores, allowed) if is_same else ("", None)


def _read_allowed(mask: Array | None) -> Array | None:
    """Return which scores a mask allows, or None if it has values other than 0 and large ones."""
    if mask is None or mask.dtype == bool:
        return mask
    return mask == 0 if _blocks(mask, -1.0) else None


def _is_low(edit: GraphEditor, fill: str) -> bool:
    """Return whether the value that replaces blocked scores is a large negative number."""
    array = edit.value(fill)
    return array is not None and bool(array.size and (array <= -LARGE).all())
