"""The gate: compares a program's outputs with a prediction and limits, one output at a time.

It asks two questions:

- Is the program faithful? Its outputs must equal those of its quantized model (in float16, of its
  float32 model), apart from errors that correct arithmetic may make.
- Is it quantized well? The quantized model must be close enough to float32.

The user's metric answers a third question (ci.judging.verdict).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ci.analysis.grids import find_impossible, find_step
from ci.analysis.parts import MOST_CHANNELS, find_quiet, has_range
from ci.facts.finding import (
    FLOAT_LEAD,
    NO_ADVICE,
    Advice,
    Certainty,
    Figure,
    Finding,
    Question,
    advise,
)
from ci.facts.kinds import (
    CLIPPED,
    ELEMENTS,
    FAR,
    FEW,
    LOST,
    NOISE,
    NOT_FINITE,
    OFF_GRID,
    PART,
    QUANTIZED_BADLY,
    UNEQUAL,
    FindingId,
)
from ci.judging.error_patterns import find_exchange
from ci.judging.figures import (
    ELEMENT,
    Array,
    Figures,
    Fit,
    fit_line,
    is_floating,
    measure,
    measure_pooled,
    share_equal,
)
from ci.judging.materiality import RAISE_DB, Accepted
from ci.judging.noise import Excess, Prediction
from ci.models.tensors import OutputPart, TensorInfo
from ci.report.schema import Clipped, Threshold

FLOAT32, QUANTIZED, MAX_ABS = "float32", "quantized", "max_abs"
# If rounding alone leaves less than this SQNR, an error is blamed on the coarse quantization, not
# on the program.
LOST_DB = 3.0
# By how much less SQNR than the whole output channels have that are lost because the others are
# much larger. With 4-bit weights, channels differ by up to 8 dB without such a cause.
QUIET_DB = 10.0
# Rounding to the steps of an output explains a lost part, if it leaves at most so much more: chance
# moves an SQNR by less.
SAME_DB = 3.0


@dataclass(frozen=True)
class Expected:
    """One output of a reference model, [sample, *shape].

    For indices, classes and booleans, every value from ``low`` to ``high`` is correct.
    """

    values: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class References:
    """The outputs of the float32 and the quantized model, and the predicted noise of a correct
    program, with one entry per output. ``quantized`` is None if there is no quantized model. An
    entry of ``noise`` is None if the output has no prediction. ``noise`` is empty if no output has
    one. ``clipped`` are tensors whose values leave their calibrated ranges."""

    float32: Sequence[Expected]
    quantized: Sequence[Expected] | None = None
    noise: Sequence[Prediction | None] = ()
    clipped: Sequence[Clipped] = ()

    def best(self, index: int) -> tuple[Expected, str]:
        """Return the output that the program should compute, and the name of the model that
        computed it. This is the quantized model if there is one, else the float32 model."""
        if self.quantized is None:
            return self.float32[index], FLOAT32
        return self.quantized[index], QUANTIZED

    def predict(self, index: int, info: TensorInfo) -> Prediction:
        """Return the prediction for an output. If there is none, return a prediction without noise.
        Then only errors up to ``max_above_noise_db`` above the floor of ci.judging.noise are
        accepted."""
        prediction = self.noise[index] if self.noise else None
        if prediction is not None:
            return prediction
        values = self.best(index)[0].values
        return Prediction(values, np.zeros((2, *values.shape), np.float32), info)


@dataclass(frozen=True)
class OutputJudgement:
    """The judgement of one output. A field keeps its default if it does not apply."""

    findings: tuple[Finding, ...] = ()  # empty if the gate accepts the output
    # For floating-point outputs. If an element is NaN or infinite, only float_figures is set.
    float_figures: Figures | None = None  # of the output against the float32 model
    quantized_figures: Figures | None = None  # of the output against the quantized model
    scheme_figures: Figures | None = None  # of the quantized model against the float32 model
    predicted_db: float | None = None  # the predicted SQNR of the worst sample
    fit: Fit | None = None  # None if the reference is all zero
    excesses: tuple[Excess, ...] = ()  # from Prediction.find_excesses
    # For other outputs: shares of correct elements from share_equal.
    equal: float | None = None  # against the float32 model
    equal_quantized: float | None = None  # against the quantized model
    equal_exact: float | None = None  # only elements equal to the reference count as correct

    @property
    def nearest(self) -> Figures | None:
        """The figures against the model that the program should compute, if there are any."""
        return self.quantized_figures or self.float_figures

    def fails(self, question: Question) -> bool:
        """Return whether the gate rejects the output on this question."""
        return any(finding.question is question for finding in self.findings)

    @property
    def noted(self) -> Excess | None:
        """The worst error that noise does not explain, if no such error matters."""
        worst = self.excesses[0] if self.excesses else None
        return worst if worst and worst.over_db > 0 and not worst.matters else None


@dataclass(frozen=True)
class Judgement:
    """The judgements of all outputs, in the program's order."""

    outputs: tuple[OutputJudgement, ...]

    @property
    def accepted(self) -> bool:
        """Return whether the gate accepts all outputs."""
        return not self.findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return why the gate rejects the program."""
        return tuple(finding for output in self.outputs for finding in output.findings)


def judge(
    references: References, outputs: Sequence[Array], infos: Sequence[TensorInfo], limits: Threshold
) -> Judgement:
    """Judge every output. A limit that is None is not checked."""
    return Judgement(
        tuple(
            judge_output(references, index, output, infos[index], limits)
            for index, output in enumerate(outputs)
        )
    )


def judge_output(
    references: References, index: int, output: Array, info: TensorInfo, limits: Threshold
) -> OutputJudgement:
    """Judge one output according to its dtype, with its own limits if the policy has any."""
    limits = limits.of_output(index)
    quantized = references.quantized[index] if references.quantized is not None else None
    subject = f"output {index}" if len(references.float32) > 1 else ""
    if not is_floating(output):
        return _judge_choices(references.float32[index], quantized, output, limits, subject)
    if not np.isfinite(output).all():
        worst = measure(references.float32[index].values, output)
        finding = NOT_FINITE.find("an element is NaN or infinite", subject=subject)
        return OutputJudgement((finding,), float_figures=worst)
    return _judge_magnitudes(references, index, output, info, limits=limits, subject=subject)


def _judge_choices(
    eager: Expected, quantized: Expected | None, output: Array, limits: Threshold, subject: str
) -> OutputJudgement:
    equal = share_equal(eager.low, eager.values, eager.high, output)
    best = (quantized or eager).values
    exact = share_equal(best, best, best, output)
    equal_quantized = None
    requirements = [(UNEQUAL, equal, limits.min_equal, FLOAT32)]
    if quantized is not None:
        model_share = share_equal(eager.low, eager.values, eager.high, quantized.values)
        equal_quantized = share_equal(quantized.low, quantized.values, quantized.high, output)
        requirements = [
            (UNEQUAL, equal_quantized, limits.min_equal_quantized, QUANTIZED),
            (FEW, min(model_share, equal), limits.min_equal, FLOAT32),
        ]
    findings: list[Finding] = []
    for kind, share, required_share, model in requirements:
        text = f"{share:.2%} of the elements equal those of the {model} model, {{:.2%}} required"
        findings += _require(subject, kind, f"equal_{model}", share, required_share, text=text)
    return OutputJudgement(
        tuple(findings), equal=equal, equal_quantized=equal_quantized, equal_exact=exact
    )


def _judge_magnitudes(
    references: References,
    index: int,
    output: Array,
    info: TensorInfo,
    *,
    limits: Threshold,
    subject: str,
) -> OutputJudgement:
    eager = references.float32[index].values
    best, against = references.best(index)
    prediction = references.predict(index, info)
    accepted = None if limits.strict_noise else Accepted(eager, best.values, info)
    excesses = prediction.find_excesses(output, limits.max_above_noise_db, accepted)
    if excesses[0].over_db > 0 and not excesses[0].matters:
        right = [references.best(number)[0].values for number in range(len(references.float32))]
        # Outputs of another sample or place are never a small error, however similar the samples
        # are.
        if find_exchange(right, output, index):
            excesses = prediction.find_excesses(output, limits.max_above_noise_db)
    against_float = measure(eager, output)
    judged = output if references.quantized is None else best.values
    pooled = measure_pooled(eager, judged)
    # Over all samples, because a sample in which a detector is silent has a low SQNR by itself.
    is_short = limits.min_sqnr_db_all is not None and not pooled >= limits.min_sqnr_db_all
    is_lost = references.quantized is not None and is_short and prediction.sqnr_db < LOST_DB
    # QNN does not clip every value that the quantized model clips.
    is_clipped = bool(references.clipped) and measure_pooled(eager, output) > pooled + RAISE_DB
    coarse = CLIPPED if is_clipped else LOST if is_lost else None
    findings = [*_off_grid(output, info, coarse or OFF_GRID, subject)]
    worst = excesses[0]
    if worst.fails:
        reached, allowed_db = measure(best.values, output).sqnr_db, worst.above_db - worst.over_db
        above = Figure(name="above_noise", value=worst.above_db, unit="dB", allowed=allowed_db)
        predicted_db = prediction.sqnr_db
        compared = f"SQNR {reached:.1f} dB against the {against} model"
        compared += " in the worst sample" * (len(eager) > 1)
        near = Figure(name=f"sqnr_{against}", value=reached, unit="dB", predicted=predicted_db)
        alone = all(excess.kind == ELEMENT for excess in excesses if excess.fails)
        findings.append(
            (coarse or (ELEMENTS if alone else NOISE)).find(
                f"the error is {worst.above_db:.1f} dB above the predicted noise in {worst.place}",
                subject=subject,
                details=[
                    f"{allowed_db:.1f} dB allowed; {compared} ({predicted_db:.1f} dB predicted)"
                ],
                figures=(above, near),
            )
        )
    require = partial(_require, subject)
    badly, lost_part, subject_name = _kinds_of_accuracy(is_float=references.quantized is None)
    against_quantized = scheme = None
    requirements = []
    if references.quantized is not None:
        against_quantized, scheme = measure(best.values, output), measure(eager, best.values)
        required = (limits.min_sqnr_db_quantized, limits.min_cosine_quantized)
        requirements.append((FAR, against_quantized, *required, QUANTIZED))
    required = (limits.min_sqnr_db, limits.min_cosine)
    requirements.append((badly, scheme or against_float, *required, FLOAT32))
    for kind, figures, least_db, least_cosine, model in requirements:
        description, detail = (
            f"SQNR {figures.sqnr_db:.1f} dB in the worst sample",
            f"against the {model} model",
        )
        text = f"{description}, {{:g}} dB required"
        findings += require(
            kind, f"sqnr_{model}", figures.sqnr_db, least_db, text=text, detail=detail
        )
        text = f"cosine {figures.cosine:.5f} {detail}, {{:g}} required"
        findings += require(kind, f"cosine_{model}", figures.cosine, least_cosine, text=text)
    least_db = limits.min_sqnr_db_all
    text = f"{subject_name} has {pooled:.1f} dB of SQNR, {{:g}} dB required"
    detail = f"against the float32 model{_compare_samples(len(eager), scheme or against_float)}"
    findings += require(badly, "sqnr_all", pooled, least_db, text=text, detail=detail)
    findings += _judge_parts(subject, lost_part, (eager, judged), info, least_db)
    largest, detail = against_float.max_abs, "from the float32 model"
    text = f"an element differs by {largest:.3g}, {{:g}} allowed"
    findings += require(badly, MAX_ABS, largest, limits.max_abs, text=text, detail=detail)
    return OutputJudgement(
        tuple(findings),
        against_float,
        against_quantized,
        scheme,
        prediction.sqnr_db,
        fit_line(best.values, output) if best.values.any() else None,
        tuple(excesses),
    )


def _compare_samples(count: int, figures: Figures) -> str:
    """Return that an SQNR is that of all of ``count`` samples, and what the worst of them has,
    which reports show in the row of the case."""
    if count == 1:
        return ""
    return f", over all samples; the worst of them has {figures.sqnr_db:.1f} dB"


def _kinds_of_accuracy(*, is_float: bool) -> tuple[FindingId, FindingId, str]:
    """Return the kinds for an output, and for a part of it, that is too far from the float32
    model's, and what is compared with it. In a float scheme, they say nothing of quantization."""
    if not is_float:
        return QUANTIZED_BADLY, PART, "the quantized model"
    badly, lost_part = (replace(kind, lead=FLOAT_LEAD) for kind in (QUANTIZED_BADLY, PART))
    return badly, lost_part, "the program"


