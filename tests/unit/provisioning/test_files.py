"""What others read while it is written is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioning.files import write_whole


def test_a_file_is_replaced_and_its_directory_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_whole(path, "first ä\n")
    write_whole(path, b"second\n")
    assert path.read_bytes() == b"second\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.json"
    write_whole(path, "good")
    real = Path.write_bytes

    def write_half(self: Path, data: bytes) -> int:
        real(self, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "better")
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_behind_a_link_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 99) == b"text"
    os.close(reader)
