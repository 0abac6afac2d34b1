"""The decoder of ours, and the runs that a program of it is judged by."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

import torch

from ci.llm import tiny
from ci.llm.decoder import make_decoder
from ci.llm.generation import Loop, eager_step, run_decode, run_forced, run_free
from ci.llm.interface import Interface
from ci.llm.lowering import ReferenceRuns
from ci.llm.tokenizers import read_tokenizer
from ci.llm.verdict import Reference
from ci.llm.weights import read_weights
from tests.unit.ci.llm.decoders import CONTEXT, PLACE, PREFILL, Tiny


@pytest.fixture(scope="session")
def tiny_model() -> Tiny:
    """The noise is that of weights in bfloat16, about as loud as float16's on the emulator."""
    torch.set_num_threads(1)  # threads that wait for each other stand still on a busy machine
    tokenizer = read_tokenizer(PLACE / "tokenizer.bin")
    config, weights = read_weights(PLACE / "weights.bin")
    prompt = tokenizer.prompt(tiny.PROMPTS[0])
    interface = Interface.of(config, CONTEXT, PREFILL)
    rounded = {name: tensor.bfloat16().float() for name, tensor in weights.items()}
    plain, noisy = (
        eager_step(dict.fromkeys((1, PREFILL), make_decoder(config, tensors, CONTEXT)))
        for tensors in (weights, rounded)
    )
    free = run_free(Loop(interface, plain), prompt, 40, (tokenizer.eos,))
    alone = run_decode(Loop(interface, plain), free.fed[: len(prompt) + 2])
    noisy_run = run_forced(Loop(interface, noisy), prompt, free.fed[len(prompt) :])
    noisy_decode = run_decode(Loop(interface, noisy), alone.fed)
    runs = ReferenceRuns(
        interface,
        prompt,
        Reference.of(free, [noisy_run]),
        Reference.of(alone, [noisy_decode]),
        free.logits,
        free.tokens,
    )
    return Tiny(config, weights, interface, runs, tokenizer)
