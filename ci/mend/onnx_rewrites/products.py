"""Products of matrices in a form that QNN takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ci.mend.onnx_rewrites.graph import Graph, read, rewrites


# QNN takes an alpha of 1 only, and onnxruntime's quantizer ignores both factors.
@rewrites("fold-gemm", "Gemm")
def fold_gemm(graph: Graph, node: Any) -> None:
    """Multiply the weights of a Gemm by its alpha, and its bias by its beta."""
    factors = read(node, "alpha", 1.0), read(node, "beta", 1.0)
    names = [name for name in node.input[1:] if name]
    stored = [array for array in map(graph.constant, names) if array is not None]
    if factors == (1.0, 1.0) or len(stored) < len(names) or not graph.is_float(*names):
        return
    # Without a bias, beta has nothing to multiply.
    multiplied = [
        array * np.float32(factor) for array, factor in zip(stored, factors, strict=False)
    ]
    attributes = {name: read(node, name, 0) for name in ("transA", "transB")}
    result = graph.add("Gemm", node.input[0], *multiplied, **attributes)
    before = f"Gemm, alpha {factors[0]:g}, beta {factors[1]:g}"
    graph.replace([node], [result], before, "Gemm, its constants multiplied")
