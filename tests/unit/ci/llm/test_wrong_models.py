"""Decoders that are wrong in one place, and what the verdict says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ci.llm import decoder as decoders
from ci.llm.case import locate
from ci.llm.controls import MAKERS, Repeated, judge_control
from ci.llm.decoder import Decoder, make_decoder
from ci.llm.foreign import coarse_step
from ci.llm.generation import Loop, eager_step, run_decode, run_free
from ci.llm.verdict import (
    LOCATE_DB,
    MEAN_MARGIN_DB,
    describe_drop,
    find_departure,
    judge_forced,
    judge_free,
)
from ci.report.schema import ControlKind
from tests.unit.ci.llm.decoders import CONTEXT, PREFILL, Tiny


def make(tiny_model: Tiny) -> Decoder:
    return make_decoder(tiny_model.config, tiny_model.weights, CONTEXT)


def zero_a_head(decoder: Decoder) -> None:
    """The second query head of the last layer gives nothing."""
    with torch.no_grad():
        decoder.layers[-1].attention.wq.weight[8:16] = 0


def swap_heads(decoder: Decoder) -> None:
    """Two query heads in each other's place, as a wrong grouping has them."""
    weight = decoder.layers[0].attention.wq.weight
    with torch.no_grad():
        weight.copy_(torch.cat([weight[24:], weight[8:24], weight[:8]]))


def pair_wrongly(decoder: Decoder) -> None:
    """Weights for adjacent pairs where halves are turned."""
    for layer in decoder.layers:
        for projection, heads in ((layer.attention.wq, 4), (layer.attention.wk, 2)):
            with torch.no_grad():
                projection.weight.copy_(decoders.pair_to_half(projection.weight, heads))


def drop_a_layer(decoder: Decoder) -> None:
    """The second layer passes its input on."""
    with torch.no_grad():
        decoder.layers[1].attention.wo.weight.zero_()
        decoder.layers[1].feed_forward.w2.weight.zero_()


def swap_norms(decoder: Decoder) -> None:
    layer = decoder.layers[0]
    layer.attention_norm, layer.ffn_norm = layer.ffn_norm, layer.attention_norm


def shift_positions(decoder: Decoder) -> None:
    decoder.freqs_sin.neg_()


def test_the_right_tiny_model_passes_the_verdict(tiny_model: Tiny) -> None:
    run = tiny_model.generate(make(tiny_model))
    assert judge_free(run, tiny_model.runs.model).faults == ()
    assert judge_forced(
        tiny_model.force(tiny_model.step(make(tiny_model))), tiny_model.runs.model
    ).equal == len(run.tokens)
    assert tiny_model.tokenizer.decode((*tiny_model.runs.prompt, *run.tokens)) == (
        "Ben has a blue boat. The boat sails far."
    )


@pytest.mark.parametrize(
    "spoil", [zero_a_head, swap_heads, pair_wrongly, drop_a_layer, swap_norms, shift_positions]
)
def test_a_model_with_one_fault_is_rejected(spoil: Callable[[Any], None], tiny_model: Tiny) -> None:
    wrong = make(tiny_model)
    spoil(wrong)
    assert judge_forced(tiny_model.force(tiny_model.step(wrong)), tiny_model.runs.model).faults
    assert judge_free(tiny_model.generate(wrong), tiny_model.runs.model).faults


def swap_key_heads(decoder: Decoder) -> None:
    """Two key heads in each other's place, in the second layer."""
    weight = decoder.layers[1].attention.wk.weight
    with torch.no_grad():
        weight.copy_(torch.cat([weight[8:], weight[:8]]))


def scale(name: str) -> Callable[[Decoder], None]:
    def spoil(decoder: Decoder) -> None:
        with torch.no_grad():
            decoder.get_parameter(name).mul_(1.5)

    return spoil


def spoil_a_value_head(decoder: Decoder) -> None:
    with torch.no_grad():
        decoder.layers[1].attention.wv.weight[8:] *= 1.5


LAST = "no keys or values differ by more than noise: the last layer is wrong after them"
KEYS = "first wrong in the keys of layer 1, at token "
HIDDEN = "first wrong in the hidden state that layer 0 returns, or in the norm behind it (keys and"
SPOILT: Mapping[str, tuple[Callable[[Decoder], None], str]] = {
    "key heads": (swap_key_heads, KEYS),
    "a value head": (spoil_a_value_head, "first wrong in the values of layer 1, at token "),
    "one head": (spoil_a_value_head, ", only in head 1 of 2: "),
    "feed-forward": (scale("layers.0.feed_forward.w2.weight"), HIDDEN),
    "the norm of a layer": (scale("layers.1.attention_norm.weight"), HIDDEN),
    "embedding": (scale("tok_embeddings.weight"), HIDDEN),  # the norm removes the factor
    "the first layer's keys": (scale("layers.0.attention.wk.weight"), "the keys of layer 0"),
    "the last layer": (scale("layers.1.feed_forward.w2.weight"), LAST),
    "the output layer": (scale("output.weight"), LAST),
}


