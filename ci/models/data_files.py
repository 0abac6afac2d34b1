"""Checks a user's files of inputs, calibration data and labels before any model is lowered. It does
not need torch. Data from a function is checked later, when the function is called.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ci.models.user_models import MIN_SETS, ModelEntry
from provisioning.errors import UsageError, at_key

SETS = "an .npy file with one input's sets, [sets, *shape], or an .npz with one array per input"


def is_function(source: str) -> bool:
    """Return whether the text is ``file.py:function``."""
    return source.rpartition(":")[0].endswith(".py")


def check_data(name: str, entry: ModelEntry) -> None:
    """Check the data files of a model's entry. Raises UsageError with the file and the key."""
    labels = entry.metric.labels if entry.metric else ""
    sources = {"calibration": entry.calibration, "inputs": entry.inputs, "metric.labels": labels}
    counts = {}
    for key, source in sources.items():
        if source and not is_function(source):
            with at_key(f"models.{name}.{key}"):
                counts[key] = count_sets(read_arrays(Path(source)).values(), Path(source).name)
    judged = counts.get("inputs", MIN_SETS)
    if judged < MIN_SETS:
        told = f"models.{name}.inputs: {Path(entry.inputs).name} has {judged} input sets"
        raise UsageError(told, fix=f"provide {MIN_SETS} or more")
    if "inputs" in counts and counts.get("metric.labels", judged) != judged:
        raise UsageError(
            f"models.{name}.metric.labels: {Path(labels).name} has {counts['metric.labels']} rows",
            why=f"the model is judged on {judged} input sets",
            fix="provide a label, or a row of labels, for each set of `inputs`",
        )


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of an .npy or .npz file by name, in the file's order. Raises
    UsageError."""
    try:
        with path.open("rb") as stream:
            loaded: Any = np.load(stream, allow_pickle=False)
            return {"arr_0": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path.name} cannot be read", why=why, fix=f"write {SETS}") from error


def count_sets(arrays: Collection[Any], called: str) -> int:
    """Return the number of input sets: the length of the first axis, which all arrays of a file
    must share. Raises UsageError for arrays that are not sets of finite numbers."""
    shapes = ", ".join(str(list(array.shape)) for array in arrays) or "none"
    lengths = {len(array) if array.ndim else 0 for array in arrays}
    if len(lengths) != 1 or not all(array.size for array in arrays) or lengths == {0}:
        why = f"its arrays are {shapes}, and the length of the first axis is the number of sets"
        raise UsageError(f"{called} does not contain input sets", why=why, fix=f"write {SETS}")
    kinds = [array.dtype for array in arrays]
    if not all(one.kind in "biuf" and one.itemsize <= 8 and one.isnative for one in kinds):
        why = f"the dtypes of its arrays are {', '.join(map(str, kinds))}"
        raise UsageError(f"{called} has numbers of a dtype that torch does not support", why=why)
    if not all(np.isfinite(array).all() for array in arrays):
        raise UsageError(f"{called} has NaN or infinite elements")
    return lengths.pop()
