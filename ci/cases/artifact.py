"""A lowered program with what is needed to run and judge it, as a directory in the cache.

program.pte, lowered.json
inputs/<set>_<index>.raw           row-major, in the dtype that lowered.json says
float/<set>_<index>.raw            outputs of the float32 eager model
quantized/<set>_<index>.raw        outputs of the quantized eager model, where there is one
<set>_<index>.low.raw, .high.raw   beside outputs that are no magnitudes: bounds where noise decides
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from provisioning.files import hash_file, publish_directory

PROGRAM, RECORD = "program.pte", "lowered.json"
INPUTS, FLOAT, QUANTIZED = "inputs", "float", "quantized"
REFERENCE, LOW, HIGH = "{}_{}.raw", "{}_{}.low.raw", "{}_{}.high.raw"
OUTPUT = "output_{}_{}.raw"  # as a runner names what a program gives
SAVER, SAVER_CALLS = "saver_output", "saver_output.c"  # what QNN's Saver wrote, where it is asked


class TensorInfo(Struct, frozen=True):
    """A tensor at the program's boundary: numpy's dtype name and shape.

    ``joined`` are the sizes of the parts that the model concatenates along ``joined_axis``.
    """

    dtype: str
    shape: tuple[int, ...]
    joined_axis: int = 0
    joined: tuple[int, ...] = ()


def describe_tensor(tensor: Any, axis: int = 0, parts: tuple[int, ...] = ()) -> TensorInfo:
    """Of an array, or a tensor that needs no gradient; ``parts`` are joined along ``axis``."""
    array = np.asarray(tensor)
    return TensorInfo(str(array.dtype), array.shape, axis, parts)


def write_tensor(path: Path, tensor: Any) -> None:
    """The elements of an array, or of a tensor that needs no gradient, row-major."""
    path.write_bytes(np.asarray(tensor).tobytes())


def write_set(
    directory: Path, number: int, tensors: Iterable[Any], pattern: str = REFERENCE
) -> None:
    """A file for each of the tensors that belong to an input set."""
    for index, tensor in enumerate(tensors):
        write_tensor(directory / pattern.format(number, index), tensor)


def write_sets(directory: Path, sets: Iterable[Iterable[Any]]) -> None:
    """A new directory with <set>_<index>.raw for every tensor."""
    directory.mkdir(parents=True)
    for number, tensors in enumerate(sets):
        write_set(directory, number, tensors)


def read_sets(directory: Path, tensors: Sequence[TensorInfo], sets: int) -> list[list[Any]]:
    """What write_sets wrote, as arrays: a list an input set. Raises OSError or ValueError."""
    return [
        [
            np.fromfile(directory / REFERENCE.format(number, index), info.dtype).reshape(info.shape)
            for index, info in enumerate(tensors)
        ]
        for number in range(sets)
    ]


class Fallback(Struct, frozen=True):
    """A node that stays on the CPU, with QNN's or the partitioner's reason; ``asked`` where the
    model's entry wants it there."""

    op: str
    reason: str
    asked: bool = False


class MethodInfo(Struct, frozen=True):
    """A method of a program of several, and how many of the program's inputs it takes."""

    name: str
    inputs: int


class Delegation(Struct, frozen=True):
    """How much of a graph QNN takes. ``getitem`` nodes, which compute nothing, are not counted."""

    delegated_nodes: int
    fallback_nodes: int
    partitions: int
    fallback_ops: tuple[Fallback, ...] = ()


def add_delegations(every: Iterable[Delegation]) -> Delegation:
    """That of a program, of those of its methods."""
    rows = tuple(every)
    return Delegation(
        sum(one.delegated_nodes for one in rows),
        sum(one.fallback_nodes for one in rows),
        sum(one.partitions for one in rows),
        tuple(node for one in rows for node in one.fallback_ops),
    )


class Lowered(Struct, frozen=True):
    """lowered.json: ``files`` maps each file to its SHA-256; ``sets`` counts the inputs.

    ``methods`` are those of a program of several, whose inputs and outputs follow each other;
    ``unshared_bytes`` is its size without shared weights. ``digest`` is of all that the record says
    beside it.
    """

    key: str
    model: str
    scheme: str
    soc: str
    sets: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    delegation: Delegation
    lower_s: float
    pte_bytes: int
    files: dict[str, str]
    methods: tuple[MethodInfo, ...] = ()
    unshared_bytes: int = 0
    digest: str = ""


def hash_files(directory: Path) -> dict[str, str]:
    """SHA-256 by relative path of all files but the record."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): hash_file(path) for path in paths if path.name != RECORD
    }


def artifact_path(cache: Path, key: str) -> Path:
    """Where the artifact of ``key`` is, or would be."""
    return cache / key[:2] / key


def write_record(directory: Path, lowered: Lowered) -> None:
    """lowered.json, with the digest of what it says."""
    sealed = msgspec.structs.replace(lowered, digest=digest_record(lowered))
    (directory / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(sealed), indent=1))


def digest_record(lowered: Lowered) -> str:
    """SHA-256 of a record, but for the digest in it."""
    return hashlib.sha256(
        msgspec.json.encode(msgspec.structs.replace(lowered, digest=""))
    ).hexdigest()


def read_artifact(directory: Path) -> Lowered | None:
    """The record of a whole artifact; None when there is none or any bit of it differs."""
    try:
        lowered = msgspec.json.decode(read_regular(directory / RECORD), type=Lowered)
        whole = lowered.digest == digest_record(lowered) and lowered.key == directory.name
        return lowered if whole and hash_files(directory) == lowered.files else None
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def read_regular(path: Path) -> bytes:
    """A file of the cache; a pipe in its place would be waited for. Raises OSError."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


def publish_artifact(staging: Path, directory: Path) -> bool:
    """Move ``staging`` to ``directory`` in one step, unless a good artifact is there.

    That one may be in use. What is left of a damaged one is ``staging`` then. Raises OSError.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    if read_artifact(directory):
        return False
    try:
        publish_directory(staging, directory)
    except OSError:
        if read_artifact(directory):  # another process was first
            return False
        raise
    return True
