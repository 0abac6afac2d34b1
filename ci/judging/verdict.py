"""Judges the outputs of a program, explains failures, and tests the gate with controls."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ci.facts.finding import NO_ADVICE, Advice, Certainty, Figure, Finding, Proof, Question, advise
from ci.facts.kinds import (
    ELEMENTS,
    METRIC_BLIND,
    METRIC_DROP,
    METRIC_ERROR,
    METRIC_LOST,
    METRIC_MODEL,
    PART,
)
from ci.judging.causes import CALIBRATE, SIXTEEN_BITS
from ci.judging.controls import MAKERS, is_rejected, make_controls
from ci.judging.error_patterns import ErrorPattern, find_pattern
from ci.judging.figures import ROW, Array, is_floating, measure_pooled, measure_variation
from ci.judging.gate import LOST_DB, Judgement, OutputJudgement, References, judge
from ci.judging.noise import Excess
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.models.user_data import CHECK_METRIC
from ci.models.user_models import SHUFFLED, Metric, MetricResult
from ci.report.schema import ControlKind, NoiseNote, Threshold

MORE_BITS = "choose a scheme with more bits"
APART = (
    "return the part as a separate output of its own layers, because an output has only one step"
    " size; or multiply it, so that it has the range of the other parts"
)
FLOAT16 = f"float16 has 11 significant bits: keep values small, or {SIXTEEN_BITS}"
OTHER_FORM = "write the affected part of the model differently"
BATCH = "lower the model with batch 1"
ROWS = "some rows of the batch are correct and others are not"
UINT8 = "use int32 or float32 inputs, because QNN reads each uint8 of an input as 0 or 1"
KEPT = 0.1  # the share of the allowed drop of a metric that counts as no drop
NEAR_DB = 3.0  # below this difference, chance decides which of two parts has the larger excess
SCHEME = advise("quantization lost the accuracy that the float32 model has", CALIBRATE)
MODEL = advise(
    "the cause is the float32 model, its data or the metric, not QNN",
    CHECK_METRIC,
    proof=Proof.PROVEN,
)
# Kinds whose cause is the float32 model, its data or the metric: no program could be accepted.
OF_MODEL = {METRIC_MODEL.id, METRIC_BLIND.id, METRIC_ERROR.id}


@dataclass(frozen=True)
class CaseFigures:
    """The worst value of each figure over the outputs of a case, or None if no output has the
    figure. The fields are named as in the report's Case."""

    sqnr_db: float | None = None
    sqnr_db_quantized: float | None = None
    cosine: float | None = None
    cosine_quantized: float | None = None
    max_abs: float | None = None
    sqnr_db_scheme: float | None = None
    predicted_sqnr_db: float | None = None
    above_noise_db: float | None = None
    above_noise_place: str = ""
    gain: float | None = None
    offset: float | None = None
    equal: float | None = None
    equal_quantized: float | None = None
    equal_exact: float | None = None


