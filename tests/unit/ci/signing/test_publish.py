"""A directory appears whole, or the old one stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.signing.publish import check_target, stage
from provisioning.errors import StoreError, UsageError


def fill(directory: Path, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "lib.so").write_text(text)


def test_published_directory_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "signed"
    for text in ("first", "second"):
        with stage(target, force=True) as staging:
            fill(staging.scratch / "work", "not this")
            fill(staging.ready, text)
        assert (target / "lib.so").read_text() == text
        assert [path.name for path in target.iterdir()] == ["lib.so"]
        assert [path.name for path in tmp_path.iterdir()] == ["signed"]


def test_failure_in_between_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "signed"
    fill(target, "old")

    def fail() -> None:
        with stage(target, force=True) as staging:
            fill(staging.ready, "new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (target / "lib.so").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["signed"]


def make_while_signing(target: Path, *, force: bool) -> None:
    """Another run makes the target while this one is at work."""
    program = (
        "import sys, pathlib; from ci.signing.publish import stage\n"
        "with stage(pathlib.Path(sys.argv[1]), force=False) as staging:\n"
        "    (staging.ready / 'lib.so').write_text('other')"
    )
    with stage(target, force=force) as staging:
        fill(staging.ready, "ours")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
        subprocess.run([sys.executable, "-c", program, target], check=True, env=environment)
        assert (target / "lib.so").read_text() == "other"


def test_what_another_run_made_meanwhile_is_kept_unless_forced(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists and is kept"):
        make_while_signing(tmp_path / "signed", force=False)
    assert (tmp_path / "signed" / "lib.so").read_text() == "other"
    make_while_signing(tmp_path / "again", force=True)
    assert (tmp_path / "again" / "lib.so").read_text() == "ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "signed"]


def test_place_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        stage(tmp_path / "file" / "signed", force=False).__enter__()


@pytest.mark.parametrize("place", ["sdk", "sdk/lib/signed", "."])
def test_target_in_or_around_an_sdk_is_refused(tmp_path: Path, place: str) -> None:
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    with pytest.raises(UsageError, match="lies in"):
        check_target(tmp_path / place, force=True, protected=iter([sdk]))


def test_target_beside_an_sdk_is_not(tmp_path: Path) -> None:
    check_target(tmp_path / "sdk-signed", force=False, protected=iter([tmp_path / "sdk"]))


def test_target_that_is_a_file_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="is not a directory"):
            check_target(tmp_path / name, force=True, protected=iter([]))


def test_target_that_is_there_is_kept_unless_it_is_forced(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists and is kept"):
        check_target(tmp_path, force=False, protected=iter([]))
    check_target(tmp_path, force=True, protected=iter([]))
