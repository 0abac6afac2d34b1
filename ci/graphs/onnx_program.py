"""Executes an ONNX file with changed and recorded values. Changes become nodes of a copy of the
file, so that onnxruntime runs all of them in one session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.graphs.graph import Array, Graph
from ci.graphs.onnx_file import list_graphs, name_result, read_constants
from ci.graphs.onnx_reader import parse_model
from ci.graphs.onnx_session import open_reference, run_sets
from ci.graphs.run import Recipe, Record, Shared

UNCHANGED, CHANGED = "{}/unchanged", "{}/changed"
DEQUANTIZER = "DequantizeLinear"
LIMITERS = frozenset({"Relu", "Clip"})  # onnxruntime's quantizer may remove these
ROUNDS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
FLOATS = frozenset({"float16", "float32", "float64", ""})
# onnxruntime 1.32 has no RandomUniformLike of this opset or a newer one, but a Dropout.
OPSET_WITHOUT_RANDOM = 22
DRAWN_BITS = 8  # 256 equidistant numbers vary as uniform numbers do, to 1 in 65,536
FLOAT_VALUES = frozenset({"value_float", "value_floats"})  # of a Constant
ONNX_TYPES = {"float32": "float", "float64": "double"}  # the others have numpy's names
SCATTER = 10368889
METHOD = "forward"  # the only one that a file has


class OnnxProgram:
    """A file, of which float16 is widened to float32: the CPU rounds each result to float16, so an
    error that is added to one would be lost. Unless it ``widens``, its types stay, and only what
    changes no value can be done. ``scratch`` is overwritten with changed copies.

    ``float_model`` is what onnxruntime's quantizer read. The quantizer removes a Relu or Clip
    directly before a quantizer whose range has the same effect. Where a value is not rounded, this
    operator is used again."""

    def __init__(
        self,
        model: onnx.ModelProto,
        scratch: Path,
        float_model: onnx.ModelProto | None = None,
        *,
        widens: bool = True,
    ) -> None:
        self.model, self.scratch, self.widens = widen(model) if widens else model, scratch, widens
        nodes = float_model.graph.node if float_model else ()
        limiters = [node for node in nodes if node.op_type in LIMITERS]
        constants = read_constants(float_model.graph) if float_model else {}
        limits = {name for node in limiters for name in node.input[1:] if name in constants}
        # Copies, because a part of a message keeps the whole of it in memory, with its weights.
        self.limiters = {node.output[0]: deepcopy(node) for node in limiters}
        self.limits = {name: deepcopy(constants[name]) for name in limits}
        self.selectable = {name for node in nodes for name in node.output}

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The graph without joined calls, because QNN computes each node."""
        return {METHOD: parse_model(self.model, self.scratch.parent, joins=False)}

    @cached_property
    def limited(self) -> frozenset[str]:
        """Return the values whose quantizer took over a Relu or Clip."""
        names = {name for node in self.graphs[METHOD].nodes for name in node.reads}
        return frozenset(name for name in names if name_result(name) in self.limiters)

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample, without changes."""
        return self.prepare({}).run(sets)

    def prepare(self, recipes: Mapping[str, Recipe]) -> OnnxRun:
        """Prepare runs with a recipe. Each run continues the sequence of random numbers."""
        # All changes are in one session: a session per node was 1.6 to 4.8 times slower.
        recorded = self._save_recipe(recipes.get(METHOD, Recipe()))
        # What the copy needed is freed before the session is opened.
        return self._open(recorded)

    def _open(self, recorded: Mapping[str, str]) -> OnnxRun:
        count = len(self.model.graph.output)
        return OnnxRun(open_reference(self.scratch), count, recorded, widens=self.widens)

    def name_operators(self, method: str, value: str) -> Sequence[str]:
        """Return the results of the node that computes a value and of the limiter that the
        quantizer merged with it, as the float model names them: that of quantizers has none."""
        del method
        name = name_result(value)
        limiter = self.limiters.get(name)
        names = [name, *([limiter.input[0]] if limiter else [])]
        # A suggested mixture must name tensors of the user's file.
        return [name for name in names if name in self.selectable]

    def shake_choices(self, share: float) -> OnnxRun:
        """Prepare runs as Program.shake_choices describes."""
        writer = self._start_writing()
        self._save(shake_operands(self.model.graph, share, writer), writer)
        return self._open({})

    def _start_writing(self) -> OnnxWriter:
        opsets = [entry.version for entry in self.model.opset_import if not entry.domain]
        has_random = max(opsets, default=1) < OPSET_WITHOUT_RANDOM
        return OnnxWriter(self.graphs[METHOD], has_random=has_random)

    def _save_recipe(self, recipe: Recipe) -> dict[str, str]:
        """Write a copy that is changed as the recipe says to ``scratch``. Return the outputs of the
        copy that are the records of values, by the names of the values."""
        graph, writer = self.model.graph, self._start_writing()
        unrounded = frozenset(recipe.unrounded)
        computed = {name: node for node in graph.node for name in node.output}
        moved = {  # quantized values that others than dequantizers read
            name
            for node in graph.node
            if node.op_type != DEQUANTIZER
            for name in node.input
            if name in unrounded
        }
        nodes = []
        for node in graph.node:
            source = node.input[0] if node.input else ""
            if unrounded.isdisjoint(node.output):
                nodes.append(node)
            elif node.op_type == DEQUANTIZER:
                if source in unrounded and source not in moved:
                    source = computed[source].input[0]
                nodes.append(self._pass_on(node, source, computed, writer))
            elif not moved.isdisjoint(node.output):
                nodes.append(self._pass_on(node, source, computed, writer))
            else:  # it has no reader left, but without it, onnxruntime warns of an unused scale
                nodes.append(node)
        written, recorded = write_changes(graph, recipe, writer, nodes)
        self._save(written, writer, recorded.values(), has_types=not unrounded)
        return recorded

    def _pass_on(
        self, quantizer: Any, source: str, computed: Mapping[str, Any], writer: OnnxWriter
    ) -> Any:
        """Return a node instead of a quantizer or a dequantizer that passes on the value
        ``source``, or limits it as the quantizer does."""
        limiter = self.limiters.get(name_result(source))
        maker = computed.get(source)
        if limiter is None or maker is None or maker.op_type == limiter.op_type:
            return helper.make_node("Identity", [source], [*quantizer.output])
        passed = helper.make_node(
            limiter.op_type, [source, *limiter.input[1:]], [*quantizer.output]
        )
        passed.attribute.extend(limiter.attribute)
        for name in filter(None, limiter.input[1:]):
            writer.add_constant(name, self.limits[name])
        return passed

    def _save(
        self,
        nodes: Sequence[Any],
        writer: OnnxWriter,
        outputs: Collection[str] = (),
        *,
        has_types: bool = True,
    ) -> None:
        """Write a copy with these nodes and additional outputs. The weights are not copied in
        memory. Unless the copy ``has_types`` of the model, the types of inner values are left
        out."""
        graph = self.model.graph
        own_nodes, infos = [*graph.node], [*graph.value_info]
        stored, ports = len(graph.initializer), len(graph.output)
        existing = {port.name for port in graph.output}
        try:
            del graph.node[:]
            graph.node.extend(nodes)
            graph.initializer.extend(writer.constants.values())
            graph.output.extend(
                helper.make_empty_tensor_value_info(name)
                for name in outputs
                if name not in existing
            )
            if not has_types:
                # A quantizer that does not round passes on floats where the model declares
                # integers.
                del graph.value_info[:]
            onnx.save(self.model, self.scratch)
        finally:
            del graph.node[:], graph.initializer[stored:], graph.output[ports:], graph.value_info[:]
            graph.node.extend(own_nodes)
            graph.value_info.extend(infos)


def read_onnx(path: Path, scratch: Path, float_model: Path | None = None) -> OnnxProgram:
    """Return the program of a file. ``float_model`` is the file from which onnxruntime's quantizer
    made it. Raises ValueError if its nodes are a cycle."""
    plain = onnx.load(float_model) if float_model else None
    return OnnxProgram(onnx.load(path), scratch, plain)


class OnnxRun:
    """Runs a session, of which the first ``count`` outputs are the model's. ``recorded`` are the
    outputs that are records of values, by the names of these."""

    def __init__(
        self, session: Any, count: int, recorded: Mapping[str, str], *, widens: bool
    ) -> None:
        self.session, self.count, self.recorded = session, count, recorded
        self.widens = widens
        self.names = [port.name for port in session.get_outputs()]

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample. float16 inputs are widened if the model is."""
        if self.widens:
            sets = [tuple(map(_widen_array, arrays)) for arrays in sets]
        return run_sets(self.session, sets)

    def record(self, sets: Sequence[Sequence[Array]]) -> list[dict[str, Record]]:
        """Return the outputs and the recorded values for each sample."""
        records = []
        for inputs in sets:
            (arrays,) = self.run([inputs])
            by_name = dict(zip(self.names, arrays, strict=True))
            values = {name: by_name[output] for name, output in self.recorded.items()}
            records.append({METHOD: Record(arrays[: self.count], values)})
        return records