@dataclass(frozen=True)
class ControlResult:
    """Whether the gate rejected the wrong outputs of one kind, and their highest SQNR in dB."""

    kind: ControlKind
    rejected: bool
    sqnr_db: float | None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case."""

    figures: CaseFigures
    findings: tuple[Finding, ...] = ()  # empty if the outputs are accepted
    # What is known if no known fault is the cause, and if one is the cause of all questions.
    advice: Advice = NO_ADVICE
    explained_advice: Advice = NO_ADVICE
    # whether the elements of a wrong output are right but in other places
    is_placed: bool = False
    controls: tuple[ControlResult, ...] = ()
    inconclusive: str = ""  # names the kinds of wrong outputs that the gate accepts; or empty
    notes: tuple[NoiseNote, ...] = ()  # on errors that noise does not explain and do not matter
    # On errors of single elements, which do not matter if the program keeps the user's metric.
    element_notes: tuple[NoiseNote, ...] = ()
    warnings: tuple[str, ...] = ()  # on outputs with which the gate can hardly detect a fault


def judge_outputs(
    references: References,
    outputs: Sequence[Array],
    inputs: Sequence[TensorInfo],
    infos: Sequence[TensorInfo],
    limits: Threshold,
    *,
    inputs_vary: float | None = None,
    made_inputs: str = "",
) -> Verdict:
    """Compare ``outputs``, [sample, *shape] each, with the references, and test the gate with
    controls. ``infos`` describe the outputs, and ``inputs`` the program's inputs. ``inputs_vary``
    is how much the inputs differ between samples, from measure_variation. ``made_inputs`` is the
    note on generated inputs, from name_made."""
    judgement = judge(references, outputs, infos, limits)
    controls = tuple(feed_controls(references, infos, limits))
    passing = [control.kind.value for control in controls if not control.rejected]
    # Samples may be too similar to distinguish. That is a warning about the samples, no hole in
    # the gate.
    faults = [name for name in passing if name != ControlKind.OTHER_INPUT.value]
    warnings = []
    # If the gate accepts other faults, too, the noise hides everything, and no samples change that.
    if ControlKind.OTHER_INPUT.value in passing and not faults:
        warnings.append(_warn_of_alike(inputs_vary, measure_outputs(references), made_inputs))
    warnings += [*find_vague(references, infos, limits), *find_faint(references, infos)]
    patterns = find_patterns(judgement, references, outputs)
    notes, element_notes = [], []
    for index, output in enumerate(judgement.outputs):
        if output.noted:
            notes.append(make_note(output, output.noted, references, outputs, index))
        if any(finding.id == ELEMENTS.id for finding in output.findings):
            excess = output.excesses[0]
            note = make_note(output, excess, references, outputs, index, metric=True)
            element_notes.append(note)
    return Verdict(
        summarize_figures(judgement),
        judgement.findings,
        advise_on_figures(judgement, references, patterns, inputs, limits),
        advise_on_figures(judgement, references, patterns, inputs, limits, explained=[*Question]),
        any(pattern is not None and pattern.is_placed for pattern in patterns.values()),
        tuple(
            control
            for control in controls
            if control.rejected or control.kind is not ControlKind.OTHER_INPUT
        ),
        f"the gate accepts {', '.join(faults)}: this case proves nothing" if faults else "",
        tuple(notes),
        tuple(element_notes),
        tuple(warnings),
    )


def make_note(
    judged: OutputJudgement,
    excess: Excess,
    references: References,
    outputs: Sequence[Array],
    index: int,
    *,
    metric: bool = False,
) -> NoiseNote:
    """Return the note on an error of an output. ``metric`` is whether the user's metric is the
    reason why it does not matter."""
    eager = references.float32[index].values
    reached = measure_pooled(eager, outputs[index])
    best = references.best(index)[0].values
    scheme = measure_pooled(eager, best) if references.quantized else None
    figures = judged.nearest
    nearer = scheme is not None and reached > scheme
    nearer = nearer and measure_pooled(best, outputs[index]) < reached
    return NoiseNote(
        output=index,
        place=excess.place,
        above_db=excess.above_db,
        allowed_db=excess.above_db - excess.over_db,
        raised_db=excess.raised_db,
        why="metric" if metric else "nearer" if nearer else "small",
        sqnr_db=figures.sqnr_db if figures else None,
        predicted_db=judged.predicted_db,
        sqnr_db_float=reached,
        sqnr_db_scheme=scheme,
    )


def find_vague(
    references: References, infos: Sequence[TensorInfo], limits: Threshold
) -> Iterator[str]:
    """Yield a warning for each output whose error may be as large as the output itself. With such
    an output, a wrong program cannot be distinguished from a correct one."""
    for index, info in enumerate(infos):
        db = limits.of_output(index).max_above_noise_db
        noise = references.predict(index, info).noise if info.dtype.startswith("float") else 0.0
        if noise > 10 ** (-db / 20):
            yield (
                f"output {index}: rounding may leave only {-20 * math.log10(noise):.0f} dB of SQNR,"
                " so most faults in the program would go unnoticed"
                f"{f': {MORE_BITS}' if has_finer(limits.scheme) else ''}"
            )


def find_faint(references: References, infos: Sequence[TensorInfo]) -> Iterator[str]:
    """Yield a warning for each output that the quantized model loses in some samples but not in
    all of them together, as when it is close to zero there. Reports show the worst sample."""
    for index, info in enumerate(infos):
        if references.quantized is None or not info.dtype.startswith("float"):
            continue
        float32, quantized = references.float32[index].values, references.quantized[index].values
        reached = [measure_pooled(*pair) for pair in zip(float32, quantized, strict=True)]
        worst, lost = int(np.argmin(reached)), [db for db in reached if db < LOST_DB]
        if lost and (pooled := measure_pooled(float32, quantized)) >= LOST_DB:
            rms = np.sqrt(np.mean(np.square(float32[worst])))
            rms_of_all = np.sqrt(np.mean(np.square(float32)))
            yield (
                f"output {index}: the quantized model has less than {LOST_DB:g} dB in {len(lost)}"
                f" of {len(reached)} samples: {reached[worst]:.1f} dB in sample {worst}, where the"
                f" output's RMS is {rms:.3g}. Over all sets, it has {pooled:.1f} dB"
                f" (RMS {rms_of_all:.3g})"
            )


def feed_controls(
    references: References, infos: Sequence[TensorInfo], limits: Threshold
) -> Iterator[ControlResult]:
    """Make wrong outputs of each kind from the reference, and yield whether the gate rejects them.

    A kind counts as rejected if the gate rejects at least one of its degrees for every output that
    can have this fault.
    """
    for kind in MAKERS:
        fed = [
            feed_control(kind, references, index, info, limits) for index, info in enumerate(infos)
        ]
        results = list(filter(None, fed))
        if results:
            rejected = all(is_rejected for is_rejected, _ in results)
            best = max((db for _, db in results if db is not None), default=None)
            yield ControlResult(kind, rejected, best)


def feed_control(
    kind: ControlKind, references: References, index: int, info: TensorInfo, limits: Threshold
) -> tuple[bool, float | None] | None:
    """Return whether the gate rejects an output with a fault of this ``kind``, and the SQNR in dB
    of the wrong output that was tried last. Return None if the output cannot have such a fault."""
    right, noise = references.best(index)[0], references.predict(index, info)
    output_limits, result = limits.of_output(index), None
    for wrong in make_controls(kind, right, noise, output_limits):
        result = is_rejected(references, index, wrong, info, output_limits)
        if result[0]:
            break
    return result


def summarize_figures(judgement: Judgement) -> CaseFigures:
    """Return the worst value of each figure over all outputs."""
    outputs = judgement.outputs
    worst = [(index, output.excesses[0]) for index, output in enumerate(outputs) if output.excesses]
    index, excess = max(worst, key=lambda pair: pair[1].over_db, default=(0, None))
    place = f"output {index}, " if len(outputs) > 1 else ""
    fits = [output.fit for output in outputs if output.fit]
    eager = [output.float_figures for output in outputs if output.float_figures]
    quantized = [output.quantized_figures for output in outputs if output.quantized_figures]
    return CaseFigures(
        sqnr_db=_least(figures.sqnr_db for figures in eager),
        sqnr_db_quantized=_least(figures.sqnr_db for figures in quantized),
        cosine=_least(figures.cosine for figures in eager),
        cosine_quantized=_least(figures.cosine for figures in quantized),
        max_abs=max((figures.max_abs for figures in eager), default=None),
        sqnr_db_scheme=_least(
            output.scheme_figures.sqnr_db for output in outputs if output.scheme_figures
        ),
        predicted_sqnr_db=_least(output.predicted_db for output in outputs),
        above_noise_db=excess.above_db if excess else None,
        above_noise_place=f"{place}{excess.place}" if excess else "",
        gain=max((1 + fit.gain for fit in fits), key=lambda gain: abs(gain - 1), default=None),
        offset=max((fit.offset for fit in fits), key=abs, default=None),
        equal=_least(output.equal for output in outputs),
        equal_quantized=_least(output.equal_quantized for output in outputs),
        equal_exact=_least(output.equal_exact for output in outputs),
    )


def _least(figures: Iterable[float | None]) -> float | None:
    return min((figure for figure in figures if figure is not None), default=None)


def advise_on_figures(
    judgement: Judgement,
    references: References,
    patterns: Mapping[int, ErrorPattern | None],
    inputs: Sequence[TensorInfo],
    limits: Threshold,
    *,
    explained: Collection[Question] = (),
) -> Advice:
    """Return the pattern of wrong outputs, the cause and what to try. If the program is not
    faithful, the cause is the runner, an input or QNN; otherwise it is the quantization. If a known
    fault explains why a question is answered with no, it is in ``explained``, and no other cause
    is guessed. The other arguments are those of judge_outputs."""
    several = len(judgement.outputs) > 1
    is_known = Question.FAITHFUL in explained
    advice = NO_ADVICE
    for index, pattern in patterns.items():
        if pattern:
            place = f"output {index}: " if several else ""
            advice += Advice((f"{place}{pattern.description}",))
            if pattern.cause and not is_known:
                advice += advise(f"{pattern.cause} (not tried)", certainty=Certainty.LIKELY)
    if patterns and not is_known:
        advice += _advise_on_program(judgement, patterns, inputs)
    failed = any(output.fails(Question.QUANTIZED) for output in judgement.outputs)
    if not patterns and failed and Question.QUANTIZED not in explained:
        advice += _advise_on_scheme(judgement, references, limits)
    return advice


def find_patterns(
    judgement: Judgement, references: References, outputs: Sequence[Array]
) -> dict[int, ErrorPattern | None]:
    """Map the index of each output that is not faithful to the pattern of its errors."""
    right = [references.best(index)[0].values for index in range(len(outputs))]
    wrong = [
        number for number, output in enumerate(judgement.outputs) if output.fails(Question.FAITHFUL)
    ]
    return {index: find_pattern(right, outputs[index], index) for index in wrong}


def _advise_on_program(
    judgement: Judgement, patterns: Mapping[int, ErrorPattern | None], inputs: Sequence[TensorInfo]
) -> Advice:
    places = [_find_worst(judgement.outputs[index].excesses) for index in patterns]
    if any(tensor.dtype == "uint8" for tensor in inputs):
        return advise(fix=UINT8, proof=Proof.PROVEN)
    # Asked of all parts near the worst one: in 15 % of draws, a channel was the worst part by
    # chance, and the advice missed the batch.
    if any(excess.kind == ROW and excess.is_partial for excess in chain(*places)):
        return Advice((ROWS,)) + advise(fix=BATCH)
    if any(pattern and pattern.cause for pattern in patterns.values()):
        return NO_ADVICE
    # Batch 1 is no advice for a model that already has it.
    batched = any(tensor.shape[:1] > (1,) for tensor in inputs)
    return advise(fix=f"{f'{BATCH}, or ' if batched else ''}{OTHER_FORM}")


def _find_worst(excesses: Sequence[Excess]) -> list[Excess]:
    """Return those failing parts whose rank is within NEAR_DB of the highest rank. A rank is
    ``over_db - names_db``."""
    excesses = [excess for excess in excesses if excess.fails]
    ranks = [excess.over_db - excess.names_db for excess in excesses]
    nearest = max(ranks, default=0.0) - NEAR_DB
    return [excess for excess, rank in zip(excesses, ranks, strict=True) if rank > nearest]


def _advise_on_scheme(judgement: Judgement, references: References, limits: Threshold) -> Advice:
    if references.quantized is None:
        return advise(
            "the program is faithful to its model, but float16 rounds its values too much", FLOAT16
        )
    findings = judgement.findings
    parted = any(finding.id == PART.id for finding in findings)
    ranges = f": {references.clipped[0]}" if references.clipped else ""
    finer = f"; or {MORE_BITS}" if has_finer(limits.scheme) else ""
    # LiteRT's CPU once computed a PReLU in int16 wrongly, and the NPU was right.
    differs = any(output.noted for output in judgement.outputs)
    comparison = (
        "on the CPU, the quantized model is too far from float32, and the program differs from it"
        if differs
        else "the program is faithful to the quantized model, which is too far from float32"
    )
    # What is seen, and no cause: it says again what is wrong.
    advice = advise(fix=APART if parted else CALIBRATE + ranges + finer)
    return replace(advice, seen=(comparison,))


def has_finer(scheme: str) -> bool:
    """Return whether there are schemes with more bits for activations, as for any mixture. It is
    unknown, and False, for an ONNX file that is already quantized."""
    return scheme not in set(Scheme) or Scheme(scheme).recipe.activation_bits == 8


def judge_metric(
    metric: Metric,
    result: MetricResult,
    inputs: float | None = None,
    outputs: float | None = None,
) -> Iterator[Finding]:
    """Yield why a program is not good enough for its task. A metric that also accepts the outputs
    of other inputs is a finding, because it proves nothing. If the program and the quantized model
    fail but the float32 model does not, poor quantization is a further finding. ``inputs`` and
    ``outputs`` are how much the model's inputs and the float32 model's floating-point outputs
    differ between samples, from measure_variation."""
    value, float32, shifted = result.value, result.float32, result.shifted
    quantized = result.quantized
    # Named before the program: it is the quantized model that has lost the task.
    is_lost = quantized is not None and _fails(metric, quantized, float32)
    if is_lost and _fails(metric, value, float32) and not _fails(metric, float32, float32):
        yield METRIC_LOST.find(
            f"{metric.name} is {quantized:.4g} for the quantized model, {float32:.4g} for float32",
            figures=(Figure(name=metric.name, value=quantized),),
        )
    # Negated, so that a NaN fails.
    if not float32 - value <= metric.max_drop:
        details = () if quantized is None else (f"{quantized:.4g} for the quantized model",)
        yield METRIC_DROP.find(
            f"{metric.name} is {value:.4g} for the program, {float32:.4g} for float32",
            details=(*details, f"a drop of at most {metric.max_drop:g} is allowed"),
            figures=(Figure(name=metric.name, value=value, allowed=float32 - metric.max_drop),),
        )
    if metric.min is not None and not value >= metric.min:
        kind = METRIC_DROP if float32 >= metric.min else METRIC_MODEL
        of_model = (f"the float32 model itself reaches only {float32:.4g}",)
        yield kind.find(
            f"{metric.name} is {value:.4g}, {metric.min:g} required",
            details=of_model if kind is METRIC_MODEL else (),
            figures=(Figure(name=metric.name, value=value, allowed=metric.min),),
        )
    # Tried with the outputs of other samples: a metric that accepts them would accept anything.
    if float32 - shifted <= metric.max_drop:
        yield METRIC_BLIND.find(
            f"{metric.name} also returns {shifted:.4g} for the outputs of other inputs",
            figures=(Figure(name=metric.name, value=shifted),),
            advice=_advise_on_blind(inputs, outputs),
        )


def measure_outputs(references: References) -> float | None:
    """Return how much the float32 model's floating-point outputs differ between samples."""
    outputs = (output.values for output in references.float32)
    return measure_variation(filter(is_floating, outputs))


