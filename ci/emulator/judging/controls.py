"""Wrong outputs that the gate must reject."""

from __future__ import annotations

import numpy as np

from ci.emulator.judging.figures import Array, Outputs
from ci.emulator.judging.gate import judge
from ci.report.schema import ControlKind, Threshold

CONTROL_SEED = 20250724


def make_controls(outputs: Outputs) -> dict[ControlKind, list[list[Array]]]:
    """Wrong outputs made of right ones: the gate has to reject each."""
    random = np.random.default_rng(CONTROL_SEED)
    return {
        ControlKind.ZEROS: [[np.zeros_like(array) for array in arrays] for arrays in outputs],
        ControlKind.NOISE: [[_noise(array, random) for array in arrays] for arrays in outputs],
        ControlKind.PERMUTED: _permute(outputs, random),
        ControlKind.OTHER_INPUT: [list(arrays) for arrays in [*outputs[1:], outputs[0]]],
    }


def _noise(array: Array, random: np.random.Generator) -> Array:
    rms = float(np.sqrt(np.mean(array**2))) if array.size else 0.0
    return random.standard_normal(array.shape) * rms


def _permute(outputs: Outputs, random: np.random.Generator) -> list[list[Array]]:
    """Elements of each output in another order, across all input sets when it has few."""
    columns = []
    for index in range(len(outputs[0])):
        stacked = np.stack([arrays[index] for arrays in outputs])
        flat = stacked.reshape(-1)
        shift = 1 + int(random.integers(flat.size - 1)) if flat.size > 1 else 0
        moved = np.roll(flat[random.permutation(flat.size)], shift)
        columns.append(moved.reshape(stacked.shape))
    return [[column[number] for column in columns] for number in range(len(outputs))]


def is_rejected(
    float_reference: Outputs, quantized: Outputs | None, wrong: Outputs, limits: Threshold
) -> tuple[bool, float]:
    """Whether the gate rejects ``wrong`` in every output on its own, and the best SQNR it got."""
    judgements = [
        judge(
            _column(float_reference, index),
            _column(quantized, index) if quantized is not None else None,
            _column(wrong, index),
            limits,
        )
        for index in range(len(float_reference[0]))
    ]
    best = max(one.float_figures.sqnr_db for one in judgements)
    return not any(one.accepted for one in judgements), best


def _column(outputs: Outputs, index: int) -> list[list[Array]]:
    return [[arrays[index]] for arrays in outputs]