def _widen_array(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def widen(
    model: onnx.ModelProto, narrow: int = TensorProto.FLOAT16, wide: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """Turn the tensors of a model that have the element type ``narrow`` into those of ``wide``, by
    default float16 into float32, and return it."""
    dtype = helper.tensor_dtype_to_np_dtype(wide)
    for graph in list_graphs(model.graph):
        for port in (*graph.input, *graph.output, *graph.value_info):
            if port.type.tensor_type.elem_type == narrow:
                port.type.tensor_type.elem_type = wide
        if narrow == TensorProto.FLOAT:
            for node in graph.node:
                _name_type(node)
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        for attribute in attributes:
            if attribute.name in {"to", "dtype"} and attribute.i == narrow:
                attribute.i = wide
        for tensor in (*graph.initializer, *(attribute.t for attribute in attributes)):
            if tensor.data_type == narrow:
                value = numpy_helper.to_array(tensor).astype(dtype)
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def _name_type(node: Any) -> None:
    """Let a node that makes float32 numbers without naming a type hold them as a tensor."""
    places = {attribute.name: place for place, attribute in enumerate(node.attribute)}
    value: Array | None = None
    if node.op_type == "ConstantOfShape" and not places:
        value = np.zeros(1, np.float32)
    elif node.op_type == "Constant" and not places.keys().isdisjoint(FLOAT_VALUES):
        (attribute,) = node.attribute
        value = np.asarray(helper.get_attribute_value(attribute), np.float32)
    if value is not None:
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))


