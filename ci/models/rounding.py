"""The errors that QNN makes when it rounds. ci.models.noise and ci.onnx.noise insert them.

All constants were determined by comparison with programs on the HTP emulator of QNN 2.49.40;
docs/findings/gate.md has a table of predictions and measurements.
"""

from __future__ import annotations

from collections.abc import Iterable

from ci.report.schema import Clipped

RUNS = 8
MAX_BYTES = 128 << 20  # of all outputs in all runs; a model with large outputs gets fewer runs
MIN_RUNS = 2
# The share of elements that a quantizer after arithmetic may round to the next step.
MOVED = {8: 0.1, 16: 1.0}
# Layers with 4-bit or 16-bit weights: a relative error per channel, plus an error in steps of the
# output. With 4-bit weights, the latter is the same for all elements of a channel; with 16-bit
# weights, it varies.
WEIGHT_GAIN, WEIGHT_STEPS = 2**-9, 6
# ONNX Runtime's schemes: in a layer with unsigned weights and 16-bit activations, and in a product
# of two 16-bit activations, this share of the elements is wrong by up to this many steps, as if the
# carry from the lower byte were lost.
CARRY_SHARE, CARRY_STEPS = 2**-6, 1.5 * 2**8
RELATIVE = 2**-11  # of each operator's result in float16
SOFTMAX = 2**-9  # a relative error, too
FLOAT16_MAX = 65504.0
# HTP approximates an activation that directly follows a layer in float16; the error is absolute.
ACTIVATIONS = {"sigmoid": 2**-8, "gelu": 2**-8, "silu": 2**-8, "elu": 2**-8, "tanh": 2**-7}
# For ties, this share of the RMS of an operand is added to its elements or subtracted: 0.1 is an
# SQNR of 20 dB, 0.01 is 40 dB. The keys are the bits of an activation.
TIE_SHARES = {8: 0.1, 11: 0.01, 16: 0.01}
TIE_RUNS = 16
# A tensor is clipped if its values leave its range by more than this share of the range.
CLIPPED = 0.1
MOST_CLIPPED = 3


def list_clipped(
    ranges: Iterable[tuple[str, bool, float, float, float, float]],
) -> tuple[Clipped, ...]:
    """Return the tensors that are clipped, inputs of the model first, then those that are clipped
    most. Each of ``ranges`` is a name, whether it is an input, the calibrated range, and the range
    of the values."""
    found = []
    for name, is_input, low, high, seen_low, seen_high in ranges:
        beyond = max(low - seen_low, seen_high - high) / (high - low)
        if beyond > CLIPPED:
            one = Clipped(
                name=name,
                is_input=is_input,
                low=low,
                high=high,
                seen_low=seen_low,
                seen_high=seen_high,
            )
            found.append((not is_input, -beyond, name, one))
    return tuple(one for *_, one in sorted(found, key=lambda row: row[:3])[:MOST_CLIPPED])


def count_runs(sizes: Iterable[int]) -> int:
    """Return the number of disturbed runs for outputs with these numbers of elements."""
    return max(MIN_RUNS, min(RUNS, MAX_BYTES // max(4 * sum(sizes), 1)))
