"""How decoders are quantized, a row per scheme, after upstream's recipes for Llama
(examples/qualcomm/oss_scripts/llama/static_llm_quant_recipe.py)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ci.llm.interface import MASKED
from ci.models.lowering_options import Part
from ci.models.schemes import Scheme


class LlmRecipe(Struct, frozen=True):
    """``cache_bits`` are those of keys and values in the caches: with 8 next to 16-bit activations
    upstream's annotate_kv_8bit is used. ``head`` is the scheme of the output layer, if it has its
    own. ``masked`` is what a mask has where nothing is attended: upstream's -255 next to scores of
    about 10 would leave 8 bits a step of 1, and -20 would not hide what upstream's runner has in
    empty caches, bytes of 0, which are their least values."""

    cache_bits: int = 16
    head: Scheme | None = None
    masked: float = MASKED

    @property
    def parts(self) -> tuple[Part, ...]:
        """What ExecuTorch's quantizer is given for the output layer."""
        return (Part(self.head, module="output"),) if self.head else ()


RECIPES: Mapping[Scheme, LlmRecipe] = {
    Scheme.FP16: LlmRecipe(),
    Scheme.A8W8: LlmRecipe(cache_bits=8, head=Scheme.A16W8, masked=-40.0),
    Scheme.A16W8: LlmRecipe(cache_bits=8),
    Scheme.A16W4: LlmRecipe(cache_bits=8, head=Scheme.A16W8),
    Scheme.A16W4_BLOCK: LlmRecipe(cache_bits=8, head=Scheme.A16W8),
}
DEFAULT = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8, Scheme.A16W4)