def write_changes(
    graph: Any, recipe: Recipe, writer: OnnxWriter, nodes: Sequence[Any] = ()
) -> tuple[list[Any], dict[str, str]]:
    """Return the nodes of a graph with others that change and record values, and the names of the
    records, by value. A changed result keeps its name, so that outputs do; the readers of a changed
    input or constant read another name. ``nodes`` are those of the graph, if some are replaced."""
    nodes = nodes or graph.node
    computed = {name for node in nodes for name in node.output}
    changes, renamed = recipe.changes, dict[str, str]()
    for name, change in changes.items():
        if name not in computed and writer.is_changed(name, for_floats=change.for_floats):
            renamed[name] = CHANGED.format(name)
            value = change.compute(writer.take(name), None, writer)
            writer.name_result(value, renamed[name])
    for listed in nodes:
        node = onnx.NodeProto()
        node.CopyFrom(listed)
        node.input[:] = [renamed.get(name, name) for name in node.input]
        writer.nodes.append(node)
        first = next(iter(listed.input), "")
        operand = writer.take(first, renamed.get(first, "")) if first else None
        for place, name in enumerate(node.output):
            if name and name in recipe.fixed:
                # The node stays, because it may have other results.
                node.output[place] = UNCHANGED.format(name)
                writer.add_constant(name, numpy_helper.from_array(recipe.fixed[name]))
            elif name and name in changes:
                change = changes[name]
                if not writer.is_changed(name, for_floats=change.for_floats):
                    continue
                node.output[place] = UNCHANGED.format(name)
                value = change.compute(writer.take(name, node.output[place]), operand, writer)
                writer.name_result(value, name)
    return writer.nodes, _write_records(recipe, writer, computed, renamed)


