"""A small graph that is written as text, from which a front end builds an ONNX model or a torch
module.

    x = input(2, 16, 64)
    p = constant(16, 64)
    s = add(x, p)
    return layer_norm(s)

Each line except the last defines a tensor. ``input`` and ``constant`` take the shape, and the
distribution of the elements: ``like="normal"`` (the default), ``"positive"`` (0.5 to 1.5),
``"large"`` (normal, 16 times as large), or a mask of attention scores with 0 and -30: ``"causal"``
(0 up to the diagonal) or ``"window"`` (0 at the diagonal and the seven elements before it), or the
biases of ALiBi, [heads, rows, columns]: ``"alibi"``. With ``value=0.5``, all elements have that
value instead.
An operator of graph-operators.toml takes tensors, and keyword arguments that are numbers or lists
of integers, such as ``axis=-1``. The last line returns one or more results of operators.

Instead of a tensor's name, an operand may be another call, such as ``relu(add(x, p))``, a number,
which is a constant without axes, or a sum, difference, product or quotient, such as ``x * 0.5``.
A parsed graph has a line for each of these.
"""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, cast, get_args

from msgspec import Struct

from provisioning.errors import UsageError
from provisioning.manifest.reader import read_policy


class Operator(Struct, frozen=True, forbid_unknown_fields=True):
    """An operator. ``kind`` determines how the generator uses it. ``aten`` are its names in torch
    graphs, and ``onnx`` is its name in ONNX, or empty if it cannot be used there. The comment at
    the top of graph-operators.toml explains them."""

    kind: str
    aten: tuple[str, ...]
    onnx: str = ""


class OperatorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of graph-operators.toml: the operators by name."""

    operator: dict[str, Operator]


@cache
def read_operators() -> Mapping[str, Operator]:
    """Return the operators that graphs can have, by name. Raises ManifestError if their file is
    invalid."""
    return read_policy("graph-operators", OperatorTable).operator


# Operators that patterns can name but graphs cannot have, with their names in ONNX.
ONLY_IN_PATTERNS: Mapping[str, str] = {
    **dict.fromkeys(("masked_fill", "to", "type_as"), ""),
    **dict.fromkeys(("select", "unbind", "stack", "select_scatter", "scatter", "copy"), ""),
    **dict.fromkeys(("split", "chunk", "norm", "squared_difference"), ""),
}

Like = Literal["normal", "positive", "large", "causal", "window", "alibi"]
Value = int | float | tuple[int, ...]
Shape = tuple[int, ...]

INPUT, CONSTANT = "input", "constant"
TENSOR, RESULT = "a tensor from an earlier line", "an operator's result"
DIGITS = 9  # enough for each float32, and for each size and axis
MOST_CHARS, MOST_LINES, MOST_RANK, MOST_ELEMENTS = 8000, 128, 6, 1 << 20
INFIX: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
}
PARSING = threading.Lock()  # before Python 3.11.5, two threads that parse raise a SystemError
FIX = "docs/guides/faults.md describes how to write a graph"


@dataclass(frozen=True)
class Tensor:
    """An input or a constant: its shape and the distribution of its elements. If ``value`` is set,
    all elements have that value."""

    shape: Shape
    is_input: bool
    like: Like = "normal"
    value: float | None = None

    @property
    def is_number(self) -> bool:
        """Return whether it is a number, as in ``x * 0.5``, instead of a tensor."""
        return not self.is_input and not self.shape and self.value is not None

    def __str__(self) -> str:
        words = [str(size) for size in self.shape]
        if self.value is not None:
            words.append(f"value={self.value:.{DIGITS}g}")
        elif self.like != "normal":
            words.append(f'like="{self.like}"')
        return f"{INPUT if self.is_input else CONSTANT}({', '.join(words)})"


@dataclass(frozen=True)
class Node:
    """A call of an operator: the names of its operands, and its attributes."""

    operator: str
    reads: tuple[str, ...]
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the kind of its operator."""
        return read_operators()[self.operator].kind

    def __str__(self) -> str:
        words = list(self.reads)
        for name, value in self.attributes.items():
            shown = f"{[*value]}" if isinstance(value, tuple) else f"{value:.{DIGITS}g}"
            words.append(f"{name}={shown}")
        return f"{self.operator}({', '.join(words)})"


