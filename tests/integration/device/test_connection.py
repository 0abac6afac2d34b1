from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from ci.device.connection import (
    Device,
    identify,
    open_device,
)
from provisioning.errors import ToolError, UnfitError
from tests.integration.device.conftest import Connect, Lab

BIG = os.urandom(9 << 20)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def push(lab: Lab, folder: Path) -> int:
    files = {path.name: path for path in folder.iterdir()}
    digests = {name: digest(path) for name, path in files.items()}
    return lab.device.push(str(lab.place / "a b"), files, digests)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "one").write_bytes(b"1")
    (folder / "two.so").write_bytes(b"22")
    (folder / "big").write_bytes(BIG)
    return folder


def test_a_device_script_returns_its_exact_output_and_exit_code(lab: Lab) -> None:
    all_bytes = bytes(range(256)) * 300
    assert lab.device.call("cat; exit 7", data=all_bytes) == (7, all_bytes, "")
    assert lab.device.call("echo words >&2; exit 0") == (0, b"", "words")
    with pytest.raises(ToolError, match="exited with code 3") as caught:
        lab.device.ask("echo because >&2; exit 3")
    assert caught.value.why == "because"


def test_only_what_a_device_lacks_is_sent(lab: Lab, files: Path) -> None:
    assert push(lab, files) == len(BIG) + 3
    assert push(lab, files) == 0
    pushed = lab.place / "a b"
    assert {path.name: path.read_bytes() for path in pushed.iterdir()} == {
        path.name: path.read_bytes() for path in files.iterdir()
    }
    assert os.access(pushed / "one", os.X_OK)
    (pushed / "two.so").write_bytes(b"33")  # stale, of the right size
    (pushed / "one").unlink()
    assert push(lab, files) == 3


@pytest.mark.parametrize("lacking", ["sha256sum", "tar", ""])
def test_a_device_without_sha256sum_or_tar_is_refused(tmp_path: Path, lacking: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    programs_of_shell = ("sha256sum", "tar", "uname", "id", "df", "tail", "mkdir", "cat")
    for name in programs_of_shell:
        if name != lacking:
            (programs / name).symlink_to(str(shutil.which(name)))
    client = ("/usr/bin/env", "-i", f"PATH={programs}", "/bin/sh", "-c")
    device = Device("here", client, str(tmp_path / "ours"))
    with pytest.raises(UnfitError, match=lacking) if lacking else nullcontext():
        assert identify(device).user


def test_a_push_that_broke_off_is_repaired_by_the_next(connect: Connect, files: Path) -> None:
    serial = connect("breaks")
    device = open_device(f"adb:{serial}", str(files.parent / "there"))
    small = {"one": files / "one"}
    assert device.push(device.place, small, {"one": digest(files / "one")}) == 1
    with pytest.raises(ToolError, match="reached"):
        device.push(device.place, {"big": files / "big"}, {"big": digest(files / "big")})
    assert [path.name for path in Path(device.place).iterdir() if path.name == "big"] == []


def test_an_unreachable_or_silent_board_is_an_error(board: Lab) -> None:
    away = Device("ssh:away", (*board.device.client[:-1], "127.0.0.2"), board.device.place)
    with pytest.raises(ToolError, match="cannot be reached"):
        away.ask("true")
    with pytest.raises(ToolError, match="did not answer in time"):
        board.device.ask("sleep 600", timeout_s=0.5)


def test_a_host_key_that_changed_is_refused(board: Lab, tmp_path: Path) -> None:
    known_hosts = tmp_path / "sshd/known"
    other_key = (tmp_path / "sshd/key.pub").read_text().split()[:2]
    known_hosts.write_text(f"{known_hosts.read_text().split()[0]} {' '.join(other_key)}\n")
    with pytest.raises(ToolError) as caught:
        board.device.ask("true")
    assert "IDENTIFICATION HAS CHANGED" in caught.value.why
    known_hosts.write_text("")
    with pytest.raises(ToolError, match="reached"):
        board.device.ask("true")


def test_a_missing_ambiguous_or_unauthorized_phone_is_refused(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnfitError, match="no phone"):
        open_device("adb:")
    first = connect()
    assert open_device("adb:").name == f"adb:{first}"
    second = connect("unauthorized")
    with pytest.raises(UnfitError, match="2 phones"):
        open_device("adb:")
    with pytest.raises(UnfitError, match="unauthorized"):
        open_device(f"adb:{second}")
    with pytest.raises(UnfitError, match="missing"):
        open_device("adb:nowhere")
    monkeypatch.setenv("ANDROID_SERIAL", first)
    assert open_device("adb:").name == f"adb:{first}"
    with pytest.raises(UnfitError, match="missing"):
        open_device("adb:nowhere")
