"""Operators that QNN's provider lacks, as the operators that ONNX defines them by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy

import onnx
from onnx import helper, inliner, version_converter

from ci.graphs.onnx_file import infer
from ci.mend.onnx_rewrites.folding import drop_empty, fold_rounds
from ci.mend.onnx_rewrites.inferred import InferredModel
from ci.mend.rewrite import Change

# Operators with a definition in ONNX's schemas that QNN's provider does not take. The last ones are
# newer than the opset that the lane converts models to.
DEFINED = (
    "MeanVarianceNormalization", "ReduceL1", "ReduceLogSum", "ReduceSumSquare", "Shrink",
    "Softsign", "Attention", "RotaryEmbedding", "Swish",
)  # fmt: skip
OLDEST_OPSET = 18  # the oldest for which onnx 1.23 has all definitions


def inline_functions(model: onnx.ModelProto) -> tuple[Change, ...]:
    """Replace operators that QNN's provider does not take by their definition in ONNX."""
    return inline_operators(model, DEFINED)


def inline_operators(model: onnx.ModelProto, operators: Sequence[str]) -> tuple[Change, ...]:
    """Replace operators by their definition in ONNX, if they have one."""
    own_nodes = [node for node in model.graph.node if node.domain in ("", "ai.onnx")]
    defined_nodes = [node for node in own_nodes if node.op_type in operators]
    if not defined_nodes:
        return ()
    inlined = deepcopy(model)
    try:
        if InferredModel(model).opset < OLDEST_OPSET:
            inlined = version_converter.convert_version(inlined, OLDEST_OPSET)
        typed = {port.name for port in (*inlined.graph.input, *inlined.graph.value_info)}
        for initializer in inlined.graph.initializer:  # the inliner knows no types of initializers
            if initializer.name not in typed:
                form = initializer.data_type, [*initializer.dims]
                port = helper.make_tensor_value_info(initializer.name, *form)
                inlined.graph.value_info.append(port)
        names = [("", name) for name in operators]
        inlined = inliner.inline_selected_functions(inlined, names, inline_schema_functions=True)
    except (RuntimeError, version_converter.ConvertError):
        return ()  # another operator of the model cannot be converted, or a type is unknown
    name_types(inlined)
    if any(node.op_type == "RotaryEmbedding" for node in defined_nodes):
        # The definition computes shapes from the operand; its Split may have an empty part.
        inlined = fold_rounds(infer(inlined))
        drop_empty(inlined)
    remaining = Counter(node.op_type for node in inlined.graph.node)
    model.CopyFrom(inlined)
    changes = []
    for node in defined_nodes:
        if not remaining[node.op_type]:  # all nodes of this operator have a definition
            name = node.name or node.output[0]
            changes.append(Change((name,), None, node.op_type, "its definition in ONNX"))
    return tuple(changes)


def name_types(model: onnx.ModelProto) -> None:
    """Replace each CastLike, which QNN's provider does not take, by a Cast to the same type."""
    types = InferredModel(onnx.shape_inference.infer_shapes(model, data_prop=True)).types
    for node in model.graph.node:
        if node.op_type == "CastLike" and node.input[1] in types:
            kind = types[node.input[1]]
            node.CopyFrom(helper.make_node("Cast", node.input[:1], node.output, node.name, to=kind))
