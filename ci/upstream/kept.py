"""Stores the comparisons of a test, so that they can be judged again without running the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from ci.judging.figures import Array
from ci.models.tensors import TensorInfo
from provisioning.documents import read_json

ARRAYS, RECORD = ".npz", ".json"


class Member(str, Enum):
    """The kinds of arrays in a comparison. ``INPUT`` has one array per input. Each of the others
    has one array per output."""

    INPUT = "input"
    OUTPUT = "output"
    UPSTREAM = "upstream"  # the values with which upstream compares the output
    FLOAT = "float"
    QUANTIZED = "quantized"
    NOISE = "noise"  # [run, input set, *shape]; empty without a prediction
    LOW, HIGH = "low", "high"  # bounds of the outputs, if one of them is not floating-point


class Comparison(Struct, frozen=True, kw_only=True):
    """A comparison without its arrays."""

    scheme: str  # empty if no scheme has the types of the test's model
    outputs: tuple[TensorInfo, ...]
    inputs: tuple[TensorInfo, ...]
    lacks: tuple[str, ...] = ()  # what could not be computed for the gate, and why
    pte_bytes: int = 0  # the size of the .pte
    predict_s: float = 0.0  # seconds to compute the models' outputs and the prediction


Arrays = Mapping[Member, list[Array]]


def write_comparison(
    place: Path, record: Comparison, arrays: Mapping[Member, Iterable[Any]]
) -> None:
    """Write the arrays to the file ``place`` with the suffix .npz, and then the record with the
    suffix .json."""
    named = {
        f"{member.value}_{index}": np.asarray(one)
        for member, some in arrays.items()
        for index, one in enumerate(some)
    }
    np.savez_compressed(place.with_suffix(ARRAYS), allow_pickle=False, **named)
    place.with_suffix(RECORD).write_bytes(msgspec.json.encode(record))


def read_comparisons(directory: Path) -> list[tuple[Comparison, Arrays]]:
    """Return the comparisons of a test, in the order in which the test made them. Raises OSError or
    ValueError if a file is missing or damaged."""
    places = sorted(directory.glob(f"*{RECORD}"), key=lambda path: int(path.stem))
    return [(_read_record(place), _read_arrays(place)) for place in places]


def _read_record(place: Path) -> Comparison:
    return read_json(place, Comparison)


def _read_arrays(place: Path) -> Arrays:
    found: dict[Member, list[Array]] = {}
    with np.load(place.with_suffix(ARRAYS), allow_pickle=False) as data:
        for name in data.files:  # in the order in which they were written
            found.setdefault(Member(name.rpartition("_")[0]), []).append(data[name])
    return found
