"""A user's metric against its budget."""

from __future__ import annotations

from collections.abc import Iterator

from ci.models.user_models import Metric


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
