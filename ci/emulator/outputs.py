"""Raw files of outputs and references as arrays: nothing but what was asked for is an output."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ci.emulator.judging.figures import Array
from ci.lowering.artifact import FLOAT, QUANTIZED, Lowered, TensorInfo

OUTPUT = "output_{}_{}.raw"
REFERENCE = "{}_{}.raw"

Sets = Sequence[Sequence[Array]]


@dataclass(frozen=True)
class References:
    """What both eager models give: one list an input set, one array an output."""

    float32: Sets
    quantized: Sets | None


def read_references(artifact: Path, lowered: Lowered) -> References:
    """The references of an artifact. Raises OSError or ValueError for one that is damaged."""
    quantized = artifact / QUANTIZED
    return References(
        read_sets(artifact / FLOAT, REFERENCE, lowered),
        read_sets(quantized, REFERENCE, lowered) if quantized.is_dir() else None,
    )


def read_outputs(directory: Path, lowered: Lowered) -> Sets:
    """What a runner wrote. Raises OSError or ValueError unless ``directory`` holds each output
    as a regular file of its own, of exactly its size, and nothing else."""
    outputs = read_sets(directory, OUTPUT, lowered)
    wanted = {
        OUTPUT.format(number, index)
        for number in range(lowered.sets)
        for index in range(len(lowered.outputs))
    }
    extra = sorted({path.name for path in directory.iterdir()} - wanted)
    if extra:
        raise ValueError(f"{extra[0]} was written, which is not an output of the program")
    return outputs


def read_sets(directory: Path, pattern: str, lowered: Lowered) -> Sets:
    """Every output of every set. Raises OSError or ValueError as read_tensor does."""
    return [
        [
            read_tensor(directory / pattern.format(number, index), info)
            for index, info in enumerate(lowered.outputs)
        ]
        for number in range(lowered.sets)
    ]


def read_tensor(path: Path, info: TensorInfo) -> Array:
    """A raw file, booleans as their bytes. Raises ValueError unless it is a regular file of the
    size of ``info``, OSError when it cannot be read."""
    dtype = np.dtype("uint8" if info.dtype == "bool" else info.dtype)
    wanted = int(np.prod(info.shape)) * dtype.itemsize
    if not os.path.lexists(path):
        raise ValueError(f"{path.name} was not written")
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link, and an output has to be a file of its own")
    # Without O_NONBLOCK the open of a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fault = _find_fault(os.fstat(descriptor), wanted)
        if fault:
            raise ValueError(f"{path.name} {fault}")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(wanted + 1)
    finally:
        os.close(descriptor)
    if len(data) != wanted:
        raise ValueError(f"{path.name} changed while it was read")
    return np.frombuffer(data, dtype).reshape(info.shape)


def _find_fault(status: os.stat_result, wanted: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_nlink != 1:
        return "is a second name of another file"
    if status.st_size != wanted:
        return f"has {status.st_size} bytes, {wanted} are wanted"
    return ""
