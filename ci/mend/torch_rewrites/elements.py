"""Constants, and functions of single elements such as activations, in forms that QNN computes
right."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ci.mend.torch_rewrites.editing import (
    Editor,
    argument,
    aten,
    list_operators,
    rewrites,
    shape_of,
    value_of,
)
from ci.mend.torch_rewrites.norms import ABSORBING

# log(1 + u) = 2 * atanh(u / (2 + u)): the factors of this series, of odd powers from 1 to 13
ATANH = [1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0]
LEAST_THRESHOLD = 15.0
# Activations that QNN approximates in float16 behind a layer or one of SUMS.
FUSED = list_operators("tanh sigmoid gelu silu")
DEEPEST = 5  # operators of a GELU before and after its erf or tanh
ELEMENTWISE = list_operators(
    "add.Tensor sub.Tensor mul.Tensor div.Tensor pow.Tensor_Scalar square erf tanh"
)
SUMS = list_operators("add.Tensor cat")


# ExecuTorch decomposes softplus with a comparison, which stays on the CPU.
@rewrites("softplus-by-series")
def softplus_by_series(edit: Editor) -> None:
    """Write softplus as relu(x) + 2 * atanh(u / (u + 2)), with u = exp(-|x|) and a series for
    atanh, whose relative error is below 1e-6, and log_sigmoid and mish by softplus. QNN's logarithm
    is wrong in 16 bits."""
    for node in edit.find(aten.log1p.default, aten.log.default):
        power = _find_power(edit, node)
        if isinstance(power, fx.Node) and power.target is aten.exp.default:
            edit.replace(node, edit.softplus(power.args[0]), "F.softplus(x)")
    for node in edit.find(aten.softplus.default, aten.log_sigmoid.default, aten.mish.default):
        x, factor = node.args[0], 1.0
        if node.target is aten.softplus.default:
            factor = float(argument(node, "beta"))
            if argument(node, "threshold") < LEAST_THRESHOLD or factor <= 0:
                continue  # torch returns x above the threshold, where softplus is not yet x
        elif node.target is aten.log_sigmoid.default:
            factor = -1.0
        x = x if factor == 1 else edit.mul(x, factor)
        new = _softplus(edit, x)
        if node.target is aten.mish.default:
            new = edit.mul(x, edit.tanh(new))
        elif factor != 1:
            new = edit.mul(new, 1 / factor)
        after = "F.relu(x) + 2 * atanh(u / (u + 2)), with u = torch.exp(-x.abs()), for softplus"
        edit.replace(node, new, after)


def _find_power(edit: Editor, node: fx.Node) -> Any:
    """Return y of log1p(y) or log(1 + y), or None."""
    operand = edit.source(node.args[0])
    if node.target is aten.log1p.default:
        return operand
    if operand.target is not aten.add.Tensor or operand.kwargs or 1 not in operand.args:
        return None
    return next((arg for arg in map(edit.source, operand.args) if arg != 1), None)


def _softplus(edit: Editor, x: fx.Node) -> fx.Node:
    """Compute a softplus as softplus_by_series describes."""
    u = edit.exp(edit.neg(edit.abs(x)))
    z = edit.div(u, edit.add(u, 2.0))
    square = edit.mul(z, z)
    total = edit.mul(square, 2 * ATANH[0])
    for factor in ATANH[1:-1]:
        total = edit.mul(edit.add(total, 2 * factor), square)
    total = edit.mul(edit.add(total, 2.0), z)
    return edit.add(edit.relu(x), total)


# The approximation has an absolute error of 0.001 to 0.003, which small results show: 31.7 dB in
# fp16 for a tanh behind a convolution (HiFi-GAN), and 61.8 dB after.
@rewrites("separate-activation", *FUSED)
def separate_activation(edit: Editor, node: fx.Node) -> None:
    """Transpose between a layer or a sum and an activation. QNN fuses them otherwise, and
    approximates the activation."""
    source = edit.source(node.args[0])
    rank = len(shape_of(node))
    if rank < 2 or source.target not in {*ABSORBING, *SUMS}:
        return
    new = edit.call_again(node, edit.transpose(node.args[0], rank - 2, rank - 1))
    word = str(node.target).split(".")[1]
    edit.replace(node, edit.transpose(new, rank - 2, rank - 1), f"{word}(x.mT).mT")


# QNN has GELU, but no erf, and approximates a tanh behind a layer or a sum.
@rewrites("name-gelu")
def name_gelu(edit: Editor) -> None:
    """Write GELUs that are written out with erf or tanh as one operator. They are recognized by
    their values."""
    points = torch.linspace(-8, 8, 257)
    gelu = torch.nn.functional.gelu
    exact_values = {form: gelu(points, approximate=form) for form in ("none", "tanh")}
    for node in edit.find(aten.erf.default, aten.tanh.default):
        operands, ends = _list_neighbours(edit, node)
        for x, end in itertools.product(operands, ends):
            values = _evaluate(edit, end, x, points)
            if not isinstance(values, Tensor) or values.shape != points.shape:
                continue
            form = _match_form(values, exact_values)
            if form:
                with edit.at(end):
                    new = edit.gelu(x, approximate=form)
                edit.replace(end, new, f"F.gelu(x, approximate={form!r})")
                break


def _list_neighbours(edit: Editor, node: fx.Node) -> tuple[list[Any], list[fx.Node]]:
    """Return the values from which a node may be computed, and the nodes that may be the result of
    a GELU of which it is a part, the nearest first."""
    operands: dict[Any, None] = {edit.source(node.args[0]): None}  # a set in order
    ends: list[fx.Node] = []
    for _ in range(DEEPEST):
        elementwise = [operand for operand in operands if operand.target in ELEMENTWISE]
        for operand in elementwise:
            operands |= dict.fromkeys(map(edit.source, operand.all_input_nodes))
        if end := edit.user(ends[-1] if ends else node):
            ends.append(end)
    return [*operands], ends


def _match_form(values: Tensor, exact_values: Mapping[str, Tensor]) -> str:
    """Return the form of GELU that has these values, or ""."""
    for form, exact in exact_values.items():
        if torch.allclose(values, exact, atol=1e-5):
            return form
    return ""


def _evaluate(edit: Editor, value: Any, x: fx.Node, points: Tensor) -> Any:
    """Return what operators on single elements make of ``points`` as the value of ``x``, or None if
    the result depends on other tensors, too."""
    source = edit.source(value)
    if source is x:
        return points
    if not isinstance(source, fx.Node):
        return source
    stored = edit.value(source)
    if stored is not None:
        return stored.item() if stored.numel() == 1 else None
    if source.target not in ELEMENTWISE or source.kwargs:
        return None
    args = [_evaluate(edit, arg, x, points) for arg in source.args]
    return None if any(arg is None for arg in args) else source.target(*args)


# The smallest floor that float16 holds is about 6e-8. In fp16, log(clamp(x, min=1e-10)) has 3.5 dB,
# and 61.3 dB after.
@rewrites("raise-log-floor", aten.log.default, aten.log2.default, aten.log10.default)
def raise_log_floor(edit: Editor, node: fx.Node) -> None:
    """Raise the floor under a logarithm to 1e-6, which float16 can hold. This changes what is below
    the floor."""
    floor = edit.source(node.args[0])
    limits = {aten.clamp.default: "min", aten.clamp_min.default: "min", aten.add.Tensor: "other"}
    name = limits.get(floor.target, "")
    low = argument(floor, name) if name and not (name == "other" and floor.kwargs) else None
    # float16 rounds such floors: 1e-7 is inexact, and 1e-10 becomes 0, whose logarithm is -7.6 on
    # QNN.
    if isinstance(low, float) and 0 < low < 9e-7:
        changed = {name: 1e-6}
        if floor.target is aten.clamp.default:
            changed["max"] = argument(floor, "max")
        new = edit.call_again(node, edit.call_again(floor, **changed))
        edit.replace(node, new, "a floor of 1e-6 under the logarithm")


# ExecuTorch lowers and quantizes these operators like those of the model, and has no program for a
# mask of tril in fp16 and 8a8w.
@rewrites("fold-constants")
def fold_constants(edit: Editor) -> None:
    """Store what operators compute from constants alone, such as masks."""
    for node in [*edit.graph.nodes]:
        stored = edit.value(node) if node.op == "call_function" and node.users else None
        if stored is None or all(edit.value(user) is not None for user in node.users):
            continue  # it is none, or a part of a larger one
        with edit.at(node):
            edit.replace(node, edit.constant(stored), "a buffer with the computed constant")


# ExecuTorch gives the constant the range of the layer before it: 12.6 dB in 8a8w behind a
# convolution, and 35.5 dB after.
@rewrites("put-constant-first", aten.cat.default)
def put_constant_first(edit: Editor, node: fx.Node) -> None:
    """Concatenate a constant whose elements are all equal first, and reorder the result."""
    operands, axis = node.args[0], argument(node, "dim")
    stored = edit.value(operands[-1])
    # A constant that varies or comes first is right.
    if len(operands) < 2 or stored is None or not _is_uniform(stored):
        return
    size, total = stored.shape[axis], shape_of(node)[axis]
    reordered = edit.cat([operands[-1], *operands[:-1]], axis)
    parts = [edit.slice(reordered, axis, *bounds) for bounds in ((size, total), (0, size))]
    after = "torch.cat([constant, x], dim), and the parts in their order again"
    edit.replace(node, edit.cat(parts, axis), after)


def surround(
    edit: Editor, operand: fx.Node, before: Sequence[int], after: Sequence[int], value: float = 0.0
) -> fx.Node:
    """Concatenate constants around the last axes of a node, the first of these axes first. With
    the last one first, QNN makes a padding of them again, with the faults of that."""
    for axis, counts in enumerate(zip(before, after, strict=True), -len(before)):
        shape = [*shape_of(operand)]
        blocks: dict[int, list[fx.Node]] = {0: []}  # both ends share a constant of the same size
        for count in {*counts} - {0}:
            shape[axis] = count
            blocks[count] = [edit.constant(torch.full(shape, value, dtype=value_of(operand).dtype))]
        if any(counts):
            operand = edit.cat([*blocks[counts[0]], operand, *blocks[counts[1]]], axis)
    return operand


def _is_uniform(stored: Tensor) -> bool:
    """Return whether all elements of a tensor are equal."""
    return bool(stored.numel()) and bool((stored == stored.flatten()[0]).all())
