"""Judges a bundle: whether chunks, decode and free text give the same tokens, logits, keys and
values as the reference, and whether that would detect faults in how chunks are passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ci.judging.figures import Array
from ci.llm.bundle_loop import BundleLoop, ReferenceLoop, Spoil, keep
from ci.llm.bundle_models import Arrays, OpenBundle
from ci.llm.generation import Generated
from ci.llm.verdict import (
    LOCATE_DB,
    MEAN_MARGIN_DB,
    Departure,
    Reference,
    Verdict,
    find_departure,
    judge_forced,
    judge_free,
)
from ci.report.schema import ControlKind
from ci.report.text import count

AFTER = 2  # tokens after a prompt that are passed on, too
ALONE = 16  # tokens that are passed on by decode alone
DISTURBED_RUNS = 3
# The relative errors of embeddings, keys and values from which the noise is predicted. On the CPU,
# prefill and decode of a float model differ by less. On the emulator, in float16, keys and values
# of stories260k are 43 to 68 dB from the CPU's, and prefill's are 43 to 52 dB from decode's. With
# 2**-8, a right one was 3 dB beyond the limit at a single token.
CPU_ERROR, FLOAT16_ERROR, INTEGER_ERROR = 2.0**-16, 2.0**-7, 2.0**-6
FLOOR = 2.0**-20  # the least error that is allowed, relative to the signal
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def choose_lengths(chunk: int, context: int) -> list[int]:
    """Return the lengths of the prompts: less than a chunk, exactly one, one token more, and three
    chunks, or as many as fit in the context. Behind each, AFTER tokens must fit."""

    def fits(length: int) -> bool:
        calls = -(-length // chunk)
        # LiteRT-LM refuses a chunk whose end is behind the context; see BundleLoop.prefill.
        return calls * chunk - (calls > 1) <= context and length + AFTER <= context

    longest = next((chunk * chunks for chunks in (3, 2) if fits(chunk * chunks)), 0)
    lengths = (max(chunk // 2, 1), chunk, chunk + 1, longest)
    return list(dict.fromkeys(length for length in lengths if length and fits(length)))


def choose_error(*, is_compiled: bool, is_float: bool) -> float:
    """Return the relative error from which the noise of a bundle is predicted."""
    if not is_compiled:
        return CPU_ERROR
    return FLOAT16_ERROR if is_float else INTEGER_ERROR


@dataclass(frozen=True)
class Text:
    """A text that the reference generated, and its Reference. ``prompt`` is the number of tokens of
    the prompt; ``free`` is the number of tokens that it generated up to the end of the text."""

    ids: tuple[int, ...]
    prompt: int
    free: int
    reference: Reference

    def cut(self, length: int, after: int) -> Reference:
        """Return the reference of a run whose prompt has ``length`` tokens, after which ``after``
        more are passed on."""
        steps = slice(length - 1, length + after)
        reference = self.reference
        end = length + after
        run = replace(
            reference.run,
            fed=self.ids[:end],
            tokens=reference.run.tokens[steps],
            logits=reference.run.logits[steps],
            caches=reference.run.caches[:, :end],
        )
        return Reference(run, reference.noise[:, steps], reference.cache_noise[..., :end])


def make_text(
    bundle: OpenBundle, prompt: Sequence[int], stops: Sequence[int], *, free: int, size: int
) -> tuple[list[int], int]:
    """Return a text of at least ``size`` tokens, and how many tokens the reference generates after
    the prompt up to the end of its text, at most ``free``. If its text ends before, the prompt
    follows again."""
    loop, ids, waiting = ReferenceLoop(bundle), list(prompt), list(prompt)
    size = max(size, len(prompt) + free - 1)
    generated = 0
    is_first = True
    while loop.position < size:
        chosen = int(np.argmax(loop.decode(waiting.pop(0))))
        if waiting:
            continue
        generated += is_first
        is_first &= chosen not in stops and generated < free
        waiting = list(prompt) if chosen in stops else [chosen]
        ids += waiting
    return ids[:size], generated


def make_reference(bundle: OpenBundle, ids: Sequence[int], error: float) -> Reference:
    """Return the reference of a text, token by token, whose noise is predicted from a relative
    ``error`` of embeddings, keys and values."""
    generator = np.random.default_rng(0)

    def disturb(array: Array) -> Array:
        return array * (1 + error * generator.standard_normal(array.shape))

    run = ReferenceLoop(bundle).run(ids)
    noise, cache_noise = [], []
    for _ in range(DISTURBED_RUNS):
        # Step by step: the logits of a large vocabulary would fill gigabytes.
        loop = ReferenceLoop(bundle, disturb)
        noise.append(
            [
                np.mean((loop.decode(token) - right) ** 2)
                for token, right in zip(ids, run.logits, strict=True)
            ]
        )
        caches = np.concatenate(loop.rows, axis=1)
        cache_noise.append(np.mean((caches - run.caches) ** 2, axis=(2, 3)))
    least_noise = FLOOR**2 * measure_power(run.logits)
    least_caches = np.array([FLOOR**2 * measure_power(cache) for cache in run.caches])
    return Reference(
        run,
        np.maximum(np.array(noise, np.float64), least_noise),
        np.maximum(np.stack(cache_noise), least_caches[:, None]),
    )


def measure_power(array: Array) -> float:
    """Return the mean of the squares."""
    return float(np.vdot(array, array)) / max(array.size, 1)


@dataclass(frozen=True)
class Judged:
    """A run of a bundle and its verdict. ``where`` says what departs first, or is "". ``prompt`` is
    the number of tokens that were passed on in chunks."""

    name: str
    prompt: int
    run: Generated
    verdict: Verdict
    where: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Return why the run is wrong."""
        if self.verdict.faults or not self.where:
            return self.verdict.faults
        return (f"the tokens and logits pass, but not all keys and values: {self.where}",)