def _off_grid(output: Array, info: TensorInfo, kind: FindingId, subject: str) -> Iterator[Finding]:
    """Yield a finding if a quantized output has values that are out of its range or not multiples
    of its step."""
    off = find_impossible(output, info)
    if off.any():
        grid = (
            f"they are not multiples of {info.step:.6g} between"
            f" {info.lowest * info.step:.6g} and {info.highest * info.step:.6g}"
        )
        yield kind.find(
            f"{off.mean():.2%} of the elements have values that the output cannot have",
            subject=subject,
            details=[grid],
            figures=(Figure(name="off_grid", value=float(off.mean())),),
        )


def _judge_parts(
    subject: str,
    kind: FindingId,
    outputs: tuple[Array, Array],
    info: TensorInfo,
    least_db: float | None,
) -> Iterator[Finding]:
    """Yield a finding of a kind for each part that is lost of an output, with its cause if that is
    its step. ``outputs`` are those of the float32 model and of the judged one."""
    eager, judged = outputs
    is_float = kind.lead == FLOAT_LEAD
    for part, part_db in _find_lost(eager, judged, info, least_db, is_float):
        text, detail = _describe_lost(part, part_db, eager, info)
        step = info.step or find_step(judged)
        advice = advise_on_step(part, (part_db, least_db), eager, step)
        for finding in _require(
            subject, kind, "sqnr_all", part_db, least_db, text=text, detail=detail
        ):
            yield finding.explained(advice)


