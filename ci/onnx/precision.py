"""Mixed precision in ONNX models: the parts of a mixture as overrides for onnxruntime's quantizer,
and the types that QNN got for the tensors of a quantized model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx
from onnxruntime.quantization import QuantType

from ci.analysis.mixtures import assign_parts
from ci.analysis.noise import find_float16
from ci.facts.finding import NOWHERE
from ci.graphs.onnx_file import find_origin, list_candidates, name_result, read_constants
from ci.graphs.onnx_reader import parse_model
from ci.models.lowering_options import Part
from ci.models.schemes import Recipe
from ci.models.tensors import FLOAT_BITS, Asked, TypedTensor
from ci.onnx.quantizers import Values
from provisioning.doctor.survey.context_binaries import DTYPES
from provisioning.documents import read_json
from provisioning.errors import UsageError

# The inputs that are weights, by operator.
WEIGHTS = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (1,),
    "MatMul": (0, 1),
    "LSTM": (1, 2),
    "GRU": (1, 2),
}
# QNN's provider computes these in float if their operands have different types.
ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "PRelu", "Where"})
CONVERTS = frozenset({"Quantize", "Dequantize", "Convert", "Cast"})  # QNN's operators
SIGNED = frozenset({QuantType.QInt4, QuantType.QInt8, QuantType.QInt16})
HALF = 16  # bits of a float in a program
STATIC = 4  # Qnn_TensorType_t of a constant
LEAST_DIMS = 2  # of weights, unlike biases
WIDTH = re.compile(r"(\d+)$")


def name_types(path: Path) -> dict[str, str]:
    """Return the type of each node's result in a quantized file, such as ``uint16``: the type to
    which the node behind it quantizes it, or ``float``. A quantizer has the type of the integers
    that it makes or reads."""
    model = onnx.load(path, load_external_data=False)
    values = Values(model.graph)
    quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    if not quantizers:
        return {}
    integer_kinds = {name: constant.data_type for name, constant in values.constants.items()}
    integer_kinds |= {node.output[0]: values.find_kind(node) for node in quantizers}
    graph = parse_model(model, path.parent, joins=False)
    floats = find_float16(graph).intersection(list_floats(model))
    result_kinds: dict[str, int] = dict.fromkeys(floats, onnx.TensorProto.FLOAT)
    for quantized, (name, _) in read_quantizers(model).items():
        result_kinds[name] = integer_kinds[quantized]
    types = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            kind = integer_kinds.get(name_result(node.output[0]))
        elif node.op_type == "DequantizeLinear":
            kind = integer_kinds.get(name_result(node.input[0]))
        else:
            kind = result_kinds.get(name_result(node.output[0]))
        if kind:
            types[node.name or node.output[0]] = onnx.TensorProto.DataType.Name(kind).lower()
    return types


def find_owners(
    source: onnx.ModelProto, prepared: onnx.ModelProto, parts: Sequence[Part]
) -> dict[str, Part]:
    """Return the part of each tensor that a node of ``prepared`` computes, by the tensor's name.

    ``prepared`` is ``source`` after onnxruntime's preprocessing, which merges nodes. If a node of a
    part was merged into a node behind it, that node belongs to the part. Raises UsageError for a
    part without own nodes, in the file or after preprocessing.
    """
    if not parts:
        return {}
    node_owners = assign_parts(list_candidates(source), parts)
    owners: dict[str, Part] = {}
    for name, (node, result) in find_results(source, prepared).items():
        part = node_owners.get(node)
        # A node that still exists takes precedence over one that was merged into it.
        if part and (result == name or result not in owners):
            owners[result] = part
    for name, result in find_added(source, prepared).items():
        if result in owners:
            owners[name] = owners[result]
    for part in parts:
        if part not in owners.values():
            names = ", ".join(name for name, owner in node_owners.items() if owner == part)
            raise UsageError(
                f"the part {part} is lost before the model is quantized",
                why=f"onnxruntime's preprocessing folds or removes its nodes: {names}",
                fix="select the node behind them, which is in the prepared model",
            )
    return owners


def find_results(source: onnx.ModelProto, prepared: onnx.ModelProto) -> dict[str, tuple[str, str]]:
    """Return the node that computes each result of ``source``, and the tensor of ``prepared`` that
    has it: itself, or the first one behind it if onnxruntime's preprocessing merged its node. What
    the preprocessing folds or removes is left out. The keys are the results' names."""
    computed = {name for node in prepared.graph.node for name in node.output}
    folded = read_constants(prepared.graph).keys()
    readers: dict[str, list[Any]] = {}
    for node in source.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    results = {}
    for node in source.graph.node:
        if not folded.isdisjoint(node.output):
            continue
        for name in filter(None, node.output):
            result = _follow(name, computed, readers)
            if result:
                results[name] = node.name or node.output[0], result
    return results


