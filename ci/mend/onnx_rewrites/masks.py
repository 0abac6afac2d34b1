"""Masks of attention with a value that the range of a scheme can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from ci.mend.onnx_rewrites.graph import SUM_AXES_OPSET, Array, Graph, read, rewrites

LARGE = 1000.0  # the smallest magnitude of an element that blocks
LOW = 30.0  # exp(-30) is 1e-13
# Operators that only pass a mask on.
PASSES = ("Add", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Identity", "Cast", "Transpose")


# The range of 8 or 16 bits extends from the mask to the scores: 5.7 dB in u8 with finfo.min in a
# Where, and 25.0 dB after (QNN 2.49.40).
@rewrites("mask-of-30", "Where", "Add", "Sub", "Mul")
def lower_mask(graph: Graph, node: Any) -> None:
    """Replace the large negative constants that a softmax receives, as fill of a Where, in a sum,
    or as a factor of a mask, by -LOW."""
    sign = -1.0
    if node.op_type == "Sub" or (node.op_type == "Mul" and leads_to_difference(graph, node)):
        sign = 1.0  # the constant is positive, because it is subtracted
    if not leads_to_softmax(graph, node.output[0], differs=sign > 0):
        return
    for place in {"Where": (1, 2), "Sub": (1,)}.get(node.op_type, (0, 1)):
        mask = graph.constant(node.input[place])
        if mask is None or mask.dtype.kind != "f" or not blocks(mask, sign):
            continue
        lowered = np.where(sign * mask >= LARGE, sign * LOW, mask)
        result = graph.add(node.op_type, *node.input[:place], lowered, *node.input[place + 1 :])
        before = f"a mask of {sign * float(np.max(sign * mask)):.4g} before a softmax"
        graph.replace([node], [result], before, f"a mask of {sign * LOW:g}")
        break


# One step of 8 or 16 bits is larger than the differences between scores if the range extends to the
# mask: 5.4 dB in u8 for attention with ALiBi and a causal mask, and 27.6 dB after.
@rewrites("mask-after-softmax", "Softmax")
def mask_after_softmax(graph: Graph, node: Any) -> None:
    """Multiply the result of a softmax by a constant mask of ones and zeros and divide it by its
    sum, instead of masking the scores with a value that takes their range. Blocked scores become
    the mean of the others of their row, so that none of them exceeds all others."""
    masking = graph.maker(node.input[0], "Add", "Where")
    scores, is_allowed = split_mask(graph, masking) if masking else ("", None)
    shape = graph.shapes.get(scores, ())
    last = len(shape) - 1
    # Before opset 13, a Softmax flattens all axes from its axis on, which is 1 by default.
    axis = read(node, "axis", -1 if graph.opset >= SUM_AXES_OPSET else 1)
    is_plain = graph.shapes.get(node.input[0]) == shape and axis in (-1, last)
    if is_allowed is None or not is_plain or not graph.is_float(scores):
        return
    if not is_allowed.any(-1).all():  # the sum of a row would be 0
        return
    factor = is_allowed.astype(np.float32)
    share = (1 - factor) * shape[-1] / np.broadcast_to(factor, shape).sum(-1, keepdims=True)
    scores = graph.add("Mul", scores, factor)
    mean = graph.reduce("ReduceMean", scores, last)
    scores = graph.add("Add", scores, graph.add("Mul", mean, share))
    weights = graph.add("Mul", graph.add("Softmax", scores, axis=last), factor)
    total = graph.reduce("ReduceSum", weights, last)
    result = graph.add("Div", weights, total)
    after = "x = x * kept; x = x + mean(x) * share; p = softmax(x) * kept; p / sum(p)"
    graph.replace([masking, node], [result], f"softmax({masking.op_type}(x, mask))", after)


def split_mask(graph: Graph, node: onnx.NodeProto) -> tuple[str, Array | None]:
    """Return the scores that a node masks, and which of them are allowed, or None if it does not
    mask by a constant."""
    if node.op_type == "Add":
        scores, mask = graph.operands(node) or ("", np.zeros(0))
        return scores, mask == 0 if blocks(mask, -1.0) else None
    condition = graph.constant(node.input[0])
    # A Where selects operand 1 if its condition is true, else operand 2. Either may be the fill.
    for place, allowed_value in ((1, False), (2, True)):
        fill = graph.constant(node.input[place])
        if condition is not None and fill is not None and fill.size and (fill <= -LARGE).all():
            return node.input[3 - place], condition == allowed_value
    return "", None


def blocks(mask: Array, sign: float) -> bool:
    """Return whether the elements of a constant are zero, or block a position: at least LARGE,
    after multiplication by ``sign``. The other operand of a Where need not be zero."""
    is_large = sign * mask >= LARGE
    return bool(mask.size and is_large.any() and (is_large | (mask == 0)).all())


def leads_to_difference(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether all readers of a node's result subtract it."""
    result = node.output[0]
    readers = graph.readers.get(result, [])
    return bool(readers) and all(
        reader.op_type == "Sub" and reader.input[1] == result != reader.input[0]
        for reader in readers
    )


def leads_to_softmax(graph: Graph, name: str, *, differs: bool = False) -> bool:
    """Return whether everything that reads a value is a softmax, or passes the value on to one. A
    graph's output and a value that a graph inside of a node reads do not. With ``differs``, the
    value may be subtracted."""
    readers = graph.readers.get(name, [])
    listed_reads = sum([*reader.input].count(name) for reader in readers)
    if not readers or graph.reads[name] != listed_reads:
        return False
    passes = (*PASSES, "Sub") if differs else PASSES
    for reader in readers:
        if reader.op_type == "Softmax":
            continue
        if reader.op_type not in passes:
            return False
        if not leads_to_softmax(graph, reader.output[0], differs=differs):
            return False
    return True
