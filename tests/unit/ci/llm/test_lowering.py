"""From a decoder's weights to its program: what decides, what calibrates and what is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ci.cases.spec import CaseSpec
from ci.llm.decoder import make_decoder
from ci.llm.interface import Interface
from ci.llm.lowering import (
    DecoderLowering,
    LlmEngine,
    Subject,
)
from ci.llm.recipes import RECIPES
from ci.models.schemes import Scheme
from provisioning.errors import FailedError
from tests.unit.ci.llm.decoders import CONTEXT, PLACE, Tiny
from tests.unit.ci.llm.decoders import PREFILL as SIZE

NOTHING: Any = None
SUBJECT = Subject(PLACE / "weights.bin", ((1, 5), (1, 6)), 40, CONTEXT, SIZE, 1, 2)


def make_spec(scheme: Scheme = Scheme.FP16) -> CaseSpec:
    return CaseSpec("tiny", scheme, "SM8650")


def make(scheme: Scheme = Scheme.FP16, **changes: Any) -> DecoderLowering:
    return DecoderLowering(replace(SUBJECT, **changes), make_spec(scheme), NOTHING)


@pytest.fixture
def decoder(tiny_model: Tiny) -> Any:
    return make_decoder(tiny_model.config, tiny_model.weights, CONTEXT)


# -- the engine -----------------------------------------------------------------------------------


def test_every_setting_of_an_llm_program_changes_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LlmEngine(("torch 1", "qnn 2"), SUBJECT)
    spec = make_spec(Scheme.A16W8)
    pairs = [
        (engine, spec),
        (replace(engine, toolchain=("torch 1", "qnn 3")), spec),
        (replace(engine, plain=True), spec),
        (replace(engine, subject=replace(SUBJECT, tokens=41)), spec),
        (engine, replace(spec, soc="SM8750")),
        *(
            (engine, replace(spec, scheme=scheme))
            for scheme in RECIPES
            if scheme is not spec.scheme
        ),
    ]
    keys = [changed_engine.key(case) for changed_engine, case in pairs]
    assert engine.key(spec) == keys[0]
    recipe = structs.replace(RECIPES[spec.scheme], masked=-20.0)
    for name, value in (
        ("ci.llm.lowering.NUMERICS", "computed otherwise"),
        ("ci.llm.lowering.name_instructions", lambda: "another processor"),
        ("ci.llm.lowering.digest_rooms", "".join),
        ("ci.llm.lowering.RECIPES", {spec.scheme: recipe}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            keys.append(engine.key(spec))
    assert len(set(keys)) == len(keys) == 13


# -- calibration ----------------------------------------------------------------------------------


def test_both_methods_process_the_texts_of_all_prompts(tiny_model: Tiny, decoder: Any) -> None:
    """Prefill runs in whole calls; each input is recorded as it was in its call."""
    prompts = (tiny_model.runs.prompt, tiny_model.tokenizer.prompt("The"))
    recorded = make(prompts=prompts).collect_inputs(decoder, tiny_model.interface)
    assert set(recorded) == {1, SIZE}
    alone = [call[0].ravel().tolist() for call in recorded[1]]
    together = [call[0].ravel().tolist() for call in recorded[SIZE]]
    assert {len(call_tokens) for call_tokens in together} == {SIZE}
    tokens = [token for call_tokens in alone for token in call_tokens]
    assert tokens == [token for call_tokens in together for token in call_tokens]
    starts = [n for n, call in enumerate(recorded[SIZE]) if call[2][0, 0] == 0]
    assert len(starts) == 2
    for start, prompt in zip(starts, prompts, strict=True):
        count = min(len(prompt), SIZE)
        assert together[start][:count] == [*prompt[:count]]
        assert not any(cache.any() for cache in recorded[SIZE][start][3:])  # no text is cached yet
    filled = recorded[SIZE][starts[0] + 1]
    assert filled[2].ravel().tolist() == [*range(SIZE, 2 * SIZE)]
    assert all(cache.any() for cache in filled[3:])
    text_tokens = [*tiny_model.runs.prompt, *tiny_model.runs.model.run.tokens]
    assert tokens[: starts[1] * SIZE] == text_tokens[: (len(text_tokens) - 1) // SIZE * SIZE]


def test_a_text_ends_where_the_context_has_room_for_no_more_calls(
    tiny_model: Tiny, decoder: Any
) -> None:
    interface = Interface.of(tiny_model.config, 20, SIZE)  # room for two calls of prefill
    small = make_decoder(tiny_model.config, tiny_model.weights, 20)
    endless = make(prompts=(tiny_model.runs.prompt,), context=20, eos=-1)
    recorded = endless.collect_inputs(small, interface)
    assert [len(recorded[size]) for size in (1, SIZE)] == [2 * SIZE, 2]
    short = make(prompts=(tiny_model.runs.prompt[:2],), eos=7)
    with pytest.raises(FailedError, match="text is shorter than one prefill: 2 tokens") as caught:
        short.collect_inputs(always_choose(decoder, 7), tiny_model.interface)
    assert f"at least {SIZE}" in caught.value.what
    assert caught.value.fix == "use a longer prompt, or a smaller --prefill"
    longer = make(prompts=(tiny_model.runs.prompt[:SIZE],), eos=7)
    recorded = longer.collect_inputs(always_choose(decoder, 7), tiny_model.interface)
    assert len(recorded[SIZE]) > 0
    fewer = make(prompts=(tiny_model.runs.prompt[:2],), eos=7, prefill=2)
    small_calls = Interface.of(tiny_model.config, tiny_model.interface.context, 2)
    assert len(fewer.collect_inputs(always_choose(decoder, 7), small_calls)[2]) > 0


def always_choose(decoder: Any, token: int) -> Any:
    """The decoder, with this token as the most likely one."""

    def run(*inputs: Any) -> Any:
        logits, *caches = decoder(*inputs)
        logits[..., token] = 1e3
        return logits, *caches

    return run


# -- references and the program -------------------------------------------------------------------
