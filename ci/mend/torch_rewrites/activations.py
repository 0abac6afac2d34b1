"""Activations and other functions of single elements, in forms that QNN computes right."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ci.mend.torch_rewrites.editing import Editor, argument, aten, rewrites, shape_of, value_of
from ci.mend.torch_rewrites.norms import ABSORBING

# log(1 + u) = 2 * atanh(u / (2 + u)): the factors of this series, of odd powers from 1 to 13
ATANH = [1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0]
LEAST_THRESHOLD = 15.0
# Activations that QNN approximates in float16 behind a layer or one of SUMS.
FUSED = {aten.tanh.default, aten.sigmoid.default, aten.gelu.default, aten.silu.default}
DEEPEST = 5  # operators of a GELU before and after its erf or tanh
ELEMENTWISE = {
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.pow.Tensor_Scalar,
    aten.square.default,
    aten.erf.default,
    aten.tanh.default,
}
SUMS = {aten.add.Tensor, aten.cat.default}


@rewrites("softplus-by-series")
def softplus_by_series(edit: Editor) -> None:
    """Write softplus as relu(x) + 2 * atanh(u / (u + 2)), with u = exp(-|x|) and a series for
    atanh, whose relative error is below 1e-6, and log_sigmoid and mish by softplus. QNN's logarithm
    is wrong in 16 bits."""
    for node in edit.find(aten.log1p.default, aten.log.default):
        power = edit.source(node.args[0])
        if node.target is aten.log.default:  # of 1 + exp(x)
            is_sum = power.target is aten.add.Tensor and not power.kwargs
            ones = [arg for arg in power.args if arg == 1] if is_sum else []
            power = next((one for one in map(edit.source, power.args) if ones and one != 1), None)
        if isinstance(power, Node) and power.target is aten.exp.default:
            new = edit.call(aten.softplus.default, power.args[0])
            edit.replace(node, new, "F.softplus(x)")
    for node in edit.find(aten.softplus.default, aten.log_sigmoid.default, aten.mish.default):
        x, factor = node.args[0], 1.0
        if node.target is aten.softplus.default:
            factor = float(argument(node, "beta"))
            if argument(node, "threshold") < LEAST_THRESHOLD or factor <= 0:
                continue  # torch returns x above the threshold, where softplus is not yet x
        elif node.target is aten.log_sigmoid.default:
            factor = -1.0
        x = x if factor == 1 else edit.call(aten.mul.Tensor, x, factor)
        made = _softplus(edit, x)
        if node.target is aten.mish.default:
            made = edit.call(aten.mul.Tensor, x, edit.call(aten.tanh.default, made))
        elif factor != 1:
            made = edit.call(aten.mul.Tensor, made, 1 / factor)
        after = "F.relu(x) + 2 * atanh(u / (u + 2)), with u = torch.exp(-x.abs()), for softplus"
        edit.replace(node, made, after)


def _softplus(edit: Editor, x: Node) -> Node:
    size = edit.call(aten.abs.default, x)
    u = edit.call(aten.exp.default, edit.call(aten.neg.default, size))
    z = edit.call(aten.div.Tensor, u, edit.call(aten.add.Tensor, u, 2.0))
    square = edit.call(aten.mul.Tensor, z, z)
    total = edit.call(aten.mul.Tensor, square, 2 * ATANH[0])
    for factor in ATANH[1:-1]:
        total = edit.call(aten.add.Tensor, total, 2 * factor)
        total = edit.call(aten.mul.Tensor, total, square)
    total = edit.call(aten.mul.Tensor, edit.call(aten.add.Tensor, total, 2.0), z)
    return edit.call(aten.add.Tensor, edit.call(aten.relu.default, x), total)


@rewrites("separate-activation", *FUSED)
def separate_activation(edit: Editor, node: Node) -> None:
    """Transpose between a layer or a sum and an activation. QNN fuses them otherwise, and
    approximates the activation."""
    given = edit.source(node.args[0])
    rank = len(shape_of(node))
    if rank < 2 or given.target not in {*ABSORBING, *SUMS}:
        return
    new = edit.call(aten.transpose.int, node.args[0], rank - 2, rank - 1)
    new = edit.call(node.target, new, *node.args[1:], **node.kwargs)
    new = edit.call(aten.transpose.int, new, rank - 2, rank - 1)
    word = str(node.target).split(".")[1]
    edit.replace(node, new, f"{word}(x.mT).mT")


@rewrites("silu-by-tanh", aten.silu.default, aten.mul.Tensor)
def silu_by_tanh(edit: Editor, node: Node) -> None:
    """Write SiLU, also as x * sigmoid(x), with tanh."""
    x = node.args[0]
    if node.target is aten.mul.Tensor:
        gates = [one for one in node.all_input_nodes if one.target is aten.sigmoid.default]
        x = next((one.args[0] for one in gates if {*node.args} == {one, one.args[0]}), None)
        if x is None:
            return
    half = edit.call(aten.tanh.default, edit.call(aten.mul.Tensor, x, 0.5))
    gate = edit.call(aten.add.Tensor, edit.call(aten.mul.Tensor, half, 0.5), 0.5)
    edit.replace(node, edit.call(aten.mul.Tensor, x, gate), "x * (0.5 * torch.tanh(0.5 * x) + 0.5)")


@rewrites("name-gelu")
def name_gelu(edit: Editor) -> None:
    """Write GELUs that are written out with erf or tanh as one operator. They are recognized by
    their values."""
    points = torch.linspace(-8, 8, 257)
    forms = {one: torch.nn.functional.gelu(points, approximate=one) for one in ("none", "tanh")}
    for node in edit.find(aten.erf.default, aten.tanh.default):
        inner, ends = {edit.source(node.args[0]): None}, list[Node]()
        for _ in range(DEEPEST):
            inner |= dict.fromkeys(
                edit.source(other)
                for one in inner
                if one.target in ELEMENTWISE
                for other in one.all_input_nodes
            )
            if end := edit.user(ends[-1] if ends else node):
                ends.append(end)
        for x, end in itertools.product(inner, ends):
            made = _evaluate(edit, end, x, points)
            found = [one for one, wanted in forms.items() if _is_close(made, wanted)]
            if found:
                with edit.at(end):
                    new = edit.call(aten.gelu.default, x, approximate=found[0])
                edit.replace(end, new, f"F.gelu(x, approximate={found[0]!r})")
                break


def _evaluate(edit: Editor, given: Any, x: Node, points: Tensor) -> Any:
    """Return what operators on single elements make of ``points`` as the value of ``x``, or None if
    the result depends on other tensors, too."""
    given = edit.source(given)
    if given is x or not isinstance(given, Node):
        return points if given is x else given
    stored = edit.value(given)
    if stored is not None:
        return stored.item() if stored.numel() == 1 else None
    if given.target not in ELEMENTWISE or given.kwargs:
        return None
    args = [_evaluate(edit, arg, x, points) for arg in given.args]
    return None if any(arg is None for arg in args) else given.target(*args)


def _is_close(made: Any, wanted: Tensor) -> bool:
    same = isinstance(made, Tensor) and made.shape == wanted.shape
    return same and torch.allclose(made, wanted, atol=1e-5)


@rewrites("split-prelu", aten.prelu.default)
def split_prelu(edit: Editor, node: Node) -> None:
    """Compute a PReLU as relu(x) - slope * relu(-x)."""
    x, slope = node.args[0], edit.value(node.args[1])
    if slope is None:
        return
    factor = edit.constant(slope.reshape(-1, *[1] * max(len(shape_of(x)) - 2, 0)))
    below = edit.call(aten.relu.default, edit.call(aten.neg.default, x))
    below = edit.call(aten.mul.Tensor, below, factor)
    new = edit.call(aten.sub.Tensor, edit.call(aten.relu.default, x), below)
    edit.replace(node, new, "x.relu() - slope * (-x).relu()")


@rewrites("exp-of-power", aten.pow.Scalar, aten.pow.Tensor_Tensor, aten.exp2.default)
def exp_of_power(edit: Editor, node: Node) -> None:
    """Write a positive constant to the power of a tensor, c ** x, as exp(x * log(c))."""
    stored = edit.value(node.args[0]) if node.target is aten.pow.Tensor_Tensor else None
    base = 2.0 if node.target is aten.exp2.default else node.args[0]
    base = stored.item() if stored is not None and stored.numel() == 1 else base
    exponent = node.args[-1]
    if isinstance(base, Node) or base <= 0 or value_of(exponent).shape != value_of(node).shape:
        return
    scaled = edit.call(aten.mul.Tensor, exponent, math.log(base))
    made = edit.call(aten.exp.default, scaled)
    edit.replace(node, made, f"torch.exp(x * math.log({base:g}))")


@rewrites("raise-log-floor", aten.log.default, aten.log2.default, aten.log10.default)
def raise_log_floor(edit: Editor, node: Node) -> None:
    """Raise the floor under a logarithm to 1e-6, which float16 can hold. This changes what is below
    the floor."""
    floor = edit.source(node.args[0])
    low = _floor_of(floor)
    if low is None or not 0 < low < 9e-7:
        return
    clamped = (
        edit.call(aten.clamp.default, floor.args[0], 1e-6, argument(floor, "max"))
        if (floor.target is aten.clamp.default)
        else edit.call(floor.target, floor.args[0], 1e-6)
    )
    made = edit.call(node.target, clamped)
    edit.replace(node, made, "a floor of 1e-6 under the logarithm")


def _floor_of(node: Node) -> float | None:
    """Return the lowest value of a node that limits a tensor from below."""
    if node.target in {aten.clamp.default, aten.clamp_min.default}:
        low = argument(node, "min")
        return low if isinstance(low, float) else None
    if node.target is aten.add.Tensor and isinstance(node.args[1], float) and not node.kwargs:
        return node.args[1]
    return None
