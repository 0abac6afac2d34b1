"""Operators that QNN's provider lacks, as the operators that ONNX defines them by."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import onnx
from onnx import helper, inliner, version_converter

from ci.mend.onnx_rewrites.graph import REWRITES, Graph
from ci.mend.rewrite import Change

# Operators with a definition in ONNX's schemas that QNN's provider does not take. The last ones are
# newer than the opset that the lane converts models to.
DEFINED = (
    "Celu", "MeanVarianceNormalization", "ReduceL1", "ReduceLogSum", "ReduceSumSquare", "Shrink",
    "Softsign", "Attention", "RotaryEmbedding", "Swish",
)  # fmt: skip
OLDEST_OPSET = 18  # the oldest for which onnx 1.23 has all definitions


def inline_functions(model: onnx.ModelProto) -> tuple[Change, ...]:
    """Replace operators that QNN's provider does not take by their definition in ONNX."""
    graph = Graph(model)
    found = [*graph.find(*DEFINED)]
    if not found:
        return ()
    whole = deepcopy(model)
    try:
        if graph.opset < OLDEST_OPSET:
            whole = version_converter.convert_version(whole, OLDEST_OPSET)
        known = {one.name for one in (*whole.graph.input, *whole.graph.value_info)}
        for initializer in whole.graph.initializer:  # the inliner knows no types of initializers
            if initializer.name not in known:
                form = initializer.data_type, [*initializer.dims]
                port = helper.make_tensor_value_info(initializer.name, *form)
                whole.graph.value_info.append(port)
        chosen = [("", name) for name in DEFINED]
        whole = inliner.inline_selected_functions(whole, chosen, inline_schema_functions=True)
    except (RuntimeError, version_converter.ConvertError):
        return ()  # another operator of the model cannot be converted, or a type is unknown
    name_types(whole)
    left = Counter(node.op_type for node in whole.graph.node)
    model.CopyFrom(whole)
    return tuple(
        Change((one.name or one.output[0],), None, one.op_type, "its definition in ONNX")
        for one in found
        if not left[one.op_type]
    )


def name_types(model: onnx.ModelProto) -> None:
    """Replace each CastLike, which QNN's provider does not take, by a Cast to the same type."""
    types = Graph(onnx.shape_inference.infer_shapes(model, data_prop=True)).types
    for node in model.graph.node:
        if node.op_type == "CastLike" and node.input[1] in types:
            kind = types[node.input[1]]
            cast = helper.make_node("Cast", node.input[:1], node.output, node.name, to=kind)
            node.CopyFrom(cast)


REWRITES["inline-functions"] = inline_functions
