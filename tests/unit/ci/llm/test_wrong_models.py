"""Decoders that are wrong in one place, and what the verdict says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ci.judging.figures import Array
from ci.llm import decoder as decoders
from ci.llm.controls import MAKERS, Repeated, judge_control
from ci.llm.decoder import Decoder, make_decoder
from ci.llm.generation import Loop, Step, run_decode, run_free
from ci.llm.verdict import judge_forced, judge_free
from ci.report.schema import ControlKind
from tests.unit.ci.llm.decoders import CONTEXT, Tiny


def make(own: Tiny) -> Decoder:
    return make_decoder(own.config, own.weights, CONTEXT)


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
        for one, heads in ((layer.attention.wq, 4), (layer.attention.wk, 2)):
            with torch.no_grad():
                one.weight.copy_(decoders.pair_to_half(one.weight, heads))


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


def test_the_right_model_passes(own: Tiny) -> None:
    run = own.generate(make(own))
    assert judge_free(run, own.runs.model).faults == ()
    assert judge_forced(own.force(own.step(make(own))), own.runs.model).equal == len(run.tokens)
    assert own.tokenizer.decode((*own.runs.prompt, *run.tokens)) == (
        "Ben has a blue boat. The boat sails far."
    )


@pytest.mark.parametrize(
    "spoil", [zero_a_head, swap_heads, pair_wrongly, drop_a_layer, swap_norms, shift_positions]
)
def test_a_model_with_one_fault_is_rejected(spoil: Callable[[Any], None], own: Tiny) -> None:
    wrong = make(own)
    spoil(wrong)
    assert judge_forced(own.force(own.step(wrong)), own.runs.model).faults
    assert judge_free(own.generate(wrong), own.runs.model).faults


def test_nine_in_ten_steps_have_a_margin_above_the_noise(own: Tiny) -> None:
    assert float(np.mean(own.runs.model.decided())) >= 0.9


def repeated(own: Tiny, eos: int = 2) -> Repeated:
    step = own.step(make(own))
    return Repeated(own.interface, step, own.runs.prompt, own.force(step), own.runs.model, eos)


@pytest.mark.parametrize("kind", MAKERS)
def test_each_control_is_rejected(kind: ControlKind, own: Tiny) -> None:
    assert judge_control(MAKERS[kind](repeated(own)), own.runs.model)[0]


def test_controls_of_tokens_choose_what_their_names_say(own: Tiny) -> None:
    one = repeated(own)
    right = list(one.run.tokens)
    ranked = [sorted(range(len(row)), key=lambda token: row[token]) for row in one.run.logits]
    wanted = {
        ControlKind.TOKEN_ZERO: [0] * len(right),
        ControlKind.TOP_TWO: [row[-2] for row in ranked],
        ControlKind.PREVIOUS_LOGITS: [right[0], *right[:-1]],
    }
    for kind, tokens in wanted.items():
        (made,) = MAKERS[kind](one)
        assert list(made.tokens) == tokens
    eos = right[len(right) // 2]
    (endless,) = MAKERS[ControlKind.ENDLESS](replace(one, eos=eos))
    assert list(endless.tokens) == [
        row[-2] if token == eos else token for token, row in zip(right, ranked, strict=True)
    ]


def test_controls_of_inputs_change_what_their_names_say_and_nothing_else() -> None:
    """Two layers: a cache of keys, [1, 1, 2, 3], then one of values, [1, 1, 3, 2], for each."""
    mask = np.array([0, -65535.0], np.float32)
    keys = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
    values = keys.reshape(1, 1, 3, 2)
    asked: list[Any] = []
    one: Any = SimpleNamespace(repeat=lambda spoil, **options: asked.append((spoil, options)))

    def spoil(kind: ControlKind, tokens: int) -> list[np.ndarray]:
        MAKERS[kind](one)
        place = np.full((1,), 7, np.int32)
        given = [np.ones((1, tokens), np.int32), mask, place, keys, keys, values, values]
        made = asked[-1][0](given, 2)
        assert [array.dtype for array in made] == [array.dtype for array in given]
        return [array.tolist() for array in made]

    tokens, position = [[1, 1, 1, 1]], [7]
    caches = [array.tolist() for array in (keys, keys, values, values)]
    rolled = [np.roll(array, 1, axis).tolist() for array, axis in ((keys, 3), (values, 2))]
    shifted = [rolled[0], rolled[0], rolled[1], rolled[1]]
    rows = {
        ControlKind.MASK_INVERTED: [tokens, [-65535.0, 0], position, *caches],
        ControlKind.MASK_INFINITE: [tokens, [-np.inf, -np.inf], position, *caches],
        ControlKind.POSITION_OFF: [tokens, mask.tolist(), position, *caches],
        ControlKind.CACHES_SHIFTED: [tokens, mask.tolist(), position, *shifted],
    }
    assert {kind: spoil(kind, 4) for kind in rows} == rows
    assert spoil(ControlKind.POSITION_OFF, 1) == [[[1]], mask.tolist(), [8], *caches]
    decode_alone = {"in_prefill": False}
    assert [options for _, options in asked] == [{}, {}, decode_alone, {}, decode_alone]


def test_a_control_that_is_right_is_accepted_wherever_it_is_tried(own: Tiny) -> None:
    runs = list(repeated(own).repeat(spoil=lambda arrays, _: arrays))
    assert len(runs) == 2 * own.runs.model.decided()[1:].sum()
    assert not judge_control(runs, own.runs.model)[0]


def test_a_fault_of_decode_alone_is_tried_once_at_each_step(own: Tiny) -> None:
    decided = own.runs.model.decided()[1:].sum()
    one = repeated(own)
    given = list(one.repeat(caches=lambda loop: loop.caches))
    spoiled = list(one.repeat(spoil=lambda arrays, _: arrays, in_prefill=False))
    assert len(given) == len(spoiled) == decided
    margins = [own.runs.model.margins()[len(run.tokens) - 1] for run in given]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] > 1
    assert not judge_control(given, own.runs.model)[0]


def test_the_position_is_one_too_far_in_decode_alone(own: Tiny) -> None:
    taken: dict[str, list[tuple[int, list[int]]]] = {"right": [], "off": []}

    def note(kind: str) -> Step:
        def step(arrays: Sequence[Array]) -> Sequence[Array]:
            taken[kind].append((arrays[0].shape[1], arrays[2].ravel().tolist()))
            return own.step(make(own))(arrays)

        return step

    one = repeated(own)
    next(replace(one, step=note("right")).repeat())
    next(MAKERS[ControlKind.POSITION_OFF](replace(one, step=note("off"))))
    *prefill, (size, (position,)) = taken["right"]
    assert prefill
    assert taken["off"] == [*prefill, (size, [position + 1])]


def test_the_other_prompt_is_the_text_in_reverse_after_its_start(own: Tiny) -> None:
    calls: list[list[int]] = []

    def step(arrays: Sequence[Array]) -> Sequence[Array]:
        calls.append(arrays[0].ravel().tolist())
        return own.step(make(own))(arrays)

    made = next(MAKERS[ControlKind.OTHER_PROMPT](replace(repeated(own), step=step)))
    *text, last = made.fed
    fed = [calls.pop()]
    size = own.interface.prefill
    for _ in range(2):
        count = -(-len(text) // size)
        fed.insert(0, [token for call in calls[-count:] for token in call][: len(text)])
        del calls[-count:]
    assert fed == [text, [text[0], *reversed(text[1:])], [last]]


def test_a_fault_is_tried_at_steps_with_a_margin_alone(own: Tiny) -> None:
    one = repeated(own)
    loud = replace(own.runs.model, noise=own.runs.model.noise + 1e3)
    assert not list(replace(one, reference=loud).repeat(spoil=lambda arrays, _: arrays))


def test_a_text_without_an_end_has_no_control_for_it(own: Tiny) -> None:
    made = MAKERS[ControlKind.ENDLESS](repeated(own, eos=56))
    assert judge_control(made, own.runs.model) == (False, None)


def test_prefill_and_decode_give_what_decode_alone_gives(own: Tiny) -> None:
    step = own.step(make(own))
    alone = run_decode(Loop(own.interface, step), own.runs.alone.run.fed)
    after = own.force(step)
    start = len(own.runs.prompt) - 1
    np.testing.assert_allclose(
        alone.logits[start:], after.logits[: len(alone.logits) - start], atol=1e-4
    )


def test_prefill_of_a_long_prompt_takes_several_calls(own: Tiny) -> None:
    tokens = own.runs.model.run.fed[:19]
    sizes = []

    def step(arrays: Any) -> Any:
        sizes.append(arrays[0].shape[1])
        return own.step(make(own))(arrays)

    chunks = Loop(own.interface, step).feed(tokens)
    alone = run_decode(Loop(own.interface, own.step(make(own))), tokens)
    assert sizes == [8, 8, 8]
    np.testing.assert_allclose(chunks, alone.logits, atol=1e-4)


def test_each_kind_of_control_is_made_by_its_own_function() -> None:
    kinds = [*ControlKind]
    assert {*MAKERS} == {*kinds[kinds.index(ControlKind.TOKEN_ZERO) :]}
    assert {kind: f"_{kind.name.lower()}" for kind in MAKERS} == {
        kind: getattr(maker, "__name__", "") for kind, maker in MAKERS.items()
    }


def test_a_text_ends_with_any_of_several_tokens(own: Tiny) -> None:
    tokens = own.runs.model.run.tokens
    for stop in ((tokens[3], 56), (56, tokens[3])):
        made = run_free(Loop(own.interface, own.step(make(own))), own.runs.prompt, 40, stop)
        assert made.tokens == tokens[: tokens.index(tokens[3]) + 1]
