"""Controls: wrong outputs that are made from correct ones. The gate has to reject them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from ci.facts.finding import Question
from ci.judging.figures import Array, channel_rms, is_floating
from ci.judging.gate import Expected, References, judge_output
from ci.judging.noise import Prediction
from ci.models.tensors import TensorInfo
from ci.report.schema import ControlKind, Threshold

# Fixed, so that a case has the same controls in each run.
CONTROL_SEED = 20250724
# The gate should reject an output with the first value of a tuple. If the allowed noise hides the
# fault, the next value is tried.
GAINS = (1.05, 1.1, 1.25, 0.5, 2.0)
GARBAGE_SHARES = (0.02, 0.05, 0.1, 0.25)
# The loss of a channel is detectable only if its power exceeds the allowed error by this factor.
AUDIBLE = 1.1

Random = np.random.Generator


class ControlSource(NamedTuple):
    """The arguments of a Maker: the correct output, a random generator, the noise that a correct
    program may have, and the limits."""

    right: Array
    random: Random
    noise: Prediction
    limits: Threshold


Maker = Callable[[ControlSource], Iterator[Array]]


def make_controls(
    kind: ControlKind, right: Expected, prediction: Prediction, limits: Threshold
) -> Iterator[Array]:
    """Yield outputs with a fault of this ``kind``. If the fault can have several sizes, the
    smallest comes first. A wrong integer or boolean output is skipped if its share of wrong
    elements is at most twice the share that ``limits`` accept.

    ``right`` is the output that the program should compute, and ``prediction`` the noise that it
    may have.
    """
    random = np.random.default_rng(CONTROL_SEED)
    for wrong in MAKERS[kind](ControlSource(right.values, random, prediction, limits)):
        # An element that noise may change proves nothing, and neither does a correct output.
        differs = ((wrong < right.low) | (wrong > right.high)).mean()
        accepted_share = 2 * (1 - (limits.min_equal_quantized or limits.min_equal or 1.0))
        if is_floating(right.values) or differs > accepted_share:
            yield wrong


def is_rejected(
    references: References, index: int, wrong: Array, info: TensorInfo, limits: Threshold
) -> tuple[bool, float | None]:
    """Return whether the gate rejects a wrong output, and its SQNR in dB against the float32 model.
    The SQNR is None if the output is not floating-point.

    The elements need not be multiples of the output's step. If there is a quantized model, poor
    quantization does not count, because it makes the gate reject correct outputs, too.
    """
    # With clipped ranges, a difference could count as a poor calibration, which is no rejection.
    references = replace(references, clipped=())
    judgement = judge_output(references, index, wrong, structs.replace(info, step=0.0), limits)
    figures = judgement.float_figures
    rejected = judgement.fails(Question.FAITHFUL)
    if references.quantized is None:
        rejected = bool(judgement.findings)
    return rejected, figures.sqnr_db if figures else None


def draw_noise(right: Array, random: Random) -> Array:
    """Return random elements in the shape and dtype of an output: floating-point noise with the
    output's RMS, or integers in the output's range."""
    if not is_floating(right):
        low, high = int(right.min()), int(right.max())
        return random.integers(low, high, right.shape, endpoint=True).astype(right.dtype)
    rms = float(np.sqrt(np.mean(right.astype(np.float64) ** 2)))
    return (random.standard_normal(right.shape) * rms).astype(right.dtype)


def _permute(source: ControlSource) -> Iterator[Array]:
    """Yield the output with the elements of all samples in a random order."""
    flat, random = source.right.reshape(-1), source.random
    shift = 1 + int(random.integers(flat.size - 1)) if flat.size > 1 else 0
    yield np.roll(flat[random.permutation(flat.size)], shift).reshape(source.right.shape)


def _give_other_input(source: ControlSource) -> Iterator[Array]:
    """Yield the output with its samples in a wrong order: shifted by one, then by two, and so
    on."""
    for shift in range(1, len(source.right)):
        yield np.roll(source.right, -shift, axis=0)


def _silence_channel(source: ControlSource) -> Iterator[Array]:
    """Yield the output with one channel set to zero: the quietest, the middle or the loudest of the
    channels whose power is more than AUDIBLE times their allowed error."""
    right = source.right
    if not is_floating(right):
        return
    heard = [
        (float(rms), axis, number)
        for axis, allowed in source.noise.allow_channels(source.limits.max_above_noise_db)
        for number, (rms, power) in enumerate(zip(channel_rms(right, axis), allowed, strict=True))
        if rms**2 > AUDIBLE * power
    ]
    heard.sort()
    for _, axis, number in dict.fromkeys([*heard[:1], *heard[len(heard) // 2 :][:1], *heard[-1:]]):
        wrong = right.copy()
        wrong[(slice(None),) * axis + (number,)] = 0
        yield wrong


def _scale(source: ControlSource) -> Iterator[Array]:
    for gain in GAINS if is_floating(source.right) else ():
        yield (source.right * gain).astype(source.right.dtype)


def _add_one(source: ControlSource) -> Iterator[Array]:
    if not is_floating(source.right):
        yield source.right + np.ones_like(source.right)


def _spoil_tail(source: ControlSource) -> Iterator[Array]:
    """For each of GARBAGE_SHARES, yield the output with this share of garbage at the end of each
    sample."""
    right = source.right
    garbage = (
        draw_noise(right, source.random) if is_floating(right) else right + np.ones_like(right)
    )
    for share in GARBAGE_SHARES:
        wrong = right.copy()
        flat = wrong.reshape(len(wrong), -1)
        count = max(1, round(flat.shape[1] * share))
        flat[:, -count:] = garbage.reshape(len(wrong), -1)[:, -count:]
        yield wrong


MAKERS: Mapping[ControlKind, Maker] = {
    ControlKind.ZEROS: lambda source: iter([np.zeros_like(source.right)]),
    ControlKind.NOISE: lambda source: iter([draw_noise(source.right, source.random)]),
    ControlKind.PERMUTED: _permute,
    ControlKind.OTHER_INPUT: _give_other_input,
    ControlKind.WEAKEST_CHANNEL: _silence_channel,
    ControlKind.GAIN: _scale,
    ControlKind.PLUS_ONE: _add_one,
    ControlKind.GARBAGE_TAIL: _spoil_tail,
}