def _find_lost(
    eager: Array, judged: Array, info: TensorInfo, least_db: float | None, is_float: bool
) -> Iterator[tuple[OutputPart, float]]:
    """Yield each part of an output that is lost, with its SQNR in dB. Parts inside of it are left
    out.

    A part that the model joins to others has to be as good as a separate output. Channels that are
    far below all others also have to be worse than the whole output by QUIET_DB, because channels
    differ by less if they do not lose more than the others. Float programs have no step that
    channels could share.
    """
    if least_db is None:
        return
    rank = len(info.shape)
    whole_db, largest = measure_pooled(eager, judged), float(np.abs(eager).max(initial=0.0))
    limits = [(part, least_db) for part in info.parts]
    if not is_float:
        limits += [(part, min(least_db, whole_db - QUIET_DB)) for part in find_quiet(eager)]
    lost: list[OutputPart] = []
    for part, limit_db in limits:
        values = part.take(eager, rank)
        if has_range(values, largest) and not any(lost_part.contains(part) for lost_part in lost):
            reached = measure_pooled(values, part.take(judged, rank))
            if not reached >= limit_db:
                lost.append(part)
                yield part, reached


def find_drowned(eager: Array, judged: Array) -> Iterator[tuple[str, float]]:
    """Yield the channels of an output, [sample, *shape], whose errors are larger than their values,
    with their SQNR in dB against the float32 model, which is below 0. Small channels of right
    programs can have such errors, too, so this alone does not fail a case."""
    if not is_floating(judged):
        return
    largest = float(np.abs(eager).max(initial=0.0))
    for axis, size in enumerate(eager.shape[1:]):
        for channel in range(size if 2 <= size <= MOST_CHANNELS else 0):
            values = eager.take([channel], axis + 1)
            db = measure_pooled(values, judged.take([channel], axis + 1))
            if db < 0 and has_range(values, largest):
                yield f"channel {channel} along axis {axis}", db


