"""Edits a graph, whichever lane it is from: finds calls, inserts others, and replaces values.

New calls have torch's names of operators and arguments. A Lane knows what their results look like,
and writes the edited graph once, at the end: as a module (torch_edit) or as an ONNX model
(onnx_edit). Importing this module imports neither torch nor onnx.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from ci.graphs.graph import Array, Constants, Graph, Node, Shape

MOST_FOLDED = 1 << 24  # elements of a constant that is computed
# Operators whose result is their first operand, if its type stays.
SAME = frozenset({"alias", "clone", "contiguous", "detach", "lift_fresh_copy"})
CASTING = frozenset({"to", "_to_copy", "type_as"})
DROPPING = frozenset({"dropout", "feature_dropout", "alpha_dropout"})
STORED = {"bfloat16": "float32"}  # types that numpy lacks
# What a call operates on: the name of a value, a number or an array, or None if it is omitted.
Operand: TypeAlias = "str | float | Array | None"


class Insert(NamedTuple):
    """A call that an edit inserts before the call ``before``. ``arguments`` have torch's names.
    With ``repeats``, it has the arguments of the call of this name."""

    node: Node
    before: str
    arguments: Mapping[str, Any]
    repeats: str = ""


class Form(NamedTuple):
    """The shape and the dtype (numpy's name) of a value."""

    shape: Shape
    dtype: str


class Replacement(NamedTuple):
    """A place that an edit changed. ``nodes`` are the names of the calls that it removed, as users
    know them. ``node`` is the last of them, whose result another value replaces. ``before`` and
    ``after`` describe the change."""

    nodes: tuple[str, ...]
    node: Node
    before: str
    after: str


class Lane(Protocol):
    """Knows the engine that executes the graph."""

    graph: Graph

    def name_result(self, operator: str, before: str) -> str:
        """Return a new name for the result of a call that is inserted."""

    def infer(self, insert: Insert, edit: GraphEditor) -> Form | None:
        """Return what the result of a call looks like, or None if it is unknown."""

    def label(self, node: Node) -> str:
        """Return the name of a call, as users know it."""

    def quote(self, node: Node) -> str:
        """Return the line of the user's source that makes a call, or "" if it is unknown."""

    def write(self, edit: GraphEditor) -> None:
        """Write the edited graph."""


class GraphEditor:
    """A graph while a rewrite edits it. ``edit.mul(x, 0.5)`` inserts a call of the operator ``mul``
    before the call of the innermost ``at``, and returns the name of its result."""

    def __init__(self, lane: Lane) -> None:
        graph = lane.graph
        self.lane, self.graph, self.outputs = lane, graph, [*graph.outputs]
        self.shapes, self.dtypes = dict(graph.shapes), dict(graph.dtypes)
        self.constants = Constants(graph)
        self.arrays: dict[str, Array] = {}  # new constants
        self.numbers: dict[str, float] = {}  # new constants that are numbers in a call
        self.inserts: dict[str, Insert] = {}  # by the name of the new node
        self.replacements: list[Replacement] = []
        self.redirected: dict[str, str] = {}  # the value that replaces each replaced one
        self.changed: set[str] = set()  # computed constants that depend on a replaced one
        self.nodes = {node.name: node for node in graph.nodes}  # without inserted ones
        self.makers = graph.list_makers()
        self.readers: dict[str, dict[str, None]] = {}  # names of nodes, in order, by value
        for node in graph.nodes:
            self._note_reads(node)
        self._anchor = ""

    def _note_reads(self, node: Node) -> None:
        for name in node.reads:
            self.readers.setdefault(name, {})[node.name] = None

    def find(self, *operators: str) -> Iterator[Node]:
        """Yield the calls of these operators whose values have known shapes, in order, without
        those that write into a value or read one that is written into. New calls are inserted
        before the yielded one."""
        for name in [*self.nodes]:
            node = self.nodes.get(name)  # an edit may have removed it
            if node is None or node.operator not in operators:
                continue
            values = [value for value in (*node.reads, *node.results) if value]
            is_read = any(map(self.is_read, node.results))
            is_fixed = all(value in self.shapes for value in values)
            if is_read and is_fixed and self.graph.written.isdisjoint(values):
                with self.at(node):
                    yield node

    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """Insert new calls before ``node``."""
        outer_anchor, self._anchor = self._anchor, node.name
        try:
            yield
        finally:
            self._anchor = outer_anchor

    def is_read(self, value: str) -> bool:
        """Return whether a call reads a value, or whether it is an output."""
        return bool(value and self.readers.get(value)) or value in self.outputs

    def shape(self, value: str) -> Shape:
        """Return the shape of a value. Raises KeyError if it is unknown."""
        return self.shapes[value]

    def is_float(self, *values: str) -> bool:
        """Return whether all of these values have known shapes and are floating-point."""
        return all(
            value in self.shapes and "float" in self.dtypes.get(value, "float") for value in values
        )

    def value(self, name: str) -> Array | None:
        """Return the array of a value that depends on no input, or None for any other value, for
        one that the model changes, and for a very large computed one."""
        if name in self.arrays:
            return self.arrays[name]
        if name in self.numbers:
            return np.asarray(self.numbers[name])
        if not name or name in self.graph.written or name in self.changed:
            return None
        size = math.prod(self.shapes.get(name, (MOST_FOLDED + 1,)))
        is_stored = name in self.graph.constants
        return self.constants.find(name) if is_stored or size <= MOST_FOLDED else None

    def number(self, name: str) -> float | None:
        """Return a constant with a single element as a number, or None for any other value."""
        array = self.value(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def operands(self, node: Node) -> tuple[str, Array] | None:
        """Return the computed operand of a call and the array of its constant one, in this order,
        if it has one of each."""
        for computed, constant in (node.reads[:2], node.reads[1::-1]):
            array = self.value(constant)
            if array is not None and self.value(computed) is None:
                return computed, array
        return None

    def maker(self, value: str, *operators: str) -> Node | None:
        """Return the call that computes a value if it is one of these operators, behind operators
        that compute nothing, or None. Nothing else may read its result."""
        while True:
            node = self.makers.get(value)
            if node is None or self.user_of(value) is None:
                return None
            if node.operator in operators:
                return node
            if not self.is_idle(node):
                return None
            value = node.reads[0]

    def source(self, value: str) -> str:
        """Return the value that reaches ``value`` through operators that compute nothing."""
        while value in self.makers and self.is_idle(self.makers[value]):
            value = self.makers[value].reads[0]
        return value

    def reader(self, value: str, *operators: str) -> Node | None:
        """Return the only call that reads a value, behind operators that compute nothing, if it is
        one of these operators, or of any if there are none, or None."""
        node = self.user_of(value)
        while node is not None and self.is_idle(node):
            node = self.user_of(node.results[0])
        return node if node and (not operators or node.operator in operators) else None

    def list_readers(self, value: str) -> list[Node]:
        """Return the calls that read a value."""
        return [self._node(name) for name in self.readers.get(value, ())]

    def user_of(self, value: str) -> Node | None:
        """Return the only call that reads a value, or None if there are others, if it is an output,
        or if a call writes into it."""
        readers = self.list_readers(value)
        is_plain = value not in self.outputs and value not in self.graph.written
        return readers[0] if len(readers) == 1 and is_plain else None

    def is_idle(self, node: Node) -> bool:
        """Return whether the result of a call is its first operand."""
        if not self.graph.written.isdisjoint((*node.reads[:1], *node.results)):
            return False
        if node.operator in CASTING:
            types = [self.dtypes.get(value, "") for value in (node.reads[0], node.results[0])]
            return bool(types[0]) and types[0] == types[1]
        if node.operator in DROPPING:  # in ONNX, the third operand is whether the model trains
            is_off = 0.0 in (self.argument(node, "train", 0.0), self.argument(node, "p"))
            return is_off and len(node.reads) < 3
        return node.operator in SAME

    @staticmethod
    def argument(node: Node, name: str, default: float | None = None) -> Any:
        """Return a numeric argument of a call, or ``default`` if it has none."""
        return next(iter(node.numbers.get(name, ())), default)

    def __getattr__(self, operator: str) -> Callable[..., str]:
        if operator.startswith("__"):
            raise AttributeError(operator)
        return functools.partial(self.call, operator)

    def call(self, operator: str, *operands: Operand | Sequence[str], **arguments: Any) -> str:
        """Insert a call, and return the name of its result. Numbers and arrays become constants
        with the type of the first operand that is a value."""
        flat: list[Operand] = []
        for operand in operands:
            flat += cast(
                "Sequence[Operand]", operand if isinstance(operand, (list, tuple)) else [operand]
            )
        return self._insert(operator, flat, arguments)

    def call_again(self, node: Node, *operands: Operand, **arguments: Any) -> str:
        """Insert a call like ``node`` with its first operands replaced and some arguments changed,
        and return the name of its result. A changed ``padding`` has a number per axis, or one for
        each beginning and then one for each end."""
        kept_operands = node.reads[len(operands) :]
        return self._insert(node.operator, [*operands, *kept_operands], arguments, node)

    def _insert(
        self,
        operator: str,
        operands: Sequence[Operand],
        arguments: Mapping[str, Any],
        repeated: Node | None = None,
    ) -> str:
        values = [operand for operand in operands if isinstance(operand, str)]
        dtype = next((self.dtypes[value] for value in values if value in self.dtypes), "float32")
        reads = tuple(
            (operand or "") if isinstance(operand, (str, type(None))) else self.hold(operand, dtype)
            for operand in operands
        )
        numbers = {
            **(repeated.numbers if repeated else {}),
            **_list_arguments_as_numbers(arguments),
        }
        result = self.lane.name_result(operator, self._anchor)
        anchor = self.nodes[self._anchor]
        node = Node(
            operator,
            reads,
            (result,),
            tuple(map(int, numbers["dim"])) if "dim" in numbers else None,
            anchor.origin,
            None,
            name=result,
            numbers=numbers,
            place=anchor.place,
        )
        insert = Insert(node, self._anchor, arguments, repeated.name if repeated else "")
        form = self.lane.infer(insert, self)
        if form:
            self.shapes[result], self.dtypes[result] = form
        self.inserts[result] = insert
        self.makers[result] = node
        self._note_reads(node)
        return result

    def hold(self, constant: float | Array, dtype: str = "float32") -> str:
        """Add a constant, and return its name. Floating-point ones get the type ``dtype``, if that
        is floating-point, too, or else become float32."""
        name = self.lane.name_result("constant", self._anchor)
        array = np.asarray(constant)
        if array.dtype.kind == "f":
            dtype = dtype if "float" in dtype else "float32"
            array = array.astype(STORED.get(dtype, dtype))
        elif isinstance(constant, np.ndarray):
            dtype = array.dtype.name
        if not array.shape:
            self.numbers[name] = np.asarray(constant).item()
        else:
            self.arrays[name] = array
        self.shapes[name], self.dtypes[name] = array.shape, dtype
        return name

    def replace(
        self, node: Node, results: str | Sequence[str], after: str, before: str = ""
    ) -> None:
        """Let others than ``node`` compute its results: all that read one of its results read that
        of ``results`` instead. An empty one is for a result that nothing reads. ``after`` is what
        the user could write instead, and ``before`` what it was, if the user's source is unknown.
        Raises ValueError if the shape or the type of a result would change."""
        new_results = [results] if isinstance(results, str) else results
        quoted = self.lane.quote(node) or before or node.label
        for old, new in zip(node.results, new_results, strict=False):
            if not old or not new:
                continue
            if new in self.numbers:  # what reads the result may take no number
                number = self.numbers.pop(new)
                dtype = self.dtypes[new]
                self.arrays[new] = np.asarray(number, STORED.get(dtype, dtype))
            forms = [(self.shapes.get(value), self.dtypes.get(value)) for value in (new, old)]
            if new in self.shapes and old in self.shapes and forms[0] != forms[1]:
                raise ValueError(f"{node.name}: {' for '.join(map(str, forms))}")
            self._redirect(old, new)
        removed = self._remove_unread(node)
        removed.sort(key=lambda gone: self.places[gone.name])
        labels = [self.lane.label(gone) for gone in removed]
        self.replacements.append(
            Replacement(tuple(labels or [self.lane.label(node)]), node, quoted, after)
        )

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """The place of each call in the graph before the edit, by its name."""
        return {node.name: place for place, node in enumerate(self.graph.nodes)}

    def _redirect(self, old: str, new: str) -> None:
        self.redirected[old] = new
        pending = [old] if self.constants.is_known(old) else []
        while pending:
            for reader in self.list_readers(pending.pop()):
                pending += [result for result in reader.results if result not in self.changed]
                self.changed.update(reader.results)
        for name in [*self.readers.pop(old, ())]:
            node = self._node(name)
            reads = tuple(new if read == old else read for read in node.reads)
            self._set_node(node._replace(reads=reads))
        self.outputs = [new if output == old else output for output in self.outputs]

    def _set_node(self, node: Node) -> None:
        if node.name in self.inserts:
            self.inserts[node.name] = self.inserts[node.name]._replace(node=node)
        else:
            self.nodes[node.name] = node
        for result in node.results:
            self.makers[result] = node
        self._note_reads(node)

    def _node(self, name: str) -> Node:
        return self.inserts[name].node if name in self.inserts else self.nodes[name]

    def _remove_unread(self, node: Node) -> list[Node]:
        """Remove a call whose results nothing reads, with those that only it needed, and return
        those of them that were in the graph before the edit."""
        removed, pending, replaced = [], [node], node
        while pending:
            node = pending.pop()
            is_random = node.is_random and node.name != replaced.name
            is_effect = is_random or not self.graph.written.isdisjoint(node.results)
            is_present = node.name in self.inserts or node.name in self.nodes
            if is_effect or not is_present or any(map(self.is_read, node.results)):
                continue
            if self.inserts.pop(node.name, None) is None:
                del self.nodes[node.name]
                removed.append(node)
            for name in node.reads:
                self.readers.get(name, {}).pop(node.name, None)
                if name in self.makers:
                    pending.append(self.makers[name])
        return removed

    def finish(self) -> list[Replacement]:
        """Write the edited graph, and return what was replaced."""
        for insert in reversed([*self.inserts.values()]):
            self._remove_unread(insert.node)  # an edit may insert calls, and then not need them
        if self.replacements:
            self.lane.write(self)
        return self.replacements


def _list_arguments_as_numbers(arguments: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    numbers = {}
    for name, value in arguments.items():
        items = value if isinstance(value, (list, tuple)) else (value,)
        if all(isinstance(item, (bool, int, float)) for item in items):
            numbers[name] = tuple(map(float, items))
    return numbers
