"""A user's files of inputs and labels, or the functions that give them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ci.models.data_files import MIN_SETS, count_sets, is_function, read_arrays
from ci.models.user_code import call_function, load_function, users_code
from ci.models.user_models import Metric, MetricJob, MetricResult
from provisioning.errors import FailedError, UsageError, at_key

FORM = (
    "an .npy of one input's sets, [sets, *shape], an .npz of one array an input in their order, or"
    " file.py:function, which returns a list of tuples of tensors"
)

UNNAMED = re.compile(r"arr_\d+")  # as numpy.savez calls what is given no name


def read_sets(source: str, names: Sequence[str] = ()) -> list[tuple[Tensor, ...]]:
    """Input sets, each a tuple of tensors. ``names`` are those of the model's inputs, if they are
    known: an archive whose arrays have names has to have just these, in any order.

    Raises UsageError, and FailedError for what a function raises.
    """
    if is_function(source):
        given = call_function(source, FORM)
        if not isinstance(given, (list, tuple)):
            why = f"it returned a {type(given).__name__}"
            raise UsageError(f"{Path(source).name} gives no input sets", why=why, fix=FORM)
        return [one if isinstance(one, tuple) else (one,) for one in given]
    arrays = read_arrays(Path(source))
    count = count_sets(arrays.values(), Path(source).name)
    ordered = [np.array(array, order="C") for array in _order_arrays(source, arrays, names)]
    tensors = [torch.from_numpy(array) for array in ordered]
    return [tuple(one[number] for one in tensors) for number in range(count)]


def read_judged(source: str, names: Sequence[str] = ()) -> list[tuple[Tensor, ...]]:
    """The input sets that a model is judged on, MIN_SETS or more. Raises as read_sets does."""
    sets = read_sets(source, names)
    if len(sets) < MIN_SETS:
        why = f"{Path(source).name} has {len(sets)} input sets"
        raise UsageError("too few inputs to judge on", why=why, fix=f"give {MIN_SETS} or more")
    return sets


def read_labels(source: str, sets: int) -> Tensor:
    """Labels, [sets, ...]. Raises UsageError, and FailedError for what a function raises."""
    if is_function(source):
        given = call_function(source, FORM)
    else:
        arrays = read_arrays(Path(source))
        if len(arrays) != 1:
            raise UsageError(f"{Path(source).name} holds {len(arrays)} arrays", fix="give one")
        (given,) = arrays.values()
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        why = f"it returned a {type(given).__name__}: {error}"
        raise UsageError(f"{Path(source).name} gives no labels", why=why) from error
    if not labels.ndim or len(labels) != sets:
        raise UsageError(
            f"{Path(source).name} has labels of shape {list(labels.shape)}",
            why=f"the model is judged on {sets} input sets",
            fix="give a label, or a row of them, for each set of `inputs` of the policy",
        )
    return labels


def _order_arrays(source: str, arrays: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """The arrays in the order of ``names``, or of the file where neither has names."""
    if not names or all(UNNAMED.fullmatch(name) for name in arrays):
        return [*arrays.values()]
    if arrays.keys() != set(names):
        raise UsageError(
            f"{Path(source).name} does not fit the model",
            why=f"it has arrays {', '.join(arrays)}; the model's inputs are {', '.join(names)}",
            fix="write an array per input, under its name",
        )
    return [arrays[name] for name in names]


CONTRACT = "a metric takes (outputs, labels) and returns a number, of which more is better"


def check_metric(metric: Metric, sets: int) -> None:
    """Raises UsageError, with the key, for labels that are not of ``sets`` input sets, and for a
    function that does not take what a metric takes; FailedError for what the user's code raises."""
    with at_key("metric.labels"):
        read_labels(metric.labels, sets)
    with users_code(metric.function):
        function = load_function(metric.function)
    with suppress(ValueError):  # what is written in C may have no signature
        try:
            inspect.signature(function).bind([], [])
        except TypeError as error:
            name = Path(metric.function).name
            raise UsageError(f"metric.function: {name}: {error}", fix=CONTRACT) from error


def run_metric(job: MetricJob) -> MetricResult:
    """Raises UsageError for labels or values that are not of the form, FailedError for what the
    function raises."""
    metric = job.metric
    labels = read_labels(metric.labels, len(job.float32[0]))
    shifted = [np.roll(column, 1, axis=0) for column in job.float32]
    sets = [job.outputs, job.float32, shifted, *([job.quantized] if job.quantized else [])]
    with users_code(metric.function):
        function = load_function(metric.function)
        made = [
            function([torch.from_numpy(column.copy()) for column in columns], labels.clone())
            for columns in sets
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