def advise_on_step(
    part: OutputPart, levels_db: tuple[float, float | None], eager: Array, step: float
) -> Advice:
    """Return the cause that the step of a quantized output, 0 if it has none, is too large for a
    part of it. ``levels_db`` are the SQNR that the part has in the quantized model, and the one
    that is required. It is tried: ``eager``, what the float32 model returns, loses as much of the
    part if only the output is rounded, or at least too much."""
    (part_db, least_db), rank = levels_db, eager.ndim - 1
    if not step or least_db is None:
        return NO_ADVICE
    values = part.take(eager, rank)
    # Not limited to the range of the output: what leaves it is lost for another reason.
    rounded = np.round(eager.astype(np.float64) / step) * step
    rounded_db = measure_pooled(values, part.take(rounded, rank))
    is_whole = rounded_db <= part_db + SAME_DB
    if not is_whole and rounded_db >= least_db:
        return NO_ADVICE
    word = "proven" if is_whole else "in part, proven"
    largest = float(np.abs(values).max())
    return advise(
        f"the output has steps of {step:.3g} for all of its parts, and the largest number of this"
        f" part is {largest:.3g} ({word}: the float32 model's numbers, rounded to these steps,"
        f" have {rounded_db:.1f} dB in the part)",
        certainty=Certainty.PROVEN,
    )


def _describe_lost(part: OutputPart, db: float, eager: Array, info: TensorInfo) -> tuple[str, str]:
    """Return the headline of a finding about a part, with a place for the limit, and a detail: the
    largest magnitudes of the part and of the whole output."""
    level, largest = (
        float(np.abs(values).max()) for values in (part.take(eager, len(info.shape)), eager)
    )
    text = f"SQNR {db:.1f} dB in part {part}, {{:g}} dB required"
    detail = f"its largest magnitude is {level:.3g}, that of the whole output is {largest:.3g}"
    return text, f"{detail}; it comes from {part.origin}" if part.origin else detail


def _require(
    subject: str,
    kind: FindingId,
    name: str,
    value: float,
    limit: float | None,
    *,
    text: str,
    detail: str = "",
) -> Iterator[Finding]:
    """Yield a finding if a figure is below its limit, or above it for MAX_ABS, or NaN. ``text`` has
    a place for the limit."""
    if limit is not None and not (value <= limit if name == MAX_ABS else value >= limit):
        unit = "dB" if name.startswith("sqnr") else ""
        figure = Figure(name=name, value=value, unit=unit, allowed=limit)
        details = [detail] if detail else []
        yield kind.find(text.format(limit), subject=subject, details=details, figures=(figure,))
