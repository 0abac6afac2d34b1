"""Reads an ONNX file as a graph. manifests/policies/onnx-spellings.toml has torch's names of ONNX's
operators and of their arguments."""

from __future__ import annotations

import ast
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from msgspec import Struct
from onnx import helper, inliner, numpy_helper

from ci.graphs.graph import ONNXRUNTIME, Array, Constants, Graph, Node, Shape
from ci.graphs.onnx_file import (
    find_origin,
    infer,
    list_bodies,
    list_captured,
    read_attributes,
    read_constants,
    sort_nodes,
)
from ci.graphs.operators import computes, is_dequantizer, is_quantizer
from provisioning.manifest.reader import read_policy

NORMALIZED = frozenset({"layer_norm", "rms_norm"})
REDUCED = frozenset({"amax", "amin", "mean", "prod", "sum", "norm", "logsumexp"})
DOMAINS = ("", "ai.onnx", "com.microsoft")  # whose operators have spellings
# Operators of onnxruntime, unknown to onnx, with results that have the shape of the first operand.
SAME_SHAPE = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SimplifiedLayerNormalization")
SINGLE_AXIS_OPSET = 13  # before it, a softmax is over all axes from its axis on
COMMUTATIVE = frozenset({"add", "mul"})
RANDOM = ("Random", "Bernoulli", "Multinomial")
RESIZED = {b"linear": "bilinear", b"cubic": "bicubic"}
PER_AXIS = frozenset({"stride", "padding", "dilation", "output_padding"})


class Spelling(Struct, frozen=True, forbid_unknown_fields=True):
    """An operator of ONNX under torch's name. onnx-spellings.toml explains the fields."""

    operator: str
    operands: int | None = None
    arguments: dict[str, tuple[str | float, ...]] = {}
    fill: int | None = None


class Written(Struct, frozen=True, forbid_unknown_fields=True):
    """How an operator of torch is written. onnx-spellings.toml explains the fields."""

    operator: str
    arguments: dict[str, str] = {}
    inputs: dict[str, int] = {}
    attributes: dict[str, int] = {}
    domain: str = ""


class _Spellings(Struct, frozen=True, forbid_unknown_fields=True):
    spelling: dict[str, Spelling]
    joined: dict[str, str]
    written: dict[str, Written]


@functools.cache
def _read_table() -> _Spellings:
    return read_policy("onnx-spellings", _Spellings)


def read_spellings() -> Mapping[str, Spelling]:
    """Return the operators of ONNX whose names differ from torch's, or that have arguments."""
    return _read_table().spelling


def read_written() -> Mapping[str, Written]:
    """Return the operators of torch that are written with other names or arguments."""
    return _read_table().written


@functools.cache
def read_joined() -> Mapping[str, ast.expr]:
    """Return the operators of torch that are several calls in ONNX, with these calls."""
    return {name: ast.parse(call, mode="eval").body for name, call in _read_table().joined.items()}


def read_file(path: Path) -> Graph:
    """Return the graph of an ONNX file. Weights in other files are read when they are needed.
    Functions are replaced by their operators. Raises ValueError if the nodes are a cycle."""
    model = onnx.load(path, load_external_data=False)
    if model.functions:
        model = inliner.inline_local_functions(model, convert_version=True)
    return parse_model(model, path.parent)


def parse_model(
    model: onnx.ModelProto, directory: Path, *, joins: bool = True, infers: bool = True
) -> Graph:
    """Return the graph of a parsed model without functions. Its weights may be in files in
    ``directory``. If it ``joins``, calls that torch has as one operator are one node. Unless it
    ``infers``, the shapes of the model are inferred already."""
    return _Reader(model, directory, infers=infers).read(joins=joins)


