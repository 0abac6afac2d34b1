"""Outputs against references: figures, the gate, and the wrong outputs that the gate must reject.

Pure functions over numpy arrays. Outputs are nested: one list an input set, one array an output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ci.emulator.policy import ReferencePolicy
from ci.report.schema import ControlKind, Threshold

Array = NDArray[np.float64]
Outputs = Sequence[Sequence[Array]]
CONTROL_SEED = 20250724


@dataclass(frozen=True)
class Figures:
    """How far outputs are from a reference, the worst of all compared arrays.

    ``sqnr_db`` is 10 log10(sum(ref^2) / sum((ref - out)^2)) in dB, infinite when equal.
    """

    sqnr_db: float
    cosine: float
    max_abs: float


@dataclass(frozen=True)
class Judgement:
    """The gate's verdict: ``reasons`` is empty when it accepts."""

    float_figures: Figures
    quantized_figures: Figures | None
    reasons: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return not self.reasons


def measure(reference: Array, output: Array) -> Figures:
    """Figures of one array; one that is not finite anywhere is infinitely far."""
    if not np.isfinite(output).all():
        return Figures(-np.inf, -1.0, np.inf)
    error = reference - output
    signal, noise = float(np.sum(reference**2)), float(np.sum(error**2))
    norms = float(np.linalg.norm(reference) * np.linalg.norm(output))
    cosine = float(np.sum(reference * output)) / norms if norms else 0.0
    return Figures(_decibels(signal, noise), cosine, float(np.abs(error).max(initial=0.0)))


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def worst(figures: Iterable[Figures]) -> Figures:
    """The lowest SQNR and cosine and the highest difference among ``figures``."""
    every = list(figures)
    return Figures(
        min(one.sqnr_db for one in every),
        min(one.cosine for one in every),
        max(one.max_abs for one in every),
    )


def measure_all(reference: Outputs, outputs: Outputs) -> Figures:
    """The worst figures over all input sets and outputs."""
    return worst(
        measure(ref, out)
        for refs, outs in zip(reference, outputs, strict=True)
        for ref, out in zip(refs, outs, strict=True)
    )


def judge(
    float_reference: Outputs, quantized: Outputs | None, outputs: Outputs, limits: Threshold
) -> Judgement:
    """The gate. Both references have a limit of their own; None in ``limits`` is not asked for."""
    against_float = measure_all(float_reference, outputs)
    against_quantized = measure_all(quantized, outputs) if quantized is not None else None
    reasons = list(_too_far(against_float, limits.min_sqnr_db, limits.min_cosine, "float32"))
    if limits.max_abs is not None and not against_float.max_abs <= limits.max_abs:
        reasons.append(f"an element is {against_float.max_abs:.3g} off, {limits.max_abs:g} allowed")
    if against_quantized:
        reasons += _too_far(
            against_quantized,
            limits.min_sqnr_db_quantized,
            limits.min_cosine_quantized,
            "quantized",
        )
    return Judgement(against_float, against_quantized, tuple(reasons))


def _too_far(
    figures: Figures, min_sqnr_db: float | None, min_cosine: float | None, against: str
) -> Iterable[str]:
    if min_sqnr_db is not None and not figures.sqnr_db >= min_sqnr_db:
        yield (
            f"SQNR {figures.sqnr_db:.1f} dB against the {against} eager model,"
            f" {min_sqnr_db:g} dB wanted"
        )
    if min_cosine is not None and not figures.cosine >= min_cosine:
        yield (
            f"cosine {figures.cosine:.5f} against the {against} eager model, {min_cosine:g} wanted"
        )


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
