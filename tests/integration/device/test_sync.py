"""Files through the real client's own push and pull, as upstream and by-hand scripts use them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.device.conftest import Connect


def adb(serial: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["adb", "-s", serial, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def read_tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "below/deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "big").write_bytes(os.urandom(3_000_001))
    (folder / "nothing").touch()
    (folder / "below/deep/two words").write_bytes(bytes(range(256)))
    (folder / "below/run").write_text("#!/bin/sh\n")
    (folder / "below/run").chmod(0o700)
    (folder / "big").chmod(0o600)
    os.utime(folder / "big", (1_600_000_000, 1_600_000_000))
    return folder


def test_the_client_s_push_and_pull_keep_bytes_and_modes(
    connect: Connect, tmp_path: Path, tree: Path
) -> None:
    serial, there, back = connect(), tmp_path / "phone0/data/a b", tmp_path / "back"
    assert adb(serial, "push", tree / "big", there / "deep/one").returncode == 0
    assert (there / "deep/one").read_bytes() == (tree / "big").read_bytes()
    assert int((there / "deep/one").stat().st_mtime) == 1_600_000_000
    pushed = adb(serial, "push", tree, there)  # into a directory that is there
    assert pushed.returncode == 0, pushed.stderr
    assert read_tree(there / "tree") == read_tree(tree)
    # The bits of the user become those of the group and of others.
    for name, mode in (("big", 0o666), ("below/run", 0o777)):
        assert (there / "tree" / name).stat().st_mode & 0o777 == mode
    pulled = adb(serial, "pull", "-a", there / "tree", back)
    assert pulled.returncode == 0, pulled.stderr
    assert read_tree(back) == read_tree(tree)
    assert os.access(back / "below/run", os.X_OK)
    assert int((back / "big").stat().st_mtime) == 1_600_000_000


def test_the_client_names_why_a_file_did_not_come_or_go(
    connect: Connect, tmp_path: Path, tree: Path
) -> None:
    serial, there = connect("full"), tmp_path / "phone0/data"
    missing = adb(serial, "pull", there / "missing", tmp_path / "got")
    assert missing.returncode
    assert "does not exist" in missing.stderr + missing.stdout
    full = adb(serial, "push", tree / "big", there / "big")
    assert full.returncode
    assert "No space left on device" in full.stderr + full.stdout
    assert not (there / "big").exists()
    small = adb(serial, "push", tree / "below/run", there / "run")  # it still answers
    assert small.returncode == 0
    wrong = adb(serial, "push", tree / "below/run", f"{there}/none/")
    assert "Is a directory" in wrong.stderr + wrong.stdout


def test_a_push_over_a_link_that_breaks_leaves_no_file(
    connect: Connect, tmp_path: Path, tree: Path
) -> None:
    serial, there = connect("breaks"), tmp_path / "phone0/data"
    assert adb(serial, "push", tree / "big", there / "big").returncode
    for _ in range(50):  # it is removed when the phone sees the end
        if not (there / "big").exists():
            return
        time.sleep(0.1)
    pytest.fail("a part of a file was left")