class _Reader:
    """Reads a parsed model. Its weights may be in files in ``directory``."""

    def __init__(self, model: Any, directory: Path, *, infers: bool) -> None:
        listed = [*model.graph.node]
        # ONNX Runtime accepts nodes in any order.
        ordered = sort_nodes(listed)
        if any(before is not after for before, after in zip(listed, ordered, strict=True)):
            del model.graph.node[:]  # shapes are inferred in the order of the file
            model.graph.node.extend(ordered)
        self.model = model
        self.outputs = [output.name for output in model.graph.output]
        opsets = [opset.version for opset in model.opset_import if opset.domain in DOMAINS[:2]]
        self.opset = max(opsets, default=1)
        tensors = read_constants(model.graph)
        self.constants: dict[str, Callable[[], Array]] = {
            name: functools.partial(numpy_helper.to_array, tensor, str(directory))
            for name, tensor in tensors.items()
        }
        inferred = (infer(model) if infers else model).graph
        ports = (*inferred.input, *inferred.value_info, *inferred.output)
        self.shapes: dict[str, Shape] = {}
        for port in ports:
            dims = port.type.tensor_type.shape.dim
            # A shape with an unknown size is no shape: protobuf returns 0 for it, which known
            # faults matched.
            is_fixed = all(dim.HasField("dim_value") for dim in dims)
            if port.type.tensor_type.HasField("shape") and is_fixed:
                self.shapes[port.name] = tuple(dim.dim_value for dim in dims)
        self.shapes |= {name: tuple(tensor.dims) for name, tensor in tensors.items()}
        for proto in model.graph.node:  # onnx 1.23 infers no shape of it
            if proto.op_type == "GroupNormalization" and proto.input[0] in self.shapes:
                self.shapes.setdefault(proto.output[0], self.shapes[proto.input[0]])
        kinds = {port.name: port.type.tensor_type.elem_type for port in ports}
        kinds |= {name: tensor.data_type for name, tensor in tensors.items()}
        self.dtypes = {
            name: onnx.TensorProto.DataType.Name(kind).lower() for name, kind in kinds.items()
        }
        # The other types have the same name in ONNX and numpy.
        self.dtypes |= {name: "float32" for name, kind in self.dtypes.items() if kind == "float"}
        self.dtypes |= {name: "float64" for name, kind in self.dtypes.items() if kind == "double"}
        for proto in model.graph.node:
            source = proto.input[0] if proto.input else ""
            if proto.op_type in SAME_SHAPE and source in self.shapes:
                self.shapes.setdefault(proto.output[0], self.shapes[source])
                self.dtypes.setdefault(proto.output[0], self.dtypes[source])

    def read(self, *, joins: bool) -> Graph:
        protos = [proto_node for proto_node in self.model.graph.node if proto_node.output]
        for proto in protos:
            # The result is known where shapes are fixed. With the attributes start and end, it is a
            # part of the shape, which onnxruntime computes.
            if proto.op_type == "Shape" and not proto.attribute and proto.input[0] in self.shapes:
                sizes = self.shapes[proto.input[0]]
                self.constants[proto.output[0]] = functools.partial(np.array, sizes, np.int64)
        protos = [proto_node for proto_node in protos if proto_node.output[0] not in self.constants]
        nodes = [self._read_node(proto) for proto in protos]
        # The arguments of a node may be computed from constants by others.
        self.known = Constants(self._make_graph(nodes))
        pairs = [*zip(nodes, protos, strict=True)]
        bodies = tuple(node.origin for node, proto in pairs if list_bodies(proto))
        nodes = [self._add_arguments(node, proto) for node, proto in pairs]
        return self._make_graph(join_calls(nodes, self.outputs) if joins else nodes, bodies)

    def _make_graph(self, nodes: Sequence[Node], bodies: tuple[str, ...] = ()) -> Graph:
        return Graph(
            nodes,
            self.outputs,
            self.shapes,
            self.constants,
            self.dtypes,
            front_end=ONNXRUNTIME,
            bodies=bodies,
        )

    def _read_node(self, proto: Any) -> Node:
        is_spelled = proto.domain in DOMAINS
        spelling = read_spellings().get(proto.op_type) if is_spelled else None
        return Node(
            name_operator(proto),
            (*proto.input, *list_captured(proto)),
            tuple(proto.output),
            None,
            f"{proto.op_type} {proto.name or proto.output[0]!r}",
            functools.partial(_compute, proto, self.model),
            name=proto.output[0],
            operands=spelling.operands if spelling and spelling.operands else len(proto.input),
            fill=spelling.fill if spelling and spelling.fill in range(len(proto.input)) else None,
            place=find_origin(proto),
            is_random=proto.op_type.startswith(RANDOM),
        )

    def _add_arguments(self, node: Node, proto: Any) -> Node:
        """Return a node with its axes and numbers, and with the operator that these imply."""
        attributes = read_attributes(proto)
        operator, rank = node.operator, len(self.shapes.get(node.reads[0], ())) if node.reads else 0
        if "{}" in operator:
            # ONNX has one Conv for all ranks, and torch conv1d, conv2d and conv3d.
            operator = operator.format(rank - 2 if rank > 2 else 2)
        if operator == "matmul" and self.known.is_known(node.reads[1]):
            # torch calls a product with constant weights so.
            operator = "linear"
        elif operator.startswith("upsample"):
            operator = operator.replace(
                "nearest", RESIZED.get(attributes.get("mode", b"nearest"), "nearest")
            )
        elif operator == "einsum" and len(node.reads) == 1:
            # Without a sum, an einsum of one operand only moves elements.
            before, after = (
                sorted(self.shapes.get(names[0], ())) for names in (node.reads, node.results)
            )
            operator = "einsum_permutation" if before == after else operator
        axes = tuple(_list_axes(proto, operator, self.shapes, self.known)) or None
        if operator in {"softmax", "log_softmax"} and self.opset < SINGLE_AXIS_OPSET:
            axes = tuple(range(attributes.get("axis", 1) % max(rank, 1), rank))
        numbers = dict(self._list_numbers(proto, operator, attributes, rank))
        if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
            numbers["auto_pad"] = (1.0,)  # the padding is not what the attribute pads says
        texts = dict(_list_texts(proto, attributes))
        return node._replace(operator=operator, axes=axes, numbers=numbers, texts=texts)

    def _list_numbers(
        self, proto: Any, operator: str, attributes: Mapping[str, Any], rank: int
    ) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield the numeric arguments of a node under torch's names."""
        spelling = read_spellings().get(proto.op_type) if proto.domain in DOMAINS else None
        if is_quantizer(operator) or is_dequantizer(operator):
            yield from self._list_levels(proto, operator)
        for name, places in spelling.arguments.items() if spelling else ():
            numbers: Sequence[float] | None = None
            for place in places:
                if isinstance(place, str):
                    numbers = self._find_argument(proto, attributes, place)
                else:
                    numbers = [place] * (max(rank - 2, 0) if name in PER_AXIS else 1)
                if numbers is not None:
                    break
            if numbers is None or (name == "output_padding" and "output_shape" in attributes):
                continue
            if name == "padding" and "pads" in attributes:
                yield from _list_padding(numbers, operator)
                continue
            if name == "pad":  # torch lists the last axis first
                half = len(numbers) // 2
                ends = zip(reversed(numbers[:half]), reversed(numbers[half:]), strict=True)
                numbers = [size for pair in ends for size in pair]
            elif operator == "pad" and attributes.get("mode", b"constant") != b"constant":
                continue  # it has no value
            yield name, tuple(map(float, numbers))

    def _list_levels(self, proto: Any, operator: str) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield the zero point of a quantizer and the limits of its integers, as torch's operators
        have them, and the scale of one that quantizes."""
        zero_name = proto.input[2] if len(proto.input) > 2 else ""
        zero = self.known.find(zero_name) if zero_name else None
        levels = proto.output[0] if is_quantizer(operator) else proto.input[0]
        # A zero point has the type of the integers, and onnx infers none behind unknown operators.
        kind = self.dtypes.get(levels) or self.dtypes.get(zero_name, "")
        bits = int(kind.lstrip("uint") or 8) if "int" in kind else 8
        low = 0 if kind.startswith("u") else -(2 ** (bits - 1))
        if is_quantizer(operator):
            scale = self.known.find(proto.input[1])
            if scale is not None:
                yield "scale", tuple(map(float, np.ravel(scale)))
        yield "zero_point", (0.0,) if zero is None else tuple(map(float, np.ravel(zero)))
        yield "quant_min", (float(low),)
        yield "quant_max", (float(low + 2**bits - 1),)

    def _find_argument(
        self, proto: Any, attributes: Mapping[str, Any], place: str
    ) -> Sequence[float] | None:
        """Return the numbers of an attribute, or of a constant input such as "#1"; None if there
        are none."""
        if not place.startswith("#"):
            value = attributes.get(place)
            if _is_text(value):
                return None
            return value if value is None or isinstance(value, (list, tuple)) else [value]
        index = int(place[1:])
        name = proto.input[index] if index < len(proto.input) else ""
        array = self.known.find(name) if name else None
        return None if array is None or not array.size else array.reshape(-1).tolist()


def _list_padding(pads: Sequence[float], operator: str) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the padding of each axis under torch's name, which has one for both ends: the larger
    one, and also those at the beginnings and at the ends if they differ."""
    half = len(pads) // 2
    ends = [*zip(pads[:half], pads[half:], strict=True)]
    # What a transposed convolution cuts off at the end decides whether it is complete.
    is_transposed = operator.startswith("conv_transpose")
    yield "padding", tuple(float(end if is_transposed else max(begin, end)) for begin, end in ends)
    if any(begin != end for begin, end in ends):
        yield "padding_before", tuple(float(begin) for begin, _ in ends)
        yield "padding_after", tuple(float(end) for _, end in ends)


