"""A user's metric of a program's outputs and of the float32 model's: runs in a fork of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ci.models.user_code import load_function, users_code
from ci.models.user_data import read_labels
from ci.models.user_models import MetricJob, MetricResult
from provisioning.errors import FailedError, UsageError

CONTRACT = "a metric takes (outputs, labels) and returns a number, of which more is better"


def run_metric(job: MetricJob) -> MetricResult:
    """Raises UsageError for labels or values that are not of the form, FailedError for what the
    function raises."""
    metric = job.metric
    labels = read_labels(metric.labels, len(job.float32[0]))
    shifted = [np.roll(column, 1, axis=0) for column in job.float32]
    with users_code(metric.function):
        function = load_function(metric.function, CONTRACT)
        made = [
            function([torch.from_numpy(column.copy()) for column in columns], labels.clone())
            for columns in (job.outputs, job.float32, shifted)
        ]
    return MetricResult(*(read_value(metric.function, one) for one in made))


def read_value(reference: str, made: Any) -> float:
    """The number that a metric returned. Raises UsageError, FailedError for one that is NaN."""
    name = Path(reference).name
    try:
        value = float(made)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {list(made.shape)}" if isinstance(made, torch.Tensor) else ""
        why = f"it returned a {type(made).__name__}{shape}"
        raise UsageError(f"{name} did not return a number", why=why, fix=CONTRACT) from error
    if not math.isfinite(value):
        raise FailedError(f"{name} gives {value}", fix=CONTRACT)
    return value
