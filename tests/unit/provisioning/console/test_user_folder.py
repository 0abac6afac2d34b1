"""Folders that a verb writes into: files of the user's are never lost."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from provisioning.console import user_folder
from provisioning.console.progress import Progress
from provisioning.console.user_folder import (
    RECORD,
    UserFolder,
    edit_file,
    lock_folder,
    owned_directory,
    require_output,
    write_output,
)
from provisioning.errors import StoreError, UsageError
from tests.stand_ins.kills import read_tree, run_until
from tests.stand_ins.waits import wait_until

OURS = {"a.txt": b"a", "b/c.bin": b"c"}


def write(top: Path, files: dict[str, bytes], *, force: bool = False) -> list[str]:
    """Write files as a verb does, and return the new names of the user's files."""
    folder = UserFolder(top)
    with folder.stage() as scratch:
        for name, data in files.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(data)
        return [path.name for path in folder.publish(scratch, force=force).aside]


def put_file(path: Path) -> None:
    path.write_bytes(b"the user's")


def put_directory(path: Path) -> None:
    path.mkdir()
    put_file(path / "inner")


def put_symbolic_link(path: Path) -> None:
    put_file(path.parent / "original")
    path.symlink_to("original")


def put_hard_link(path: Path) -> None:
    put_file(path.parent / "original")
    path.hardlink_to(path.parent / "original")


def put_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


PUT = [put_file, put_directory, put_symbolic_link, put_hard_link, put_dangling_link, os.mkfifo]


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after the first run"])
@pytest.mark.parametrize("put", PUT)
def test_what_the_user_put_in_the_way_is_refused_or_renamed(
    tmp_path: Path, put: Callable[[Path], None], is_first: bool
) -> None:
    top, path = tmp_path / "top", tmp_path / "top" / "a.txt"
    top.mkdir()
    if not is_first:
        write(top, OURS)
        path.unlink()
    put(path)
    before = read_tree(top)
    why = "did not write it" if is_first else "was changed"
    with pytest.raises(UsageError, match=r"a\.txt would be overwritten") as refused:
        write(top, OURS)
    assert why in refused.value.why
    assert read_tree(top) == before
    assert write(top, OURS, force=True) == ["a.txt.old"]
    after = read_tree(top)
    assert after["a.txt"] == b"a"
    for name, content in before.items():
        if name not in {*OURS, RECORD}:
            moved = name.replace("a.txt", "a.txt.old", 1)
            assert after[moved] == content
    assert write(top, {**OURS, "a.txt": b"new"}) == []
    assert (top / "original").exists() == (put in {put_symbolic_link, put_hard_link})


def test_files_that_are_renamed_have_names_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "a.txt").write_bytes(b"%d" % number)
        write(tmp_path, {"a.txt": b"ours"}, force=True)
    renamed = [(tmp_path / f"a.txt.old{end}").read_bytes() for end in ("", "-2", "-3")]
    assert renamed == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "content",
    [b"mine", b"{", b'{"files": {"a.txt": 1}}', b"[" * 100000, b"\xff"],
)
def test_a_record_that_is_not_ours_is_not_believed_and_not_lost(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / RECORD).write_bytes(content)
    (tmp_path / "a.txt").write_bytes(b"the user's")
    with pytest.raises(UsageError, match=RECORD):
        write(tmp_path, OURS)
    assert sorted(write(tmp_path, OURS, force=True)) == [f"{RECORD}.old", "a.txt.old"]
    assert (tmp_path / f"{RECORD}.old").read_bytes() == content


def test_only_what_this_project_wrote_is_removed_again(tmp_path: Path) -> None:
    top, sibling = tmp_path / "top", tmp_path / "sibling"
    write(top, {"a.txt": b"a", "b/c.txt": b"c", "b/d/e.txt": b"e", "f/g.txt": b"g"})
    (top / "mine.txt").write_bytes(b"mine")
    (top / "f" / "mine.txt").write_bytes(b"mine")
    (top / "a.txt").write_bytes(b"changed")
    sibling.mkdir()
    record = json.loads((top / RECORD).read_text())
    record["files"]["../sibling/x"] = record["files"]["a.txt"]
    (top / RECORD).write_text(json.dumps(record))

    UserFolder(top).remove_written()
    remaining = {"mine.txt": b"mine", "f/mine.txt": b"mine", "a.txt": b"changed"}
    assert read_tree(top) == remaining
    assert sibling.is_dir()
    UserFolder(top).remove_written()  # without a record, nothing is ours
    assert read_tree(top) == remaining

    write(tmp_path / "ours", {"b/d/e.txt": b"e"})
    UserFolder(tmp_path / "ours").remove_written()
    assert not (tmp_path / "ours").exists()


