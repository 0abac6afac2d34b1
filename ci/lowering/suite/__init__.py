"""The models that are lowered by default, in plain torch, one module each.

Each module has ``make_case() -> (module, example_inputs, calibration_inputs)``. All are seeded
and scaled so that outputs are far from zero, since an output near zero proves nothing.
"""

from __future__ import annotations

SUITE: dict[str, str] = {
    "mlp": "multi-layer perceptron",
    "resnet": "residual convolutions",
    "mobilenet": "depthwise-separable convolutions",
    "deeplab": "dilated-convolution segmentation head with upsampling",
    "transformer": "encoder block: attention, LayerNorm, tanh GELU",
    "decoder": "decoder step: embedding, rotary embedding, static KV cache",
    "superres": "super-resolution with pixel shuffle",
    "lstm": "recurrent net",
}
