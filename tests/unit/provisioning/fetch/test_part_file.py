"""The part file: what is on disk, what is hashed, and what may not be written through."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from provisioning import files
from provisioning.fetch.part_file import PartFile, open_part

URL = "https://host/a.zip?token=x"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a.zip"


def grow(target: Path, *pieces: bytes, validator: str = '"v"') -> Path:
    """A part file that an earlier process left."""
    part = PartFile(target, URL)
    part.restart(validator)
    for piece in pieces:
        part.append(piece)
    part.close()
    return part.path


def reopen(target: Path) -> PartFile:
    return PartFile(target, URL)


def test_its_names_follow_the_url_without_its_query(target: Path) -> None:
    part = PartFile(target, URL)
    short = hashlib.sha256(b"https://host/a.zip").hexdigest()[:8]
    assert part.path == target.with_name(f".a.zip.{short}.part")
    assert part.record == target.with_name(f".a.zip.{short}.json")
    assert PartFile(target, "https://host/a.zip?token=y").path == part.path
    assert PartFile(target, "https://host/b.zip").path != part.path
    assert (part.size, part.restarts, part.validator) == (0, 0, "")
    assert (part.was_resumed, part.can_spread) == (False, True)


def test_what_came_is_read_back_and_hashed(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(target, b"abc", b"", b"de")
    monkeypatch.setattr(files, "READ_BYTES", 2)
    part = PartFile(target, URL)
    assert (part.size, part.validator, part.was_resumed) == (5, '"v"', True)
    assert part.digest.hexdigest() == hashlib.sha256(b"abcde").hexdigest()
    part.append(b"f")
    assert part.digest.hexdigest() == hashlib.sha256(b"abcdef").hexdigest()
    assert part.path.read_bytes() == b"abcdef"


def test_an_empty_one_with_a_record_was_not_resumed(target: Path) -> None:
    grow(target)
    part = reopen(target)
    assert (part.validator, part.was_resumed) == ('"v"', False)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"validator": 5}',
        b'{"validator": "a\\n"}',
        b'{"validator": "\xe2\x82\xac"}',
    ],
)
def test_without_a_validator_it_begins_anew(target: Path, record: bytes) -> None:
    path = grow(target, b"abc")
    path.with_suffix(".json").write_bytes(record)
    part = reopen(target)
    assert (part.size, part.validator, part.restarts, part.was_resumed) == (0, "", 0, False)
    assert part.path.stat().st_size == 0
    assert json.loads(part.record.read_bytes()) == {"validator": ""}


def test_a_pipe_as_a_record_is_none(target: Path) -> None:
    path = grow(target, b"abc").with_suffix(".json")
    path.unlink()
    os.mkfifo(path)
    assert reopen(target).size == 0
    assert path.is_file()


def test_a_deep_record_is_none(target: Path) -> None:
    path = grow(target, b"abc")
    path.with_suffix(".json").write_bytes(b"[" * 100_000)
    assert reopen(target).size == 0


def test_of_a_record_4096_bytes_are_read(target: Path) -> None:
    record = grow(target, b"abc").with_suffix(".json")
    text = b'{"validator": "v"}'
    record.write_bytes(text.rjust(4096))
    assert reopen(target).size == 3
    record.write_bytes(text.rjust(4097))
    assert reopen(target).size == 0


def test_a_restart_leaves_nothing_of_what_was_longer(target: Path) -> None:
    part = PartFile(target, URL)
    part.restart('"one"')
    assert part.restarts == 0
    part.append(b"a longer body")
    part.was_resumed = True
    part.restart('"two"')
    assert (part.restarts, part.size, part.was_resumed, part.validator) == (1, 0, False, '"two"')
    part.append(b"short")
    assert part.path.read_bytes() == b"short"
    assert part.digest.hexdigest() == hashlib.sha256(b"short").hexdigest()
    part.restart("a much longer validator")
    part.restart("v")
    assert json.loads(part.record.read_bytes()) == {"validator": "v"}
    assert part.restarts == 2
    part.append(b"x")
    part.restart()
    assert (part.restarts, part.validator) == (3, "")


def test_a_write_may_take_less_than_all(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    part = PartFile(target, URL)
    part.append(b"abcdefgh")
    part.append(b"ij")
    assert (part.path.read_bytes(), part.size) == (b"abcdefghij", 10)


def test_the_start_is_shown_on_one_line(target: Path) -> None:
    part = PartFile(target, URL)
    part.append(b"\n  <html>\x1b[31m\t\xff " + b"x" * 300)
    shown = part.start_of()
    assert shown.startswith("<html> [31m \ufffd xxx")
    assert shown.endswith("x" * 143)
    assert shown.count("x") == 160 - 17


def test_discarded_it_is_gone_twice(target: Path) -> None:
    part = PartFile(target, URL)
    part.append(b"x")
    part.discard()
    part.discard()
    assert list(target.parent.iterdir()) == []
    part.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(part.fd)


def test_the_records_descriptor_is_closed(target: Path) -> None:
    part = PartFile(target, URL)
    before = len(list(Path("/proc/self/fd").iterdir()))
    part.restart("x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_not_a_file_of_ours_loses_the_name(tmp_path: Path) -> None:
    path, mine = tmp_path / "own", tmp_path / "mine"
    mine.write_text("mine")
    for make in (
        lambda: path.symlink_to(mine),
        lambda: path.hardlink_to(mine),
        lambda: os.mkfifo(path),
    ):
        make()
        fd = open_part(path)
        os.write(fd, b"x")
        assert os.pread(fd, 9, 0) == b"x"
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()
    assert mine.read_text() == "mine"


def test_a_file_of_ours_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "own"
    path.write_text("kept")
    before = path.stat().st_ino
    os.close(open_part(path))
    assert (path.read_text(), path.stat().st_ino) == ("kept", before)


def test_a_link_that_comes_at_the_last_moment_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own"
    real = os.open

    def late(name: Path, flags: int, mode: int) -> int:
        path.symlink_to(tmp_path / "mine")
        return real(name, flags, mode)

    monkeypatch.setattr("os.open", late)
    with pytest.raises(OSError, match="symbolic links"):
        open_part(path)


def test_the_file_of_another_user_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own"
    path.write_text("theirs")
    real, refused = os.open, [True]

    def refuse(name: Path, flags: int, mode: int) -> int:
        if refused.pop() if refused else False:
            raise PermissionError("theirs")
        return real(name, flags, mode)

    monkeypatch.setattr("os.open", refuse)
    fd = open_part(path)
    os.write(fd, b"ours")
    os.close(fd)
    assert path.read_text() == "ours"
    assert path.stat().st_mode & 0o777 == 0o600
