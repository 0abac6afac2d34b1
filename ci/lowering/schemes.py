"""Quantization schemes, a row each: bits of activations, bits of weights, how they are lowered."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Recipe(Struct, frozen=True):
    """How a scheme is lowered.

    ``dtype`` is the member of ExecuTorch's QuantDtype, empty for float16; ``activation_bits`` are
    those of a float16's significand there. ``block`` input channels share a scale, 0 for one
    scale an output channel. ``linear_as_convolution`` lowers linear layers as 1x1 convolutions.
    """

    dtype: str = ""
    activation_bits: int = 11
    block: int = 0
    linear_as_convolution: bool = False


FLOAT16 = Recipe()


class Scheme(str, Enum):
    """A name and its recipe."""

    recipe: Recipe
    _value_: str

    FP16 = "fp16"
    A8W8 = "8a8w", Recipe("use_8a8w", 8)
    A16W8 = "16a8w", Recipe("use_16a8w", 16)
    A16W16 = "16a16w", Recipe("use_16a16w", 16)
    A16W4 = "16a4w", Recipe("use_16a4w", 16)
    # Measured with QNN 2.49.40: a block-quantized linear layer of more than 64 outputs computes
    # something else (SQNR 3 dB), the same layer as a convolution does not.
    A16W4_BLOCK = "16a4w_block", Recipe("use_16a4w_block", 16, block=32, linear_as_convolution=True)

    def __new__(cls, name: str, recipe: Recipe = FLOAT16) -> Scheme:  # noqa: PYI034 - Python 3.10
        member = str.__new__(cls, name)
        member._value_ = name
        member.recipe = recipe
        return member

    @property
    def quantized(self) -> bool:
        return bool(self.recipe.dtype)


# For a model of the user's, when no scheme is asked for.
DEFAULT_SCHEMES = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8)
