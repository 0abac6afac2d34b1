"""Raw files of outputs and references as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ci.emulator.judging.figures import Array
from ci.lowering.artifact import Lowered, TensorInfo


def read_outputs(directory: Path, pattern: str, lowered: Lowered) -> list[list[Array]]:
    """All outputs as float64. Raises OSError or ValueError for one missing or of another size."""
    return [
        [
            read_tensor(directory / pattern.format(number, index), info)
            for index, info in enumerate(lowered.outputs)
        ]
        for number in range(lowered.sets)
    ]


def read_tensor(path: Path, info: TensorInfo) -> Array:
    """A raw file as float64. Raises ValueError when its size is not that of ``info``."""
    if not path.is_file():
        raise ValueError(f"{path.name} was not written")
    array = np.fromfile(path, dtype=np.dtype(info.dtype))
    if array.size != int(np.prod(info.shape)):
        wanted = int(np.prod(info.shape)) * np.dtype(info.dtype).itemsize
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, {wanted} are wanted")
    return array.reshape(info.shape).astype(np.float64)
