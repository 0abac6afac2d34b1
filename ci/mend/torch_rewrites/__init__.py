"""Rewrites of exported PyTorch programs, each the same function in operators that QNN computes
right. manifests/policies/rewrites.toml says where each of them helps."""

from __future__ import annotations

from ci.mend.rewrite import TorchRewrite
from ci.mend.torch_rewrites import (
    activations,
    attention,
    constants,
    norms,
    pooling,
    ranks,
    recurrent,
)

REWRITES: dict[str, TorchRewrite] = {
    "fold-constants": constants.fold_constants,
    "flatten-rms-norm": norms.flatten_rms_norm,
    "scale-batch-norm": norms.scale_batch_norm,
    "pad-before-pool": pooling.pad_before_pool,
    "multiply-adaptive-pool": pooling.multiply_adaptive_pool,
    "lower-rank": ranks.lower_rank,
    "repeat-by-expand": ranks.repeat_by_expand,
    "softplus-by-series": activations.softplus_by_series,
    "gelu-of-erf": activations.gelu_of_erf,
    "separate-projections": attention.separate_projections,
    "mask-after-softmax": attention.mask_after_softmax,
    "unroll-recurrent": recurrent.unroll_recurrent,
}
