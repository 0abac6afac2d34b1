"""Executes an ONNX file with changed values. Changes become nodes of a copy of the file, so that
onnxruntime runs all of them in one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.graphs.graph import Array, Graph
from ci.graphs.onnx_file import list_graphs
from ci.graphs.onnx_reader import parse_model
from ci.graphs.onnx_session import open_reference, run_sets
from ci.graphs.run import Changes, Shared

UNCHANGED, CHANGED = "{}/unchanged", "{}/changed"
ONNX_TYPES = {"float32": "float", "float64": "double"}  # the others have numpy's names
SCATTER = 10368889
METHOD = "forward"  # the only one that a file has


class OnnxProgram:
    """A file, of which float16 is widened to float32: the CPU rounds each result to float16, so an
    error that is added to one would be lost. ``scratch`` is overwritten with changed copies."""

    def __init__(self, model: onnx.ModelProto, scratch: Path) -> None:
        self.model, self.scratch = widen(model), scratch

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The graph without joined calls, because QNN computes each node."""
        return {METHOD: parse_model(self.model, self.scratch.parent, joins=False)}

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        return self.change({METHOD: {}}).run(sets)

    def change(self, changes: Mapping[str, Changes]) -> OnnxRun:
        """Prepare runs with changed values. Each run continues the sequence of random numbers."""
        self._save(changes[METHOD])  # what it needs is freed before the session is opened
        return OnnxRun(open_reference(self.scratch))

    def _save(self, changes: Changes) -> None:
        """Write a copy with changed values to ``scratch``. The weights are not copied in memory."""
        graph = self.model.graph
        nodes, stored = [*graph.node], len(graph.initializer)
        writer = OnnxWriter(self.graphs[METHOD])
        written = write_changes(graph, changes, writer)
        try:
            del graph.node[:]
            graph.node.extend(written)
            graph.initializer.extend(writer.constants.values())
            onnx.save(self.model, self.scratch)
        finally:
            del graph.node[:], graph.initializer[stored:]
            graph.node.extend(nodes)


def read_onnx(path: Path, scratch: Path) -> OnnxProgram:
    """Return the program of a file. Raises ValueError if its nodes are a cycle."""
    return OnnxProgram(onnx.load(path), scratch)


class OnnxRun:
    """Runs a session."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        return run_sets(self.session, [tuple(map(_widen_array, arrays)) for arrays in sets])


def _widen_array(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn the float16 tensors of a model into float32, and return it."""
    for graph in list_graphs(model.graph):
        for port in (*graph.input, *graph.output, *graph.value_info):
            if port.type.tensor_type.elem_type == TensorProto.FLOAT16:
                port.type.tensor_type.elem_type = TensorProto.FLOAT
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        for attribute in attributes:
            if attribute.name in {"to", "dtype"} and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
        for tensor in (*graph.initializer, *(attribute.t for attribute in attributes)):
            if tensor.data_type == TensorProto.FLOAT16:
                value = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def write_changes(graph: Any, changes: Changes, writer: OnnxWriter) -> list[Any]:
    """Return the nodes of a graph with others that change values. A changed result keeps its name,
    so that outputs do; the readers of a changed input or constant read another name."""
    computed = {name for node in graph.node for name in node.output}
    renamed = {}
    for name, change in changes.items():
        if name not in computed and writer.is_changed(name, for_floats=change.for_floats):
            renamed[name] = CHANGED.format(name)
            value = change.compute(writer.take(name), None, writer)
            writer.name_result(value, renamed[name])
    for listed in graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(listed)
        node.input[:] = [renamed.get(name, name) for name in node.input]
        writer.nodes.append(node)
        first = next(iter(listed.input), "")
        operand = writer.take(first, renamed.get(first, "")) if first else None
        for place, name in enumerate(node.output):
            if name and name in changes:
                change = changes[name]
                if not writer.is_changed(name, for_floats=change.for_floats):
                    continue
                node.output[place] = UNCHANGED.format(name)
                value = change.compute(writer.take(name, node.output[place]), operand, writer)
                writer.name_result(value, name)
    return writer.nodes


@dataclass(frozen=True)
class Symbol:
    """A value of the graph that is written. Arithmetic on it adds nodes. ``shape`` is None if it is
    unknown, and ``dtype`` is numpy's name."""

    writer: OnnxWriter
    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"

    def __add__(self, operand: Symbol | float) -> Symbol:
        return self if operand == 0 else self._call("Add", operand)

    __radd__ = __add__

    def __sub__(self, operand: Symbol | float) -> Symbol:
        return self if operand == 0 else self._call("Sub", operand)

    def __rsub__(self, operand: float) -> Symbol:
        return self.writer.constant(operand)._call("Sub", self)

    def __mul__(self, operand: Any) -> Any:
        if isinstance(operand, float) and operand in {0.0, 1.0}:
            return self if operand else 0.0
        return self._call("Mul", operand)

    __rmul__ = __mul__

    def __pow__(self, power: float) -> Symbol:
        return self._call("Pow", power)

    def __gt__(self, operand: Symbol | float) -> Symbol:
        """Return 1 where this value is larger, and else 0."""
        return self._call("Greater", operand, dtype="bool")._cast("float32")

    def abs(self) -> Symbol:
        return self._call("Abs")

    def sign(self) -> Symbol:
        return self._call("Sign")

    def round(self) -> Symbol:
        return self._call("Round")

    def floor(self) -> Symbol:
        return self._call("Floor")

    def clamp(self, low: float, high: float) -> Symbol:
        return self._call("Clip", float(low), float(high))

    def square(self) -> Symbol:
        return self._call("Mul", self)

    def _call(self, operator: str, *operands: Symbol | float, dtype: str = "") -> Symbol:
        symbols = [
            operand if isinstance(operand, Symbol) else self.writer.constant(operand)
            for operand in operands
        ]
        shapes = [self.shape, *(symbol.shape for symbol in symbols)]
        longest = None if None in shapes else max(shapes, key=lambda shape: len(shape or ()))
        dtype = dtype or self.dtype
        return self.writer.call(operator, self, *symbols, shape=longest, result_type=dtype)

    def _cast(self, dtype: str) -> Symbol:
        kind = TensorProto.DataType.Value(ONNX_TYPES.get(dtype, dtype).upper())
        return self.writer.call("Cast", self, shape=self.shape, result_type=dtype, to=kind)


