"""Which phone is meant, how long it is leased, and what a start leaves for the next one."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.cases.outputs import OUTPUTS
from ci.device import connection, runner
from ci.device.connection import choose_phone
from ci.device.runner import (
    CODE,
    EXECUTORCH,
    LATE,
    LOG,
    MEMORY,
    SYSTEM,
    SYSTEM_MARK,
    DeviceProgram,
)
from provisioning.errors import UnfitError

PHONES = {"one": "device", "two": "device", "locked": "unauthorized"}


@pytest.mark.parametrize(
    ("requested", "variable", "phones", "chosen"),
    [
        ("one", "two", PHONES, "one"),  # the option before the variable
        ("two", "one", PHONES, "two"),
        ("", "two", PHONES, "two"),
        ("two", "", PHONES, "two"),
        ("", "", {"one": "device"}, "one"),
    ],
)
def test_the_requested_phone_or_the_only_one_is_chosen(
    requested: str,
    variable: str,
    phones: dict[str, str],
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANDROID_SERIAL", variable)
    monkeypatch.setattr(connection, "list_phones", lambda _: phones)
    assert choose_phone("adb", requested) == chosen
    for gone in ("gone", "locked"):
        monkeypatch.setenv("ANDROID_SERIAL", gone)
        with pytest.raises(UnfitError, match=gone):
            choose_phone("adb", "")


def make_program(place: Path, timeout_s: float = 1.0) -> DeviceProgram:
    program: Any = SimpleNamespace(log=place / "run.log", directory=place)
    device_runner: Any = SimpleNamespace(dialect=EXECUTORCH)
    return DeviceProgram(device_runner, program, timeout_s)


def pack(**files: bytes) -> bytes:
    """What a device sends: ``x`` are outputs if their names start with ``out``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            place = f"{OUTPUTS}/{name}.raw" if name.startswith("out") else NAMES.get(name, name)
            entry = tarfile.TarInfo(place)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


NAMES = {"log": LOG, "code": CODE, "late": LATE, "system": SYSTEM}


def test_a_device_run_unpacks_only_its_own_outputs_and_log(tmp_path: Path) -> None:
    """The log of the device is appended to that of the runner."""
    program = make_program(tmp_path)
    for archive, ended, outputs, log in (
        (pack(out_0=b"1", out_1=b"2", log=b"a", code=b"0\n"), (False, 0), ["out_0", "out_1"], "a"),
        (pack(out_0=b"3", log=b"b", code=b"7\n"), (False, 7), ["out_0"], "b"),
        (pack(log=b"c", late=b"", code=b"137"), (True, 137), [], "c"),
        (pack(log=b"d\n", system=b"x\n", code=b"1"), (False, 1), [], f"d\n{SYSTEM_MARK}x\n"),
        (pack(log=b"d\n", system=b"", code=b"0"), (False, 0), [], "d\n"),
    ):
        assert program.unpack(archive, tmp_path) == ended
        assert sorted(path.stem for path in (tmp_path / OUTPUTS).iterdir()) == outputs
        assert (tmp_path / "run.log").read_text() == log
    assert len(program.starts) == 5


def test_only_expected_files_of_a_device_archive_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other members are not written, whatever their names are."""
    monkeypatch.setattr(runner, "MOST_BYTES", 3)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in (
            (f"{OUTPUTS}/most.raw", b"123"),
            (f"{OUTPUTS}/large.raw", b"1234"),
            (f"{OUTPUTS}/note.txt", b"1"),
            (f"{OUTPUTS}/deep/a.raw", b"1"),
            (f"deep/{OUTPUTS}/b.raw", b"1"),
            ("../out.raw", b"1"),
            ("/out.raw", b"1"),
            (f"{OUTPUTS}/../out.raw", b"1"),
            ("beside.raw", b"1"),
            ("other.txt", b"1"),
            (MEMORY, b"2"),
            (CODE, b"0"),
            (f"{OUTPUTS}/{MEMORY}", b"8"),
            (f"{OUTPUTS}/{CODE}", b"9"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo(f"{OUTPUTS}/link.raw")
        link.type, link.linkname = tarfile.SYMTYPE, "most.raw"
        tar.addfile(link)
    program = make_program(tmp_path)
    assert program.unpack(stream.getvalue(), tmp_path) == (False, 0)
    unpacked = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert unpacked == {OUTPUTS, f"{OUTPUTS}/most.raw"}, "and no log, because none was sent"
    assert [start.memory_bytes for start in program.starts] == [2048]


def test_an_incomplete_device_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="incomplete"):
        make_program(tmp_path).unpack(pack(out_0=b"1", log=b"a"), tmp_path)
    packed = gzip.compress(pack(log=b"a", code=b"0"))  # may be larger than this computer can hold
    with pytest.raises(tarfile.ReadError):
        make_program(tmp_path).unpack(packed, tmp_path)
