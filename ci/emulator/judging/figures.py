"""How far outputs are from a reference.

Outputs are nested: one list an input set, one array an output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Outputs = Sequence[Sequence[Array]]


@dataclass(frozen=True)
class Figures:
    """How far outputs are from a reference, the worst of all compared arrays.

    ``sqnr_db`` is 10 log10(sum(ref^2) / sum((ref - out)^2)) in dB, infinite when equal.
    """

    sqnr_db: float
    cosine: float
    max_abs: float


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
