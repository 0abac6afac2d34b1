"""How decoders are quantized: one recipe per scheme, based on upstream's recipes for Llama
(examples/qualcomm/oss_scripts/llama/static_llm_quant_recipe.py)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ci.llm.interface import MASKED
from ci.models.lowering_options import Part
from ci.models.schemes import Scheme


class LlmRecipe(Struct, frozen=True):
    """A recipe. ``cache_bits`` is the number of bits of cached keys and values. If it is 8 and
    activations have 16 bits, upstream's annotate_kv_8bit is used. ``head`` is the output layer's
    scheme, if it differs from the other layers'. ``masked`` is the mask's value for positions that
    are not attended to.

    Upstream's ``masked`` is -255. With this value, an 8-bit mask has a step of 1, which is too
    coarse for scores of about 10. But with -20, the unused positions of the caches would not be
    hidden: in upstream's runner, they contain zero bytes, which encode the lowest values.
    """

    cache_bits: int = 16
    head: Scheme | None = None
    masked: float = MASKED

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the model that ExecuTorch's quantizer treats differently: the output
        layer, if its scheme differs."""
        return (Part(self.head, module="output"),) if self.head else ()


# Of stories260k in 8a8w, the quantized model has 10.6 dB against float32 with a mask of -20, 24.1
# dB with -30 and 24.4 dB with -40. Its output layer has 16-bit activations, as upstream's.
RECIPES: Mapping[Scheme, LlmRecipe] = {
    Scheme.FP16: LlmRecipe(),
    Scheme.A8W8: LlmRecipe(cache_bits=8, head=Scheme.A16W8, masked=-40.0),
    Scheme.A16W8: LlmRecipe(cache_bits=8),
    Scheme.A16W4: LlmRecipe(cache_bits=8, head=Scheme.A16W8),
    Scheme.A16W4_BLOCK: LlmRecipe(cache_bits=8, head=Scheme.A16W8),
}
DEFAULT = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8, Scheme.A16W4)