def find_added(source: onnx.ModelProto, prepared: onnx.ModelProto) -> dict[str, str]:
    """Return the results that onnxruntime's preprocessing adds, and for each the result of
    ``source`` for which alone it is computed. If it turns a product of three axes and a sum into a
    Gemm, for example, the file has the last of three results: of a Reshape, of the Gemm and of a
    Reshape."""
    source_tensors = {name for node in source.graph.node for name in (*node.input, *node.output)}
    readers: dict[str, set[str]] = {}  # the results that are computed from each
    added: dict[str, str] = {}
    for node in reversed(prepared.graph.node):
        result = node.output[0]
        for name in node.output:
            if name and name not in source_tensors:
                targets = {added.get(reader, reader) for reader in readers.get(name, ())}
                if len(targets) == 1:
                    added[name] = targets.pop()
        for name in node.input:
            readers.setdefault(name, set()).add(result)
    return {name: result for name, result in added.items() if result in source_tensors}


def _follow(name: str, computed: set[str], readers: Mapping[str, Sequence[Any]]) -> str:
    """Return the first of the tensors from ``name`` on that the prepared model has, along nodes
    that alone read the one before. Return "" if there is none."""
    while name not in computed:
        following = readers.get(name, ())
        if len(following) != 1 or not following[0].output:
            return ""
        name = following[0].output[0]
    return name


def override_parts(
    model: onnx.ModelProto, owners: Mapping[str, Part], base: Recipe
) -> dict[str, list[dict[str, Any]]]:
    """Return overrides for onnxruntime's quantizer that give the inputs, results and weights of
    parts their types, and convert between the types. ``owners`` are those of find_owners, and
    ``base`` describes all other nodes. A node without a name gets one, which overrides need.

    The fixer of onnxruntime 1.32 (add_qtype_converts) gives the type of a tensor to all nodes that
    read it, and to their results, so that a part in 8 bit would also change the nodes behind it.
    """
    if not owners:
        return {}
    kinds: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    makers: dict[str, str] = {}
    overrides: dict[str, list[dict[str, Any]]] = {}
    constant_kinds = {
        initializer.name: initializer.data_type for initializer in model.graph.initializer
    }
    for node in model.graph.node:
        node.name = node.name or node.output[0]
        part = next((owners[name] for name in node.output if name in owners), None)
        kinds[node.name] = (part.scheme.recipe if part else base).activations
        makers |= dict.fromkeys(filter(None, node.output), node.name)
        for place, name in enumerate(node.input):
            if name not in constant_kinds:
                readers.setdefault(name, []).append(node.name)
            elif part and place in WEIGHTS.get(node.op_type, ()):
                overrides.setdefault(name, [_override_weight(node, part.scheme.recipe)])
            elif (
                part
                and node.op_type in ELEMENTWISE
                and constant_kinds[name] == onnx.TensorProto.FLOAT
            ):
                kind = QuantType[part.scheme.recipe.activations]
                overrides.setdefault(name, [{"quant_type": kind}])
    for name in list_floats(model):
        result_kind = kinds[makers[name]] if name in makers else base.activations
        converting = {reader for reader in readers.get(name, ()) if kinds[reader] != result_kind}
        override: dict[str, Any] = {"quant_type": QuantType[result_kind]}
        if converting:  # there are only two types of activations
            kind = QuantType[kinds[min(converting)]]
            override["convert"] = {"quant_type": kind, "recv_nodes": converting}
        if converting or result_kind != base.activations:
            overrides[name] = [override]
    return overrides


