"""Rewrites of exported PyTorch programs, each the same function in operators that QNN computes
right. manifests/policies/rewrites.toml says where each of them helps."""

from ci.mend.torch_rewrites import (
    activations,
    attention,
    constants,
    convolutions,
    norms,
    pooling,
    ranks,
    recurrent,
)
from ci.mend.torch_rewrites.editing import REWRITES

__all__ = ["MODULES", "REWRITES"]

# Each of them adds its rewrites to REWRITES.
MODULES = (activations, attention, constants, convolutions, norms, pooling, ranks, recurrent)
