"""A directory appears whole, or the old one stays."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.signing import publish as subject
from ci.signing.publish import check_target, exchange, publish, stage
from provisioning.errors import UnfitError, UsageError


def fill(directory: Path, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "lib.so").write_text(text)


def test_published_directory_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "signed"
    for text in ("first", "second"):
        with stage(target) as staging:
            fill(staging.ready, text)
            publish(staging)
        assert (target / "lib.so").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["signed"]


def test_failure_in_between_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "signed"
    fill(target, "old")

    def fail() -> None:
        with stage(target) as staging:
            fill(staging.ready, "new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (target / "lib.so").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["signed"]


def test_exchange_where_the_file_system_cannot(tmp_path: Path, monkeypatch) -> None:
    class Library:
        @staticmethod
        def renameat2(*arguments: object) -> int:
            return -1

    monkeypatch.setattr(subject.ctypes, "CDLL", lambda *args, **more: Library)
    monkeypatch.setattr(subject.ctypes, "get_errno", lambda: errno.EINVAL)
    one, other = tmp_path / "one", tmp_path / "other"
    fill(one, "new")
    fill(other, "old")
    exchange(one, other)
    assert (other / "lib.so").read_text() == "new"


def test_target_that_a_killed_run_had_moved_aside_goes_back(tmp_path: Path) -> None:
    fill(tmp_path / ".signed.signing", "")
    aside = tmp_path / ".signed.signing" / "run" / "replaced"
    aside.parent.mkdir()
    fill(aside, "old")
    (tmp_path / ".signed.signing" / "lib.so").unlink()
    with stage(tmp_path / "signed"):
        pass
    assert (tmp_path / "signed" / "lib.so").read_text() == "old"


def test_two_runs_do_not_share_a_target(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from ci.signing.publish import stage\n"
        "with stage(pathlib.Path(sys.argv[1])): print('held', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "signed"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )  # fmt: skip
    assert other.stdout
    assert other.stdout.readline() == "held\n"
    with pytest.raises(UnfitError, match="another run is signing into signed"):
        stage(tmp_path / "signed").__enter__()
    other.communicate("\n")
    assert other.returncode == 0
    with stage(tmp_path / "signed"):
        pass


@pytest.mark.parametrize("place", ["sdk", "sdk/lib/signed", "."])
def test_target_in_or_around_an_sdk_is_refused(tmp_path: Path, place: str) -> None:
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    with pytest.raises(UsageError, match="lies in"):
        check_target(tmp_path / place, force=True, protected=iter([sdk]))


def test_target_that_is_a_file_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="no directory"):
            check_target(tmp_path / name, force=True, protected=iter([]))