@pytest.mark.parametrize("case", SPOILT)
def test_the_first_departing_layer_of_a_wrong_model_is_named(case: str, tiny_model: Tiny) -> None:
    spoil, departure = SPOILT[case]
    wrong = make(tiny_model)
    spoil(wrong)
    texts = locate_first(tiny_model, {1: wrong, PREFILL: wrong})
    assert all(departure in text for text in texts), texts
    assert len(texts) == (1 if departure == LAST else 3)


@pytest.mark.parametrize(("size", "wrong"), [(PREFILL, [0]), (1, [1, 2])])
def test_a_fault_in_prefill_is_distinguished_from_one_in_decode(
    size: int, wrong: list[int], tiny_model: Tiny
) -> None:
    """The second token of prefill depends on the wrong method only, and decode reads the keys of
    prefill."""
    spoilt = make(tiny_model)
    swap_key_heads(spoilt)
    texts = locate_first(tiny_model, {1: make(tiny_model), PREFILL: make(tiny_model), size: spoilt})
    assert [number for number, text in enumerate(texts) if "the keys of layer 1" in text] == wrong
    assert all("right" in text for number, text in enumerate(texts) if number not in wrong)


def test_no_departure_is_found_in_a_right_program(tiny_model: Tiny) -> None:
    right = make(tiny_model)
    assert [text[: len(LAST)] for text in locate_first(tiny_model, {1: right, PREFILL: right})] == [
        LAST
    ]
    empty = np.full_like(tiny_model.runs.model.run.caches, np.nan)
    run = replace(tiny_model.runs.model.run, caches=empty)
    departure = find_departure(run, tiny_model.runs.model, slice(None))
    assert departure is not None
    assert (departure.layer, departure.token, departure.above_db) == (0, 0, np.inf)


MEAN = "first wrong in the values of layer 1, in the mean of all tokens: "


@pytest.mark.parametrize(
    ("above", "tokens", "naming"),
    [(2.9, 20, ""), (3.1, 20, "red"), (6.1, 20, "any"), (9.9, 20, "any"), (9.9, 7, "")],
)
def test_the_mean_of_many_tokens_has_narrower_limits(
    above: float, tokens: int, naming: str, tiny_model: Tiny
) -> None:
    run, noise = tiny_model.runs.model.run, tiny_model.runs.model.cache_noise
    caches, span = run.caches.astype(np.float64), slice(2, 2 + tokens)
    caches[3] += np.sqrt(noise[:, 3, span].mean(axis=1).max() * 10 ** (above / 10))
    wrong_run = replace(run, caches=caches)
    for limit_db, is_found in ((MEAN_MARGIN_DB, naming == "any"), (LOCATE_DB, bool(naming))):
        departure = find_departure(wrong_run, tiny_model.runs.model, span, limit_db)
        description = f"{MEAN}{above} dB above the predicted noise"
        assert (departure and departure.describe(2, "")) == (description if is_found else None)


@pytest.mark.parametrize("codes", [0.01, 0.05])
@pytest.mark.parametrize(
    ("spoil", "departure"),
    [
        (swap_key_heads, "first wrong in the keys of layer 1: "),
        (scale("layers.0.ffn_norm.weight"), f"{HIDDEN} values of layer 1): "),
        (lambda _: None, ""),
    ],
)
def test_the_layer_at_which_a_foreign_program_departs_is_named(
    spoil: Callable[[Decoder], None], departure: str, codes: float, tiny_model: Tiny
) -> None:
    """The caches of the program are integers of an unknown scale."""
    wrong, right = make(tiny_model), tiny_model.runs.model.run
    spoil(wrong)
    wrong_run = tiny_model.force(tiny_model.step(wrong))
    coded = replace(wrong_run, caches=np.rint(wrong_run.caches / codes + 128))
    decoder = make(tiny_model)
    rounded = tiny_model.force(coarse_step({1: decoder, PREFILL: decoder}, right.caches, 8, 8))
    for span in (slice(len(tiny_model.runs.prompt)), slice(len(tiny_model.runs.prompt), None)):
        drop = describe_drop(coded, right, rounded, span)
        assert drop[: len(departure) or None] == departure


def locate_first(tiny_model: Tiny, modules: dict[int, Any]) -> list[str]:
    step = eager_step(modules)
    alone = run_decode(Loop(tiny_model.interface, step), tiny_model.runs.alone.run.fed)
    return [*locate(tiny_model.force(step), alone, tiny_model.runs, tiny_model.tokenizer.decode)[1]]


def test_at_least_90_percent_of_the_tiny_models_steps_have_a_margin_above_noise(
    tiny_model: Tiny,
) -> None:
    assert float(np.mean(tiny_model.runs.model.decided())) >= 0.9


