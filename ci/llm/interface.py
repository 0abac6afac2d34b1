"""The static interface of a lowered decoder: shapes, dtypes, and the constant methods that
upstream's C++ runner reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from ci.judging.figures import Array
from ci.llm.config import DecoderConfig

PREFILL, DECODE = "prefill_forward", "kv_forward"
MASKED = -255.0  # PADDING_MASK_VALUE of upstream's masking_utils.py


class Coding(Struct, frozen=True):
    """How a float tensor is encoded as integers of numpy's ``dtype`` in inputs or outputs."""

    scale: float
    zero_point: int
    dtype: str

    @property
    def bits(self) -> int:
        """Return the bits of an encoded element."""
        return int(np.iinfo(self.dtype).bits)

    def encode(self, values: Array) -> Array:
        """Return the nearest integers. Values out of range are clipped."""
        steps = np.rint(values / np.float32(self.scale)) + self.zero_point
        return np.clip(steps, 0, np.iinfo(self.dtype).max).astype(self.dtype)

    def decode(self, encoded: Array) -> Array:
        """Return the values of encoded integers as float32."""
        return (encoded.astype(np.float32) - self.zero_point) * np.float32(self.scale)

    def is_like(self, coding: Coding) -> bool:
        """Return whether this coding and ``coding`` decode each integer to the same value, within a
        tenth of a step."""
        if self.dtype != coding.dtype or self.zero_point != coding.zero_point:
            return False
        return abs(self.scale / coding.scale - 1) * 2**self.bits < 0.1  # at the largest integer


Codings = tuple[Coding | None, ...]  # of all inputs or outputs; None for floats and token ids


class Border(Struct, frozen=True):
    """The codings of a method's inputs and outputs."""

    inputs: Codings
    outputs: Codings


class Interface(Struct, frozen=True, kw_only=True):
    """The shapes of a decoder. Floating-point tensors are float32 here; a Border describes how a
    program encodes them."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int  # the number of columns of the mask
    prefill: int  # the tokens that prefill takes; decode takes one
    masked: float = MASKED  # the mask's value for positions that are not attended to
    empty: tuple[float, ...] = ()  # the value of unused positions for each cache; 0 if it is empty

    @classmethod
    def of(
        cls, config: DecoderConfig, context: int, prefill: int, masked: float = MASKED
    ) -> Interface:
        """Return the interface of a decoder that this project lowers."""
        return cls(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocabulary=config.vocabulary,
            context=context,
            prefill=prefill,
            masked=masked,
        )

    def time_axis(self, index: int) -> int:
        """Return the axis along which cache ``index`` grows. Keys come before values."""
        return 3 if index < self.layers else 2

    def empty_caches(self) -> list[Array]:
        """Return caches without tokens, for a whole context: the keys of all layers, then the
        values."""
        key, value = (self.head_dim, self.context), (self.context, self.head_dim)
        shapes = [key] * self.layers + [value] * self.layers
        pairs = zip(shapes, self.empty or [0.0] * len(shapes), strict=True)
        return [np.full((1, self.kv_heads, *shape), fill, np.float32) for shape, fill in pairs]


def describe_methods(
    config: DecoderConfig, context: int, bos: int, eos: int, border: Border | None
) -> Mapping[str, Any]:
    """Return the values of upstream's constant methods (see get_metadata in static_llama.py).
    ``border`` is the Border of the decode method of a quantized program, otherwise None."""
    logits, cache = border.outputs[:2] if border else (None, None)
    quantized = (
        {"get_logits_scale": logits.scale, "get_logits_zero_point": logits.zero_point}
        if logits
        else {}
    )
    return {
        "get_ar_len": 1,
        "get_bos_id": bos,
        "get_eos_id": eos,
        "get_dim": config.dim,
        "get_head_dim": config.head_dim,
        "get_max_batch_size": 1,
        "get_max_seq_len": context,
        "get_max_context_len": context,
        "get_n_bos": 1,
        "get_n_eos": 1,
        "get_n_kv_heads": config.kv_heads,
        "get_n_layers": config.layers,
        "get_vocab_size": config.vocabulary,
        "get_use_kv_cache": True,
        "get_kv_io_bit_width": cache.bits if cache else 32,
        **quantized,
    }
