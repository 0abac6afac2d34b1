"""Constants: computed ones, and constant operands of other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.mend.torch_rewrites.editing import Editor, argument, aten, rewrites, shape_of, value_of

SHORTEST_RIGHT = 32  # a last axis with which QNN multiplies a sum with a constant right
UNIFORM_RANK = 5  # with which QNN adds a constant of equal elements wrongly


@rewrites("fold-constants")
def fold_constants(edit: Editor) -> None:
    """Store what operators compute from constants alone, such as masks."""
    for node in [*edit.graph.nodes]:
        stored = edit.value(node) if node.op == "call_function" and node.users else None
        if stored is None or all(edit.value(user) is not None for user in node.users):
            continue  # it is none, or a part of a larger one
        with edit.at(node):
            edit.replace(node, edit.constant(stored), "a buffer with the computed constant")


@rewrites("put-constant-first", aten.cat.default)
def put_constant_first(edit: Editor, node: Node) -> None:
    """Concatenate a constant whose elements are all equal first, and reorder the result."""
    operands, axis = node.args[0], argument(node, "dim")
    stored = edit.value(operands[-1])
    if len(operands) < 2 or stored is None or not is_uniform(stored):
        return
    size, whole = stored.shape[axis], shape_of(node)[axis]
    mixed = edit.cat([operands[-1], *operands[:-1]], axis)
    parts = [edit.slice(mixed, axis, *bounds) for bounds in ((size, whole), (0, size))]
    after = "torch.cat([constant, x], dim), and the parts in their order again"
    edit.replace(node, edit.cat(parts, axis), after)


@rewrites("expand-constant", aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
def expand_over_batch(edit: Editor, node: Node) -> None:
    """Store a constant that is added to a batch, or multiplies it, once for each row."""
    shape = shape_of(node)
    if len(shape) < 3 or shape[0] < 2:
        return
    for place, given in enumerate(node.args[:2]):
        stored, other = edit.value(given), node.args[1 - place]
        is_whole = isinstance(other, Node) and shape_of(other) == shape
        if is_whole and stored is not None and stored.shape in {shape[1:], (1, *shape[1:])}:
            new = edit.call_again(node, *node.args[:place], stored.expand(shape))
            edit.replace(node, new, "constant.expand(x.shape[0], ...), stored as a whole constant")
            break


@rewrites("divide-before-relu", aten.mul.Tensor)
def divide_before_relu(edit: Editor, node: Node) -> None:
    """Write a product with a number before a ReLU or a clamp as a quotient."""
    limits = {aten.relu, aten.relu6, aten.clamp, aten.clamp_min, aten.hardtanh}
    if limits.isdisjoint(getattr(user.target, "overloadpacket", None) for user in node.users):
        return
    if found := find_factor(edit, node):
        operand, given, stored = found
        new = edit.div(operand, 1 / (stored if isinstance(given, Node) else given))
        edit.replace(node, new, "x / (1 / factor)")


@rewrites("multiply-before-add", aten.mul.Tensor)
def multiply_before_add(edit: Editor, node: Node) -> None:
    """Multiply a sum with constants by a number before they are added."""
    found = find_factor(edit, node)
    if found is None or shape_of(node)[-1] >= SHORTEST_RIGHT:
        return
    operand, given, factor = found
    total, varies = torch.zeros(()), False
    inner, reader = edit.source(operand), node
    while inner.target is aten.add.Tensor and edit.user(inner) is reader:
        stored = as_tensor(edit, inner.args[1])
        if stored is None or not edit.written.isdisjoint(inner.all_input_nodes):
            break
        total = total + stored * argument(inner, "alpha")
        varies = varies or not is_uniform(stored)
        inner, reader, operand = edit.source(inner.args[0]), inner, inner.args[0]
    if varies:
        summand = (total * factor).to(value_of(node).dtype)
        edit.replace(node, edit.add(edit.mul(operand, given), summand), "x * f + constant * f")


@rewrites("subtract-negative", aten.add.Tensor)
def subtract_negative(edit: Editor, node: Node) -> None:
    """Write a sum with a constant of rank 5 whose elements are all equal as a difference."""
    stored = edit.value(node.args[1])
    if stored is not None and stored.ndim == UNIFORM_RANK and is_uniform(stored):
        new = edit.sub(node.args[0], -stored.to(value_of(node).dtype), **node.kwargs)
        edit.replace(node, new, "x - (-constant)")


@rewrites("concatenate-padding", aten.pad.default, aten.constant_pad_nd.default)
def pad_by_concatenation(edit: Editor, node: Node) -> None:
    """Write a padding with a constant as a concatenation."""
    operand, counts = node.args[0], node.args[1]
    mode, value = argument(node, "mode"), argument(node, "value") or 0.0
    if mode in {None, "constant"} and min(counts) >= 0 and any(counts):
        new = surround(edit, operand, counts[-2::-2], counts[::-2], value)
        edit.replace(node, new, "torch.cat([constant, x, constant], dim)")


def surround(
    edit: Editor, operand: Node, before: Sequence[int], after: Sequence[int], value: float = 0.0
) -> Node:
    """Concatenate constants around the last axes of a node, the first of these axes first. With
    the last one first, QNN makes a padding of them again, with the faults of that."""
    for axis, counts in enumerate(zip(before, after, strict=True), -len(before)):
        shape = [*shape_of(operand)]
        blocks: dict[int, list[Node]] = {0: []}
        for count in {*counts} - {0}:
            shape[axis] = count
            blocks[count] = [edit.constant(torch.full(shape, value, dtype=value_of(operand).dtype))]
        if any(counts):
            operand = edit.cat([*blocks[counts[0]], operand, *blocks[counts[1]]], axis)
    return operand


def find_factor(edit: Editor, node: Node) -> tuple[Any, Any, Tensor] | None:
    """Return the operand of a product with a number that is not 0, the number as the graph has it,
    and as a tensor."""
    for operand, given in (node.args, node.args[::-1]):
        stored = as_tensor(edit, given)
        if stored is not None and stored.numel() == 1 and stored.item():
            return operand, given, stored
    return None


def as_tensor(edit: Editor, given: Any) -> Tensor | None:
    """Return a number, or a constant of the model, as a tensor, or None for another node."""
    return edit.value(given) if isinstance(given, Node) else torch.tensor(given)


def is_uniform(stored: Tensor) -> bool:
    """Return whether all elements of a tensor are equal."""
    return bool(stored.numel()) and bool((stored == stored.flatten()[0]).all())
