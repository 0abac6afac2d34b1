"""A worker that imports this lowers a decoder in which two key heads of the layer LAYER are in each
other's place. Its reference runs are those of the right decoder."""

from __future__ import annotations

import copy
from typing import Any

from ci.cases.cache import hash_words
from ci.executorch.lower import Lowering
from ci.llm.lowering import DecoderLowering, LlmEngine

LAYER = 1
quantize, compile_right, key = DecoderLowering.quantize, Lowering.compile, LlmEngine.key
wrong: dict[int, Any] = {}


def quantize_both(self: DecoderLowering, decoder: Any, sets: Any) -> dict[int, Any]:
    import torch

    spoilt = copy.deepcopy(decoder)
    weight = spoilt.layers[LAYER].attention.wk.conv.weight
    size = decoder.config.head_dim
    with torch.no_grad():
        weight[: 2 * size] = torch.cat([weight[size : 2 * size], weight[:size]])
    wrong.update(quantize(self, spoilt, sets))
    return quantize(self, decoder, sets)


def compile_wrong(self: Lowering, joined: Any, choices: Any) -> Any:
    for part, size in zip(joined.parts, sorted(wrong, reverse=True), strict=True):  # prefill first
        part.load_state_dict(wrong[size].state_dict())
    return compile_right(self, joined, choices)


LlmEngine.key = lambda *given: hash_words(key(*given), "swapped")  # type: ignore[method-assign]
DecoderLowering.quantize = quantize_both  # type: ignore[method-assign]
Lowering.compile = compile_wrong  # type: ignore[method-assign]
