"""Reads a program's inputs, outputs and references from raw files into arrays, and checks that the
files have the expected sizes."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np

from ci.cases.engine import FLOAT, HIGH, INPUTS, LOW, MIN_RUNS, NOISE, QUANTIZED, Compiled, Sets
from ci.judging.figures import Array
from ci.judging.gate import Expected, References
from ci.judging.noise import Prediction
from ci.models.tensors import FILE, TensorInfo, read_sets
from provisioning.documents import CONTENT_BYTES, open_regular, read_bytes

# The directory of a program's outputs, and qnn_executor_runner's name for the file of each output.
OUTPUTS, OUTPUT = "outputs", "output_{}_{}.raw"


def read_inputs(artifact: Path, compiled: Compiled) -> Sets:
    """Return the samples of an artifact. Raises OSError or ValueError if it is damaged."""
    return read_sets(artifact / INPUTS, compiled.inputs, compiled.sets)


def read_references(artifact: Path, compiled: Compiled) -> References:
    """Return the references of an artifact: the outputs of the float32 model, the outputs of the
    quantized model (if there is one), and the predicted noise. Raises OSError or ValueError if the
    artifact is damaged."""
    quantized = artifact / QUANTIZED
    references = References(
        read_expected(artifact / FLOAT, compiled),
        read_expected(quantized, compiled) if quantized.is_dir() else None,
    )
    noise = [
        read_noise(artifact / NOISE.format(index), references.best(index)[0].values, info)
        for index, info in enumerate(compiled.outputs)
    ]
    return replace(references, noise=noise, clipped=compiled.clipped)


def read_noise(file: Path, reference: Array, info: TensorInfo) -> Prediction | None:
    """Return the predicted rounding noise of an output, or None if ``file`` does not exist.

    Raises OSError if the file cannot be read, and ValueError if it is not a prediction for
    ``reference``.
    """
    if not file.is_file():
        return None
    with open_regular(file) as stream:
        # A pickle would run code that is in the file.
        runs = np.load(stream, allow_pickle=False)
    if runs.shape[1:] != reference.shape or len(runs) < MIN_RUNS or not np.isfinite(runs).all():
        raise ValueError(
            f"{file.name} is not a prediction for an output of shape {list(reference.shape)}"
        )
    return Prediction(reference, runs, info)


def read_expected(directory: Path, compiled: Compiled) -> list[Expected]:
    """Return the outputs of the float32 or the quantized model from ``directory``. The bounds of an
    output are its lowest and highest correct values, if there are files with them. Otherwise both
    bounds are the output itself."""
    expected = []
    for index, info in enumerate(compiled.outputs):
        values = low = high = read_column(directory, FILE, index, info, compiled.sets)
        if (directory / LOW.format(0, index)).exists():
            bounds = (LOW, HIGH)
            low, high = (
                read_column(directory, bound, index, info, compiled.sets) for bound in bounds
            )
        expected.append(Expected(values, low, high))
    return expected


def read_column(directory: Path, pattern: str, index: int, info: TensorInfo, sets: int) -> Array:
    """Return one output, or one of its bounds, as an array [sample, *shape]. ``pattern`` is the
    format string of the file names. Raises OSError or ValueError if a file is missing or has the
    wrong size."""
    files = (directory / pattern.format(number, index) for number in range(sets))
    return np.stack(
        [view_tensor(read_bytes(file, CONTENT_BYTES), info, file.name) for file in files]
    )


def view_tensor(data: bytes, info: TensorInfo, name: str) -> Array:
    """Return the elements of a tensor as an array with the dtype and shape in ``info``; booleans
    become uint8. Raises ValueError if ``data``, the content of file ``name``, has the wrong
    size."""
    if len(data) != info.size_bytes:
        raise ValueError(f"{name} is {len(data)} bytes long instead of {info.size_bytes}")
    dtype = "uint8" if info.dtype == "bool" else info.dtype
    return np.frombuffer(data, dtype).reshape(info.shape)


def stack_outputs(outputs: Sets, compiled: Compiled) -> list[Array]:
    """Return a runner's outputs as one array per output, [sample, *shape].

    Raises ValueError if the number of samples, the number of outputs, or the size or shape of an
    output is wrong. A single number may have any shape.
    """
    if len(outputs) != compiled.sets:
        raise ValueError(
            f"the runner returned outputs for {len(outputs)} samples instead of {compiled.sets}"
        )
    columns: list[list[Array]] = [[] for _ in compiled.outputs]
    for number, tensors in enumerate(outputs):
        if len(tensors) != len(columns):
            raise ValueError(
                "the runner returned the wrong number of outputs:"
                f" {len(tensors)} instead of {len(columns)}"
            )
        for index, tensor in enumerate(tensors):
            name, info = OUTPUT.format(number, index), compiled.outputs[index]
            array = np.ascontiguousarray(tensor)
            columns[index].append(view_tensor(array.tobytes(), info, name))
            if np.shape(tensor) != info.shape and array.size > 1:
                raise ValueError(
                    f"output {index} has the shape {list(array.shape)} instead of"
                    f" {list(info.shape)}"
                )
    return [np.stack(column) for column in columns]


def read_outputs(directory: Path, compiled: Compiled, sets: int) -> Sets:
    """Return the outputs for ``sets`` samples that a runner wrote to ``directory``, one list per
    sample.

    Raises OSError or ValueError unless each output is a regular file of the right size with a
    single hard link, and the directory contains nothing else.
    """
    expected: set[str] = set()
    outputs = []
    for number in range(sets):
        arrays = []
        for index, info in enumerate(compiled.outputs):
            file = OUTPUT.format(number, index)
            expected.add(file)
            arrays.append(view_tensor(_read_regular(directory / file, info.size_bytes), info, file))
        outputs.append(arrays)
    extra = sorted({path.name for path in directory.iterdir()} - expected)
    if extra:
        raise ValueError(f"the runner wrote {extra[0]}, which is not an output of the program")
    return outputs


def _read_regular(path: Path, expected_bytes: int) -> bytes:
    if not os.path.lexists(path):
        raise ValueError(f"{path.name} was not written")
    if path.is_symlink():
        raise ValueError(f"{path.name} is a symbolic link; an output must be a regular file")
    # Without O_NONBLOCK the open of a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        if status.st_nlink != 1:
            raise ValueError(f"{path.name} has {status.st_nlink} hard links instead of one")
        if status.st_size != expected_bytes:
            raise ValueError(
                f"{path.name} is {status.st_size} bytes long instead of {expected_bytes}"
            )
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read(expected_bytes + 1)  # the file may still grow
    finally:
        os.close(descriptor)
