"""The gate: figures against limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ci.emulator.judging.figures import Figures, Outputs, measure_all
from ci.report.schema import Threshold


@dataclass(frozen=True)
class Judgement:
    """The gate's verdict: ``reasons`` is empty when it accepts."""

    float_figures: Figures
    quantized_figures: Figures | None
    reasons: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return not self.reasons


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
