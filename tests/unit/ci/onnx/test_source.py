"""The inputs next to a user's .onnx: arrays of an .npz, which have to fit the model."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

import numpy as np

from ci.onnx.source import read_sets
from provisioning.errors import UsageError

INPUTS = {"x": (np.dtype("float32"), (2, 3)), "ids": (np.dtype("int64"), (4,))}


def write(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path.with_suffix(".npz"), **arrays)
    return path


def test_each_row_of_an_archive_is_an_input_set(tmp_path: Path) -> None:
    x = np.arange(12, dtype="float32").reshape(2, 2, 3)
    ids = np.arange(8).reshape(2, 4)
    sets = list(read_sets(write(tmp_path / "net.onnx", ids=ids, x=x), INPUTS))
    assert len(sets) == 2
    for row, (first, second) in enumerate(sets):
        np.testing.assert_array_equal(first, x[row])
        np.testing.assert_array_equal(second, ids[row])


def test_an_archive_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", x=np.zeros((1, 2, 3), "float32"))
    with pytest.raises(UsageError, match=r"net\.npz does not fit") as caught:
        list(read_sets(path, INPUTS))
    assert "ids int64[4]" in caught.value.fix
    write(path, x=np.zeros((1, 2, 3), "float64"), ids=np.zeros((1, 4), "int64"))
    with pytest.raises(UsageError, match=r"net\.npz does not fit") as caught:
        list(read_sets(path, INPUTS))
    assert "float64[2, 3]" in caught.value.why


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"hello"])
def test_an_archive_that_cannot_be_read_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.npz").write_bytes(data)
    with pytest.raises(UsageError, match=r"net\.npz cannot be read"):
        list(read_sets(tmp_path / "net.onnx", INPUTS))
