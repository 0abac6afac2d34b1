"""The dimensions of a Llama-like decoder, and the rotation angles of its positions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from provisioning.errors import UsageError

MOST_LAYERS, MOST_SIZE = 1000, 1 << 24


class RopeScaling(Struct, frozen=True, forbid_unknown_fields=True):
    """The RoPE scaling of Llama 3.1 and later. The fields have the same names as in Hugging Face's
    config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scale(self, frequency: float) -> float:
        """Return the scaled frequency (see modeling_rope_utils.py in transformers)."""
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - share) * frequency / self.factor + share * frequency


class DecoderConfig(Struct, frozen=True, kw_only=True):
    """The dimensions of a decoder. ``most_context`` is the length in tokens of the longest text
    that the decoder supports. ``tied`` is true if the output layer shares the weights of the
    embedding."""

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
    rope_scaling: RopeScaling | None = None
    tied: bool = True

    def require_shape(self, name: str) -> None:
        """Raise UsageError for dimensions that a Llama cannot have. ``name`` is the name of the
        file with the dimensions."""
        for why in self._find_faults():
            raise UsageError(f"{name} is not a Llama that is supported here", why=why)

    def _find_faults(self) -> Iterator[str]:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                most = MOST_LAYERS if field == "layers" else MOST_SIZE
                if not 0 < value <= most:
                    yield f"{field} is {value}; it must be above 0 and at most {most}"
        if self.heads % self.kv_heads:
            yield f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}"
        if self.head_dim % 2:
            yield f"head_dim = {self.head_dim} is odd, but RoPE rotates pairs of values"

    def frequencies(self) -> list[float]:
        """Return, for each pair of values in a head, the angle in radians by which the pair rotates
        per position."""
        plain = [self.rope_base ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        return [self.rope_scaling.scale(one) for one in plain] if self.rope_scaling else plain
