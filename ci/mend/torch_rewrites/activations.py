"""Activations and other functions of single elements, in forms that QNN computes right."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

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
        made = _softplus(edit, x)
        if node.target is aten.mish.default:
            made = edit.mul(x, edit.tanh(made))
        elif factor != 1:
            made = edit.mul(made, 1 / factor)
        after = "F.relu(x) + 2 * atanh(u / (u + 2)), with u = torch.exp(-x.abs()), for softplus"
        edit.replace(node, made, after)


def _softplus(edit: Editor, x: Node) -> Node:
    u = edit.exp(edit.neg(edit.abs(x)))
    z = edit.div(u, edit.add(u, 2.0))
    square = edit.mul(z, z)
    total = edit.mul(square, 2 * ATANH[0])
    for factor in ATANH[1:-1]:
        total = edit.mul(edit.add(total, 2 * factor), square)
    total = edit.mul(edit.add(total, 2.0), z)
    return edit.add(edit.relu(x), total)


@rewrites("separate-activation", *FUSED)
def separate_activation(edit: Editor, node: Node) -> None:
    """Transpose between a layer or a sum and an activation. QNN fuses them otherwise, and
    approximates the activation."""
    given = edit.source(node.args[0])
    rank = len(shape_of(node))
    if rank < 2 or given.target not in {*ABSORBING, *SUMS}:
        return
    new = edit.call_again(node, edit.transpose(node.args[0], rank - 2, rank - 1))
    word = str(node.target).split(".")[1]
    edit.replace(node, edit.transpose(new, rank - 2, rank - 1), f"{word}(x.mT).mT")


@rewrites("silu-by-tanh", aten.silu.default, aten.mul.Tensor)
def silu_by_tanh(edit: Editor, node: Node) -> None:
    """Write SiLU, also as x * sigmoid(x), with tanh."""
    x = node.args[0]
    if node.target is aten.mul.Tensor:
        gates = [one for one in node.all_input_nodes if one.target is aten.sigmoid.default]
        x = next((one.args[0] for one in gates if {*node.args} == {one, one.args[0]}), None)
    if x is None:
        return
    half = edit.tanh(edit.mul(x, 0.5))
    gate = edit.add(edit.mul(half, 0.5), 0.5)
    edit.replace(node, edit.mul(x, gate), "x * (0.5 * torch.tanh(0.5 * x) + 0.5)")


@rewrites("name-gelu")
def name_gelu(edit: Editor) -> None:
    """Write GELUs that are written out with erf or tanh as one operator. They are recognized by
    their values."""
    points = torch.linspace(-8, 8, 257)
    forms = {one: torch.nn.functional.gelu(points, approximate=one) for one in ("none", "tanh")}
    for node in edit.find(aten.erf.default, aten.tanh.default):
        inner, ends = {edit.source(node.args[0]): None}, list[Node]()
        for _ in range(DEEPEST):
            known = (other for other in inner if other.target in ELEMENTWISE)
            found = [edit.source(one) for other in known for one in other.all_input_nodes]
            inner |= dict.fromkeys(found)
            if end := edit.user(ends[-1] if ends else node):
                ends.append(end)
        for x, end in itertools.product(inner, ends):
            made = _evaluate(edit, end, x, points)
            same = isinstance(made, Tensor) and made.shape == points.shape
            close = [one for one in forms if same and torch.allclose(made, forms[one], atol=1e-5)]
            if close:
                with edit.at(end):
                    new = edit.gelu(x, approximate=close[0])
                edit.replace(end, new, f"F.gelu(x, approximate={close[0]!r})")
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


@rewrites("split-prelu", aten.prelu.default)
def split_prelu(edit: Editor, node: Node) -> None:
    """Compute a PReLU as relu(x) - slope * relu(-x)."""
    x, slope = node.args[0], edit.value(node.args[1])
    if slope is None:
        return
    factor = edit.constant(slope.reshape(-1, *[1] * max(len(shape_of(x)) - 2, 0)))
    below = edit.mul(edit.relu(edit.neg(x)), factor)
    edit.replace(node, edit.sub(edit.relu(x), below), "x.relu() - slope * (-x).relu()")


@rewrites("exp-of-power", aten.pow.Scalar, aten.pow.Tensor_Tensor, aten.exp2.default)
def exp_of_power(edit: Editor, node: Node) -> None:
    """Write a positive constant to the power of a tensor, c ** x, as exp(x * log(c))."""
    stored = edit.value(node.args[0]) if node.target is aten.pow.Tensor_Tensor else None
    base = 2.0 if node.target is aten.exp2.default else node.args[0]
    base = stored.item() if stored is not None and stored.numel() == 1 else base
    exponent = node.args[-1]
    if isinstance(base, Node) or base <= 0 or value_of(exponent).shape != value_of(node).shape:
        return
    new = edit.exp(edit.mul(exponent, math.log(base)))
    edit.replace(node, new, f"torch.exp(x * math.log({base:g}))")


@rewrites("raise-log-floor", aten.log.default, aten.log2.default, aten.log10.default)
def raise_log_floor(edit: Editor, node: Node) -> None:
    """Raise the floor under a logarithm to 1e-6, which float16 can hold. This changes what is below
    the floor."""
    floor = edit.source(node.args[0])
    limits = {aten.clamp.default: "min", aten.clamp_min.default: "min", aten.add.Tensor: "other"}
    name = limits.get(floor.target, "")
    low = argument(floor, name) if name and not (name == "other" and floor.kwargs) else None
    if isinstance(low, float) and 0 < low < 9e-7:
        rest = {"max": argument(floor, "max")} if floor.target is aten.clamp.default else {}
        new = edit.call_again(node, edit.call_again(floor, **{name: 1e-6}, **rest))
        edit.replace(node, new, "a floor of 1e-6 under the logarithm")
