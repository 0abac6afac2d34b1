"""Rewrites of ONNX models, each the same function in operators that QNN takes and computes right.
manifests/policies/rewrites.toml says where each one helps. Nothing here imports torch."""

from ci.mend.onnx_rewrites.both_lanes import DEFINED_REWRITES
from ci.mend.onnx_rewrites.functions import inline_functions

REWRITES = {**DEFINED_REWRITES, "inline-functions": inline_functions}

__all__ = ["REWRITES"]
