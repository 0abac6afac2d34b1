"""The dimensions of a decoder of the Llama kind, and the rotation angles of its positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from provisioning.errors import UsageError

Positive = Annotated[int, Meta(ge=1)]
Factor = Annotated[float, Meta(gt=0)]
MOST_LAYERS, MOST_SIZE = 1000, 1 << 24


class RopeScaling(Struct, frozen=True, forbid_unknown_fields=True):
    """The RoPE scaling of Llama 3.1 and later. The fields have the same names as in Hugging Face's
    config.json. Raises ValueError if ``high_freq_factor`` is not above ``low_freq_factor``."""

    factor: Factor
    low_freq_factor: Factor
    high_freq_factor: Factor
    original_max_position_embeddings: Positive

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor is not above low_freq_factor")

    def scale(self, frequency: float) -> float:
        """Return the scaled frequency (see modeling_rope_utils.py in transformers)."""
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - share) * frequency / self.factor + share * frequency

    def apply(self, plain: Rope) -> Rope:
        """Return the frequencies after scaling."""
        return Rope(tuple(map(self.scale, plain.frequencies)))


class RopeFactors(Struct, frozen=True):
    """A scaling that divides the frequency of each pair by a factor, and multiplies sine and cosine
    by ``gain``: Hugging Face's ``linear``, or ``longrope`` up to the length of the original
    training."""

    factors: tuple[float, ...]
    gain: float = 1.0

    def apply(self, plain: Rope) -> Rope:
        """Raises ValueError if the number of factors is not the number of pairs."""
        pairs = zip(plain.frequencies, self.factors, strict=True)
        return Rope(tuple(frequency / factor for frequency, factor in pairs), self.gain)


class Rope(Struct, frozen=True):
    """How positions rotate the queries and keys of a layer: the angle in radians by which each pair
    of values rotates per position, and a factor for sine and cosine. Without frequencies, nothing
    rotates. Values of a head that belong to no pair stay as they are."""

    frequencies: tuple[float, ...]
    gain: float = 1.0


class DecoderConfig(Struct, frozen=True, kw_only=True):
    """The dimensions of a decoder. ``most_context`` is the length in tokens of the longest text
    that the decoder supports. ``tied`` is true if the output layer shares the weights of the
    embedding.

    The other fields describe what distinguishes other decoders from a Llama. Factors, such as
    Granite's or the 1 that Gemma adds to the weights of norms, are no fields, because they are
    part of the weights here.
    """

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    most_context: int
    head_dim: int
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | RopeFactors | None = None
    tied: bool = True
    rotated: int | None = None  # the number of values of a head that RoPE rotates, if not all
    unrotated: tuple[int, ...] = ()  # layers without RoPE
    local: tuple[int, ...] = ()  # layers with ``local_rope_base`` and without scaling
    local_rope_base: float = 10000.0
    biases: tuple[str, ...] = ()  # the linear layers of attention that have a bias
    query_key_norm: bool = False  # each head of queries and keys is normalized before RoPE
    post_norms: bool = False  # what attention and feed-forward return is normalized
    gelu: bool = False  # the feed-forward layer has the tanh form of GELU instead of SiLU
    score_cap: float | None = None  # scores are cap * tanh(scores / cap)
    logit_cap: float | None = None

    def require_shape(self, name: str) -> None:
        """Raise UsageError for dimensions that a decoder cannot have. ``name`` is the name of the
        file with the dimensions."""
        for why in self._find_faults():
            raise UsageError(f"{name} is not a decoder that is supported here", why=why)

    def _find_faults(self) -> Iterator[str]:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                most = MOST_LAYERS if field == "layers" else MOST_SIZE
                if not 0 < value <= most:
                    yield f"{field} is {value}; it must be above 0 and at most {most}"
        if self.heads % self.kv_heads:
            yield f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}"
        if (self.rotated or self.head_dim) % 2:
            yield f"RoPE would rotate {self.rotated or self.head_dim} values, but it needs pairs"
        if (self.rotated or 0) > self.head_dim:
            yield f"RoPE would rotate {self.rotated} values of a head with {self.head_dim}"

    def rope(self, layer: int) -> Rope:
        """Return how positions rotate the queries and keys of a layer."""
        if layer in self.unrotated:
            return Rope(())
        width, local = self.rotated or self.head_dim, layer in self.local
        base = self.local_rope_base if local else self.rope_base
        plain = Rope(tuple(base ** (-2 * i / width) for i in range(width // 2)))
        return plain if local or not self.rope_scaling else self.rope_scaling.apply(plain)
