"""The samples of a model in a file, whichever lane compiles it.

They are next to the file, in an .npz file of the same name with one array of shape [sample, *shape]
per input. A policy can specify other files. Missing inputs are generated, and the report shows
this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ci.models import user_models
from ci.models.user_data import find_lacking_axes, read_judged, read_sets
from ci.models.user_models import DERIVED_SETS, RANDOM, SHUFFLED
from provisioning.console.caller import shown_path
from provisioning.errors import UsageError, at_key

SEED = 20250724
RANDOM_IDS = 4  # random integers are below this, because they may be indices of a table

Array = NDArray[Any]
Arrays = tuple[Array, ...]
Ports = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape by input name


class GatheredSets(NamedTuple):
    """The samples of a file: those that are judged, and those for calibration. The texts describe
    samples that were generated, and are empty if none were."""

    judged: tuple[Arrays, ...]
    calibration: tuple[Arrays, ...]
    made_inputs: str
    made_calibration: str


def gather_sets(
    inputs: Ports,
    data: user_models.Source,
    read_beside: Callable[[], Iterable[Arrays]],
    find_fixed: Callable[[], Mapping[str, int]] = dict,
    *,
    calibrates: bool = True,
) -> GatheredSets:
    """Return the samples for a file with these ``inputs``: the policy's ``data``, or else the sets
    next to the file, which ``read_beside`` returns, completed by generated ones. ``find_fixed``
    returns inputs that need certain values. A lane that ``calibrates`` nothing judges all sets next
    to the file. Raises UsageError if the data does not match the model, and FailedError if a user's
    function raises an exception."""
    has_all_data = data.calibration and data.inputs
    beside = () if has_all_data else tuple(read_beside())
    judged = beside[: user_models.MIN_SETS] if calibrates else beside
    if data.inputs:
        with at_key("inputs"):
            judged = fit_sets(data.inputs, read_judged(data.inputs, [*inputs]), inputs)
    calibration = tuple(arrays for arrays in beside if not _contains(judged, arrays))
    if data.calibration:
        with at_key("calibration"):
            calibration = fit_sets(data.calibration, read_sets(data.calibration, [*inputs]), inputs)
    examples = judged or calibration
    kind = SHUFFLED if examples else RANDOM
    made_inputs = kind if len(judged) < user_models.MIN_SETS else ""
    made_calibration = "" if calibration else kind
    fixed = {} if examples else find_fixed()
    if made_inputs:
        missing = user_models.MIN_SETS - len(judged)
        judged = (*judged, *make_sets(inputs, examples, fixed, missing, SEED))
    if made_calibration:
        # Another seed, so that no judged set is calibrated on.
        calibration = make_sets(inputs, examples, fixed, DERIVED_SETS + 1, SEED + 1)
    return GatheredSets(judged, calibration, made_inputs, made_calibration)


def _contains(sets: Sequence[Arrays], arrays: Arrays) -> bool:
    return any(all(map(np.array_equal, arrays, candidate)) for candidate in sets)


def read_packed(path: Path, inputs: Ports) -> Iterator[Arrays]:
    """Yield the samples in the .npz file next to a model. Raises UsageError if a set does not match
    the model."""
    packed = path.with_suffix(".npz")
    if os.path.lexists(packed):  # a pipe, or a link to nothing, is refused and not left out
        yield from fit_sets(str(packed), read_sets(str(packed), [*inputs]), inputs)


def fit_sets(place: str, sets: Sequence[Sequence[Any]], inputs: Ports) -> tuple[Arrays, ...]:
    """Return the sets as arrays, in the order of ``inputs``. A mapping whose keys are the names of
    the inputs may be in any order; all other sets must be in this order. Raises UsageError if a set
    has different dtypes or shapes."""
    rows = []
    for number, values in enumerate(sets):
        if len(values) == 1 and isinstance(values[0], Mapping):
            by_name = values[0]
            has_names = by_name.keys() == inputs.keys()
            values = [by_name[name] for name in inputs] if has_names else [*by_name.values()]
        # copy() also makes an array row-major.
        row = tuple(np.asarray(value).copy() for value in values)
        if [(array.dtype, array.shape) for array in row] != list(inputs.values()):
            stacked = [(len(sets), *array.shape) for array in row]
            called = shown_path(Path(place))
            if lacking := find_lacking_axes(stacked, [shape for _, shape in inputs.values()]):
                arrays = (f"{array.dtype}{[len(sets), *array.shape]}" for array in row)
                raise UsageError(
                    f"{called} has {lacking.description}",
                    why=f"it has {', '.join(arrays)}, and needs"
                    f" {describe_ports(inputs, lacking.samples)}",
                    fix=lacking.fix,
                )
            described = ", ".join(f"{array.dtype}{list(array.shape)}" for array in row)
            raise UsageError(
                f"{called} does not match the model",
                why=f"its set {number} has {described}",
                fix=f"provide one array per input: {describe_ports(inputs)}",
            )
        rows.append(row)
    return tuple(rows)


def describe_ports(inputs: Ports, *sets: int) -> str:
    """Return text such as ``x float32[1, 3], ids int64[4]``. ``sets`` are extra dimensions in front
    of each shape."""
    return ", ".join(f"{name} {dtype}{[*sets, *shape]}" for name, (dtype, shape) in inputs.items())


def make_sets(
    inputs: Ports, examples: Sequence[Arrays], fixed: Mapping[str, int], count: int, seed: int
) -> tuple[Arrays, ...]:
    """Return ``count`` samples; the same seed makes the same sets. If there are ``examples``,
    their elements are shuffled, which keeps their range. A floating-point input whose elements are
    all equal gets normal noise instead.

    Without examples, floating-point elements are normally distributed and integers are below
    RANDOM_IDS. ``fixed`` maps names of inputs to the value of all their elements.
    """
    random = np.random.default_rng(seed)

    def draw_normal(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        return random.standard_normal(shape).astype(dtype)

    def draw(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        if name in fixed:
            return np.full(shape, fixed[name], dtype)
        if dtype.kind == "f":
            return draw_normal(dtype, shape)
        return random.integers(0, 2 if dtype.kind == "b" else RANDOM_IDS, shape).astype(dtype)

    def shuffle(array: Array) -> Array:
        if array.dtype.kind == "f" and np.all(array == array.flat[0]):
            return array + draw_normal(array.dtype, array.shape)
        return random.permutation(array.reshape(-1)).reshape(array.shape)

    samples: list[Arrays] = []
    for number in range(count):
        if examples:
            samples.append(tuple(map(shuffle, examples[number % len(examples)])))
        else:
            drawn = [draw(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
            samples.append(tuple(drawn))
    return tuple(samples)
