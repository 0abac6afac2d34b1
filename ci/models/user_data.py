"""Reads a user's files of inputs and labels, or calls the functions that return them. Only the
metric of a PyTorch model needs torch; for an .onnx file, it gets NumPy arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ci.models.user_code import call_function, load_function, users_code
from ci.models.user_models import (
    MIN_SETS,
    NPY,
    NPZ,
    Metric,
    MetricResult,
    count_sets,
    is_function,
    read_arrays,
)
from provisioning.console.caller import shown_path
from provisioning.errors import FailedError, UsageError, at_key

Shape = tuple[int, ...]
FORM = (
    f"provide {NPY}, {NPZ}, or a file.py:function that returns a list of tuples of tensors (for an"
    " .onnx or .tflite file, of arrays)"
)

UNNAMED = re.compile(r"arr_\d+")  # the names that numpy.savez gives to unnamed arrays


def read_sets(source: str, names: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Return the samples, each as a tuple: of a file's arrays, or of what the user's function
    returned. ``names`` are the names of the model's inputs, if they are known. An .npz with named
    arrays must have exactly these names, in any order.

    Raises UsageError if ``source`` does not contain samples, and FailedError if the user's
    function raises an exception.
    """
    if is_function(source):
        returned = call_function(source, FORM)
        if not isinstance(returned, (list, tuple)):
            why = f"it returned an object of type {type(returned).__name__}"
            raise UsageError(f"{shown_path(Path(source))} returns no samples", why=why, fix=FORM)
        return [sample if isinstance(sample, tuple) else (sample,) for sample in returned]
    arrays = read_arrays(Path(source))
    count = count_sets(arrays.values(), shown_path(Path(source)))
    # Row-major, because a program reads memory without regard to strides: stacked transposed images
    # gave 0 dB in every scheme.
    ordered = [np.array(array, order="C") for array in _order_arrays(source, arrays, names)]
    samples = []
    for number in range(count):
        sample = [np.asarray(array[number]) for array in ordered]
        samples.append(tuple(sample))
    return samples


