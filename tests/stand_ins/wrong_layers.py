"""A worker that imports this lowers a decoder with a fault in one layer, but its reference runs are
those of the right decoder. The environment variable FAULT names the fault and the layer, such as
``heads:1``: one of FAULTS, or a norm whose weights are then in reverse order.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ci.cases.cache import hash_words
from ci.executorch.lower import Lowering
from ci.llm import decoder as decoders
from ci.llm.lowering import DecoderLowering, LlmEngine

FAULT = "QNN_CI_TEST_WRONG_LAYER"
KIND, _, NUMBER = os.environ[FAULT].partition(":")
quantize, compile_right, key = DecoderLowering.quantize, Lowering.compile, LlmEngine.key
make_right, attend = decoders.make_decoder, decoders.Attention.forward
SIZES = (1, 8)  # the tokens that decode and prefill take
wrong: dict[int, Any] = {}


def swap_heads(layer: Any, name: str) -> None:
    """Put the first two heads in each other's place."""
    size = layer.attention.config.head_dim
    weight = layer.attention.get_submodule(name).conv.weight.data
    weight[: 2 * size] = weight[: 2 * size].roll(size, 0)


def swap_halves(layer: Any) -> None:
    """Put the halves of the values that RoPE rotates in each other's place, in all key heads."""
    config = layer.attention.config
    heads = layer.attention.wk.conv.weight.data.view(config.kv_heads, config.head_dim, -1)
    heads[:] = heads.roll(config.head_dim // 2, 1)


def rotate_further(layer: Any) -> None:
    """Rotate the keys by the angles of one more position."""
    config = layer.attention.config
    angles = torch.tensor(config.rope(int(NUMBER)).frequencies)[:, None]
    heads = layer.attention.wk.conv.weight.data.view(config.kv_heads, config.head_dim, -1)
    first, second = heads.clone().chunk(2, dim=1)
    heads[:] = torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            first * angles.sin() + second * angles.cos(),
        ],
        dim=1,
    )


def swap_gate(layer: Any) -> None:
    feed_forward = layer.feed_forward
    gate = feed_forward.w1.conv.weight.data.clone()
    feed_forward.w1.conv.weight.data[:] = feed_forward.w3.conv.weight.data
    feed_forward.w3.conv.weight.data[:] = gate


def forget_one(layer: Any) -> None:
    """Subtract 1 from the weights of the first norm, as if the 1 of Gemma's were forgotten."""
    layer.attention_norm.weight.data -= 1


def see_next(layer: Any) -> None:
    """Let each token attend to the one behind it: in prefill to the next token, in decode to an
    entry of the cache that is empty until the end."""
    for size in SIZES:
        mask = layer.attention.get_buffer(f"seen{size}")
        for row in range(size):
            mask[..., row, row + 1 - size] = 0
        mask[..., -1, -size - 1] = 0


def write_no_row(layer: Any) -> None:
    """Return zeros as the key of the first token of each call of prefill."""
    layer.attention.get_buffer(f"written{SIZES[1]}")[..., 0] = 0


FAULTS: Mapping[str, Callable[[Any], None]] = {
    "heads": lambda layer: swap_heads(layer, "wk"),
    "query_heads": lambda layer: swap_heads(layer, "wq"),
    "value_heads": lambda layer: swap_heads(layer, "wv"),
    "halves": swap_halves,
    "position": rotate_further,
    "gate": swap_gate,
    "offset": forget_one,
    "zero_norm": lambda layer: layer.ffn_norm.weight.data.zero_(),
    "mask": see_next,
    "row": write_no_row,
}


def make_prepared(config: Any, weights: Any, context: int) -> Any:
    """Return a decoder with constants that are 1 in one layer, and can be 0 in a wrong one."""
    decoder = make_right(config, weights, context)
    if KIND in {"mask", "row"}:
        attention = decoder.layers[int(NUMBER)].attention
        for size in SIZES:
            attention.register_buffer(f"seen{size}", torch.ones(1, 1, size, context))
            attention.register_buffer(f"written{size}", torch.ones(1, 1, 1, size))
    return decoder


def attend_prepared(self: Any, x: Any, turns: Any, mask: Any, past: Any) -> Any:
    buffers, size = dict(self.named_buffers()), x.shape[1]
    if not buffers:
        return attend(self, x, turns, mask, past)
    output, k, v = attend(self, x, turns, mask * buffers[f"seen{size}"], past)
    return output, k * buffers[f"written{size}"], v


def spoil(decoder: Any) -> Any:
    """Return a copy of a decoder with the fault."""
    spoilt = copy.deepcopy(decoder)
    layer = spoilt.layers[int(NUMBER)]
    if KIND in FAULTS:
        FAULTS[KIND](layer)
    else:
        weight = layer.get_submodule(KIND).weight.data
        weight[:] = weight.flip(0)
    return spoilt


def quantize_both(self: DecoderLowering, decoder: Any, sets: Any) -> dict[int, Any]:
    wrong.update(quantize(self, spoil(decoder), sets))
    return quantize(self, decoder, sets)


def compile_wrong(self: Lowering, joined: Any, choices: Any) -> Any:
    for part, size in zip(joined.parts, sorted(wrong, reverse=True), strict=True):  # prefill first
        part.load_state_dict(wrong[size].state_dict())
    return compile_right(self, joined, choices)


LlmEngine.key = lambda *arguments: hash_words(key(*arguments), os.environ[FAULT])  # type: ignore[method-assign]
DecoderLowering.quantize = quantize_both  # type: ignore[method-assign]
Lowering.compile = compile_wrong  # type: ignore[method-assign]
decoders.make_decoder = make_prepared
decoders.Attention.forward = attend_prepared  # type: ignore[method-assign]
