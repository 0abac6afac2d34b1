"""Snapshots of the inputs of a build, the copy of its sources, and records of both."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.builds.files import (
    State,
    digest_snapshot,
    inspect_copy,
    read_record,
    record_copy,
    sync_overlay,
    take_snapshot,
)
from provisioning.errors import StoreError
from tests.build.builds import write_files


def test_a_snapshot_leaves_out_what_builds_and_version_control_leave(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "a.c": "a",
            "pyvenv.cfg": "a checkout that is an environment, too",
            "sub/b.c": "b",
            "third-party/x/x.c": "x",
            ".git/HEAD": "ref",
            "out/CMakeCache.txt": "",
            "out/a.o": "o",
            "venv/pyvenv.cfg": "",
            "lone.pyc": "",
            **{f"sub/{name}/m.py": "" for name in ("__pycache__", ".nox", "node_modules")},
            **{f"{name}/m.py": "" for name in (".mypy_cache", ".pytest_cache")},
        },
    )
    snapshot = take_snapshot(tmp_path, skip=frozenset({"third-party/x"}))
    assert list(snapshot) == ["a.c", "pyvenv.cfg", "sub/b.c"]


@pytest.mark.parametrize("change", ["size", "mtime_ns", "inode", "mode"])
def test_a_file_is_read_again_if_its_size_time_inode_or_mode_is_another(
    tmp_path: Path, change: str
) -> None:
    write_files(tmp_path, {"a.c": "one"})
    (entry,) = take_snapshot(tmp_path).values()
    last_read = msgspec.structs.replace(entry, sha256="of the last read")
    assert take_snapshot(tmp_path, {"a.c": last_read}) == {"a.c": last_read}
    changed = msgspec.structs.replace(last_read, **{change: getattr(last_read, change) + 1})
    assert take_snapshot(tmp_path, {"a.c": changed}) == {"a.c": entry}


def test_a_snapshot_changes_with_contents_names_links_and_modes_not_times(tmp_path: Path) -> None:
    def digest(number: int, change: Callable[[Path], object]) -> str:
        place = write_files(tmp_path / str(number), {"a.c": "one"})
        (place / "l").symlink_to("a.c")
        (place / "a.c").chmod(0o644)
        change(place)
        return digest_snapshot(take_snapshot(place))

    def relink(place: Path) -> None:
        (place / "l").unlink()
        (place / "l").symlink_to("b.c")

    irrelevant_changes = (
        Path.exists,
        lambda source: os.utime(source / "a.c", (1, 1)),
        chmod(0o600),
    )
    relevant_changes = (
        *(chmod(mode) for mode in (0o744, 0o654, 0o645)),
        lambda source: (source / "a.c").rename(source / "b.c"),
        lambda source: (source / "a.c").write_text("two"),
        relink,
    )
    digests = [
        digest(number, change)
        for number, change in enumerate((*irrelevant_changes, *relevant_changes))
    ]
    assert len({*digests[: len(irrelevant_changes)]}) == 1
    assert len({*digests}) == 1 + len(relevant_changes)


def chmod(mode: int) -> Callable[[Path], object]:
    return lambda place: (place / "a.c").chmod(mode)


def test_snapshot_opens_no_pipe_or_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a named pipe would wait for a writer that never comes, and a socket has no bytes."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    write_files(tmp_path, {"a.c": "one"})
    os.mkfifo(tmp_path / "pipe")
    snapshot = take_snapshot(tmp_path)
    sums = {name: bool(entry.sha256) for name, entry in snapshot.items()}
    assert sums == {"a.c": True, "pipe": False, "socket": False}


def sync(source: Path, tmp_path: Path, *generated: str) -> tuple[str, ...]:
    """A build of ``source`` that writes ``generated``; what it found edited in its copy."""
    overlay, record = tmp_path / "overlay", tmp_path / "record.json"
    before = take_snapshot(tmp_path / "last") if (tmp_path / "last").is_dir() else {}
    copy, snapshot = inspect_copy(overlay, before, record), take_snapshot(source)
    sync_overlay(source, overlay, snapshot, copy)
    write_files(overlay, dict.fromkeys(generated, "made by a build"))
    record_copy(overlay, snapshot, copy, record)
    shutil.rmtree(tmp_path / "last", ignore_errors=True)
    shutil.copytree(source, tmp_path / "last", symlinks=True)
    return copy.edited


def test_the_source_copy_follows_edits_deletions_and_links_and_keeps_untouched_files(
    tmp_path: Path,
) -> None:
    source = write_files(tmp_path / "source", {"a.c": "a", "d/b.c": "b", "e.c": "e"})
    copy = tmp_path / "overlay"
    assert sync(source, tmp_path, "generated.h") == ()
    untouched = (copy / "a.c").stat().st_mtime_ns
    (source / "d/b.c").unlink()
    (source / "c.c").write_text("c")
    os.utime(source / "a.c", (1, 1))
    for name in ("a.c", "c.c"):
        (source / "e.c").unlink()
        (source / "e.c").symlink_to(name)
        assert sync(source, tmp_path) == ()
        assert (copy / "e.c").readlink() == Path(name)
    (source / "e.c").unlink()
    (source / "e.c").write_text("e again")
    assert sync(source, tmp_path) == ()
    assert not (copy / "e.c").is_symlink()
    files = {path.name: path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert files == {"a.c": "a", "c.c": "c", "e.c": "e again", "generated.h": "made by a build"}
    assert (copy / "a.c").stat().st_mtime_ns == untouched


def test_edits_in_the_source_copy_are_found_by_content(tmp_path: Path) -> None:
    files = {"a.c": "a", "b.c": "b", "c.c": "c", "d.sh": "d"}
    source, copy = write_files(tmp_path / "source", files), tmp_path / "overlay"
    sync(source, tmp_path)
    (copy / "d.sh").chmod(0o755)
    (copy / "a.c").write_text("A")
    (copy / "b.c").unlink()
    os.utime(copy / "c.c")
    write_files(copy, {"build/CMakeCache.txt": ""})
    assert sync(source, tmp_path) == ("a.c", "b.c", "build/CMakeCache.txt", "d.sh")
    assert (copy / "d.sh").stat().st_mode == (source / "d.sh").stat().st_mode
    assert sync(source, tmp_path) == ()
    assert {path.name: path.read_text() for path in copy.iterdir() if path.is_file()} == files


@pytest.mark.parametrize(
    ("path", "text", "is_sure"),
    [("made.h", None, False), ("made.h", "edited", False), ("a.c", None, True), ("new", "", True)],
)
def test_the_source_copy_is_trusted_while_its_generated_files_are_unchanged(
    tmp_path: Path, path: str, text: str | None, is_sure: bool
) -> None:
    source = write_files(tmp_path / "source", {"a.c": "a"})
    generated = ("made.h", "other.h", "made/CMakeCache.txt", "made/a.h")
    sync(source, tmp_path, *generated)
    changed = tmp_path / "overlay" / path
    changed.unlink() if text is None else changed.write_text(text)
    copy = inspect_copy(tmp_path / "overlay", take_snapshot(source), tmp_path / "record.json")
    assert (copy.edited, copy.sure, copy.generated) == ((path,), is_sure, {*generated})


def test_a_sync_that_failed_half_way_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_files(tmp_path / "source", {"a.c": "old", "b.c": "old"})
    sync(source, tmp_path)
    write_files(source, {"a.c": "new", "b.c": "new"})
    real, calls = shutil.copy, []

    def fail_second(*words: Any, **options: Any) -> None:
        calls.append(words)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(*words, **options)

    monkeypatch.setattr("ci.builds.files.shutil.copy", fail_second)
    with pytest.raises(StoreError, match="there is no space left for"):
        sync(source, tmp_path)
    monkeypatch.undo()
    write_files(source, {"a.c": "old", "b.c": "old"})
    sync(source, tmp_path)
    assert {(tmp_path / "overlay" / name).read_text() for name in ("a.c", "b.c")} == {"old"}


@pytest.mark.parametrize(
    "text", ["damaged", '{"settings": 1}', '{"x": ' + "[" * 100_000, "\xff", "", None]
)
def test_an_unreadable_record_of_the_copy_counts_as_empty(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "state.json"
    if text is not None:
        path.write_text(text, "latin-1")
    assert read_record(path, State) == State()