def repeated(tiny_model: Tiny, eos: int = 2) -> Repeated:
    step = tiny_model.step(make(tiny_model))
    return Repeated(
        tiny_model.interface,
        step,
        tiny_model.runs.prompt,
        tiny_model.force(step),
        tiny_model.runs.model,
        eos,
    )


@pytest.mark.parametrize("kind", MAKERS)
def test_each_llm_control_is_rejected(kind: ControlKind, tiny_model: Tiny) -> None:
    assert judge_control(MAKERS[kind](repeated(tiny_model)), tiny_model.runs.model)[0]


def test_token_controls_choose_the_tokens_that_their_names_say(tiny_model: Tiny) -> None:
    control_input = repeated(tiny_model)
    right = list(control_input.run.tokens)
    ranked = [
        sorted(range(len(row)), key=lambda token: row[token]) for row in control_input.run.logits
    ]
    tokens_by_kind = {
        ControlKind.TOKEN_ZERO: [0] * len(right),
        ControlKind.TOP_TWO: [row[-2] for row in ranked],
        ControlKind.PREVIOUS_LOGITS: [right[0], *right[:-1]],
    }
    for kind, tokens in tokens_by_kind.items():
        (control_run,) = MAKERS[kind](control_input)
        assert list(control_run.tokens) == tokens
    eos = right[len(right) // 2]
    (endless,) = MAKERS[ControlKind.ENDLESS](replace(control_input, eos=eos))
    assert list(endless.tokens) == [
        row[-2] if token == eos else token for token, row in zip(right, ranked, strict=True)
    ]


def test_a_control_that_changes_nothing_is_accepted_at_every_step(tiny_model: Tiny) -> None:
    runs = list(repeated(tiny_model).repeat(spoil=lambda arrays, _: arrays))
    assert len(runs) == 2 * tiny_model.runs.model.decided()[1:].sum()
    assert not judge_control(runs, tiny_model.runs.model)[0]


def test_a_text_without_an_end_has_no_control_for_it(tiny_model: Tiny) -> None:
    control_runs = MAKERS[ControlKind.ENDLESS](repeated(tiny_model, eos=56))
    assert judge_control(control_runs, tiny_model.runs.model) == (False, None)


def test_prefill_then_decode_gives_the_logits_of_decode_alone(tiny_model: Tiny) -> None:
    step = tiny_model.step(make(tiny_model))
    alone = run_decode(Loop(tiny_model.interface, step), tiny_model.runs.alone.run.fed)
    after = tiny_model.force(step)
    start = len(tiny_model.runs.prompt) - 1
    np.testing.assert_allclose(
        alone.logits[start:], after.logits[: len(alone.logits) - start], atol=1e-4
    )


def test_prefill_of_a_long_prompt_takes_several_calls(tiny_model: Tiny) -> None:
    tokens = tiny_model.runs.model.run.fed[:19]
    sizes = []

    def step(arrays: Any) -> Any:
        sizes.append(arrays[0].shape[1])
        return tiny_model.step(make(tiny_model))(arrays)

    chunks = Loop(tiny_model.interface, step).feed(tokens)
    alone = run_decode(Loop(tiny_model.interface, tiny_model.step(make(tiny_model))), tokens)
    assert sizes == [8, 8, 8]
    np.testing.assert_allclose(chunks, alone.logits, atol=1e-4)


def test_a_text_ends_with_any_of_several_tokens(tiny_model: Tiny) -> None:
    tokens = tiny_model.runs.model.run.tokens
    for stop in ((tokens[3], 56), (56, tokens[3])):
        generated = run_free(
            Loop(tiny_model.interface, tiny_model.step(make(tiny_model))),
            tiny_model.runs.prompt,
            40,
            stop,
        )
        assert generated.tokens == tokens[: tokens.index(tokens[3]) + 1]


def test_controls_of_inputs_change_what_their_names_say() -> None:
    """Two layers have a cache of keys, [1, 1, 2, 3], and one of values, [1, 1, 3, 2], each."""
    mask, place = np.array([0, -65535.0], np.float32), np.full((1,), 7, np.int32)
    keys = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
    caches = [keys, keys, keys.reshape(1, 1, 3, 2), keys.reshape(1, 1, 3, 2)]
    shifted = [np.roll(cache, 1, axis) for cache, axis in zip(caches, (3, 3, 2, 2), strict=True)]
    token = np.ones((1, 1), np.int32)
    for kind, changed in (
        (ControlKind.MASK_INVERTED, [token, mask[::-1], place, *caches]),
        (ControlKind.MASK_INFINITE, [token, mask - np.inf, place, *caches]),
        (ControlKind.POSITION_OFF, [token, mask, place + 1, *caches]),
        (ControlKind.CACHES_SHIFTED, [token, mask, place, *shifted]),
    ):
        repeat: Any = MAKERS[kind]
        changed_inputs = repeat.keywords["spoil"]([token, mask, place, *caches], 2)
        assert [array.tolist() for array in changed_inputs] == [
            array.tolist() for array in changed
        ], kind
