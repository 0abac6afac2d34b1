"""What to do about outputs that are too far off: whose fault it is, by the figures."""

from __future__ import annotations

from collections.abc import Iterator

from ci.emulator.judging.gate import Judgement
from ci.lowering.artifact import Lowered
from ci.report.schema import Threshold

CALIBRATE = "calibrate with real inputs, or take a scheme of more bits"
BIAS = (
    "take 16a8w: a bias of 16a16w is an int32 in steps of activation times weight, and saturates"
    " where a layer's inputs are small"
)
UINT8 = "each uint8 of an input counts as 0 or 1 there: give int32 or float32"


def advise_on_figures(judgement: Judgement, limits: Threshold, lowered: Lowered) -> Iterator[str]:
    """Lines on who is at fault: an input's dtype, quantization, or QNN. None when it accepts."""
    if judgement.accepted:
        return
    if any(tensor.dtype == "uint8" for tensor in lowered.inputs):
        yield f"  fix: {UINT8}"
        return
    quantized, wanted = judgement.quantized_figures, limits.min_sqnr_db_quantized
    if quantized is None or wanted is None:
        return
    figure = f"SQNR {quantized.sqnr_db:.1f} dB against the quantized eager model"
    if quantized.sqnr_db >= wanted:
        yield f"  why: quantization costs this, for QNN computes what was asked ({figure})"
        yield f"  fix: {BIAS if limits.scheme == '16a16w' else CALIBRATE}"
    else:
        yield f"  why: QNN does not compute what was asked ({figure})"
        yield "  fix: other inputs will not help; another scheme or form of the model may"
