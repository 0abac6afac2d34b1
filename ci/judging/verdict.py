"""What outputs prove: judged, explained, and the gate itself tried on wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ci.judging.controls import is_rejected, make_control
from ci.judging.figures import Array
from ci.judging.gate import Judgement, OutputJudgement, References, judge
from ci.judging.sightings import find_sighting
from ci.models.tensors import TensorInfo
from ci.models.user_models import Metric
from ci.report.schema import ControlKind, Threshold

CALIBRATE = "calibrate with real inputs, or take a scheme of more bits"
BIAS = (
    "take 16a8w: a bias of 16a16w is an int32 in steps of activation times weight, and saturates"
    " where a layer's inputs are small"
)
APART = "return the parts as separate outputs: a concatenation is quantized in one step size"
OTHER_FORM = "other inputs will not help; another scheme or form of the model may"
UINT8 = "each uint8 of an input counts as 0 or 1 there: give int32 or float32"


@dataclass(frozen=True)
class CaseFigures:
    """The worst of every figure over a case's outputs; None if no output has it. The fields are
    those of the report's Case."""

    sqnr_db: float | None = None
    sqnr_db_quantized: float | None = None
    cosine: float | None = None
    cosine_quantized: float | None = None
    max_abs: float | None = None
    sqnr_db_channel: float | None = None
    channel: str = ""
    gain: float | None = None
    offset: float | None = None
    equal: float | None = None
    equal_quantized: float | None = None


@dataclass(frozen=True)
class ControlResult:
    """Whether the gate rejected a kind of wrong outputs, and their best SQNR in dB."""

    kind: ControlKind
    rejected: bool
    sqnr_db: float | None


@dataclass(frozen=True)
class Verdict:
    """``reasons`` is empty for right outputs."""

    figures: CaseFigures
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    controls: tuple[ControlResult, ...] = ()


def judge_outputs(
    references: References,
    outputs: Sequence[Array],
    inputs: Sequence[TensorInfo],
    infos: Sequence[TensorInfo],
    limits: Threshold,
) -> Verdict:
    """Compare ``outputs``, [input set, *shape] each, with both references, and feed the gate its
    controls. ``infos`` describe the outputs, ``inputs`` what the program takes."""
    judgement = judge(references, outputs, infos, limits)
    controls = tuple(feed_controls(references, infos, limits))
    passing = [control.kind.value for control in controls if not control.rejected]
    proof = [f"the gate accepts {', '.join(passing)}: this case proves nothing"] if passing else []
    return Verdict(
        summarize_figures(judgement),
        (*judgement.reasons, *proof),
        tuple(advise_on_figures(judgement, references, outputs, inputs, limits)),
        controls,
    )


def feed_controls(
    references: References, infos: Sequence[TensorInfo], limits: Threshold
) -> Iterator[ControlResult]:
    """Yield each kind of wrong outputs, made of the best that the gate could get, its reference.
    The gate has to reject each output by itself."""
    right = [references.best(index)[0] for index in range(len(infos))]
    for kind in ControlKind:
        wrong = [make_control(kind, one, limits) for one in right]
        results = [
            is_rejected(references, index, bad, infos[index], limits)
            for index, bad in enumerate(wrong)
            if bad is not None
        ]
        if results:
            rejected = all(one for one, _ in results)
            best = max((db for _, db in results if db is not None), default=None)
            yield ControlResult(kind, rejected, best)


