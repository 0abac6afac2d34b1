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
def decoder(own: Tiny) -> Any:
    return make_decoder(own.config, own.weights, CONTEXT)


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
        *((engine, replace(spec, scheme=one)) for one in RECIPES if one is not spec.scheme),
    ]
    keys = [one.key(case) for one, case in pairs]
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


def test_both_methods_process_the_texts_of_all_prompts(own: Tiny, decoder: Any) -> None:
    """Prefill runs in whole calls; each input is recorded as it was in its call."""
    prompts = (own.runs.prompt, own.tokenizer.prompt("The"))
    found = make(prompts=prompts).collect_inputs(decoder, own.interface)
    assert set(found) == {1, SIZE}
    alone, together = ([one[0].ravel().tolist() for one in found[size]] for size in (1, SIZE))
    assert {len(one) for one in together} == {SIZE}
    tokens = [token for one in alone for token in one]
    assert tokens == [token for one in together for token in one]
    starts = [n for n, one in enumerate(found[SIZE]) if one[2][0, 0] == 0]
    assert len(starts) == 2
    for start, prompt in zip(starts, prompts, strict=True):
        count = min(len(prompt), SIZE)
        assert together[start][:count] == [*prompt[:count]]
        assert not any(one.any() for one in found[SIZE][start][3:])  # no text is cached yet
    filled = found[SIZE][starts[0] + 1]
    assert filled[2].ravel().tolist() == [*range(SIZE, 2 * SIZE)]
    assert all(one.any() for one in filled[3:])
    whole = [*own.runs.prompt, *own.runs.model.run.tokens]
    assert tokens[: starts[1] * SIZE] == whole[: (len(whole) - 1) // SIZE * SIZE]


def test_a_text_ends_where_the_context_has_room_for_no_more_calls(own: Tiny, decoder: Any) -> None:
    interface = Interface.of(own.config, 20, SIZE)  # room for two calls of prefill
    small = make_decoder(own.config, own.weights, 20)
    endless = make(prompts=(own.runs.prompt,), context=20, eos=-1)
    found = endless.collect_inputs(small, interface)
    assert [len(found[size]) for size in (1, SIZE)] == [2 * SIZE, 2]
    short = make(prompts=(own.runs.prompt[:2],), eos=7)
    with pytest.raises(FailedError, match="text is shorter than one prefill: 2 tokens") as caught:
        short.collect_inputs(always_choose(decoder, 7), own.interface)
    assert f"at least {SIZE}" in caught.value.what
    assert "--prefill" in caught.value.fix


def always_choose(decoder: Any, token: int) -> Any:
    """The decoder, with this token as the most likely one."""

    def run(*inputs: Any) -> Any:
        logits, *caches = decoder(*inputs)
        logits[..., token] = 1e3
        return logits, *caches

    return run


# -- references and the program -------------------------------------------------------------------
