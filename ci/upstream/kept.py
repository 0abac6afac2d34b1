"""The stored comparisons of a test, which can be judged again without running the test."""

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

ARRAYS, RECORD = ".npz", ".json"


class Member(str, Enum):
    """Kinds of arrays in a comparison. There is one array per output; for ``INPUT``, per input."""

    INPUT = "input"
    OUTPUT = "output"
    UPSTREAM = "upstream"  # the values with which upstream compares the output
    FLOAT = "float"
    QUANTIZED = "quantized"
    NOISE = "noise"  # [run, input set, *shape]; empty without a prediction
    LOW, HIGH = "low", "high"  # bounds of the lowered model's outputs, where noise can change them


class Comparison(Struct, frozen=True, kw_only=True):
    """One comparison. ``scheme`` is empty if no scheme has the test's mixture of types. ``lacks``
    is what could not be computed for the gate; ``predict_s`` is the time for everything else."""

    scheme: str
    outputs: tuple[TensorInfo, ...]
    inputs: tuple[TensorInfo, ...]
    lacks: tuple[str, ...] = ()
    pte_bytes: int = 0
    predict_s: float = 0.0


Arrays = Mapping[Member, list[Array]]


def write_comparison(
    place: Path, record: Comparison, arrays: Mapping[Member, Iterable[Any]]
) -> None:
    """Write ``place``.npz and then ``place``.json."""
    named = {
        f"{member.value}_{index}": np.asarray(one)
        for member, some in arrays.items()
        for index, one in enumerate(some)
    }
    np.savez_compressed(place.with_suffix(ARRAYS), allow_pickle=False, **named)
    place.with_suffix(RECORD).write_bytes(msgspec.json.encode(record))


def read_comparisons(directory: Path) -> list[tuple[Comparison, Arrays]]:
    """Return the comparisons of a test in order. Raises OSError or ValueError."""
    places = sorted(directory.glob(f"*{RECORD}"), key=lambda path: int(path.stem))
    return [(_read_record(place), _read_arrays(place)) for place in places]


def _read_record(place: Path) -> Comparison:
    return msgspec.json.decode(place.read_bytes(), type=Comparison)


def _read_arrays(place: Path) -> Arrays:
    found: dict[Member, dict[int, Array]] = {}
    with np.load(place.with_suffix(ARRAYS), allow_pickle=False) as data:
        for name in data.files:
            member, _, index = name.rpartition("_")
            found.setdefault(Member(member), {})[int(index)] = data[name]
    return {member: [some[index] for index in sorted(some)] for member, some in found.items()}