def join_calls(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """Return nodes in which calls that torch has as one operator are one node, with the name of the
    last call. A call before it stays if something else reads its result, too."""
    makers = {name: node for node in nodes for name in node.results if name}
    readers = Counter([*outputs, *(name for node in nodes for name in {*node.reads})])
    joined: dict[str, Node] = {}  # by the name of the last call
    dropped: set[str] = set()
    for node in nodes:
        # Otherwise, the known faults of these operators, such as those of an RMS norm by Sqrt and
        # Reciprocal, would not be found in ONNX files.
        for operator, call in read_joined().items():
            operands: dict[str, str] = {}
            inner = _match_call(call, node.results[0], makers, operands)
            if inner is not None:
                joined[node.name] = node._replace(
                    operator=operator,
                    reads=(operands["x"],),
                    operands=1,
                    numbers={},
                    compute=functools.partial(_compute_all, [*inner, node], operands["x"]),
                )
                dropped |= {
                    call_node.name for call_node in inner if readers[call_node.results[0]] == 1
                }
    return [joined.get(node.name, node) for node in nodes if node.name not in dropped]


def _match_call(
    call: ast.expr, value: str, makers: Mapping[str, Node], operands: dict[str, str]
) -> list[Node] | None:
    """Return the nodes inside of a value that has the form of ``call``, in execution order, or None
    if it has another form. ``operands`` become the values that the names in the call stand for."""
    if isinstance(call, ast.Name):
        return [] if operands.setdefault(call.id, value) == value else None
    node = makers.get(value)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or node is None:
        return None
    if node.operator != call.func.id or len(node.reads) != len(call.args):
        return None
    for reads in itertools.permutations(node.reads):
        if reads != node.reads and node.operator not in COMMUTATIVE:
            continue
        trial, inner = dict(operands), list[Node]()
        for argument, read in zip(call.args, reads, strict=True):
            matched = _match_call(argument, read, makers, trial)
            if matched is None:
                break
            inner += [*matched, makers[read]] if isinstance(argument, ast.Call) else matched
        else:
            operands.update(trial)
            return inner
    return None


def _compute_all(
    nodes: Sequence[Node], operand: str, operands: Sequence[Array | None]
) -> Sequence[Array]:
    """Execute nodes one after another. ``operand`` is the value that the first of them reads."""
    values: dict[str, Array | None] = {operand: operands[0]}
    for node in nodes:
        if node.compute is not None:
            results = node.compute([values.get(name) for name in node.reads])
            values.update(zip(node.results, results, strict=True))
    arrays = [values[name] for name in nodes[-1].results]
    return [array for array in arrays if array is not None]


def name_operator(proto: Any) -> str:
    """Return torch's name of a node's operator, in which "{}" stands for a number of axes."""
    name = str(proto.op_type)
    spelling = read_spellings().get(name) if proto.domain in DOMAINS else None
    spelled = "".join(
        f"_{letter.lower()}"
        if place and letter.isupper() and not name[place - 1].isupper()
        else letter.lower()
        for place, letter in enumerate(name)
    )
    return spelling.operator if spelling else spelled


def computes_node(proto: Any) -> bool:
    """Return whether a node computes new elements, instead of moving or selecting some."""
    return computes(name_operator(proto).format(2))


def _list_texts(proto: Any, attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a node that are texts, under torch's names."""
    spelling = read_spellings().get(proto.op_type) if proto.domain in DOMAINS else None
    for name, places in spelling.arguments.items() if spelling else ():
        values = [attributes.get(place) for place in places if isinstance(place, str)]
        texts = [value for value in values if _is_text(value)]
        yield from ((name, " ".join(_list_words(value))) for value in texts)


def _is_text(value: Any) -> bool:
    """Return whether the value of an attribute is a text or several texts."""
    return isinstance(value, bytes) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, bytes) for item in value)
    )


