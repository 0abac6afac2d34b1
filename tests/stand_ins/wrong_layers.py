"""A worker that imports this lowers a decoder with a fault in one layer, but its reference runs are
those of the right decoder. The environment variable FAULT names the fault and the layer:

- ``heads:1``: the first two key heads of layer 1 are in each other's place.
- ``attention_norm:1``: the weights of this norm are in reverse order. Other norms are possible.
"""

from __future__ import annotations

import copy
import os
from typing import Any

from ci.cases.cache import hash_words
from ci.executorch.lower import Lowering
from ci.llm.lowering import DecoderLowering, LlmEngine

FAULT = "QNN_CI_TEST_WRONG_LAYER"
quantize, compile_right, key = DecoderLowering.quantize, Lowering.compile, LlmEngine.key
wrong: dict[int, Any] = {}


def spoil(decoder: Any) -> Any:
    """Return a copy of a decoder with the fault."""
    spoilt = copy.deepcopy(decoder)
    kind, _, number = os.environ[FAULT].partition(":")
    layer = spoilt.layers[int(number)]
    if kind == "heads":
        weight, size = layer.attention.wk.conv.weight.data, decoder.config.head_dim
        weight[: 2 * size] = weight[: 2 * size].roll(size, 0)
    else:
        weight = layer.get_submodule(kind).weight.data
        weight[:] = weight.flip(0)
    return spoilt


def quantize_both(self: DecoderLowering, decoder: Any, sets: Any) -> dict[int, Any]:
    wrong.update(quantize(self, spoil(decoder), sets))
    return quantize(self, decoder, sets)


def compile_wrong(self: Lowering, joined: Any, choices: Any) -> Any:
    for part, size in zip(joined.parts, sorted(wrong, reverse=True), strict=True):  # prefill first
        part.load_state_dict(wrong[size].state_dict())
    return compile_right(self, joined, choices)


LlmEngine.key = lambda *given: hash_words(key(*given), os.environ[FAULT])  # type: ignore[method-assign]
DecoderLowering.quantize = quantize_both  # type: ignore[method-assign]
Lowering.compile = compile_wrong  # type: ignore[method-assign]
