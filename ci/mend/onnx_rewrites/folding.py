"""Computes what does not depend on a model's inputs, and removes what becomes empty by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ci.graphs.edit import MOST_FOLDED
from ci.graphs.onnx_file import infer, list_bodies, read_attributes
from ci.graphs.onnx_session import open_reference
from ci.mend.onnx_rewrites.inferred import InferredModel
from ci.onnx.models import QUANTIZED

MOST_ROUNDS = 8  # of folding, each of which may make more shapes known
# Operators whose results are not constants although their operands are.
KEPT = (
    *QUANTIZED, "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
    "Multinomial", "Bernoulli", "Dropout", "Constant",
)  # fmt: skip


def fold_rounds(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose shapes are inferred, without nodes that depend on no input."""
    for _ in range(MOST_ROUNDS):
        if not fold_constants(model):
            break
        model = infer(model)
    return model


def drop_empty(model: onnx.ModelProto) -> None:
    """Remove the empty parts of a Split, which QNN's provider leaves to the CPU, if only
    concatenations read them. ONNX's definition of RotaryEmbedding has one if all is rotated."""
    graph = InferredModel(model)
    empty: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "Split" and len(node.input) > 1 and node.input[1] in graph.tensors:
            sizes = numpy_helper.to_array(graph.tensors[node.input[1]])
            empty.update(name for name, size in zip(node.output, sizes, strict=True) if not size)
    for node in graph.nodes:
        if node.op_type != "Concat":
            empty.difference_update(node.input)
    empty -= graph.outputs
    for node in model.graph.node:
        if node.op_type == "Split" and not empty.isdisjoint(node.output):
            parts = [name for name in node.output if name not in empty]
            if len(parts) == 1:
                node.CopyFrom(helper.make_node("Identity", node.input[:1], parts, node.name))
        elif node.op_type == "Concat":
            operands = [name for name in node.input if name not in empty]
            if 0 < len(operands) < len(node.input):
                node.input[:] = operands


def fold_constants(model: onnx.ModelProto) -> bool:
    """Replace nodes whose results do not depend on the inputs by constants, in place. A Shape is
    such a node, because shapes are known. Return whether there are any."""
    graph = InferredModel(model)
    constant_nodes = list_constant_nodes(graph)
    results = [name for node in constant_nodes for name in node.output if graph.reads[name]]
    try:
        values = compute(model, graph, constant_nodes, results)
    except Exception:  # noqa: BLE001 - onnxruntime's errors have no common class
        return False
    folded = {id(node) for node in constant_nodes}
    nodes = [node for node in graph.nodes if id(node) not in folded]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    constants = [numpy_helper.from_array(value, name) for name, value in values.items()]
    model.graph.initializer.extend(constants)
    drop_unused(model)
    return bool(constant_nodes)


def list_constant_nodes(graph: InferredModel) -> list[onnx.NodeProto]:
    """Return the nodes whose results do not depend on the inputs, in order. A Shape among them
    becomes a Constant."""
    constant_nodes: list[onnx.NodeProto] = []
    results = set[str]()
    for node in graph.nodes:
        sizes = [math.prod(graph.shapes.get(output, ())) for output in node.output]
        is_kept = node.domain not in ("", "ai.onnx") or node.op_type in KEPT or list_bodies(node)
        if is_kept or max(sizes) > MOST_FOLDED or graph.outputs.intersection(node.output):
            continue
        if node.op_type == "Shape" and node.input[0] in graph.shapes:
            attributes = read_attributes(node)
            shape = graph.shapes[node.input[0]][attributes.get("start", 0) : attributes.get("end")]
            value = numpy_helper.from_array(np.array(shape, np.int64))
            node.CopyFrom(helper.make_node("Constant", [], node.output, node.name, value=value))
        elif not all(name in graph.tensors or name in results for name in node.input if name):
            continue
        constant_nodes.append(node)
        results.update(node.output)
    return constant_nodes


def drop_unused(model: onnx.ModelProto) -> None:
    """Remove initializers that nothing reads."""
    reads = InferredModel(model).reads
    used = [initializer for initializer in model.graph.initializer if reads[initializer.name]]
    del model.graph.initializer[:]
    model.graph.initializer.extend(used)


def compute(
    model: onnx.ModelProto,
    graph: InferredModel,
    nodes: Sequence[onnx.NodeProto],
    results: Sequence[str],
) -> Mapping[str, Any]:
    """Return the ``results`` of nodes that read only constants of ``graph`` and one another, by
    name."""
    if not results:
        return {}
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    constants = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    constants.graph.CopyFrom(helper.make_graph(nodes, "constants", [], outputs))
    for name in {name for node in nodes for name in node.input} & graph.tensors.keys():
        constants.graph.initializer.add().CopyFrom(graph.tensors[name])
        constants.graph.initializer[-1].name = name
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "constants.onnx")
        onnx.save(infer(constants), path)
        return dict(zip(results, open_reference(path).run([*results], {}), strict=True))