def _list_words(value: Any) -> list[str]:
    texts = [value] if isinstance(value, bytes) else value
    return [text.decode() for text in texts]


def _list_axes(
    proto: Any, operator: str, shapes: Mapping[str, Shape], constants: Constants
) -> Iterator[int]:
    """Yield the axes over which an operator works."""
    attributes = read_attributes(proto)
    rank = len(shapes.get(proto.input[0], ())) if proto.input else 0
    if operator in NORMALIZED:
        yield from range(attributes.get("axis", -1) % max(rank, 1), rank)
    elif operator == "instance_norm":
        yield from range(2, rank)
    elif operator in REDUCED or operator == "cumsum":
        # An attribute, or an input: since opset 13 for ReduceSum, and since 18 for the others.
        axes = attributes.get("axes")
        if axes is None and len(proto.input) > 1:
            axes = constants.find(proto.input[1])
        yield from (int(axis) for axis in (() if axes is None else np.ravel(axes)))
    elif operator in {"softmax", "log_softmax", "normalize"}:
        yield int(attributes.get("axis", -1))


def _compute(proto: Any, model: Any, operands: Sequence[Array | None]) -> list[Array]:
    """Execute a node with onnxruntime."""
    operands = operands[: len(proto.input)]
    node = onnx.NodeProto()
    node.CopyFrom(proto)
    names = ["" if operand is None else f"input{place}" for place, operand in enumerate(operands)]
    node.input[:] = names
    node.output[:] = [f"output{place}" if name else "" for place, name in enumerate(proto.output)]
    feed = {
        name: np.ascontiguousarray(operand)
        for name, operand in zip(names, operands, strict=True)
        if operand is not None
    }
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feed.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # A node that cannot be executed raises an exception, too, and its value is then unknown.
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        single.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    results = iter(session.run(None, feed))
    return [next(results) if name else np.zeros(0) for name in node.output]
