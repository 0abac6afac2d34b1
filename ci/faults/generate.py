"""Makes small random graphs with properties that often cause faults when operators are fused:
operands that are broadcast, small batches, lengths near tile sizes, constants as either operand,
and results that are read twice or are also outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import torch

from ci.faults.graph import Graph, Node, Shape, Tensor, Value, read_operators, trim
from ci.faults.known import Frontend
from ci.faults.torch_graphs import apply, compute, draw

BATCHES = (1, 2, 2, 3)
# Not 0: a graph with an axis of size 0 kills the process (SIGFPE).
LENGTHS = (1, 3, 4, 7, 8, 16, 17, 32, 33, 64)
MOST_NODES, MOST_RANK, TRIES = 5, 5, 12
# A reference that is all zero would look like a fault.
MOST_VALUE, LEAST_RMS, LEAST_DIVISOR = 64.0, 0.02, 0.2
MOST_SIZE, MIN_NORM = 1 << 13, 4
# A kind is chosen the more often, the more often it is listed.
KINDS = [*["unary"] * 5, *["binary"] * 6, *["norm", "move"] * 3, *["axis", "layer"] * 2]
KINDS += ["reduce", "pool", "positive"]
Name = str


def generate(seed: int, number: int, frontend: Frontend = "onnx") -> Graph:
    """Return the graph with this ``number`` for ``seed``. It has only operators that the front end
    supports. The same arguments always yield the same graph."""
    return Maker(random.Random(f"{seed} {number}"), frontend).make()  # noqa: S311 - repeatable


def find_unfit(graph: Graph, seed: int) -> str:
    """Return why a graph cannot be judged with a seed; empty if it can. It cannot be judged if a
    value is too large, is nearly zero, or strongly depends on rounding."""
    for values in compute(graph, seed):
        for name, node in graph.nodes.items():
            if fault := _find_fault(node, values[name], [values[read] for read in node.reads]):
                return f"{name}: {fault}"
    return ""


def _find_fault(node: Node, value: torch.Tensor, operands: list[torch.Tensor]) -> str:
    """Return why a node with these operands and this result cannot be judged; empty if it can.
    Comparisons are negated where NaN, with which each comparison is false, must be found, too."""
    divisor = _find_divisor(node, operands)
    if divisor is not None and not float(divisor.abs().min()) > LEAST_DIVISOR:
        return "a divisor near zero"
    if node.operator in {"log", "sqrt"} and not float(operands[0].min()) > LEAST_DIVISOR:
        return "a logarithm or a square root of values near zero"
    is_norm = node.kind == "norm" and node.operator != "batch_norm"
    length = operands[0].shape[-1] if is_norm else 0
    if is_norm and length > 1 and not float(operands[0].std(-1).min()) > LEAST_DIVISOR:
        return "a norm of nearly equal values"
    if is_norm and length < MIN_NORM:
        return "a norm of few values"
    if node.operator == "lp_norm":
        axis = node.attributes["axis"]
        if float(operands[0].square().sum(axis).min()) < LEAST_DIVISOR:
            return "a norm of values near zero"
    largest = float(value.abs().max())
    if not largest < MOST_VALUE:
        return "a value that is too large"
    if float(value.square().mean().sqrt()) < LEAST_RMS:
        return "values near zero"
    return ""


def _find_divisor(node: Node, operands: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the operand that must not be near zero, or None if there is none."""
    if node.operator == "div":
        return operands[-1]
    if node.kind == "positive" or node.operator == "rsqrt":
        return operands[0]
    return None