def test_a_record_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    top, victim = tmp_path / "top", tmp_path / "victim"
    write(top, OURS)
    victim.write_bytes(b"a")
    record = json.loads((top / RECORD).read_text())
    record["files"]["../victim"] = record["files"]["a.txt"]
    (top / RECORD).write_text(json.dumps(record))
    folder = UserFolder(top)
    with folder.stage() as scratch:
        folder.publish(scratch, obsolete=["../victim", str(victim)])
    assert victim.read_bytes() == b"a"


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("force", [False, True])
def test_the_same_command_continues_after_a_kill_at_any_instant(
    tmp_path: Path, force: bool, step: int
) -> None:
    new = {"a.txt": b"new", "d.txt": b"d"}

    def prepare(top: Path) -> None:
        write(top, OURS)
        (top / "mine").write_bytes(b"the user's")
        if force:
            (top / "a.txt").write_bytes(b"changed")

    prepare(tmp_path / "wanted")
    write(tmp_path / "wanted", new, force=force)
    instant, kills, is_killed = 1, 0, True
    while is_killed:
        top = tmp_path / str(instant)
        prepare(top)
        is_killed = run_until(instant, lambda top=top: write(top, new, force=force), top)
        write(top, new, force=force)
        assert read_tree(top) == read_tree(tmp_path / "wanted"), instant
        assert {path.name for path in top.iterdir()} == {
            path.name for path in (tmp_path / "wanted").iterdir()
        }
        instant, kills = instant + step, kills + is_killed
    assert kills * step > 10


FULL = """
import resource, sys
from pathlib import Path
from tests.unit.provisioning.console.test_user_folder import write
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write(Path(sys.argv[1]), {"a.txt": b"n" * 100, "z.bin": b"z" * 2000})
"""


def test_a_full_disk_leaves_nothing_that_is_refused_later(tmp_path: Path) -> None:
    write(tmp_path, OURS)
    before = read_tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "StoreError" in done.stderr, done.stderr
    assert read_tree(tmp_path) == before
    assert write(tmp_path, {"a.txt": b"n" * 100, "z.bin": b"z" * 2000}) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_a_second_writer_waits_and_says_for_whom(tmp_path: Path) -> None:
    order, messages = list[str](), StringIO()

    def write_second() -> None:
        with lock_folder(tmp_path, Progress(messages)):
            order.append("second")

    with lock_folder(tmp_path, Progress()):
        thread = threading.Thread(target=write_second)
        thread.start()
        wait_until(lambda: "waiting for" in messages.getvalue())
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert str(os.getpid()) in messages.getvalue() or "another process" in messages.getvalue()


def test_an_edited_file_keeps_its_mode_and_what_was_changed_meanwhile(tmp_path: Path) -> None:
    path, second_name = tmp_path / "qnn.toml", tmp_path / "other"
    path.write_bytes(b"a")
    path.chmod(0o640)
    second_name.hardlink_to(path)
    edit_file(path, b"a", b"b")
    assert (path.read_bytes(), second_name.read_bytes()) == (b"b", b"a")
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UsageError, match="was not edited"):
        edit_file(path, b"a", b"c")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(UsageError, match="cannot be edited"):
        edit_file(tmp_path / "link", b"b", b"c")
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["link", "other", "qnn.toml"]


def test_a_directory_is_replaced_only_if_all_of_it_is_ours(tmp_path: Path) -> None:
    target = tmp_path / "bundle"

    def replace(text: str, *, force: bool = False) -> None:
        with owned_directory(target, force=force) as fresh:
            (fresh / "lib.so").write_text(text)

    replace("first")
    replace("second")
    (target / "notes.txt").write_text("the user's")
    with pytest.raises(UsageError, match=r"notes\.txt would be overwritten"):
        replace("third")
    replace("third", force=True)
    assert (tmp_path / "bundle.old" / "notes.txt").read_text() == "the user's"
    assert (target / "lib.so").read_text() == "third"
    (target / "lib.so").write_text("changed")
    with pytest.raises(UsageError, match="was changed"):
        replace("fourth")


def test_a_file_that_an_option_names_replaces_only_what_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "out.sarif"

    def recognise(path: Path) -> bool:
        return path.read_bytes().startswith(b"ours")

    for data in (b"ours 1", b"ours 2"):
        write_output(path, data, recognise, "")
    path.write_bytes(b"the user's")
    with pytest.raises(UsageError, match="would be overwritten"):
        write_output(path, b"ours 3", recognise, "")
    write_output(path, b"ours 3", recognise, "", force=True)
    assert (tmp_path / "out.sarif.old").read_bytes() == b"the user's"
    write_output(Path("/dev/null"), b"ours 4", recognise, "")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        write(tmp_path / "file", OURS)


def test_a_large_file_of_the_users_is_refused_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 40 << 30)
    monkeypatch.setattr(user_folder, "hash_file", None)
    with pytest.raises(UsageError, match="large would be overwritten"):
        require_output(large, lambda path: False, "move it", data=b"new")
    assert [*UserFolder(tmp_path).find_foreign(["large"])] == ["large"]
