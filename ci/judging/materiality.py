"""Decides whether an error of a program matters to its user.

By choosing a scheme, the user accepts an error: the difference between the quantized model and the
float32 model. The program's own error, its difference from the quantized model, matters in a part
of an output if it raises the error there by more than RAISE_DB. It does not matter if the program
is not farther from float32 than the quantized model is.

- Errors that only change the gain and offset of a whole output are left out of the accepted error,
  because they do not hide errors of other kinds from a user.
- A part whose accepted error happens to be small may have the SQNR of the whole output.
- A single element may also differ by one step of an 8-bit scale of the output.
- If there is no quantized model, the accepted error is the share EIGHT_BITS of each part's RMS.
- A gain or an offset matters if it exceeds EIGHT_BITS, and exceeds the quantized model's by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ci.judging.figures import ELEMENT, Array, divide
from ci.models.tensors import TensorInfo

RAISE_DB = 1.0
RAISE = 10 ** (RAISE_DB / 10) - 1  # as a share of the accepted power
EIGHT_BITS = 2**-8


@dataclass(frozen=True)
class Accepted:
    """The error that a user accepts in one output. ``float32`` is the output of the float32 model,
    and ``right`` that of the model that the program should compute, both [sample, *shape]."""

    float32: Array
    right: Array
    info: TensorInfo

    def measure_raises(self, output: Array) -> Iterator[Array]:
        """Yield, for each kind of part, by how many dB the program's error raises the accepted
        error in each part."""
        float32, right = (array.astype(np.float64) for array in (self.float32, self.right))
        step = float(np.ptp(float32)) * EIGHT_BITS
        is_quantized = bool((right != float32).any())
        for program_error, total_error, scheme_error, scheme_noise, signal in zip(
            divide((output - right) ** 2, self.info),
            divide((output - float32) ** 2, self.info),
            divide((right - float32) ** 2, self.info),
            divide(remove_line(float32, right) ** 2, self.info),
            divide(float32**2, self.info),
            strict=True,
        ):
            if not is_quantized:
                accepted = EIGHT_BITS**2 * signal.powers
            else:
                mean = float(signal.powers.mean())
                share = np.minimum(signal.powers / mean, 1.0) if mean else 0.0
                accepted = np.maximum(scheme_noise.powers, share * scheme_noise.powers.mean())
            if program_error.kind == ELEMENT:
                accepted = np.maximum(accepted, step**2 / RAISE)
            added = total_error.powers - scheme_error.powers
            raised = np.minimum(program_error.powers, added).clip(0)
            with np.errstate(divide="ignore", invalid="ignore"):
                yield np.nan_to_num(10 * np.log10(1 + raised / accepted), posinf=np.inf)

    def measure_line(self, weights: Array, output: Array) -> float:
        """Return by how many dB the program's error raises the accepted gain or offset. Each is the
        mean of an error times its ``weights``."""

        def measure_mean(error: Array) -> float:
            return abs(float(np.mean(error * weights)))

        added = measure_mean(output - self.float32) - measure_mean(self.right - self.float32)
        raised = max(min(measure_mean(output - self.right), added), 0.0)
        return 10 * math.log10(1 + RAISE * (raised / EIGHT_BITS) ** 2)


def remove_line(float32: Array, right: Array) -> Array:
    """Return the difference between two outputs without the part that a gain and an offset of the
    whole output explain."""
    error = right - float32
    centred = float32 - float32.mean()
    power = float(np.mean(centred**2))
    gain = float(np.mean(error * centred)) / power if power else 0.0
    return np.asarray(error - error.mean() - gain * centred)
