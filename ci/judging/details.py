"""Describes outputs in a report: the SQNR of each sample and of the worst channels, a histogram
of errors, and the worst element. The verdict does not depend on these descriptions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ci.judging.figures import Array, channel_axes, decibels, is_floating, measure, share_equal
from ci.judging.gate import Expected, References
from ci.report.schema import ChannelFigures, Element, OutputFigures

SETS, CHANNELS, BINS = 64, 6, 31


def describe_outputs(references: References, outputs: Sequence[Array]) -> tuple[OutputFigures, ...]:
    """Return the details that a report shows about each output, [sample, *shape]. Details per
    sample cover only the first SETS sets."""
    return tuple(describe_output(references, *pair) for pair in enumerate(outputs))


def describe_output(references: References, index: int, output: Array) -> OutputFigures:
    """Return the details that a report shows about one output."""
    eager, best = references.float32[index], references.best(index)[0]
    magnitudes = is_floating(output)
    error = output.astype(np.float64) - best.values
    # So that a NaN is the worst element, instead of none.
    finite = np.nan_to_num(np.abs(error), nan=np.inf)
    most = float(finite[np.isfinite(finite)].max(initial=0.0))
    counts, _ = np.histogram(error[np.isfinite(error)], bins=BINS, range=(-most, most))
    channels = _measure_channels(best.values, output) if magnitudes else ()
    rows = (array[:SETS, None] for array in (best.low, best.values, best.high, output))
    return OutputFigures(
        dtype=str(output.dtype),
        shape=output.shape[1:],
        sqnr_db=_measure_sets(eager, output) if magnitudes else (),
        sqnr_db_quantized=(
            _measure_sets(best, output) if magnitudes and references.quantized else ()
        ),
        equal=() if magnitudes else tuple(map(share_equal, *rows)),
        channels=tuple(
            sorted(channels, key=lambda channel: (channel.sqnr_db is None, channel.sqnr_db))[
                :CHANNELS
            ]
        ),
        errors=tuple(map(int, counts)) if magnitudes and most else (),
        max_error=most if magnitudes else None,
        worst=_find_worst(finite, output, best.values),
    )


def _measure_sets(expected: Expected, output: Array) -> tuple[float | None, ...]:
    pairs = zip(expected.values[:SETS, None], output[:SETS, None], strict=True)
    return tuple(_plain(measure(*pair).sqnr_db) for pair in pairs)


def _measure_channels(expected: Array, output: Array) -> Iterator[ChannelFigures]:
    """Yield the channels with the lowest SQNR, at most CHANNELS along each axis, starting with the
    worst."""
    values = expected.astype(np.float64)
    error = output - values
    for axis in channel_axes(values.ndim):
        reduced_axes = tuple(number for number in range(values.ndim) if number != axis)
        signals, noises = (np.sum(array**2, axis=reduced_axes) for array in (values, error))
        # An exact channel has no noise to divide by.
        for index in np.argsort(signals / np.maximum(noises, 1e-300))[:CHANNELS]:
            sqnr_db = _plain(decibels(float(signals[index]), float(noises[index])))
            yield ChannelFigures(axis=axis - 1, index=int(index), sqnr_db=sqnr_db)


def _find_worst(off: Array, output: Array, expected: Array) -> Element | None:
    """Return the element with the largest error, or None if all are exact."""
    if not off.any():
        return None
    place = tuple(map(int, np.unravel_index(int(off.argmax()), off.shape)))
    value, right = (_plain(float(array[place])) for array in (output, expected))
    return Element(input_set=place[0], index=place[1:], value=value, expected=right)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