def summarize_figures(judgement: Judgement) -> CaseFigures:
    """Return the worst of every figure."""
    every = judgement.outputs
    channels = [one.channel for one in every if one.channel]
    channel = min(channels, key=lambda part: part.sqnr_db, default=None)
    index = next((n for n, one in enumerate(every) if one.channel is channel), 0)
    place = f"output {index}, {channel.place}" if channel and len(every) > 1 else ""
    fits = [one.fit for one in every if one.fit]
    eager = [one.float_figures for one in every if one.float_figures]
    quantized = [one.quantized_figures for one in every if one.quantized_figures]
    return CaseFigures(
        sqnr_db=_least(one.sqnr_db for one in eager),
        sqnr_db_quantized=_least(one.sqnr_db for one in quantized),
        cosine=_least(one.cosine for one in eager),
        cosine_quantized=_least(one.cosine for one in quantized),
        max_abs=max((one.max_abs for one in eager), default=None),
        sqnr_db_channel=channel.sqnr_db if channel else None,
        channel=place or (channel.place if channel else ""),
        gain=max((1 + one.gain for one in fits), key=lambda gain: abs(gain - 1), default=None),
        offset=max((one.offset for one in fits), key=abs, default=None),
        equal=_least(one.equal for one in every),
        equal_quantized=_least(one.equal_quantized for one in every),
    )


def _least(figures: Iterable[float | None]) -> float | None:
    return min((one for one in figures if one is not None), default=None)


def advise_on_figures(
    judgement: Judgement,
    references: References,
    outputs: Sequence[Array],
    inputs: Sequence[TensorInfo],
    limits: Threshold,
) -> Iterator[str]:
    """Yield lines on what was seen and who is at fault: the runner, an input's dtype,
    quantization, or QNN. None if the gate accepts."""
    if judgement.accepted:
        return
    right = [references.best(index)[0].values for index in range(len(outputs))]
    sightings = {
        index: find_sighting(right, outputs[index], index)
        for index, one in enumerate(judgement.outputs)
        if one.reasons and not is_as_asked(one, limits)
    }
    for index, sighting in sightings.items():
        if sighting:
            yield f"  seen: {f'output {index}: ' if len(outputs) > 1 else ''}{sighting}"
    if any(tensor.dtype == "uint8" for tensor in inputs):
        yield f"  fix: {UINT8}"
    elif references.quantized is not None:
        yield from _tell_apart(judgement, limits, seen=any(sightings.values()))


def is_as_asked(output: OutputJudgement, limits: Threshold) -> bool:
    """Return whether an output agrees with the quantized eager model."""
    figures, wanted = output.quantized_figures, limits.min_sqnr_db_quantized
    if output.equal_quantized is not None:
        return output.equal_quantized >= (limits.min_equal_quantized or 0.0)
    return figures is not None and wanted is not None and figures.sqnr_db >= wanted


def _tell_apart(judgement: Judgement, limits: Threshold, *, seen: bool) -> Iterator[str]:
    wrong = [one for one in judgement.outputs if one.reasons]
    figures = [one.quantized_figures for one in wrong if one.quantized_figures]
    least = min((one.sqnr_db for one in figures), default=None)
    told = "" if least is None else f" (SQNR {least:.1f} dB against the quantized eager model)"
    if all(is_as_asked(one, limits) for one in wrong):
        if any("against the float32" in reason for one in wrong for reason in one.reasons):
            yield f"  why: quantization costs this, for QNN computes what was asked{told}"
            parted = any(" in part " in reason for one in wrong for reason in one.reasons)
            yield f"  fix: {APART if parted else BIAS if limits.scheme == '16a16w' else CALIBRATE}"
    elif not seen:
        yield f"  why: QNN does not compute what was asked{told}"
        yield f"  fix: {OTHER_FORM}"


def judge_metric(metric: Metric, value: float, float32: float, shifted: float) -> Iterator[str]:
    """Why a program is rejected whose metric is ``value``, where the float32 model has
    ``float32``; one that accepts outputs of other inputs, ``shifted``, proves nothing."""
    if not float32 - value <= metric.max_drop:
        yield (
            f"{metric.name} {value:.4g} where the float32 model has {float32:.4g}:"
            f" {metric.max_drop:g} less is allowed"
        )
    if metric.min is not None and not value >= metric.min:
        yield f"{metric.name} {value:.4g}, {metric.min:g} wanted"
    if float32 - shifted <= metric.max_drop:
        yield (
            f"{metric.name} is {shifted:.4g} for the outputs of other inputs, too: labels and"
            " inputs have to vary, and max_drop to be less than chance"
        )
