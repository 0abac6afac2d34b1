"""Exponential functions, in forms that neither overflow nor take the range of what is small."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ci.graphs.bounds import LEAST_RIGHT_EXPONENT, find_least
from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Node
from ci.mend.graph_rewrites.definition import defines
from ci.mend.graph_rewrites.elements import evaluate, list_operands, write_log_by_roots

LEAST_EXPONENT = -80.0
POINTS = np.linspace(-8, 8, 257)  # at which functions are compared
CLOSE = 1e-6
# What passes a factor of all elements of a row on to its result, if another operand has none.
PRODUCT_OPERATORS = frozenset({"linear", "matmul", "mul"})
SUMS = frozenset({"mean", "sum"})
LARGEST_OF_ROWS = frozenset({"amax", "max"})
OTHER_SHAPES = frozenset({"flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view"})
# What only moves the elements of a value, or their axes.
SHAPES = OTHER_SHAPES | {"expand", "permute", "transpose"}


# In float16, QNN's exp of numbers below -88 is as large as -131008 or 131008 instead of 0: -98.2 dB
# in a radial basis, exp(-d * d), and 61.5 dB after (QNN 2.49.40, and 2.51.0).
@defines("limit-exp", "exp")
def limit_exp(edit: GraphEditor, node: Node) -> None:
    """Limit what exp reads to -80 and above, unless it is so: below it, float16 and float32 have no
    other results than 0, within 2e-35."""
    x = node.reads[0]
    if find_least(x, edit.makers, edit.value) < LEAST_RIGHT_EXPONENT and edit.is_float(x):
        # A clamp behind a linear layer would be wrong itself, see limit_by_maximum.
        new = edit.exp(edit.maximum(x, LEAST_EXPONENT))
        after = f"torch.exp(torch.maximum(x, torch.tensor({LEAST_EXPONENT:.1f})))"
        edit.replace(node, new, after, "torch.exp(x)")


# The exp needs a far wider range than the result, so that in 8 and 16 bits all of its small numbers
# are one step, and in fp16 it overflows.
@defines("name-sigmoid", "reciprocal", "div")
def name_sigmoid(edit: GraphEditor, node: Node) -> None:
    """Write 1 / (1 + exp(-x)) and exp(x) / (1 + exp(x)) as a sigmoid, and y / (1 + exp(-x)) as its
    product with y."""
    dividend, divisor = ("", *node.reads[:1]) if len(node.reads) == 1 else node.reads[:2]
    total = edit.maker(divisor, "add")
    operands = edit.operands(total) if total else None
    if total is None or operands is None or not np.all(operands[1] == 1):
        return
    exp = edit.makers.get(edit.source(operands[0]))
    is_plain = edit.argument(total, "alpha", 1.0) == 1.0 and edit.is_float(divisor)
    if exp is None or exp.operator != "exp" or not is_plain:
        return
    (x,) = exp.reads[:1]
    if dividend and edit.source(dividend) == exp.results[0]:
        edit.replace(node, edit.sigmoid(x), "torch.sigmoid(x)", "exp(x) / (1 + exp(x))")
        return
    if not edit.maker(operands[0], "exp"):
        return
    negated, factor = edit.maker(x, "neg"), edit.maker(x, "mul")
    if negated:
        x = negated.reads[0]
    elif factor and (scaled := edit.operands(factor)):
        x = edit.mul(scaled[0], -scaled[1])
    else:
        x = edit.neg(x)
    new = edit.sigmoid(x)
    if dividend and edit.number(dividend) != 1:
        new = edit.mul(new, dividend)
    elif edit.shape(new) != edit.shape(node.results[0]):
        return
    edit.replace(node, new, "torch.sigmoid(x)", "1 / (1 + torch.exp(-x))")


# The same of a tanh, whose exps also overflow for large numbers where their quotient is 1.
@defines("name-tanh", "add", "div", "mul", "rsub", "sub")
def name_tanh(edit: GraphEditor, node: Node) -> None:
    """Write a tanh that is written out with exps, such as (exp(x) - exp(-x)) / (exp(x) + exp(-x)),
    as one operator. It is recognized by its values."""
    operands = list_operands(edit, node)
    makers = [edit.makers.get(operand) for operand in operands]
    if all(maker is None or maker.operator != "exp" for maker in makers):
        return
    (result,) = node.results
    for factor in (1.0, 0.5, -1.0, -0.5):
        for x in operands:
            is_alike = edit.is_float(x) and edit.shape(x) == edit.shape(result)
            values = evaluate(edit, result, x, POINTS) if is_alike else None
            if values is None or values.shape != POINTS.shape:
                continue
            if np.allclose(values, np.tanh(factor * POINTS), rtol=0, atol=CLOSE):
                new = edit.tanh(x if factor == 1 else edit.mul(x, factor))
                before = "(exp(x) - exp(-x)) / (exp(x) + exp(-x))"
                edit.replace(node, new, "torch.tanh(x)", before)
                return


@defines("name-softmax", "div")
def name_softmax(edit: GraphEditor, node: Node) -> None:
    """Write exp(x) / exp(x).sum(dim, keepdim=True) as a softmax, also if a view of exp(x) is read
    instead."""
    dividend, divisor = map(edit.source, node.reads[:2])
    exp, total = _find_viewed(edit, dividend), _find_viewed(edit, divisor)
    is_written = exp and exp.operator == "exp" and total and total.operator == "sum"
    if not exp or not total or not is_written or edit.source(total.reads[0]) != dividend:
        return
    shape, axes = edit.shape(dividend), _list_reduced_axes(edit, total)
    reduced = [1 if axis in axes else size for axis, size in enumerate(shape)]
    is_alike = [*edit.shape(divisor)] == reduced and edit.shape(node.results[0]) == shape
    if len(axes) == 1 and is_alike and edit.is_float(dividend):
        x = exp.reads[0]
        if edit.shape(x) != shape:
            x = edit.reshape(x, shape=[*shape])
        new = _write_softmax(edit, x, axes[0])
        edit.replace(node, new, "torch.softmax(x, dim)", "exp(x) / exp(x).sum(dim, keepdim=True)")


def _find_viewed(edit: GraphEditor, value: str) -> Node | None:
    """Return the call whose result a value is, or is a view of, with the elements in their
    order."""
    maker = edit.makers.get(value)
    while maker and maker.operator in OTHER_SHAPES:
        maker = edit.makers.get(edit.source(maker.reads[0]))
    return maker


def _write_softmax(edit: GraphEditor, x: str, axis: int) -> str:
    """Write a softmax. LiteRT's is over the last axis, and before opset 13, ONNX's is over all axes
    from its axis on, so that axis is made the last one."""
    order = [*range(len(edit.shape(x)))]
    if edit.graph.front_end == EXECUTORCH or axis == order[-1]:
        return edit.softmax(x, dim=axis)
    order[axis], order[-1] = order[-1], order[axis]
    return edit.permute(edit.softmax(edit.permute(x, dims=order), dim=order[axis]), dims=order)


# QNN 2.49.40 computes a softmax in 16 bits of numbers that differ by less than 0.2 wrongly: 12.1
# dB, and 67.0 dB after. A division by the sum would be fused to a softmax again.
@defines("write-softmax", "softmax")
def write_softmax(edit: GraphEditor, node: Node) -> None:
    """Write a softmax as exp(x - m) times the reciprocal of its sum, with m the maximum."""
    x, (result,), dim = node.reads[0], node.results, edit.argument(node, "dim", -1.0)
    if dim is None or not edit.is_float(x, result) or edit.dtypes[x] != edit.dtypes[result]:
        return
    axis = int(dim) % len(edit.shape(x))
    exp, _ = _write_shifted(edit, x, [axis])
    total = edit.sum(exp, dim=[axis], keepdim=True)
    new = edit.mul(exp, edit.reciprocal(total))
    after = "e * torch.reciprocal(e.sum(dim, keepdim=True)), with e = exp(x - x.amax(dim))"
    edit.replace(node, new, after, "torch.softmax(x, dim)")


# ExecuTorch 1.5.1 gives a softmax of another axis the layout of convolutions only after what is
# around it: its result was read in another layout than the image that it is multiplied by.
@defines("softmax-of-last-axis", "softmax", "log_softmax")
def softmax_of_last_axis(edit: GraphEditor, node: Node) -> None:
    """Make the axis of a softmax or log_softmax the last one, and move it back behind it."""
    x, (result,), dim = node.reads[0], node.results, edit.argument(node, "dim", -1.0)
    if dim is None or not edit.is_float(x, result) or edit.dtypes[x] != edit.dtypes[result]:
        return
    order = [*range(len(edit.shape(x)))]
    axis = int(dim) % len(order)
    if axis == order[-1]:
        return
    order[axis], order[-1] = order[-1], order[axis]
    call = edit.softmax if node.operator == "softmax" else edit.log_softmax
    moved = call(edit.permute(x, dims=order), dim=order[axis])
    after = f"torch.{node.operator}(x.transpose(dim, -1), -1).transpose(dim, -1)"
    edit.replace(node, edit.permute(moved, dims=order), after, f"torch.{node.operator}(x, dim)")


# ExecuTorch decomposes it with a comparison with infinity, which stays on the CPU, and in 8 and 16
# bits QNN's provider takes no ReduceLogSumExp.
@defines("write-logsumexp", "logsumexp")
def write_logsumexp(edit: GraphEditor, node: Node) -> None:
    """Write logsumexp as a logarithm of a sum, with the largest numbers apart."""
    _write_logsumexp(edit, node, edit.log, "(x - m).exp().sum(dim).log() + m, with m = x.amax(dim)")


# QNN's logarithm is wrong in 16 bits.
@defines("logsumexp-by-roots", "logsumexp")
def write_logsumexp_by_roots(edit: GraphEditor, node: Node) -> None:
    """Write logsumexp so, with the logarithm of log-by-roots."""
    after = "log((x - m).exp().sum(dim)) + m, with m = x.amax(dim) and the log of log-by-roots"
    _write_logsumexp(edit, node, functools.partial(write_log_by_roots, edit), after)


def _write_logsumexp(
    edit: GraphEditor, node: Node, write_log: Callable[[str], str], after: str
) -> None:
    (x, *axes_names), (result,) = node.reads, node.results
    is_known = all(edit.value(name) is not None for name in axes_names if name)
    is_plain = node.label.partition(" ")[0] != "ReduceLogSum"  # which has no exponential
    if not is_plain or not is_known or not edit.is_float(x, result):
        return
    axes = _list_reduced_axes(edit, node)
    exp, maximum = _write_shifted(edit, x, axes)
    total = edit.sum(exp, dim=axes, keepdim=True)
    new = edit.reshape(edit.add(write_log(total), maximum), shape=[*edit.shape(result)])
    edit.replace(node, new, after, "torch.logsumexp(x, dim)")


# QNN 2.49.40 computes a log_softmax of scores far apart wrongly in 8 and 16 bits: 3.0 dB, and 49.9
# dB in 8 bits after.
@defines("write-log-softmax", "log_softmax")
def write_log_softmax(edit: GraphEditor, node: Node) -> None:
    """Write log_softmax as x - m - log(sum(exp(x - m))), with m the maximum."""
    after = "x - m - (x - m).exp().sum(dim).log(), with m = x.amax(dim)"
    _write_log_softmax(edit, node, edit.log, after)


# QNN's logarithm is wrong in 16 bits.
@defines("log-softmax-by-roots", "log_softmax")
def write_log_softmax_by_roots(edit: GraphEditor, node: Node) -> None:
    """Write log_softmax so, with the logarithm of log-by-roots."""
    after = "x - m - log((x - m).exp().sum(dim)), with m = x.amax(dim) and the log of log-by-roots"
    _write_log_softmax(edit, node, functools.partial(write_log_by_roots, edit), after)


def _write_log_softmax(
    edit: GraphEditor, node: Node, write_log: Callable[[str], str], after: str
) -> None:
    x, (result,), dim = node.reads[0], node.results, edit.argument(node, "dim", -1.0)
    if dim is None or not edit.is_float(x, result) or edit.dtypes[x] != edit.dtypes[result]:
        return
    axis = int(dim) % len(edit.shape(x))
    exp, maximum = _write_shifted(edit, x, [axis])
    total = edit.sum(exp, dim=[axis], keepdim=True)
    new = edit.sub(edit.sub(x, maximum), write_log(total))
    edit.replace(node, new, after, "torch.log_softmax(x, dim)")


@defines("subtract-maximum", "exp", "log")
def subtract_maximum(edit: GraphEditor, node: Node) -> None:
    """Subtract the maximum of a row from what exp reads, if the results are divided by their sum,
    or if a logarithm reads their sum, to which the maximum is then added."""
    if node.operator == "log":
        _subtract_in_logarithm(edit, node)
        return
    axes = _find_normalized(edit, node)
    if axes:
        shifted, _ = _write_shifted(edit, node.reads[0], axes)
        after = "torch.exp(x - x.amax(dim, keepdim=True))"
        edit.replace(node, shifted, after, "torch.exp(x), whose results are divided by their sum")


def _subtract_in_logarithm(edit: GraphEditor, node: Node) -> None:
    total = edit.maker(node.reads[0], *SUMS)
    exp = edit.maker(total.reads[0], "exp") if total else None
    if not total or not exp or _is_shifted(edit, exp) or not edit.is_float(*exp.reads[:1]):
        return
    axes, shape = _list_reduced_axes(edit, total), edit.shape(total.results[0])
    if not shape:
        return
    shifted, maximum = _write_shifted(edit, exp.reads[0], axes)
    is_kept = len(shape) == len(edit.shape(exp.results[0]))
    new_total = edit.call(total.operator, shifted, dim=axes, keepdim=is_kept)
    added = maximum if is_kept else edit.reshape(maximum, shape=[*shape])
    after = "m + torch.log(torch.exp(x - m).sum(dim)), with m = x.amax(dim)"
    new = edit.add(edit.call_again(node, new_total), added)
    edit.replace(node, new, after, "torch.log(torch.exp(x).sum(dim))")


def _write_shifted(edit: GraphEditor, x: str, axes: list[int]) -> tuple[str, str]:
    """Return exp(x - m), and m, the maximum of x along some axes. What is far below it is limited,
    see limit_exp."""
    maximum = edit.amax(x, dim=axes, keepdim=True)
    difference = edit.sub(x, maximum)
    return edit.exp(edit.maximum(difference, LEAST_EXPONENT)), maximum


def _list_reduced_axes(edit: GraphEditor, node: Node) -> list[int]:
    """Return the axes over which a reduction works, counted from the first one."""
    rank = len(edit.shape(node.reads[0]))
    return sorted(axis % rank for axis in node.axes or range(rank))


def _is_shifted(edit: GraphEditor, exp: Node) -> bool:
    """Return whether a maximum is subtracted from what an exp reads already."""
    maker = edit.makers.get(edit.source(exp.reads[0]))
    if maker and maker.operator == "maximum":
        maker = edit.makers.get(edit.source(maker.reads[0]))
    if not maker or maker.operator != "sub":
        return False
    subtracted = edit.makers.get(edit.source(maker.reads[1]))
    return subtracted is not None and subtracted.operator in LARGEST_OF_ROWS


def _find_normalized(edit: GraphEditor, exp: Node) -> list[int]:
    """Return the axes over which the results of an exp are summed, if everything that is made from
    them is divided by such a sum, so that a factor of each row changes nothing; otherwise []."""
    if _is_shifted(edit, exp) or not edit.is_float(*exp.reads[:1]):
        return []
    shape, axes = edit.shape(exp.results[0]), list[int]()
    derived = [*exp.results]
    quotients: list[Node] = []
    for value in derived:  # which grows
        if value in edit.outputs:
            return []
        for reader in edit.list_readers(value):
            if reader.operator == "div":
                quotients.append(reader)
                continue
            is_scaled = reader.operator in PRODUCT_OPERATORS and not any(
                reader.reads[2:]
            )  # without a bias
            if reader.operator in SUMS and edit.shape(value) == shape:
                axes = axes or _list_reduced_axes(edit, reader)
            elif not is_scaled and reader.operator not in SHAPES and not edit.is_idle(reader):
                return []
            derived += [result for result in reader.results if result not in derived]
    is_divided = all({*node.reads[:2]} <= {*derived} for node in quotients)
    # A product of two of them, such as a square, has the factor twice.
    makers = [edit.makers[value] for value in derived[1:]]
    products = [maker for maker in makers if maker.operator in PRODUCT_OPERATORS]
    is_single = not any({*product.reads[:2]} <= {*derived} for product in products)
    return axes if quotients and is_divided and is_single else []
