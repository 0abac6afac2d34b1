"""Rewrites of ONNX models, each the same function in operators that QNN takes and computes right.
manifests/policies/rewrites.toml says where each one helps. Nothing here imports torch."""

from ci.mend.onnx_rewrites import both_lanes, elements, norms, products
from ci.mend.onnx_rewrites.graph import REWRITES

__all__ = [
    "REWRITES",
    "both_lanes",
    "elements",
    "norms",
    "products",
]
