"""Parts of an output: a channel, or a part of a concatenation, that its sum would hide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ci.judging.figures import Array
from ci.models.tensors import TensorInfo

# A channel may have as much noise as QUIET of the quieter quarter has, or STEPS of its tensor's
# quantization steps: right outputs of the suite and of real models stay below half of that.
QUIET, STEPS = 4.0, 2.0
# To requantize a concatenation costs each part up to this many steps of the whole.
JOINT_STEPS = 1.0
# Bits of a float16's significand: what its largest element leaves of the others.
FLOAT16_BITS = 11


@dataclass(frozen=True)
class Part:
    """A part of an output, by name, with its SQNR in dB over all input sets.

    One whose signal is lost in the noise that its tensor may have counts as if its signal were
    as large as that noise permits.
    """

    place: str
    sqnr_db: float


def find_step(reference: Array, bits: int) -> float:
    """The step of a tensor of these values, quantized to ``bits``; float16 has no zero point."""
    low, high = min(float(reference.min()), 0.0), max(float(reference.max()), 0.0)
    if bits == FLOAT16_BITS:
        return max(high, -low) / 2**bits
    return (high - low) / (2**bits - 1)


def worst_channel(reference: Array, output: Array, bits: int, wanted_db: float) -> Part | None:
    """The channel nearest to ``wanted_db`` or furthest below; None without two channels.

    Channels lie along the last axis and, in three dimensions and more, along the second.
    """
    step = find_step(reference, bits)
    parts = [
        _worst_along(axis, reference, output, step, wanted_db) for axis in channel_axes(reference)
    ]
    return min(parts, key=lambda part: part.sqnr_db, default=None)


def channel_axes(stacked: Array) -> list[int]:
    """Axes of [set, *shape] that hold channels."""
    axes = {stacked.ndim - 1, 2 if stacked.ndim > 3 else stacked.ndim - 1}
    return sorted(axis for axis in axes if axis and stacked.shape[axis] > 1)


def _worst_along(axis: int, reference: Array, output: Array, step: float, wanted_db: float) -> Part:
    signal, noise = channel_rms(reference, axis), channel_rms(output - reference, axis)
    allowed = max(QUIET * float(np.quantile(noise, 0.25)), STEPS * step)
    heard = np.maximum(signal, allowed * 10 ** (wanted_db / 20))
    with np.errstate(divide="ignore"):
        ratios = 20 * np.log10(heard / noise)
    worst = int(ratios.argmin())
    count = reference.shape[axis]
    return Part(f"channel {worst} of {count} along axis {axis - 1}", float(ratios[worst]))


def channel_rms(stacked: Array, axis: int) -> Array:
    """The root mean square of each channel."""
    others = tuple(number for number in range(stacked.ndim) if number != axis)
    root: Array = np.sqrt(np.mean(stacked.astype(np.float64) ** 2, axis=others))
    return root


def measure_joined(
    reference: Array, output: Array, info: TensorInfo, step: float, wanted_db: float
) -> Iterator[Part]:
    """Every part of a concatenation; ``step`` 0 grants no noise beyond what is wanted."""
    stops = np.cumsum(info.joined)
    for start, stop in zip([0, *stops[:-1]], stops, strict=True):
        wanted = np.take(reference, range(start, stop), info.joined_axis + 1)
        got = np.take(output, range(start, stop), info.joined_axis + 1)
        signal = math.hypot(_rms(wanted), JOINT_STEPS * step * 10 ** (wanted_db / 20))
        noise = _rms(got - wanted)
        ratio = 20 * math.log10(signal / noise) if signal and noise else math.inf
        if noise and not signal:
            ratio = -math.inf
        yield Part(f"part {start}:{stop} along axis {info.joined_axis}", ratio)


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(array.astype(np.float64) ** 2)))
