"""Raw files of outputs and references as arrays: nothing but what was asked for is an output."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ci.cases.artifact import (
    FLOAT,
    HIGH,
    INPUTS,
    LOW,
    OUTPUT,
    QUANTIZED,
    REFERENCE,
    Lowered,
    TensorInfo,
    write_set,
)
from ci.judging.figures import Array
from ci.judging.gate import Expected, References


def read_references(artifact: Path, lowered: Lowered) -> References:
    """The references of an artifact. Raises OSError or ValueError for one that is damaged."""
    quantized = artifact / QUANTIZED
    return References(
        read_expected(artifact / FLOAT, lowered),
        read_expected(quantized, lowered) if quantized.is_dir() else None,
    )


def read_expected(directory: Path, lowered: Lowered) -> list[Expected]:
    """The outputs of one eager model, with the ties of those that were found to have some."""
    expected = []
    for index in range(len(lowered.outputs)):
        values = low = high = read_column(directory, REFERENCE, index, lowered)
        if (directory / LOW.format(0, index)).exists():
            low, high = (read_column(directory, bound, index, lowered) for bound in (LOW, HIGH))
        expected.append(Expected(values, low, high))
    return expected


def read_outputs(directory: Path, lowered: Lowered) -> list[Array]:
    """What a runner wrote, an array an output, [input set, *shape].

    Raises OSError or ValueError unless ``directory`` holds each output as a regular file of its
    own, of exactly its size, and nothing else.
    """
    outputs = [
        read_column(directory, OUTPUT, index, lowered) for index in range(len(lowered.outputs))
    ]
    wanted = {
        OUTPUT.format(number, index)
        for number in range(lowered.sets)
        for index in range(len(lowered.outputs))
    }
    extra = sorted({path.name for path in directory.iterdir()} - wanted)
    if extra:
        raise ValueError(f"{extra[0]} was written, which is not an output of the program")
    return outputs


def write_input_list(path: Path, given: Path, lowered: Lowered, sets: int | None = None) -> Path:
    """The list of inputs for a runner, a line for each of the first ``sets`` of ``given``."""
    places = given / INPUTS
    rows = (
        " ".join(
            str(places / REFERENCE.format(number, index)) for index in range(len(lowered.inputs))
        )
        for number in range(lowered.sets)[:sets]
    )
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def write_outputs(directory: Path, outputs: Sequence[Array]) -> None:
    """What a runner would write for ``outputs``, [input set, *shape]."""
    directory.mkdir()
    for number, arrays in enumerate(zip(*outputs, strict=True)):
        write_set(directory, number, arrays, OUTPUT)


def read_column(directory: Path, pattern: str, index: int, lowered: Lowered) -> Array:
    """One output of every set. Raises OSError or ValueError as read_tensor does."""
    info = lowered.outputs[index]
    return np.stack(
        [
            read_tensor(directory / pattern.format(number, index), info)
            for number in range(lowered.sets)
        ]
    )


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