@dataclass(frozen=True)
class Graph:
    """A graph. ``tensors`` contains its inputs and constants, and ``nodes`` its nodes in execution
    order, both by name. ``outputs`` are the names of its outputs."""

    tensors: Mapping[str, Tensor]
    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs, in the order of their definition."""
        return [name for name, tensor in self.tensors.items() if tensor.is_input]

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of the nodes' operators, in execution order."""
        return tuple(node.operator for node in self.nodes.values())

    def is_constant(self, name: str) -> bool:
        """Return whether a constant has this name."""
        return name in self.tensors and not self.tensors[name].is_input

    def __str__(self) -> str:
        lines = [f"{name} = {tensor}" for name, tensor in self.tensors.items()]
        lines += [f"{name} = {node}" for name, node in self.nodes.items()]
        lines.append(f"return {', '.join(self.outputs)}")
        return "\n".join(lines) + "\n"


def parse_graph(text: str) -> Graph:
    """Parse a graph, and leave out the parts on which no output depends. Raises UsageError for an
    unknown name, a name that is defined twice, anything except calls with literal attributes, or a
    graph that is too large. The error names the first wrong line, unless the text is not Python or
    its size is wrong."""
    parser = _Parser()
    try:
        return trim(parser.parse(text))
    except (SyntaxError, RecursionError, MemoryError) as error:
        why = f"it cannot be parsed: {error}"
    except ValueError as error:
        why = f"line {parser.line}: {error}" if parser.line else str(error)
    raise UsageError("the text does not define a valid graph", why=why, fix=FIX)


class _Parser:
    """Reads a graph line by line. Raises ValueError for the first wrong ``line``."""

    def __init__(self) -> None:
        self.line = 0
        self.tensors: dict[str, Tensor] = {}
        self.nodes: dict[str, Node] = {}

    def parse(self, text: str) -> Graph:
        if len(text) > MOST_CHARS:
            raise ValueError(
                f"the text has {len(text)} characters, but at most {MOST_CHARS} are allowed"
            )
        with PARSING:
            lines = ast.parse(text).body
        if not 0 < len(lines) <= MOST_LINES:
            raise ValueError(f"the text has {len(lines)} lines instead of 1 to {MOST_LINES}")
        for statement in lines[:-1]:
            self.line = statement.lineno
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call() | ast.BinOp() as call
                ):
                    self.add_call(name, call)
                case _:
                    raise ValueError("the line does not have the form NAME = OPERATOR(...)")
            # A line may define several tensors, because operands can be calls.
            if len(self.tensors) + len(self.nodes) >= MOST_LINES:
                raise ValueError(f"the graph has {MOST_LINES} tensors or more")
        self.line = lines[-1].lineno
        match lines[-1]:
            case ast.Return(value=ast.Tuple(elts=elements)):
                outputs = elements
            case ast.Return(value=ast.expr() as output):
                outputs = [output]
            case _:
                raise ValueError("the last line must return results of operators")
        names = tuple(_read_name(output, self.nodes, RESULT) for output in outputs)
        return Graph(self.tensors, self.nodes, names)

    def add_call(self, name: str, call: ast.Call | ast.BinOp) -> None:
        """Add the tensor or node ``name``. Its operands that are calls or numbers get the names
        ``NAME_1``, ``NAME_2`` and so on."""
        match call:
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in INFIX:
                operator, operands, options = INFIX[type(sign)], [left, right], {}
            case ast.Call(func=ast.Name(id=operator), args=operands, keywords=keywords):
                options = {word.arg or "": _read_literal(word.value) for word in keywords}
            case _:
                raise ValueError(f"{ast.unparse(call)[:40]} is not a call of an operator")
        if operator in (INPUT, CONSTANT):
            shape = tuple(map(_read_literal, operands))
            tensor = _read_tensor(shape, options, is_input=operator == INPUT)
            self.require_new(name)
            self.tensors[name] = tensor
            return
        if operator not in read_operators():
            raise ValueError(f"there is no operator {operator[:40]!r}")
        reads = []
        for place, operand in enumerate(operands, 1):
            operand_name = f"{name}_{place}"
            if isinstance(operand, ast.Call | ast.BinOp):
                self.add_call(operand_name, operand)
            elif isinstance(operand, ast.Constant):
                self.require_new(operand_name)
                # torch's functions take tensors. Only Python's operators also take a number.
                shape = () if operator in INFIX.values() else (1,)
                value = {"value": _read_literal(operand)}
                self.tensors[operand_name] = _read_tensor(shape, value, is_input=False)
            else:
                operand_name = _read_name(operand, {**self.tensors, **self.nodes}, TENSOR)
            reads.append(operand_name)
        if not reads:
            raise ValueError(f"{operator} needs at least one tensor")
        attributes = {key: value for key, value in options.items() if not isinstance(value, str)}
        if unknown := options.keys() - attributes.keys():
            raise ValueError(f"the value of {min(unknown)!r} is not a number or a list of integers")
        self.require_new(name)
        self.nodes[name] = Node(operator, tuple(reads), attributes)

    def require_new(self, name: str) -> None:
        if name in self.tensors or name in self.nodes:
            raise ValueError(f"{name} is defined twice")