class OnnxWriter:
    """The Tools of symbols. ``nodes`` are those of the written graph, and ``constants`` the numbers
    that they read. onnxruntime draws numbers from a node's seed, so each run of a session has
    others, but a new session repeats them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self.constants: dict[float, Any] = {}
        self.count = 0

    def is_changed(self, name: str, *, for_floats: bool) -> bool:
        """Return whether a change applies to a value of this type."""
        return not for_floats or self.graph.dtypes.get(name) == "float32"

    def take(self, name: str, alias: str = "") -> Symbol:
        """Return a value of the graph. ``alias`` is its name in the written graph, if it has
        another one there."""
        dtype = self.graph.dtypes.get(name, "float32")
        return Symbol(self, alias or name, self.graph.shapes.get(name), dtype)

    def call(
        self,
        operator: str,
        *operands: Symbol,
        shape: tuple[int, ...] | None,
        result_type: str = "float32",
        **attributes: Any,
    ) -> Symbol:
        """Add a node, and return its result."""
        self.count += 1
        result = f"changes/{self.count}"
        names = [operand.name for operand in operands]
        self.nodes.append(helper.make_node(operator, names, [result], **attributes))
        return Symbol(self, result, shape, result_type)

    def name_result(self, value: Symbol, name: str) -> None:
        """Give the result of the last node a name."""
        if self.nodes and self.nodes[-1].output[0] == value.name:
            self.nodes[-1].output[0] = name
        else:
            self.nodes.append(helper.make_node("Identity", [value.name], [name]))

    def constant(self, number: float) -> Symbol:
        number = float(np.float32(number))
        if number not in self.constants:
            name = f"changes/constant_{len(self.constants)}"
            self.constants[number] = numpy_helper.from_array(np.float32(number), name)
        return Symbol(self, self.constants[number].name, ())

    def draw(self, like: Symbol, size: float, shared: Shared | int = Shared.NONE) -> Any:
        if not size:
            return 0.0
        rank = None if like.shape is None else len(like.shape)
        if shared is Shared.ALL:
            like = self.constant(1.0)
        elif shared is Shared.ROW and rank != 0:
            like = self._take_first(like, [-1])
        elif isinstance(shared, int) and rank is not None:
            like = self._take_first(like, [axis for axis in range(rank) if axis != shared % rank])
        self.count += 1
        # onnxruntime's generator multiplies: from the seeds 1 and 2, the second sequence is twice
        # the first one. With these seeds, no node draws small multiples of what another draws.
        seed = self.count * SCATTER % (1 << 24)
        return self.call(
            "RandomUniformLike",
            like,
            shape=like.shape,
            low=-float(size),
            high=float(size),
            seed=float(seed),
            dtype=TensorProto.FLOAT,
        )

    def _take_first(self, value: Symbol, axes: Sequence[int]) -> Symbol:
        """Return the elements of a value whose index is 0 along each of the axes."""
        bounds = [
            Symbol(self, self._store(numbers), None, "int64")
            for numbers in ([0] * len(axes), [1] * len(axes), axes)
        ]
        if not axes:
            return value
        return self.call("Slice", value, *bounds, shape=None, result_type=value.dtype)

    def _store(self, numbers: Sequence[int]) -> str:
        key: Any = tuple(numbers)
        if key not in self.constants:
            name = f"changes/constant_{len(self.constants)}"
            self.constants[key] = numpy_helper.from_array(np.asarray(numbers, np.int64), name)
        return str(self.constants[key].name)

    def to_float(self, value: Symbol) -> Symbol:
        return value._cast("float32")

    def to_type(self, value: Symbol, like: Symbol) -> Symbol:
        return value._cast(like.dtype)

    def is_inexact(self, value: Symbol) -> Symbol:
        restored = value._cast("float16")._cast("float32")
        equal = value._call("Equal", restored, dtype="bool")
        return self.call("Not", equal, shape=value.shape, result_type="bool")._cast("float32")

    def mean(self, value: Symbol) -> Symbol:
        return self.call("ReduceMean", value, shape=(), keepdims=0)

    def limit(self, value: Any, lowest: Any) -> Any:
        if self.is_number(value) and self.is_number(lowest):
            return max(value, lowest)
        first, second = (
            operand if isinstance(operand, Symbol) else self.constant(operand)
            for operand in (value, lowest)
        )
        return self.call("Max", first, second, shape=())

    def is_number(self, value: Any) -> bool:
        return not isinstance(value, Symbol)

    def choose(self, condition: Symbol, if_true: Symbol, if_false: Symbol) -> Symbol:
        flag = condition._cast("bool")
        return self.call("Where", flag, if_true, if_false, shape=if_true.shape)
