"""Norms in forms that QNN computes right: a batch norm with constants, norms of fewer axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ci.graphs.onnx_file import read_attributes
from ci.mend.onnx_rewrites.graph import SUM_AXES_OPSET, Graph, rewrites

HIGHEST_RANK = 4  # of norms in QNN


# A ReduceL2 before a division becomes an LpNormalization, which QNN 2.49.40 computes wrongly in 16
# bits: 21.7 dB for window attention in u16a8w, and 35.1 dB after.
@rewrites("root-of-squares", "ReduceL2")
def write_root_of_squares(graph: Graph, node: Any) -> None:
    """Compute a ReduceL2 as the square root of a sum of squares."""
    x, *axes = node.input
    if not graph.is_float(x):
        return
    attributes = read_attributes(node)
    # The axes of a ReduceL2 are an attribute until opset 17, those of a ReduceSum until opset 12.
    if not axes and graph.opset >= SUM_AXES_OPSET and "axes" in attributes:
        axes = [graph.hold(np.array(attributes.pop("axes")))]
    total = graph.add("ReduceSum", graph.add("Mul", x, x), *axes, **attributes)
    graph.replace([node], [graph.add("Sqrt", total)], "ReduceL2(x)", "sqrt(sum(x * x))")