def _read_name(expression: ast.expr, defined: Collection[str], expected: str) -> str:
    """Return the name that an expression consists of. Raises ValueError, which says that it is not
    what is ``expected``, if it is not one of the names that are ``defined``."""
    if not isinstance(expression, ast.Name) or expression.id not in defined:
        raise ValueError(f"{ast.unparse(expression)[:40]} is not {expected}")
    return expression.id


def _read_tensor(
    shape: Sequence[object], options: Mapping[str, object], *, is_input: bool
) -> Tensor:
    # Not isinstance, because True is an int, too.
    sizes = tuple(size for size in shape if type(size) is int and size > 0)
    if len(sizes) < len(shape) or len(shape) > MOST_RANK or math.prod(sizes) > MOST_ELEMENTS:
        raise ValueError(
            f"a shape must have at most {MOST_RANK} sizes, all positive integers, and at most"
            f" {MOST_ELEMENTS} elements"
        )
    if unknown := options.keys() - {"like", "value"}:
        raise ValueError(f"a tensor has no attribute {min(unknown)!r}")
    like, value = options.get("like", "normal"), options.get("value")
    if like not in get_args(Like):
        raise ValueError(f"'like' must be one of {', '.join(get_args(Like))}")
    if type(value) not in (int, float, type(None)):
        raise ValueError("'value' must be a finite number")
    number = None if value is None else float(cast(float, value))
    return Tensor(sizes, is_input, cast(Like, like), number)


def _read_literal(expression: ast.expr) -> Value | str:
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{ast.unparse(expression)[:40]} is not a literal") from error
    if isinstance(value, list) and all(type(element) is int for element in value):
        return tuple(value)
    if type(value) in (int, str) or (type(value) is float and math.isfinite(value)):
        return cast("int | float | str", value)
    raise ValueError(f"{str(value)[:40]!r} is not a number, a string or a list of integers")


def trim(graph: Graph) -> Graph:
    """Return the graph without tensors and nodes on which no output depends."""
    needed = set(graph.outputs)
    for name in reversed(list(graph.nodes)):
        if name in needed:
            needed.update(graph.nodes[name].reads)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in needed}
    nodes = {name: node for name, node in graph.nodes.items() if name in needed}
    return Graph(tensors, nodes, graph.outputs)
