"""Wrong outputs, made of right ones, that the gate has to reject."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ci.judging.channels import STEPS, channel_axes, channel_rms, find_step
from ci.judging.figures import Array, is_floating
from ci.judging.gate import Expected, References, judge_output
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import ControlKind, Threshold

CONTROL_SEED = 20250724
GAIN = 1.05
GARBAGE_SHARE = 0.02
# A channel has to rise this far above what its tensor's noise may be, or nobody could miss it.
AUDIBLE = 1.05

Outputs = list[Array]


def make_control(kind: ControlKind, right: Expected, limits: Threshold) -> Array | None:
    """One output, wrong in one way; None where that would not be wrong, or is not asked for."""
    random = np.random.default_rng(CONTROL_SEED)
    wrong = MAKERS[kind](right.values, random, limits)
    if wrong is None or is_floating(right.values):
        return wrong
    # Elements that are ties prove nothing, and so does an output that is right by chance.
    differs = ((wrong < right.low) | (wrong > right.high)).mean()
    least = 2 * (1 - (limits.min_equal_quantized or limits.min_equal or 1.0))
    return wrong if differs > least else None


def is_rejected(
    references: References,
    index: int,
    wrong: Array,
    info: TensorInfo,
    limits: Threshold,
) -> tuple[bool, float | None]:
    """Whether the gate rejects one wrong output on its own, and its SQNR in dB."""
    judgement = judge_output(references, index, wrong, info, limits)
    figures = judgement.float_figures
    return bool(judgement.reasons), figures.sqnr_db if figures else None


def _zeros(right: Array, _random: np.random.Generator, _limits: Threshold) -> Array:
    return np.zeros_like(right)


def _noise(right: Array, random: np.random.Generator, _limits: Threshold) -> Array:
    if not is_floating(right):
        low, high = int(right.min()), int(right.max())
        return random.integers(low, high, right.shape, endpoint=True).astype(right.dtype)
    rms = float(np.sqrt(np.mean(right.astype(np.float64) ** 2)))
    return (random.standard_normal(right.shape) * rms).astype(right.dtype)


def _permuted(right: Array, random: np.random.Generator, _limits: Threshold) -> Array:
    """Elements in another order, across all input sets where an output has few."""
    flat = right.reshape(-1)
    shift = 1 + int(random.integers(flat.size - 1)) if flat.size > 1 else 0
    return np.roll(flat[random.permutation(flat.size)], shift).reshape(right.shape)


def _other_input(right: Array, _random: np.random.Generator, _limits: Threshold) -> Array:
    return np.roll(right, -1, axis=0)


def _weakest_channel(right: Array, _random: np.random.Generator, limits: Threshold) -> Array | None:
    """The quietest channel that rises above the noise of its tensor, zeroed."""
    if limits.min_sqnr_db_channel is None or not is_floating(right):
        return None
    floor = AUDIBLE * STEPS * find_step(right, Scheme(limits.scheme).recipe.activation_bits)
    heard = [
        (float(rms), axis, number)
        for axis in channel_axes(right)
        for number, rms in enumerate(channel_rms(right, axis))
        if rms > floor
    ]
    if not heard:
        return None
    _, axis, number = min(heard)
    wrong = right.copy()
    wrong[(slice(None),) * axis + (number,)] = 0
    return wrong


def _gain(right: Array, _random: np.random.Generator, limits: Threshold) -> Array | None:
    asked = limits.max_gain_error is not None and is_floating(right)
    return (right * GAIN).astype(right.dtype) if asked else None


def _plus_one(right: Array, _random: np.random.Generator, _limits: Threshold) -> Array | None:
    return None if is_floating(right) else right + np.ones_like(right)


def _garbage_tail(right: Array, random: np.random.Generator, limits: Threshold) -> Array:
    """The last 2 % of each input set's output."""
    wrong = right.copy()
    flat = wrong.reshape(len(wrong), -1)
    count = max(1, round(flat.shape[1] * GARBAGE_SHARE))
    if is_floating(right):
        flat[:, -count:] = _noise(right, random, limits).reshape(len(wrong), -1)[:, -count:]
    else:
        flat[:, -count:] += np.ones_like(flat[:, -count:])
    return wrong


MAKERS: Mapping[ControlKind, Callable[[Array, np.random.Generator, Threshold], Array | None]] = {
    ControlKind.ZEROS: _zeros,
    ControlKind.NOISE: _noise,
    ControlKind.PERMUTED: _permuted,
    ControlKind.OTHER_INPUT: _other_input,
    ControlKind.WEAKEST_CHANNEL: _weakest_channel,
    ControlKind.GAIN: _gain,
    ControlKind.PLUS_ONE: _plus_one,
    ControlKind.GARBAGE_TAIL: _garbage_tail,
}
