"""A small graph as text, which both front ends build: an ONNX model and a torch module.

    x = input(2, 16, 64)
    p = constant(16, 64)
    s = add(x, p)
    return layer_norm(s)

Each line names a tensor. ``input`` and ``constant`` take the shape, and how elements are drawn:
``like="normal"`` (the default), ``"positive"`` (0.5 to 1.5), ``"ones"``, ``"large"`` (normal, 16
times as large); ``value=0.5`` makes all elements equal. An operator of ci.faults.operators takes
tensors, numbers and lists of integers by name, such as ``axis=-1``. The last line returns tensors.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from ci.faults.operators import OPERATORS
from provisioning.errors import UsageError

Like = Literal["normal", "positive", "ones", "large"]
Value = int | float | tuple[int, ...]
Shape = tuple[int, ...]

INPUT, CONSTANT = "input", "constant"
MOST_CHARS, MOST_LINES, MOST_RANK, MOST_ELEMENTS = 8000, 64, 6, 1 << 20
FIX = "docs/guides/faults.md describes how a graph is written"


@dataclass(frozen=True)
class Tensor:
    """An input or a constant: its shape, and how its elements are drawn; all are ``value`` if that
    is given."""

    shape: Shape
    is_input: bool
    like: Like = "normal"
    value: float | None = None

    def __str__(self) -> str:
        words = [str(size) for size in self.shape]
        if self.value is not None:
            words.append(f"value={self.value:g}")
        elif self.like != "normal":
            words.append(f'like="{self.like}"')
        return f"{INPUT if self.is_input else CONSTANT}({', '.join(words)})"


@dataclass(frozen=True)
class Node:
    """An operator's call: the names of the tensors that it reads, and its attributes."""

    operator: str
    reads: tuple[str, ...]
    attributes: tuple[tuple[str, Value], ...] = ()

    def get(self, name: str, default: Value | None = None) -> Value:
        """Return an attribute. Raises KeyError if it has neither a value nor a default."""
        value = dict(self.attributes).get(name, default)
        if value is None:
            raise KeyError(name)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        return float(cast(float, self.get(name, default)))

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is an integer."""
        return int(cast(int, self.get(name, default)))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        return cast("tuple[int, ...]", self.get(name))

    def __str__(self) -> str:
        words = list(self.reads)
        for name, value in self.attributes:
            shown = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else f"{value:g}"
            words.append(f"{name}={shown}")
        return f"{self.operator}({', '.join(words)})"


@dataclass(frozen=True)
class Graph:
    """Tensors and nodes by name, nodes in the order of their calls, and what is returned."""

    tensors: Mapping[str, Tensor]
    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in order."""
        return [name for name, one in self.tensors.items() if one.is_input]

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators, in order."""
        return tuple(one.operator for one in self.nodes.values())

    def is_constant(self, name: str) -> bool:
        """Whether a name is that of a constant."""
        return name in self.tensors and not self.tensors[name].is_input

    def __str__(self) -> str:
        lines = [f"{name} = {one}" for name, one in (*self.tensors.items(), *self.nodes.items())]
        return "\n".join([*lines, f"return {', '.join(self.outputs)}"]) + "\n"


def parse_graph(text: str) -> Graph:
    """Read a graph. Raises UsageError, which names the line, for what is no graph: an unknown name,
    one that is given twice, anything besides calls with literal attributes, a graph too large."""
    if len(text) > MOST_CHARS:
        raise _refuse("", f"it has {len(text)} characters, at most {MOST_CHARS} are read")
    try:
        lines = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refuse("", f"it cannot be read: {error}") from error
    if not lines or len(lines) > MOST_LINES:
        raise _refuse("", f"it has {len(lines)} lines, 1 to {MOST_LINES} are read")
    tensors: dict[str, Tensor] = {}
    nodes: dict[str, Node] = {}
    for line in lines[:-1]:
        where = f"line {line.lineno}: "
        if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
            raise _refuse(where, "it is not NAME = OPERATOR(...)")
        name = line.targets[0].id
        if len(line.targets) > 1 or name in tensors or name in nodes:
            raise _refuse(where, f"{name} is given twice")
        _add_call(name, line.value, tensors, nodes, where)
    outputs = tuple(_read_outputs(lines[-1], nodes))
    return trim(Graph(tensors, nodes, outputs))


def _add_call(
    name: str, call: ast.expr, tensors: dict[str, Tensor], nodes: dict[str, Node], where: str
) -> None:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise _refuse(where, "it is not NAME = OPERATOR(...)")
    options = {one.arg or "": _read_literal(one.value, where) for one in call.keywords}
    if call.func.id in (INPUT, CONSTANT):
        shape = tuple(_read_literal(one, where) for one in call.args)
        tensors[name] = _read_tensor(shape, options, where, is_input=call.func.id == INPUT)
        return
    if call.func.id not in OPERATORS:
        raise _refuse(where, f"there is no operator {call.func.id[:40]!r}")
    reads = []
    for one in call.args:
        if not isinstance(one, ast.Name) or one.id not in (*tensors, *nodes):
            raise _refuse(where, f"{ast.unparse(one)[:40]} is no tensor of a line before")
        reads.append(one.id)
    if not reads or "" in options:
        raise _refuse(where, f"{call.func.id} reads nothing")
    if words := [key for key, value in options.items() if isinstance(value, str)]:
        raise _refuse(where, f"{words[0]} is not a number or a list of integers")
    attributes = {key: value for key, value in options.items() if not isinstance(value, str)}
    nodes[name] = Node(call.func.id, tuple(reads), tuple(attributes.items()))


def _read_tensor(
    shape: Sequence[object], options: Mapping[str, object], where: str, *, is_input: bool
) -> Tensor:
    sizes = [one for one in shape if type(one) is int and one > 0]
    if len(sizes) < len(shape) or len(shape) > MOST_RANK or math.prod(sizes) > MOST_ELEMENTS:
        raise _refuse(
            where,
            f"a shape has at most {MOST_RANK} positive sizes and {MOST_ELEMENTS} elements",
        )
    like, value = options.get("like", "normal"), options.get("value")
    if unknown := options.keys() - {"like", "value"}:
        raise _refuse(where, f"a tensor has no {min(unknown)}")
    if like not in get_args(Like):
        raise _refuse(where, f"like is one of {', '.join(get_args(Like))}")
    if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
        raise _refuse(where, "value is a finite number")
    given = None if value is None else float(value)
    return Tensor(tuple(sizes), is_input, cast(Like, like), given)


def _read_literal(expression: ast.expr, where: str) -> Value | str:
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _refuse(where, f"{ast.unparse(expression)[:40]} is no literal") from error
    if isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    if type(value) in (int, str) or (type(value) is float and math.isfinite(value)):
        return cast("int | float | str", value)
    raise _refuse(where, f"{str(value)[:40]!r} is not a number, a word or a list of integers")


def _read_outputs(line: ast.stmt, nodes: Mapping[str, Node]) -> Iterator[str]:
    if not isinstance(line, ast.Return) or line.value is None:
        raise _refuse("", "its last line returns nothing")
    given = line.value.elts if isinstance(line.value, ast.Tuple) else [line.value]
    for one in given:
        if not isinstance(one, ast.Name) or one.id not in nodes:
            raise _refuse("last line: ", f"{ast.unparse(one)[:40]} is no operator's result")
        yield one.id


def trim(graph: Graph) -> Graph:
    """Return the graph without what no output depends on."""
    needed = set(graph.outputs)
    for name in reversed(list(graph.nodes)):
        if name in needed:
            needed.update(graph.nodes[name].reads)
    return replace(
        graph,
        tensors={name: one for name, one in graph.tensors.items() if name in needed},
        nodes={name: one for name, one in graph.nodes.items() if name in needed},
    )


def _refuse(where: str, why: str) -> UsageError:
    return UsageError("this is not a graph of a fault", why=f"{where}{why}", fix=FIX)
