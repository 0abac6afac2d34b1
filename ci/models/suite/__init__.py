"""The models that are lowered by default, written in plain torch, one per module.

Each module has ``make_case() -> (module, example_inputs, calibration_inputs)``. All models are
seeded and scaled so that their outputs are far from zero, because an output near zero proves
nothing.
"""

from __future__ import annotations

DEFAULT_SOC = "SM8650"  # for which models are lowered unless the user selects another
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
# The models of test_litert are .tflite files that ci.litert.suite writes.
LITERT_SUITE: dict[str, str] = {
    "dense": "linear layers in float",
    "convolution": "convolutions in float, with a mean over the image",
    "convolution_int8": "the same, quantized to int8",
    "dense_int16": "linear layers with activations of int16",
    "signatures": "two signatures: an encoder and a decoder",
    "cpu_middle": "an operator between layers that stays on the CPU",
    "transformer": "encoder block: attention, norms as their arithmetic, tanh GELU",
}
OWN_MODELS = {**SUITE, **LITERT_SUITE}

# Seconds to lower a quantized model on two cores. The longest cases start first.
LOWER_S = {
    "lstm": 10.0,
    "decoder": 9.0,
    "transformer": 6.0,
    "superres": 4.0,
    "deeplab": 3.0,
    "resnet": 2.0,
    "mlp": 1.5,
    "mobilenet": 1.5,
}
FP16_SHARE = 0.35
UNKNOWN_S = 30.0  # for a user's model: longer than any of the suite, so that it starts first


def expect_s(model: str, scheme: str) -> float:
    """Return the expected time to lower a case, in seconds on two cores."""
    share = FP16_SHARE if scheme == "fp16" else 1.0
    return LOWER_S[model] * share if model in LOWER_S else UNKNOWN_S
