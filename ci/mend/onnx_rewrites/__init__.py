"""Rewrites of ONNX models, each the same function in operators that QNN takes and computes right.
manifests/policies/rewrites.toml says where each one helps. Nothing here imports torch."""

from __future__ import annotations

from ci.mend.onnx_rewrites import elements, functions, images, masks, norms, products, ranks
from ci.mend.rewrite import OnnxRewrite

REWRITES: dict[str, OnnxRewrite] = {
    "inline-functions": functions.inline_functions,
    "lower-rank": ranks.lower_rank,
    "write-rms-norm": norms.write_rms_norm,
    "divide-by-root": norms.divide_by_root,
    "root-of-squares": norms.write_root_of_squares,
    "group-by-instance": norms.group_by_instance,
    "softplus-below-zero": elements.softplus_below_zero,
    "scale-batch-norm": norms.scale_batch_norm,
    "flatten-layer-norm": norms.flatten_layer_norm,
    "flatten-instance-norm": norms.flatten_instance_norm,
    "expand-constant": norms.expand_constant,
    "convolve-average": images.convolve_average,
    "widen-depthwise": images.widen_depthwise,
    "gather-maximum": images.gather_maximum,
    "reach-rows": images.reach_rows,
    "concatenate-padding": elements.concatenate_padding,
    "resize-flat": images.resize_flat,
    "fold-gemm": products.fold_gemm,
    "multiply-single": products.multiply_single,
    "multiply-cumulative": products.multiply_cumulative,
    "multiply-einsum": products.multiply_einsum,
    "unroll-rnn": products.unroll_recurrence,
    "limit-before-tanh": elements.limit_before_tanh,
    "skip-neutral": elements.skip_neutral,
    "split-prelu": elements.split_prelu,
    "exp-of-power": elements.exponential_of_power,
    "mish-by-sigmoid": elements.mish_of_sigmoid,
    "join-gelu": elements.join_gelu,
    "softplus-by-log": elements.softplus_of_relu,
    "scale-log-floor": elements.scale_log_floor,
    "mask-after-softmax": masks.mask_after_softmax,
    "mask-of-30": masks.lower_mask,
}
