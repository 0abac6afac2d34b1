"""The part file: what is on disk, what is hashed, and what may not be written through."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning import files
from provisioning.fetch.part_file import PartFile, open_part

URL = "https://host/a.zip?token=x"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a.zip"


def grow(target: Path, *pieces: bytes) -> Path:
    """The path of a part file that an earlier process left."""
    part = PartFile(target, URL)
    part.restart('"v"')
    for piece in pieces:
        part.append(piece)
    part.close()
    return part.path


def state(part: PartFile) -> tuple[bytes, str, int, bool]:
    """What came, the validator, the restarts, and whether it was resumed; as on disk and hashed."""
    data = part.path.read_bytes()
    assert part.size == len(data)
    assert part.digest.hexdigest() == hashlib.sha256(data).hexdigest()
    assert json.loads(part.record.read_bytes()) == {"validator": part.validator}
    return data, part.validator, part.restarts, part.was_resumed


def test_the_name_of_a_part_file_depends_on_the_url_without_its_query(target: Path) -> None:
    part = PartFile(target, URL)
    short = hashlib.sha256(b"https://host/a.zip").hexdigest()[:8]
    assert part.path == target.with_name(f".a.zip.{short}.part")
    assert part.record == target.with_name(f".a.zip.{short}.json")
    assert PartFile(target, "https://host/a.zip?token=y").path == part.path
    assert PartFile(target, "https://host/b.zip").path != part.path
    assert state(part) == (b"", "", 0, False)


def test_a_part_file_is_read_and_appended_to(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(target, b"abc", b"", b"de")
    monkeypatch.setattr(files, "READ_BYTES", 2)
    part = PartFile(target, URL)
    assert state(part) == (b"abcde", '"v"', 0, True)
    part.append(b"f")
    assert state(part) == (b"abcdef", '"v"', 0, True)
    grow(target)
    assert state(PartFile(target, URL)) == (b"", '"v"', 0, False)


GOOD = b'{"validator": "v"}'


@pytest.mark.parametrize(
    ("record", "is_kept"),
    [
        (GOOD, True),
        (GOOD.rjust(4096), True),
        (GOOD.rjust(4097), False),
        *((text, False) for text in (b"", b"{", b"[]", b"7", b"{}", b"[" * 100_000)),
        *((b'{"validator": %s}' % text, False) for text in (b"5", b'"a\\n"', b'"\xe2\x82\xac"')),
        (None, False),
    ],
)
def test_a_part_file_without_a_valid_record_starts_anew(
    target: Path, record: bytes | None, is_kept: bool
) -> None:
    """If ``record`` is None, a named pipe takes its place."""
    path = grow(target, b"abc").with_suffix(".json")
    if record is None:
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_bytes(record)
    part = PartFile(target, URL)
    if is_kept:
        assert (part.size, part.validator, part.was_resumed) == (3, "v", True)
    else:
        assert state(part) == (b"", "", 0, False)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


STEPS = st.lists(st.one_of(st.binary(max_size=9), st.text('v"~ ', max_size=9)), max_size=9)


@settings(max_examples=30, deadline=None)
@given(steps=STEPS, most=st.integers(1, 4))
def test_a_part_file_contains_the_bytes_since_the_last_restart(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str], most: int
) -> None:
    """A step appends bytes or restarts with a validator; each write takes only some bytes."""
    real, data, validator, restarts = os.pwrite, b"", "", 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.pwrite", lambda fd, data, at: real(fd, bytes(data)[:most], at))
        part = PartFile(tmp_path_factory.getbasetemp() / "a.zip", URL)
        before = descriptors()
        for step in steps:
            if isinstance(step, bytes):
                part.append(step)
                data += step
            else:
                part.was_resumed = True
                part.restart(step)
                restarts += bool(data)
                data, validator = b"", step
        assert state(part) == (data, validator, restarts, False)
        assert descriptors() <= before  # other tests' files may get closed
        part.close()
        part.discard()


@pytest.mark.parametrize(
    "make",
    [
        lambda path, mine: path.symlink_to(mine),
        lambda path, mine: path.hardlink_to(mine),
        lambda path, mine: os.mkfifo(path),
    ],
    ids=["a link", "a second name", "a pipe"],
)
def test_a_link_or_foreign_file_in_place_of_a_part_file_is_replaced(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    path, mine = tmp_path / "own", tmp_path / "mine"
    mine.write_text("mine")
    make(path, mine)
    fd = open_part(path)
    os.write(fd, b"x")
    assert os.pread(fd, 9, 0) == b"x"
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("x", 0o600)
    assert mine.read_text() == "mine"
