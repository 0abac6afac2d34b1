"""Rewrites of exported PyTorch programs, each the same function in operators that QNN computes
right. manifests/policies/rewrites.toml says where each of them helps."""

from ci.mend.torch_rewrites import attention, both_lanes, images, norms, ranks
from ci.mend.torch_rewrites.editing import REWRITES

__all__ = [
    "REWRITES",
    "attention",
    "both_lanes",
    "images",
    "norms",
    "ranks",
]
