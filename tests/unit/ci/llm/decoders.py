"""What tests of decoders share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ci.llm import tiny
from ci.llm.config import DecoderConfig
from ci.llm.generation import Generated, Loop, Step, eager_step, run_forced, run_free
from ci.llm.interface import Interface
from ci.llm.lowering import ReferenceRuns
from ci.llm.tokenizers import Tokenizer

PLACE = Path(tiny.__file__).parent
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 57,
    "max_position_embeddings": 128,
}
CONTEXT, PREFILL = 64, 8


@dataclass(frozen=True)
class Tiny:
    """The decoder's sizes and weights, and what its programs are judged by."""

    config: DecoderConfig
    weights: Mapping[str, Any]
    interface: Interface
    runs: ReferenceRuns
    tokenizer: Tokenizer

    def step(self, decoder: Any) -> Step:
        return eager_step({1: decoder, PREFILL: decoder})

    def generate(self, decoder: Any) -> Generated:
        return run_free(Loop(self.interface, self.step(decoder)), self.runs.prompt, 40, (2,))

    def force(self, step: Step) -> Generated:
        text_tokens = self.runs.model.run.fed[len(self.runs.prompt) :]
        return run_forced(Loop(self.interface, step), self.runs.prompt, text_tokens)


def example_inputs(config: DecoderConfig, context: int, count: int) -> tuple[Tensor, ...]:
    """Return inputs of the shapes that a method for ``count`` tokens takes."""
    left = context - count
    key, value = (config.head_dim, left), (left, config.head_dim)
    shapes = [key] * config.layers + [value] * config.layers
    return (
        torch.zeros((1, count), dtype=torch.int32),
        torch.zeros((1, 1, count, context)),
        torch.arange(count, dtype=torch.int32)[None],
        *(torch.zeros((1, config.kv_heads, *shape)) for shape in shapes),
    )
