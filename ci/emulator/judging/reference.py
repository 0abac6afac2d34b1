"""References that prove nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ci.emulator.judging.figures import Array, Outputs
from ci.emulator.policy import ReferencePolicy


def find_degenerate(reference: Outputs, policy: ReferencePolicy) -> str:
    """Why a reference proves nothing: near zero, constant, or the same for every input set.

    Empty when it is good.
    """
    for index in range(len(reference[0])):
        values = np.concatenate([outputs[index].reshape(-1) for outputs in reference])
        rms = float(np.sqrt(np.mean(values**2))) if values.size else 0.0
        if not np.isfinite(rms):
            return f"output {index} of the float32 model is not finite"
        if rms < policy.min_rms:
            return f"output {index} is near zero (RMS {rms:.2g} < {policy.min_rms:g})"
        if float(values.std()) < policy.min_spread * rms:
            return f"output {index} is constant (spread {values.std() / rms:.2g} of its RMS)"
        if _is_repeated([outputs[index] for outputs in reference]):
            return f"output {index} is the same for every input: vary the inputs, or leave it out"
    return ""


def _is_repeated(arrays: Sequence[Array]) -> bool:
    return len(arrays) > 1 and all(np.array_equal(arrays[0], array) for array in arrays[1:])