def _write_records(
    recipe: Recipe, writer: OnnxWriter, computed: Collection[str], renamed: Mapping[str, str]
) -> dict[str, str]:
    """Add nodes that record values, and return the names of the records, by value."""
    recorded = {}
    for name in recipe.watched:
        if writer.is_changed(name, for_floats=True):
            value = recipe.watch(writer.take(name, renamed.get(name, "")), writer)
            if value.name == name and name not in computed:  # an input cannot be an output, too
                value = writer.call("Identity", value, shape=value.shape)
            recorded[name] = value.name
    inputs = {*writer.graph.list_inputs()}
    for name in recipe.decisions:
        if name in computed:
            recorded[name] = name
        elif name in inputs:
            recorded[name] = writer.call("Identity", writer.take(name), shape=None).name
    return recorded


def shake_operands(graph: Any, share: float, writer: OnnxWriter) -> list[Any]:
    """Return the nodes of a graph with others that add errors to the operands of choices."""
    dtypes = writer.graph.dtypes
    for node in graph.node:
        chooses = any(dtypes.get(name, "") not in FLOATS for name in node.output if name)
        written = onnx.NodeProto()
        written.CopyFrom(node)
        if chooses and node.op_type not in ROUNDS:
            written.input[:] = [
                _shake(writer.take(name), share, writer).name
                if dtypes.get(name) == "float32"
                else name
                for name in node.input
            ]
        writer.nodes.append(written)
    return writer.nodes


def _shake(value: Symbol, share: float, writer: OnnxWriter) -> Symbol:
    """Return a value to whose elements, except zeros, this ``share`` of its RMS is added, or from
    which it is subtracted."""
    amount = writer.mean(value.square()) ** 0.5 * share
    changed = value + writer.draw(value, 1.0).sign() * amount
    return writer.choose(value.abs() > 0.0, changed, value)