ALIKE = 0.1  # samples that differ less have no different results


def _explain_alike(inputs: float | None, outputs: float | None) -> tuple[str, str] | None:
    """Return why the samples have the same results, and what to do, or None if it is unknown. The
    arguments are those of judge_metric."""
    if inputs is None or outputs is None or outputs >= ALIKE:
        return None
    alike = f"the outputs of the float32 model differ by only {outputs:.1%} between the samples"
    if inputs >= ALIKE:
        model = "the model is probably not trained, or its weights were not loaded"
        fix = "load trained weights; if they are, check how the inputs are scaled"
        return f"{alike}, although its inputs differ by {inputs:.0%}: {model}", fix
    samples = "the samples are probably too similar"
    fix = "use inputs that vary; if these do, load trained weights"
    return f"{alike}, and its inputs by only {inputs:.1%}: {samples}", fix


def _warn_of_alike(inputs: float | None, outputs: float | None, made_inputs: str) -> str:
    """Return a warning that the gate accepts the outputs of other samples."""
    warning = "no two samples have distinguishable outputs"
    if made_inputs == SHUFFLED:
        # A trained classifier sees the same noise in each of them: its weights are not to blame.
        fix = "set models.NAME.inputs in the policy to real samples"
        return f"{warning}: they are shuffled copies of one sample; {fix}"
    if explanation := _explain_alike(inputs, outputs):
        why, fix = explanation
        return f"{warning}: {why}; {fix}"
    return f"{warning}: use samples that differ more"