def list_floats(model: onnx.ModelProto) -> list[str]:
    """Return the names of a model's inputs and results that contain float32 numbers."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    constants = {initializer.name for initializer in graph.initializer}
    names: dict[str, None] = {}  # in order, each one once
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            names[value.name] = None
    return [name for name in names if name not in constants]


def _override_weight(node: Any, recipe: Recipe) -> dict[str, Any]:
    # The axes of the output channels: ONNX's transposed convolutions have them second.
    kind, axes = QuantType[recipe.weights], {"Conv": 0, "ConvTranspose": 1}
    override: dict[str, Any] = {"quant_type": kind, "symmetric": kind in SIGNED}
    if recipe.per_channel and node.op_type in axes:
        override["axis"] = axes[node.op_type]
    return override


def read_quantizers(model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """Return the results that the QuantizeLinear nodes of a model quantize, and the bits of their
    types. The keys are the names of the quantized tensors. A second quantizer, which converts a
    type, is left out."""
    values = Values(model.graph)
    results: dict[str, tuple[str, int]] = {}
    for node in model.graph.node:
        kind = values.find_kind(node) if node.op_type == "QuantizeLinear" else 0
        source = values.makers.get(node.input[0]) if kind else None
        converts = source is not None and source.op_type == "DequantizeLinear"
        if kind and not converts:
            width = WIDTH.search(onnx.TensorProto.DataType.Name(kind))
            bits = int(width[1]) if width else FLOAT_BITS
            results[node.output[0]] = name_result(node.input[0]), bits
    return results


def find_asked(model: onnx.ModelProto, owners: Mapping[str, Part]) -> dict[str, Asked]:
    """Return the bits that are requested for the results and weights of a quantized model: those of
    the parts, or else those of its quantizers. The keys are names of results."""
    node_names = {}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear":
            for result in node.output:
                node_names[name_result(result)] = node.name or node.output[0]
    requests = {}
    for result, bits in read_quantizers(model).values():
        requests[result] = Asked(node_names.get(result, result), bits)
    for result, part in owners.items():
        bits = part.scheme.recipe.activation_bits
        requests[result] = Asked(node_names.get(result, result), bits, part.scheme.weight_bits)
    return requests


class QnnTensor(msgspec.Struct, frozen=True):
    """A tensor of a graph that QNN's provider wrote as JSON. ``type`` and ``data_type`` are numbers
    of Qnn_TensorType_t and Qnn_DataType_t."""

    type: int
    data_type: int
    dims: tuple[int, ...] = ()

    @property
    def bits(self) -> int:
        """Return the bits of an element, or 0 if it is an integer or a boolean."""
        name = DTYPES.get(self.data_type, "")
        width = WIDTH.search(name)
        if name.startswith("float"):
            return FLOAT_BITS
        return int(width[1]) if width and "fixed" in name else 0


class QnnNode(msgspec.Struct, frozen=True):
    """A node of such a graph."""

    type: str
    output_names: tuple[str, ...] = ()


class QnnGraph(msgspec.Struct, frozen=True):
    """Such a graph, with its nodes and tensors by name."""

    nodes: dict[str, QnnNode] = {}
    tensors: dict[str, QnnTensor] = {}


class Dump(msgspec.Struct, frozen=True):
    """A file in which QNN's provider describes a graph."""

    graph: QnnGraph = QnnGraph()


def list_tensors(model: onnx.ModelProto, graphs: Path) -> Iterator[TypedTensor]:
    """Yield the tensors of QNN's graphs, which QNN's provider wrote to the directory ``graphs``. If
    a quantizer of the model has fewer bits than QNN's tensor, its bits count. Raises
    DocumentError."""
    quantized = read_quantizers(model)
    readers = {name: node for node in model.graph.node for name in node.input}
    users = {  # the results of the nodes that use dequantized constants
        node.input[0]: name_result(readers[node.output[0]].output[0])
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.output[0] in readers
    }
    origins = {
        name_result(name): find_origin(node) for node in model.graph.node for name in node.output
    }
    for path in sorted(graphs.glob("*.json")):
        graph = read_json(path, Dump).graph
        for node in graph.nodes.values():
            tensor = graph.tensors.get(next(iter(node.output_names), ""))
            if node.type not in CONVERTS and tensor and tensor.bits:
                name = node.output_names[0]
                result, bits = quantized.get(name, (name, FLOAT_BITS))
                origin = origins.get(result, NOWHERE)
                yield TypedTensor(result, min(bits, tensor.bits), origin=origin)
        for name, tensor in graph.tensors.items():
            if tensor.type == STATIC and len(tensor.dims) >= LEAST_DIMS and tensor.bits:
                size = math.ceil(math.prod(tensor.dims) * min(tensor.bits, HALF) / 8)
                user = users.get(name, "")
                yield TypedTensor(user, tensor.bits, size, origins.get(user, NOWHERE))
