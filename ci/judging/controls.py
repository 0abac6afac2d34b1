"""Wrong outputs, made of right ones, that the gate has to reject."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ci.judging.figures import Array, channel_rms, is_floating
from ci.judging.gate import Expected, References, judge_output
from ci.judging.noise import Prediction
from ci.models.tensors import TensorInfo
from ci.report.schema import ControlKind, Question, Threshold

CONTROL_SEED = 20250724
# The first is what a gate should see; more where honest noise is too loud for it.
GAINS = (1.05, 1.1, 1.25, 2.0)
GARBAGE_SHARES = (0.02, 0.05, 0.1, 0.25)
# How far the power of a channel has to exceed that of an allowed error, or its loss is not seen.
AUDIBLE = 1.1

Random = np.random.Generator
Maker = Callable[[Array, Random, Prediction, Threshold], Iterator[Array]]


def make_controls(
    kind: ControlKind, right: Expected, prediction: Prediction, limits: Threshold
) -> Iterator[Array]:
    """Yield an output that is wrong in one way, ever more so; nothing if that would not be wrong.

    ``right`` is what the program was asked for, ``prediction`` the noise that it may have.
    """
    random = np.random.default_rng(CONTROL_SEED)
    for wrong in MAKERS[kind](right.values, random, prediction, limits):
        # Elements that are ties prove nothing, and so does an output that is right by chance.
        differs = ((wrong < right.low) | (wrong > right.high)).mean()
        least = 2 * (1 - (limits.min_equal_quantized or limits.min_equal or 1.0))
        if is_floating(right.values) or differs > least:
            yield wrong


def is_rejected(
    references: References,
    index: int,
    wrong: Array,
    info: TensorInfo,
    limits: Threshold,
) -> tuple[bool, float | None]:
    """Return whether the gate rejects one wrong output on its own, and its SQNR in dB. That it is
    no multiple of the output's step is not counted: a fault inside of a program would not show
    that way. Neither is that its quantized model is far from float32: so is that of a right one."""
    judgement = judge_output(references, index, wrong, info.without_step(), limits)
    figures = judgement.float_figures
    rejected = judgement.fails(Question.FAITHFUL)
    if references.quantized is None:
        rejected = bool(judgement.reasons)
    return rejected, figures.sqnr_db if figures else None


def _zeros(
    right: Array, _random: Random, _noise: Prediction, _limits: Threshold
) -> Iterator[Array]:
    yield np.zeros_like(right)


def _draw(right: Array, random: Random) -> Array:
    if not is_floating(right):
        low, high = int(right.min()), int(right.max())
        return random.integers(low, high, right.shape, endpoint=True).astype(right.dtype)
    rms = float(np.sqrt(np.mean(right.astype(np.float64) ** 2)))
    return (random.standard_normal(right.shape) * rms).astype(right.dtype)


def _noise(right: Array, random: Random, _noise: Prediction, _limits: Threshold) -> Iterator[Array]:
    yield _draw(right, random)


def _permuted(
    right: Array, random: Random, _noise: Prediction, _limits: Threshold
) -> Iterator[Array]:
    """Elements in another order, across all input sets where an output has few."""
    flat = right.reshape(-1)
    shift = 1 + int(random.integers(flat.size - 1)) if flat.size > 1 else 0
    yield np.roll(flat[random.permutation(flat.size)], shift).reshape(right.shape)


def _other_input(
    right: Array, _random: Random, _noise: Prediction, _limits: Threshold
) -> Iterator[Array]:
    """Each input set's outputs for another: the next, or one further on."""
    for shift in range(1, len(right)):
        yield np.roll(right, -shift, axis=0)


def _weakest_channel(
    right: Array, _random: Random, noise: Prediction, limits: Threshold
) -> Iterator[Array]:
    """The quietest channel that is louder than the error that it may have, zeroed."""
    if not is_floating(right):
        return
    heard = [
        (float(rms), axis, number)
        for axis, allowed in noise.allow_channels(limits.max_above_noise_db)
        for number, (rms, power) in enumerate(zip(channel_rms(right, axis), allowed, strict=True))
        if rms**2 > AUDIBLE * power
    ]
    if heard:
        _, axis, number = min(heard)
        wrong = right.copy()
        wrong[(slice(None),) * axis + (number,)] = 0
        yield wrong


def _gain(right: Array, _random: Random, _noise: Prediction, _limits: Threshold) -> Iterator[Array]:
    for gain in GAINS if is_floating(right) else ():
        yield (right * gain).astype(right.dtype)


def _plus_one(
    right: Array, _random: Random, _noise: Prediction, _limits: Threshold
) -> Iterator[Array]:
    if not is_floating(right):
        yield right + np.ones_like(right)


def _garbage_tail(
    right: Array, random: Random, _noise: Prediction, _limits: Threshold
) -> Iterator[Array]:
    """The last part of each input set's output."""
    garbage = _draw(right, random) if is_floating(right) else right + np.ones_like(right)
    for share in GARBAGE_SHARES:
        wrong = right.copy()
        flat = wrong.reshape(len(wrong), -1)
        count = max(1, round(flat.shape[1] * share))
        flat[:, -count:] = garbage.reshape(len(wrong), -1)[:, -count:]
        yield wrong


MAKERS: Mapping[ControlKind, Maker] = {
    ControlKind.ZEROS: _zeros,
    ControlKind.NOISE: _noise,
    ControlKind.PERMUTED: _permuted,
    ControlKind.OTHER_INPUT: _other_input,
    ControlKind.WEAKEST_CHANNEL: _weakest_channel,
    ControlKind.GAIN: _gain,
    ControlKind.PLUS_ONE: _plus_one,
    ControlKind.GARBAGE_TAIL: _garbage_tail,
}
