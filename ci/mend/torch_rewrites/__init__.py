"""Rewrites of exported PyTorch programs, each the same function in operators that QNN computes
right. manifests/policies/rewrites.toml says where each of them helps."""

from __future__ import annotations

from ci.mend.rewrite import TorchRewrite
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

REWRITES: dict[str, TorchRewrite] = {
    "fold-constants": constants.fold_constants,
    "put-constant-first": constants.put_constant_first,
    "expand-constant": constants.expand_over_batch,
    "concatenate-padding": constants.pad_by_concatenation,
    "flatten-rms-norm": norms.flatten_rms_norm,
    "flatten-layer-norm": norms.flatten_layer_norm,
    "scale-batch-norm": norms.scale_batch_norm,
    "write-variance": norms.write_variance,
    "pad-before-pool": pooling.pad_before_pool,
    "multiply-adaptive-pool": pooling.multiply_adaptive_pool,
    "slice-adaptive-maximum": pooling.slice_adaptive_maximum,
    "select-nearest": pooling.select_nearest,
    "separate-maximum": pooling.separate_maximum,
    "slice-windows": pooling.slice_windows,
    "convolve-average": pooling.convolve_tall_pool,
    "multiply-cumulative": pooling.sum_by_triangle,
    "copy-shared-bias": convolutions.copy_shared_bias,
    "multiply-single": convolutions.multiply_single,
    "lower-rank": ranks.lower_rank,
    "multiply-einsum": ranks.multiply_einsum,
    "repeat-by-expand": ranks.repeat_by_expand,
    "select-places": ranks.select_places,
    "softplus-by-series": activations.softplus_by_series,
    "split-prelu": activations.split_prelu,
    "exp-of-power": activations.exp_of_power,
    "raise-log-floor": activations.raise_log_floor,
    "name-gelu": activations.name_gelu,
    "separate-activation": activations.separate_activation,
    "separate-projections": attention.separate_projections,
    "mask-after-softmax": attention.mask_after_softmax,
    "mask-of-30": attention.raise_mask,
    "unroll-recurrent": recurrent.unroll_recurrent,
    "reach-rows": convolutions.lengthen_transposed_kernel,
    "spread-kernel": convolutions.spread_kernel,
    "surround-kernel": convolutions.surround_kernel,
    "widen-depthwise": convolutions.widen_depthwise_kernel,
}