def run_prompt(
    bundle: OpenBundle, text: Text, length: int, chunk: int, spoil: Spoil = keep
) -> Judged:
    """Run and judge a prompt of ``length`` tokens in chunks, and AFTER tokens behind it."""
    loop = BundleLoop(bundle, chunk, spoil)
    logits = [loop.read_prompt(text.ids[:length])]
    logits += [loop.decode(token) for token in text.ids[length : length + AFTER]]
    run = loop.collect(text.ids[: length + AFTER], logits)
    reference = text.cut(length, AFTER)
    verdict = judge_forced(run, reference)
    chunks = count(-(-length // chunk), "chunk")
    name = f"a prompt of {count(length, 'token')} ({chunks} of {chunk})"
    return Judged(name, length, run, verdict, locate(loop, run, reference, verdict, length))


def run_decode(bundle: OpenBundle, text: Text, size: int) -> Judged:
    """Run and judge the first ``size`` tokens of a text with decode alone."""
    loop = BundleLoop(bundle, 2)
    logits = [loop.decode(token) for token in text.ids[:size]]
    run = loop.collect(text.ids[:size], logits)
    reference = text.cut(1, size - 1)
    verdict = judge_forced(run, reference)
    return Judged("decode alone", 0, run, verdict, locate(loop, run, reference, verdict, 0))


def run_free(bundle: OpenBundle, text: Text, chunk: int, stops: Sequence[int]) -> Judged:
    """Generate and judge a text after the prompt."""
    loop, prompt = BundleLoop(bundle, chunk), text.ids[: text.prompt]
    logits = [loop.read_prompt(prompt)]
    tokens = [int(np.argmax(logits[-1]))]
    while len(tokens) < text.free and tokens[-1] not in stops:
        logits.append(loop.decode(tokens[-1]))
        tokens.append(int(np.argmax(logits[-1])))
    run = loop.collect((*prompt, *tokens[:-1]), logits)
    verdict = judge_free(run, text.cut(text.prompt, text.free - 1))
    return Judged("free text", text.prompt, run, verdict)


def locate(
    loop: BundleLoop, run: Generated, reference: Reference, verdict: Verdict, prompt: int
) -> str:
    """Return from which call on keys or values depart from the reference's, and which first; ""
    if they do not. ``prompt`` is the number of tokens that were passed on in chunks."""
    mean_db = LOCATE_DB if verdict.faults else MEAN_MARGIN_DB
    departure = find_departure(run, reference, slice(None), mean_db)
    if departure is None:
        return ""
    overwritten = ""
    if loop.overwritten:
        name = name_call(loop.overwritten[0], loop, prompt)
        overwritten = f"; {name} also changes keys or values of earlier tokens"
    if departure.token is None:
        return f"{describe(departure)} in the mean of all tokens{overwritten}"
    call = int(np.searchsorted(np.cumsum(loop.calls), departure.token, side="right"))
    return f"from {name_call(call, loop, prompt)} on: {describe(departure)}{overwritten}"


def describe(departure: Departure) -> str:
    """Return which keys or values are the first wrong ones."""
    kind = "keys" if departure.keys else "values"
    and_values = " and values" if departure.keys and departure.values else ""
    return (
        f"{kind} of layer {departure.layer}{and_values} "
        f"({departure.above_db:.0f} dB above the predicted noise)"
    )


def name_call(call: int, loop: BundleLoop, prompt: int) -> str:
    """Return what a call of the decoder processes."""
    chunks = -(-prompt // loop.chunk)
    if call < chunks:
        ordinal = ORDINALS[call] if call < len(ORDINALS) else f"{call + 1}th"
        return f"the {ordinal} chunk"
    return f"call {call - chunks + 1} of decode"


def _lose_second(call: int, stage: str, arrays: dict[str, Array], first: list[Arrays]) -> Arrays:
    """Keep the caches as they were before the second chunk."""
    if stage == "caches" and call == 0:
        first.append(arrays)
    return first[0] if stage == "caches" and call == 1 else arrays


def _shift_caches(
    call: int, stage: str, arrays: dict[str, Array], axes: Mapping[str, int], chunk: int
) -> Arrays:
    """Shift the caches by a chunk after the first one."""
    if stage == "caches" and call == 0:
        return {name: np.roll(array, chunk, axes[name]) for name, array in arrays.items()}
    return arrays


def _restart_positions(call: int, stage: str, arrays: dict[str, Array], chunks: int) -> Arrays:
    """Rotate the keys and queries of each chunk as those of the first."""
    if stage == "positions" and call < chunks:
        return {**arrays, "input_pos": np.arange(arrays["input_pos"].size, dtype=np.int32)}
    return arrays


def _reuse_mask(
    call: int, stage: str, arrays: dict[str, Array], first: list[Arrays], chunks: int
) -> Arrays:
    """Use the mask of the first chunk for all chunks."""
    if stage == "mask" and call == 0:
        first.append(arrays)
    return first[0] if stage == "mask" and call < chunks else arrays


def make_controls(bundle: OpenBundle, chunk: int, chunks: int) -> dict[ControlKind, Spoil]:
    """Return the faults that the verdict on a prompt of several chunks must reject."""
    axes = {cache.name: cache.axis for cache in bundle.file.caches}
    return {
        ControlKind.SECOND_CHUNK_LOST: partial(_lose_second, first=[]),
        ControlKind.CHUNK_SHIFTED: partial(_shift_caches, axes=axes, chunk=chunk),
        ControlKind.POSITIONS_RESTARTED: partial(_restart_positions, chunks=chunks),
        ControlKind.FIRST_MASK_REUSED: partial(_reuse_mask, first=[], chunks=chunks),
    }