class Maker:
    """Makes one random graph."""

    def __init__(self, dice: random.Random, frontend: Frontend) -> None:
        self.dice = dice
        rows = read_operators().items()
        self.operators = {name: row.kind for name, row in rows if row.onnx or frontend != "onnx"}
        self.clear()

    def clear(self) -> None:
        """Start with an empty graph. ``self.values`` holds the values of its nodes and of the
        tensors that they read, for the first sample."""
        self.tensors: dict[Name, Tensor] = {}
        self.nodes: dict[Name, Node] = {}
        self.values: dict[Name, torch.Tensor] = {}

    def shape(self, name: Name) -> Shape:
        """Return the shape of a node's result, or of a tensor that a node reads."""
        return tuple(self.values[name].shape)

    def make(self) -> Graph:
        """Return a random graph that has one to MOST_NODES operators and can be judged."""
        while True:
            self.clear()
            rank = self.dice.choice((2, 3, 3, 4, 4, 5))
            lengths = [self.dice.choice(LENGTHS) for _ in range(rank - 1)]
            shape = (self.dice.choice(BATCHES), *lengths)
            if math.prod(shape) > MOST_SIZE // 2:
                continue
            self.compute([self.declare(shape, is_input=True)], {})
            size = self.dice.choice((1, 2, 2, 2, 3, 3, 4, MOST_NODES))
            for _ in range(TRIES):
                if len(self.nodes) < size:
                    self.extend()
            if self.nodes:
                graph = self.finish()
                if not find_unfit(graph, 0):
                    return graph

    def finish(self) -> Graph:
        """Return the finished graph. Its outputs are the last node and, in some graphs, an earlier
        node."""
        *earlier, last = self.nodes
        outputs = [last]
        if earlier and self.dice.random() < 0.2:
            outputs.append(self.dice.choice(earlier))
        return trim(Graph(dict(self.tensors), dict(self.nodes), tuple(outputs)))

    def declare(self, shape: Shape, *, is_input: bool = False, like: str = "normal") -> Name:
        """Add an input or a constant with the distribution ``like``, and return its name."""
        name = f"{'x' if is_input else 'c'}{len(self.tensors)}"
        self.tensors[name] = Tensor(shape, is_input, like)  # type: ignore[arg-type]
        return name

    def extend(self) -> None:
        """Add a node with a random operator that reads a previous value, usually the last one. If
        the operator cannot read that value, leave the graph unchanged."""
        values = [*self.nodes] or [*self.tensors][:1]
        x = values[-1] if self.dice.random() < 0.8 else self.dice.choice(values)
        kind = self.dice.choice(KINDS)
        same_kind = [name for name, own_kind in self.operators.items() if own_kind == kind]
        operator = self.dice.choice(same_kind)
        before = dict(self.tensors), dict(self.values)
        make = MAKERS.get(operator, MAKERS.get(kind, make_other))
        node = make(self, operator, x)
        if node is None or not self.add(f"n{len(self.nodes)}", node):
            self.tensors, self.values = before

    def add(self, name: Name, node: Node) -> bool:
        """Add a node and return True, or return False if its operands do not match, or if its
        result is too large or cannot be judged."""
        operands = self.compute(node.reads, {**self.nodes, name: node})
        try:
            value = apply(node, operands)
            fault = _find_fault(node, value, operands)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False  # the shapes of its operands do not match
        if fault or value.numel() > MOST_SIZE or value.dim() > MOST_RANK:
            return False
        self.nodes[name], self.values[name] = node, value
        return True

    def compute(self, names: Sequence[Name], nodes: Mapping[Name, Node]) -> list[torch.Tensor]:
        """Return the values of the nodes or tensors with these names. The elements of a tensor that
        has no value yet are drawn at random."""
        graph = Graph(self.tensors, nodes, ())
        for name in names:
            if name not in self.values:
                number = int(graph.tensors[name].is_input)  # draw numbers samples from 1
                self.values[name] = torch.from_numpy(draw(graph, name, 0, number))
        return [self.values[name] for name in names]


def node(operator: str, *reads: Name, **attributes: Value) -> Node:
    """Return a node with this operator, operands and attributes."""
    return Node(operator, reads, attributes)


