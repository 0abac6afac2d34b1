"""The gate: the outputs of a program against limits, one output at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ci.judging.channels import Part, find_step, measure_joined, worst_channel
from ci.judging.figures import (
    Array,
    Figures,
    Fit,
    fit_line,
    is_floating,
    measure,
    measure_pooled,
    share_equal,
)
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold

FLOAT32, QUANTIZED = "float32", "quantized"


@dataclass(frozen=True)
class Expected:
    """One output of an eager model, [input set, *shape].

    Indices, classes and booleans may be anything from ``low`` to ``high``.
    """

    values: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class References:
    """What both eager models give, an entry an output."""

    float32: Sequence[Expected]
    quantized: Sequence[Expected] | None = None

    def best(self, index: int) -> tuple[Expected, str]:
        """What the program was asked to compute, and which model says so."""
        if self.quantized is None:
            return self.float32[index], FLOAT32
        return self.quantized[index], QUANTIZED


@dataclass(frozen=True)
class OutputJudgement:
    """One output; ``reasons`` is empty when the gate accepts it.

    Magnitudes have figures, a fit and the channel or part nearest to its limit; indices, classes
    and booleans have shares of equal elements.
    """

    reasons: tuple[str, ...] = ()
    float_figures: Figures | None = None
    quantized_figures: Figures | None = None
    fit: Fit | None = None
    channel: Part | None = None
    equal: float | None = None
    equal_quantized: float | None = None


@dataclass(frozen=True)
class Judgement:
    """All outputs, in the program's order."""

    outputs: tuple[OutputJudgement, ...]

    @property
    def accepted(self) -> bool:
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate rejects; which output it is about, where there are several."""
        several = len(self.outputs) > 1
        return tuple(
            f"output {index}: {reason}" if several else reason
            for index, output in enumerate(self.outputs)
            for reason in output.reasons
        )


def judge(
    references: References, outputs: Sequence[Array], infos: Sequence[TensorInfo], limits: Threshold
) -> Judgement:
    """Every output; a limit that is None is not asked for."""
    return Judgement(
        tuple(
            judge_output(references, index, output, infos[index], limits)
            for index, output in enumerate(outputs)
        )
    )


def judge_output(
    references: References, index: int, output: Array, info: TensorInfo, limits: Threshold
) -> OutputJudgement:
    """One output, by what it holds."""
    quantized = references.quantized[index] if references.quantized is not None else None
    if not is_floating(output):
        return _judge_choices(references.float32[index], quantized, output, limits)
    if not np.isfinite(output).all():
        worst = measure(references.float32[index].values, output)
        return OutputJudgement(("an element is NaN or infinite",), float_figures=worst)
    return _judge_magnitudes(references, index, output, info, limits)


def _judge_choices(
    eager: Expected, quantized: Expected | None, output: Array, limits: Threshold
) -> OutputJudgement:
    equal = share_equal(eager.low, eager.values, eager.high, output)
    reasons = [*_too_few(equal, limits.min_equal, FLOAT32)]
    equal_quantized = None
    if quantized is not None:
        equal_quantized = share_equal(quantized.low, quantized.values, quantized.high, output)
        reasons += _too_few(equal_quantized, limits.min_equal_quantized, QUANTIZED)
    return OutputJudgement(tuple(reasons), equal=equal, equal_quantized=equal_quantized)


def _judge_magnitudes(
    references: References, index: int, output: Array, info: TensorInfo, limits: Threshold
) -> OutputJudgement:
    eager = references.float32[index].values
    against_float = measure(eager, output)
    reasons = [*_too_far(against_float, limits.min_sqnr_db, limits.min_cosine, FLOAT32)]
    if limits.max_abs is not None and not against_float.max_abs <= limits.max_abs:
        reasons.append(f"an element is {against_float.max_abs:.3g} off, {limits.max_abs:g} allowed")
    against_quantized = None
    if references.quantized is not None:
        asked = references.quantized[index].values
        against_quantized = measure(asked, output)
        reasons += _too_far(
            against_quantized, limits.min_sqnr_db_quantized, limits.min_cosine_quantized, QUANTIZED
        )
        reasons += _too_near(eager, asked, output, limits.max_nearer_db)
    best, against = references.best(index)
    if not best.values.any():
        return OutputJudgement(tuple(reasons), against_float, against_quantized)
    fit = fit_line(best.values, output)
    reasons += _is_off_line(fit, limits, against)
    bits = Scheme(limits.scheme).recipe.activation_bits
    channel = None
    if limits.min_sqnr_db_channel is not None:
        channel = worst_channel(best.values, output, bits, limits.min_sqnr_db_channel)
        reasons += _is_quiet(channel, limits.min_sqnr_db_channel, against)
    reasons += _judge_joined(references, index, output, info, limits)
    return OutputJudgement(tuple(reasons), against_float, against_quantized, fit, channel)


def _judge_joined(
    references: References, index: int, output: Array, info: TensorInfo, limits: Threshold
) -> Iterator[str]:
    """Each part of a concatenation is asked for what a tensor of its own would be."""
    asked = [(references.float32[index].values, limits.min_sqnr_db, FLOAT32, 0.0)]
    if references.quantized is not None:
        best = references.quantized[index].values
        step = find_step(best, Scheme(limits.scheme).recipe.activation_bits)
        asked.append((best, limits.min_sqnr_db_quantized, QUANTIZED, step))
    for values, wanted_db, against, step in asked:
        if wanted_db is not None and info.joined:
            for part in measure_joined(values, output, info, step, wanted_db):
                yield from _is_quiet(part, wanted_db, against)


def _too_far(
    figures: Figures, min_sqnr_db: float | None, min_cosine: float | None, against: str
) -> Iterator[str]:
    if min_sqnr_db is not None and not figures.sqnr_db >= min_sqnr_db:
        yield (
            f"SQNR {figures.sqnr_db:.1f} dB against the {against} eager model,"
            f" {min_sqnr_db:g} dB wanted"
        )
    if min_cosine is not None and not figures.cosine >= min_cosine:
        yield (
            f"cosine {figures.cosine:.5f} against the {against} eager model, {min_cosine:g} wanted"
        )


def _too_near(eager: Array, asked: Array, output: Array, limit: float | None) -> Iterator[str]:
    """Outputs of a scheme with more bits are right, but not those of this program."""
    nearer = measure_pooled(eager, output) - measure_pooled(eager, asked)
    if limit is not None and nearer > limit:
        yield (
            f"{nearer:.1f} dB nearer to the float32 eager model than the quantized eager model is,"
            f" {limit:g} dB allowed: these are not the outputs of this scheme"
        )


def _is_off_line(fit: Fit, limits: Threshold, against: str) -> Iterator[str]:
    allowed = limits.max_gain_error
    if allowed is not None and not abs(fit.gain) - fit.gain_noise <= allowed:
        yield f"gain {1 + fit.gain:.4f} against the {against} eager model, 1 +- {allowed:g} wanted"
    allowed = limits.max_offset
    if allowed is not None and not abs(fit.offset) - fit.offset_noise <= allowed:
        yield (
            f"offset of {fit.offset:.4f} standard deviations against the {against} eager model,"
            f" {allowed:g} allowed"
        )


def _is_quiet(part: Part | None, wanted_db: float, against: str) -> Iterator[str]:
    if part and not part.sqnr_db >= wanted_db:
        yield (
            f"SQNR {part.sqnr_db:.1f} dB in {part.place} against the {against} eager model,"
            f" {wanted_db:g} dB wanted"
        )


def _too_few(equal: float, wanted: float | None, against: str) -> Iterator[str]:
    if wanted is not None and not equal >= wanted:
        yield (
            f"{equal:.2%} of the elements equal those of the {against} eager model,"
            f" {wanted:.2%} wanted"
        )
