"""Quantization schemes by name: bits of activations, bits of weights."""

from __future__ import annotations

from enum import Enum


class Scheme(str, Enum):
    """``16a4w_block`` has one scale a block of input channels, the others one an output channel."""

    FP16 = "fp16"
    A8W8 = "8a8w"
    A16W8 = "16a8w"
    A16W16 = "16a16w"
    A16W4 = "16a4w"
    A16W4_BLOCK = "16a4w_block"

    @property
    def quantized(self) -> bool:
        return self is not Scheme.FP16

    @property
    def qualcomm_name(self) -> str:
        """The member of ExecuTorch's QuantDtype."""
        return f"use_{self.value}"

    @property
    def activation_bits(self) -> int:
        """Bits of an activation; of a float16's significand."""
        return int(self.value.partition("a")[0]) if self.quantized else 11
