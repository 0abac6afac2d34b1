"""Rewrites of both lanes, each the same function in operators that QNN computes right.
manifests/policies/rewrites.toml says where each of them helps. Nothing here imports torch or
onnx."""

from ci.mend.graph_rewrites import (
    convolutions,
    elements,
    exponents,
    images,
    instance_norms,
    masks,
    norms,
    products,
    ranks,
    recurrent,
    resizes,
    windows,
)
from ci.mend.graph_rewrites.definition import DEFINITIONS

__all__ = [
    "DEFINITIONS",
    "convolutions",
    "elements",
    "exponents",
    "images",
    "instance_norms",
    "masks",
    "norms",
    "products",
    "ranks",
    "recurrent",
    "resizes",
    "windows",
]