@dataclass(frozen=True)
class Symbol:
    """A value of the graph that is written. Arithmetic on it adds nodes. ``shape`` is None if it is
    unknown, and ``dtype`` is numpy's name."""

    writer: OnnxWriter
    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"

    def __add__(self, operand: Symbol | float) -> Symbol:
        # Many errors are 0, and need no node.
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
        """Return the magnitudes of the elements."""
        return self._call("Abs")

    def sign(self) -> Symbol:
        """Return 1, 0 or -1 for each element."""
        return self._call("Sign")

    def round(self) -> Symbol:
        """Return the nearest integers; halves become even numbers."""
        return self._call("Round")

    def floor(self) -> Symbol:
        """Return the greatest integers that are not above the elements."""
        return self._call("Floor")

    def clamp(self, low: float, high: float) -> Symbol:
        """Return the elements, limited to the range from ``low`` to ``high``."""
        return self._call("Clip", float(low), float(high))

    def square(self) -> Symbol:
        """Return the squares of the elements."""
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
    others, but a new session repeats them. Unless it ``has_random``, the file's opset has no
    RandomUniformLike in onnxruntime."""

    def __init__(self, graph: Graph, *, has_random: bool = True) -> None:
        self.graph, self.has_random = graph, has_random
        self.nodes: list[Any] = []
        self.constants: dict[Any, Any] = {}
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
        """Return a number, rounded to float32, as a constant of the written graph. Equal numbers
        share one."""
        number = float(np.float32(number))
        if number not in self.constants:
            name = f"changes/constant_{len(self.constants)}"
            self.constants[number] = numpy_helper.from_array(np.float32(number), name)
        return Symbol(self, self.constants[number].name, ())

    def add_constant(self, name: str, tensor: Any) -> None:
        """Add a tensor that written nodes read, unless the model has a constant of this name."""
        if name not in self.graph.constants:
            copied = onnx.TensorProto()
            copied.CopyFrom(tensor)
            copied.name = name
            self.constants[name] = copied

    def draw(self, like: Symbol, size: float, shared: Shared | int = Shared.NONE) -> Any:
        """Return the result of Tools.draw, or 0.0 if ``size`` is 0, which adds no node."""
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
        # A seed is a float32, which holds integers only up to 2^24.
        seed = self.count * SCATTER % (1 << 24)
        if not self.has_random:
            return self._draw_bits(like, size, seed)
        return self.call(
            "RandomUniformLike",
            like,
            shape=like.shape,
            low=-float(size),
            high=float(size),
            seed=float(seed),
            dtype=TensorProto.FLOAT,
        )

    def _draw_bits(self, like: Symbol, size: float, seed: int) -> Symbol:
        """Return uniform numbers as RandomUniformLike does. Each is a sum of DRAWN_BITS powers of
        two, of which a Dropout sets each to 0 with a probability of a half."""
        bits = 2.0 ** np.arange(DRAWN_BITS)
        bits *= size / bits.sum()  # the sum of those that remain, doubled, is 0 to 2 * size
        count = Symbol(self, self._store([DRAWN_BITS]), (1,), "int64")
        last_axis = Symbol(self, self._store([-1]), (1,), "int64")
        shape = self.call("Shape", like, shape=None, result_type="int64")
        shape = self.call("Concat", shape, count, shape=None, result_type="int64", axis=0)
        row = Symbol(self, self._store(bits.tolist(), np.float32), (DRAWN_BITS,))
        rows = self.call("Expand", row, shape, shape=None)
        training = Symbol(self, self._store([1], np.bool_, rank=0), (), "bool")
        half = self.constant(0.5)
        drawn_powers = self.call("Dropout", rows, half, training, shape=None, seed=seed)
        return self.call("ReduceSum", drawn_powers, last_axis, shape=like.shape, keepdims=0) - size

    def _take_first(self, value: Symbol, axes: Sequence[int]) -> Symbol:
        """Return the elements of a value whose index is 0 along each of the axes."""
        bounds = [
            Symbol(self, self._store(numbers), None, "int64")
            for numbers in ([0] * len(axes), [1] * len(axes), axes)
        ]
        if not axes:
            return value
        return self.call("Slice", value, *bounds, shape=None, result_type=value.dtype)

    def _store(self, numbers: Sequence[float], dtype: Any = np.int64, *, rank: int = 1) -> str:
        key: Any = (*numbers, np.dtype(dtype).name, rank)
        if key not in self.constants:
            name = f"changes/constant_{len(self.constants)}"
            array = np.asarray(numbers, dtype)
            self.constants[key] = numpy_helper.from_array(array if rank else array[0], name)
        return str(self.constants[key].name)

    def to_float(self, value: Symbol) -> Symbol:
        """Return a value as float32."""
        return value._cast("float32")

    def to_type(self, value: Symbol, like: Symbol) -> Symbol:
        """Return a value in the type of ``like``."""
        return value._cast(like.dtype)

    def is_inexact(self, value: Symbol) -> Symbol:
        """Return 1 for each element that float16 cannot represent, and 0 for others, as float32."""
        equal = value._call("Equal", self.round_to_half(value), dtype="bool")
        return self.call("Not", equal, shape=value.shape, result_type="bool")._cast("float32")

    def round_to_half(self, value: Symbol) -> Symbol:
        """Return the elements, rounded to float16, as float32."""
        return value._cast("float16")._cast("float32")

    def find_extremes(self, value: Symbol) -> Symbol:
        """Return the smallest and the largest element, as a value of shape [2]."""
        size = Symbol(self, self._store([1]), None, "int64")
        extremes = [
            self.call("Reshape", self.call(operator, value, shape=(), keepdims=0), size, shape=(1,))
            for operator in ("ReduceMin", "ReduceMax")
        ]
        return self.call("Concat", *extremes, shape=(2,), axis=0)

    def mean(self, value: Symbol) -> Symbol:
        """Return the mean of all elements, as a value of rank 0."""
        return self.call("ReduceMean", value, shape=(), keepdims=0)

    def limit(self, value: Any, lowest: Any) -> Any:
        """Return the larger one of two values of rank 0 or numbers; a number if both are."""
        if self.is_number(value) and self.is_number(lowest):
            return max(value, lowest)
        first, second = (
            operand if isinstance(operand, Symbol) else self.constant(operand)
            for operand in (value, lowest)
        )
        return self.call("Max", first, second, shape=())

    def is_number(self, value: Any) -> bool:
        """Return whether a value is a plain number, which a run need not compute."""
        return not isinstance(value, Symbol)

    def choose(self, condition: Symbol, if_true: Symbol, if_false: Symbol) -> Symbol:
        """Return the elements of ``if_true`` where ``condition`` is not 0, and else those of
        ``if_false``."""
        flag = condition._cast("bool")
        return self.call("Where", flag, if_true, if_false, shape=if_true.shape)