def read_judged(source: str, names: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Return the samples on which a model is judged. Raises the errors of read_sets, and
    UsageError if there are fewer than MIN_SETS."""
    sets = read_sets(source, names)
    if len(sets) < MIN_SETS:
        why = f"{shown_path(Path(source))} has {len(sets)} sample{'s' * (len(sets) != 1)}"
        fix = f"provide {MIN_SETS} or more"
        raise UsageError("too few samples to judge a model", why=why, fix=fix)
    return sets


def read_labels(source: str, sets: int) -> NDArray[Any]:
    """Return the labels, [samples, ...]. Raises UsageError for labels of the wrong form, and
    FailedError if the user's function raises an exception."""
    if is_function(source):
        returned = call_function(source, FORM)
    else:
        arrays = read_arrays(Path(source))
        if len(arrays) != 1:
            problem = f"{shown_path(Path(source))} has {len(arrays)} arrays"
            raise UsageError(problem, fix="write a single array")
        (returned,) = arrays.values()
    try:
        labels = np.asarray(returned)
    except (TypeError, ValueError, RuntimeError) as error:
        why = (
            f"an object of type {type(returned).__name__} cannot be converted to an array: {error}"
        )
        raise UsageError(f"{shown_path(Path(source))} provides no labels", why=why) from error
    if labels.dtype.kind not in "biufc":
        why = f"its elements have the dtype {labels.dtype}"
        raise UsageError(
            f"{shown_path(Path(source))} provides no labels", why=why, fix="provide numbers"
        )
    if not labels.ndim or len(labels) != sets:
        raise UsageError(
            f"{shown_path(Path(source))} has labels of shape {list(labels.shape)}",
            why=f"the model is judged on {sets} sample{'s' * (sets != 1)}",
            fix="provide a label, or a row of labels, for each sample of `inputs` in the policy",
        )
    return labels


def _order_arrays(source: str, arrays: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """Return the arrays in the order of ``names``, or in the file's order if ``names`` is empty or
    the arrays are unnamed. Raises UsageError if their names are different."""
    if not names or all(UNNAMED.fullmatch(name) for name in arrays):
        return [*arrays.values()]
    if arrays.keys() != set(names):
        raise UsageError(
            f"{shown_path(Path(source))} does not match the model",
            why=f"it has arrays {', '.join(arrays)}; the model's inputs are {', '.join(names)}",
            fix="write one array per input, with the input's name",
        )
    return [arrays[name] for name in names]


CONTRACT = "a metric takes (outputs, labels) and returns a number; higher is better"
CHECK_METRIC = (
    "check the metric, and that it gets the inputs, labels and order of outputs it expects"
)
FAILS_IN_FLOAT = "it fails with the outputs of the float32 model, too"
ARRAYS = (
    "for an .onnx or .tflite file, outputs and labels are NumPy arrays; torch.from_numpy makes a"
    " tensor of one"
)


def check_metric(metric: Metric, sets: int) -> None:
    """Check a metric's labels and function before anything is run.

    Raises UsageError if the number of labels is not ``sets``, or if the function cannot be called
    with outputs and labels. The message starts with the key in the policy. Raises FailedError if
    the user's code raises an exception.
    """
    with at_key("metric.labels"):
        read_labels(metric.labels, sets)
    with at_key("metric.function"), users_code(metric.function):
        load_function(metric.function, CONTRACT, [], [])


def run_metric(
    metric: Metric,
    outputs: list[Any],
    float32: list[Any],
    quantized: list[Any] | None,
    *,
    arrays: bool = False,
) -> MetricResult:
    """Compute the metric of the program, the float32 model, the shifted float32 outputs and, if
    there is one, the quantized model. The function gets tensors or, with ``arrays``, NumPy arrays.
    Raises UsageError if labels or results have the wrong form, and FailedError if the function
    raises an exception."""
    labels = read_labels(metric.labels, len(float32[0]))
    shifted = [np.roll(column, 1, axis=0) for column in float32]
    # The float32 model first: a metric that fails with its outputs says nothing of the program.
    sets = [float32, outputs, shifted, *([quantized] if quantized else [])]
    hand_over = np.array if arrays else _copy_tensor
    results: list[Any] = []
    is_loaded = False
    try:
        with users_code(metric.function):
            function = load_function(metric.function, CONTRACT, [], [])
            is_loaded = True
            for columns in sets:
                returned = function([*map(hand_over, columns)], hand_over(labels))
                results.append(returned)  # those before an exception count
    except FailedError as error:
        fixes = [ARRAYS] * arrays
        if is_loaded and not results:
            error.why = "; ".join(filter(None, (error.why, FAILS_IN_FLOAT)))
            fixes.insert(0, CHECK_METRIC)
        error.fix = error.fix or "; ".join(fixes)
        raise
    expected, value, *others = (read_value(metric.function, returned) for returned in results)
    return MetricResult(value, expected, *others)


def _copy_tensor(array: NDArray[Any]) -> Any:
    import torch  # only a PyTorch model needs it

    return torch.from_numpy(array.copy())


def read_value(reference: str, returned: Any) -> float:
    """Return a metric's result as a number. Raises UsageError if it is not a number, and
    FailedError if it is NaN or infinite."""
    name = shown_path(Path(reference))
    # float() would read a number from a text.
    number: Any = None if isinstance(returned, str | bytes | bytearray) else returned
    try:
        value = float(number)
    except Exception as error:  # the object may be of a user's class
        shape = f" and shape {list(returned.shape)}" if hasattr(returned, "shape") else ""
        why = f"it returned an object of type {type(returned).__name__}{shape}"
        raise UsageError(f"{name} did not return a number", why=why, fix=CONTRACT) from error
    if not math.isfinite(value):
        raise FailedError(f"{name} returned {value}", fix=CONTRACT)
    return value


class LackingAxes(NamedTuple):
    """A description of a file of samples that lack an axis, such as ``samples without the batch
    axis``, how many samples the file then has, and what adds the axis."""

    description: str
    samples: int
    fix: str


def find_lacking_axes(
    arrays: Sequence[Shape], sample_shapes: Sequence[Shape]
) -> LackingAxes | None:
    """Return which axes ``arrays`` [sample, *shape] lack, or None if none that is known.
    ``sample_shapes`` are those of one sample.

    The most common mistakes are samples without the batch axis, and a file with a single sample,
    whose first axis is then taken for that of the samples.
    """
    inner = [shape[1:] for shape in sample_shapes]
    batches = {shape[:1] for shape in sample_shapes}
    if not any(inner) or not arrays:
        return None
    count = arrays[0][0]
    if list(arrays) == inner:
        description = "a single sample, without the axis of samples and the batch axis"
        return LackingAxes(description, 1, "add both axes: array[None, None]")
    if list(arrays) == list(sample_shapes) and batches != {(1,)}:
        description = "a single sample, without the axis of samples"
        return LackingAxes(description, 1, "add this axis: array[None]")
    if [shape[1:] for shape in arrays] != inner:
        return None
    description = "samples without the batch axis"
    if batches == {(1,)}:
        fix = "add the batch axis: array[:, None] to an array of all samples"
        return LackingAxes(description, count, fix)
    shapes = " and ".join(f"array.reshape{(-1, *shape)}" for shape in dict.fromkeys(sample_shapes))
    fix = f"put the rows of a batch together: {shapes}"
    return LackingAxes(description, max(count // max(sample_shapes[0][0], 1), 1), fix)