def make_binary(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return a binary operator on ``x`` and a constant, an input or another node. A constant or an
    input may have axes of size 1, along which it is broadcast. Except for ``div``, the operands may
    be in either order."""
    dice, shape = maker.dice, maker.shape(x)
    like = "positive" if operator == "div" else dice.choice(("normal", "normal", "positive"))
    peers = [name for name in maker.nodes if maker.shape(name) == shape and name != x]
    if peers and dice.random() < 0.25:
        y = dice.choice(peers)
    else:
        start = dice.choice((0, 1, 1, dice.randrange(len(shape))))
        sizes = []
        for size in shape[start:]:
            is_broadcast = dice.random() < 0.2
            sizes.append(1 if is_broadcast else size)
        if dice.random() < 0.2:
            sizes = [1] * start + sizes
        y = maker.declare(tuple(sizes), is_input=dice.random() < 0.2, like=like)
    # A new y is drawn without values near zero if it is the divisor, see ``like``.
    keeps_order = operator == "div" or dice.random() < 0.7
    return node(operator, *((x, y) if keeps_order else (y, x)))


def make_norm(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return a norm over the last axis of ``x``, with or without a weight and, for ``layer_norm``,
    a bias."""
    if maker.dice.random() < 0.5:
        return node(operator, x)
    size = maker.shape(x)[-1:]
    weight = maker.declare(size, like="positive")
    bias = [maker.declare(size)] if operator == "layer_norm" and maker.dice.random() < 0.5 else []
    return node(operator, x, weight, *bias)


def make_batch_norm(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return a batch norm if ``x`` is a batch of images or sequences, otherwise None."""
    shape = maker.shape(x)
    if len(shape) not in (3, 4):
        return None
    likes = ("positive", "normal", "normal", "positive")
    return node(operator, x, *(maker.declare(shape[1:2], like=like) for like in likes))


def make_linear(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return a linear layer with or without a bias, or None if ``x`` has more than four axes."""
    if len(maker.shape(x)) > 4:
        return None
    out = maker.dice.choice(LENGTHS[2:])
    weight = maker.declare((out, maker.shape(x)[-1]))
    bias = [maker.declare((out,))] if maker.dice.random() < 0.5 else []
    return node(operator, x, weight, *bias)


def make_matmul(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return the matrix product of ``x`` and a new input, or None unless ``x`` has three or four
    axes."""
    *lead, size = maker.shape(x)
    if not 3 <= len(lead) + 1 <= 4:
        return None
    out = maker.dice.choice(LENGTHS[2:])
    return node(operator, x, maker.declare((*lead[:-1], size, out), is_input=True))


def make_conv(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return an ordinary or depthwise convolution if ``x`` is a batch of images or sequences, or a
    transposed convolution if ``x`` is a batch of images. Otherwise return None."""
    dice, shape = maker.dice, maker.shape(x)
    if len(shape) not in (3, 4) or (operator == "conv_transpose" and len(shape) == 3):
        return None
    kernel = dice.choice([size for size in (1, 2, 3, 5) if size <= min(shape[2:])])
    out = dice.choice((4, 8, 16, 32))
    spatial = (kernel,) * (len(shape) - 2)
    if operator == "conv_transpose":
        weight = maker.declare((shape[1], out, *spatial))
        return node(operator, x, weight, stride=dice.choice((1, 2)))
    groups = shape[1] if dice.random() < 0.3 else 1
    out = shape[1] if groups > 1 else out
    weight = maker.declare((out, shape[1] // groups, *spatial))
    bias = [maker.declare((out,))] if dice.random() < 0.5 else []
    stride, pad = dice.choice((1, 1, 2)), dice.choice((0, kernel // 2))
    return node(operator, x, weight, *bias, stride=stride, pad=pad, groups=groups)


def make_pool(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return a pooling operator if ``x`` is a batch of images, otherwise None."""
    if len(maker.shape(x)) != 4:
        return None
    sizes = {"kernel": maker.dice.choice((2, 3)), "stride": maker.dice.choice((1, 2))}
    if operator == "avg_pool" and maker.dice.random() < 0.5:
        sizes |= {"pad": 1, "counts_pad": maker.dice.choice((0, 1))}
    return node(operator, x, **sizes)


def make_other(  # noqa: C901, PLR0911, PLR0912 - a table
    maker: Maker, operator: str, x: Name
) -> Node | None:
    """Return any other operator, or None if it does not fit ``x`` or, for a transpose, would not
    change it. Axes, orders, shapes and bounds of slices are random; most other attributes are
    fixed. Operators of kind ``axis`` usually use the last axis. A reshape joins two axes of ``x``
    or splits one."""
    dice, shape = maker.dice, maker.shape(x)
    rank = len(shape)
    match operator, read_operators()[operator].kind:
        case _, "axis":
            return node(operator, x, axis=dice.choice((-1, -1, -1, 1 - rank)) if rank > 1 else -1)
        case _, "reduce" if rank > 2:
            axes = dice.choice(((-1,), (-1,), (1,), (-2, -1)))
            return node(operator, x, axes=axes, keep=dice.choice((0, 1)))
        case "reshape", _:
            axis = dice.randrange(rank)
            lead, size, behind = shape[:axis], shape[axis], shape[axis + 1 :]
            if dice.random() < 0.5 and behind:
                return node(operator, x, shape=(*lead, size * behind[0], *behind[1:]))
            part = next((divisor for divisor in (8, 4, 2) if size % divisor == 0), 0)
            return node(operator, x, shape=(*lead, size // part, part, *behind)) if part else None
        case "transpose", _:
            order = dice.sample(range(rank), rank)
            return node(operator, x, order=tuple(order)) if order != sorted(order) else None
        case "slice", _:
            axis = dice.randrange(rank)
            start, stop = sorted(dice.sample(range(shape[axis] + 1), 2))
            return node(operator, x, axis=axis, start=start, stop=stop)
        case "pad", _:
            axis, before = dice.randrange(rank), dice.choice((0, 1))
            return node(operator, x, axis=axis, before=before, after=1)
        case "expand", _ if 1 in shape:
            sizes = list(shape)
            sizes[shape.index(1)] = dice.choice((2, 3))
            return node(operator, x, shape=tuple(sizes))
        case "instance_norm", _ if rank == 4:
            return node(operator, x)
        case "upsample", _ if rank == 4:
            return node(operator, x, scale=2)
        case "prelu", _ if rank > 2:
            return node(operator, x, maker.declare((shape[1], *[1] * (rank - 2)), like="positive"))
        case "clip", _:
            return node(operator, x, low=-1.0, high=1.5)
        case "leaky_relu", _:
            return node(operator, x, slope=0.1)
        case _, "unary" | "positive":
            return node(operator, x)
    return None


def make_concat(maker: Maker, operator: str, x: Name) -> Node | None:
    """Return a concatenation of ``x`` with another node, or with a new input or constant, which may
    have a different range of values."""
    dice, shape = maker.dice, maker.shape(x)
    peers = [name for name in maker.nodes if maker.shape(name) == shape]
    if peers and dice.random() < 0.5:
        y = dice.choice(peers)
    else:
        like = dice.choice(("normal", "large", "positive"))
        y = maker.declare(shape, is_input=dice.random() < 0.7, like=like)
    return node(operator, x, y, axis=dice.randrange(len(shape)))


MAKERS: Mapping[str, Callable[[Maker, str, Name], Node | None]] = {
    "binary": make_binary,
    "norm": make_norm,
    "batch_norm": make_batch_norm,
    "instance_norm": make_other,
    "linear": make_linear,
    "matmul": make_matmul,
    "conv": make_conv,
    "conv_transpose": make_conv,
    "pool": make_pool,
    "concat": make_concat,
}