def _advise_on_blind(inputs: float | None, outputs: float | None) -> Advice:
    """Return what makes a metric distinguish inputs. The arguments are those of judge_metric."""
    if explanation := _explain_alike(inputs, outputs):
        return advise(*explanation)
    fix = "use a trained model, labels and inputs that vary, or a smaller max_drop"
    return advise(fix=fix, proof=Proof.PROVEN)


def _fails(metric: Metric, value: float, float32: float) -> bool:
    """Return whether a model whose metric is ``value`` is not good enough for its task."""
    enough = metric.min is None or value >= metric.min
    return not (float32 - value <= metric.max_drop and enough)


def keeps_metric(metric: Metric | None, result: MetricResult | None) -> bool:
    """Return whether a program has lost at most KEPT of the drop that the metric allows."""
    if metric is None or result is None:
        return False
    return result.float32 - result.value <= KEPT * metric.max_drop


def forgive(
    findings: Sequence[Finding], metric: Metric | None, *, keeps_task: bool = False
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings that fail a case, ordered by question, and the headlines of the others as
    warnings. If the program ``keeps_task`` (see keeps_metric), errors of single elements are
    left out of both.

    If the metric passes and is not ``strict``, poor quantization is only a warning. A program that
    is not faithful always fails. If the float32 model is not good enough for its task, that finding
    comes before poor quantization.
    """
    # SQNR does not say whether a model is useful: 8 dB may do for a classifier, and 20 dB not for
    # boxes.
    good = metric is not None and not metric.strict
    good = good and not any(finding.question is Question.TASK for finding in findings)
    findings = [finding for finding in findings if not (keeps_task and finding.id == ELEMENTS.id)]
    failing = [
        finding for finding in findings if not (good and finding.question is Question.QUANTIZED)
    ]
    order = list(Question)

    def rank(finding: Finding) -> float:
        # 1.5 puts a float32 model that fails its task before poor quantization, but behind an
        # unfaithful program.
        return order.index(finding.question) - 1.5 * (finding.id in OF_MODEL)

    forgiven = tuple(finding.headline for finding in findings if finding not in failing)
    return tuple(sorted(failing, key=rank)), forgiven
