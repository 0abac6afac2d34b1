"""What to do about outputs that are too far off: what they look like, and whose fault that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci.cases.artifact import Lowered
from ci.judging.figures import Array
from ci.judging.gate import Judgement, OutputJudgement, References
from ci.judging.sightings import find_sighting
from ci.report.schema import Threshold

CALIBRATE = "calibrate with real inputs, or take a scheme of more bits"
BIAS = (
    "take 16a8w: a bias of 16a16w is an int32 in steps of activation times weight, and saturates"
    " where a layer's inputs are small"
)
APART = "return the parts as outputs of their own: a concatenation is quantized in one step size"
OTHER_FORM = "other inputs will not help; another scheme or form of the model may"
UINT8 = "each uint8 of an input counts as 0 or 1 there: give int32 or float32"


def advise_on_figures(
    judgement: Judgement,
    references: References,
    outputs: Sequence[Array],
    lowered: Lowered,
    limits: Threshold,
) -> Iterator[str]:
    """Lines on what was seen and who is at fault: the runner, an input's dtype, quantization, or
    QNN. None when the gate accepts."""
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
    if any(tensor.dtype == "uint8" for tensor in lowered.inputs):
        yield f"  fix: {UINT8}"
    elif references.quantized is not None:
        yield from _tell_apart(judgement, limits, seen=any(sightings.values()))


def is_as_asked(output: OutputJudgement, limits: Threshold) -> bool:
    """Whether an output agrees with the quantized eager model."""
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
