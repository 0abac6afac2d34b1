"""What others read while it is written is whole."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning import files
from provisioning.errors import ExitCode, StoreError, UsageError
from provisioning.files import (
    digest_sources,
    explain_no_room,
    explain_write,
    explain_writes,
    has_files,
    publish_directory,
    remove_tree,
    require_writable,
    scratch_directory,
    staged_directory,
    walk,
    write_json,
    write_named,
    write_whole,
)


def test_a_file_is_replaced_and_its_directory_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_whole(path, "first ä\n")
    write_whole(path, b"second\n")
    assert path.read_bytes() == b"second\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_in_shared_memory_is_no_device() -> None:
    memory = "/dev/shm"  # noqa: S108 - the directory below it has a random name
    if not os.access(memory, os.W_OK):
        pytest.skip(f"{memory} cannot be written")
    with tempfile.TemporaryDirectory(dir=memory) as name:
        link = Path(name, "link")
        link.symlink_to("users.txt")
        write_whole(link, "ours\n")
        assert [path.read_text() for path in Path(name).iterdir()] == ["ours\n"]


@pytest.mark.parametrize("make_link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_is_replaced_and_the_file_that_it_names_stays(
    tmp_path: Path, make_link: Callable[[Path, Path], None]
) -> None:
    path, link = tmp_path / "users.txt", tmp_path / "link"
    path.write_text("the user's\n")
    make_link(link, path)
    write_whole(link, "ours\n")
    assert (path.read_text(), link.read_text()) == ("the user's\n", "ours\n")
    assert not link.is_symlink()


def test_a_redirected_standard_output_is_written_in_place(tmp_path: Path) -> None:
    path, target = tmp_path / "users.txt", Path("/proc/self/fd/1")
    saved = os.dup(1)
    try:
        with path.open("w") as file:
            os.dup2(file.fileno(), 1)
        write_named(target, "text")
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    assert path.read_text() == "text"


def test_a_record_is_not_written_to_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(OSError, match="pipe or a device"):
        write_whole(tmp_path / "record.json", "text")


def test_a_link_with_the_name_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "other"
    target.write_text("kept")
    (tmp_path / f".a.json.{os.getpid()}").symlink_to(target)
    write_whole(tmp_path / "a.json", "new")
    assert (target.read_text(), (tmp_path / "a.json").read_text()) == ("kept", "new")
    assert not (tmp_path / "a.json").is_symlink()


def test_a_write_beyond_a_limit_names_the_file_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as failure:
            write_whole(path, "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failure.value.filename == str(path)
    assert [path.read_text(), *tmp_path.iterdir()] == ["before", path]


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


def test_a_directory_with_only_a_git_folder_counts_as_empty(tmp_path: Path) -> None:
    assert not has_files(tmp_path / "none")
    (tmp_path / ".git").mkdir()
    assert not has_files(tmp_path)
    (tmp_path / ".gitignore").touch()
    assert has_files(tmp_path)
    assert not has_files(tmp_path / ".gitignore")


def test_the_digest_of_sources_covers_names_and_bytes_not_bytecode(tmp_path: Path) -> None:
    package = tmp_path / "package"
    write_whole(package / "one.py", "1")
    write_whole(package / "inner" / "rules.bzl", "2")
    before = digest_sources(package)
    for name in ("one.pyc", "one.pyc.140234567890"):  # the second while Python writes it
        write_whole(package / "__pycache__" / name, "bytecode")
    assert digest_sources(package) == before
    two_places = digest_sources(package, package / "one.py")
    assert digest_sources(package / "one.py", package) == two_places
    digests = {before, two_places, digest_sources()}
    write_whole(package / "inner" / "rules.bzl", "3")
    digests.add(digest_sources(package))
    (package / "one.py").rename(package / "two.py")
    digests.add(digest_sources(package))
    (package / "inner").rename(package / "other")
    digests.add(digest_sources(package))
    assert len(digests) == 6
    package.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(package)
    (tmp_path / "deeper").mkdir()
    shutil.copytree(package, tmp_path / "deeper" / "package")
    assert digest_sources(tmp_path / "deeper" / "package") == digest_sources(package)


def test_a_directory_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    for text in ("first", "second"):
        with staged_directory(target) as staging:
            (staging / text).write_text(text)
            assert (target / "first").exists() == (text == "second")
        assert [path.name for path in target.iterdir()] == [text]
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_a_failed_block_leaves_the_old_directory(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staged_directory(target) as staging:
        (staging / "good").touch()
    with pytest.raises(FileNotFoundError), staged_directory(target) as staging:
        (staging / "not there" / "better").touch()
    assert [path.name for path in target.iterdir()] == ["good"]
    assert list(tmp_path.iterdir()) == [target]


def test_the_staging_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "o[u]t"
    own_directory = tmp_path / ".o[u]t.mine"
    own_directory.mkdir()
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from provisioning.files import staged_directory\n"
        "with staged_directory(Path(sys.argv[1])) as staging:\n"
        "    (staging / 'half').mkdir(mode=0o500)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, target], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with staged_directory(target):
        pass
    assert sorted(tmp_path.iterdir()) == [own_directory, target]


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library without renameat2, as for a file system that cannot exchange."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_keywords: object())


@pytest.mark.usefixtures("no_exchange")
def test_where_directories_cannot_be_exchanged_the_old_one_is_moved_aside(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for text in ("first", "second"):
        with staged_directory(target) as staging:
            (staging / text).touch()
    assert [path.name for path in target.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("no_exchange")
def test_a_directory_that_cannot_be_moved_in_leaves_the_old_one_in_its_place(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(FileNotFoundError):
        publish_directory(tmp_path / "gone", target)
    assert (target / "old").is_file()
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_that_a_killed_process_had_moved_aside_goes_back(tmp_path: Path) -> None:
    target = tmp_path / "out"
    (tmp_path / ".out.staging-replaced").mkdir()
    (tmp_path / ".out.staging-replaced" / "old").touch()
    with pytest.raises(RuntimeError), staged_directory(target):
        raise RuntimeError
    assert (target / "old").exists()
    assert list(tmp_path.iterdir()) == [target]


def test_a_staged_directory_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    target, real = tmp_path / "out", tmp_path / "real"
    real.mkdir()
    (real / "kept").touch()
    target.symlink_to(real)
    with staged_directory(target) as staging:
        (staging / "file").touch()
    assert not target.is_symlink()
    assert list(real.iterdir()) == [real / "kept"]
    assert sorted(tmp_path.iterdir()) == [target, real]


def test_a_tree_is_removed_with_its_links_and_what_they_name_stays(tmp_path: Path) -> None:
    linked, tree = tmp_path / "kept", tmp_path / "tree"
    for path in (linked, tree / "a"):
        path.mkdir(parents=True)
        (path / "file").touch()
    for name in ("b", "a/b"):
        (tree / name).symlink_to(linked)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == [linked]
    assert list(linked.iterdir()) == [linked / "file"]


def test_an_unwritable_path_is_refused_with_the_callers_fix(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    require_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    write_json(tmp_path / "c" / "data.json", {"a": [1]})
    assert (tmp_path / "c" / "data.json").read_text() == '{\n "a": [\n  1\n ]\n}\n'
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    for write, fix in (
        (lambda: require_writable(below, "use --out"), "use --out"),
        (lambda: require_writable(Path("/proc"), "use --out"), "use --out"),  # root cannot either
        (lambda: write_json(below, {}, "use --json"), "use --json"),
        (lambda: require_writable(below), files.ELSEWHERE),
        (lambda: write_json(below, {}), files.ELSEWHERE),
    ):
        with pytest.raises(StoreError, match="cannot be written") as caught:
            write()
        assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "there is no space left for /here"),
        (errno.EDQUOT, "there is no space left for /here"),
        (errno.EFBIG, "/here cannot be written"),
        (errno.EROFS, "/here cannot be written"),
        (errno.EACCES, "/here cannot be written"),
        (errno.EIO, "/here cannot be written"),
    ],
)
def test_every_refused_write_is_a_store_error_with_exit_code_4(number: int, message: str) -> None:
    with pytest.raises(StoreError) as caught, explain_writes(Path("/here")):
        raise OSError(number, os.strerror(number), "/here/file")
    assert caught.value.what == message
    assert caught.value.why.endswith(f"/here/file: {os.strerror(number)}")
    assert (" MiB are free" in caught.value.why) == message.startswith("there is no space")
    assert caught.value.exit_code == ExitCode.DOWNLOAD


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("named", ["/there/file", None])
def test_a_full_disk_is_named_wherever_it_is_in_the_chain(number: int, named: str | None) -> None:
    words = (number, os.strerror(number), *([named] if named else []))
    for how in ("itself", "cause", "context", "deep"):
        error: BaseException = OSError(*words)
        for _ in range({"itself": 0, "deep": 2}.get(how, 1)):
            outer = ValueError("later")
            setattr(outer, "__context__" if how == "context" else "__cause__", error)
            error = outer
        explained = explain_no_room(error)
        assert explained
        place = named or tempfile.gettempdir()
        assert explained.what == f"there is no space left for {place}"
        assert explained.fix == "free some space, or choose a disk with enough free space"
    assert explain_no_room(None) is None
    circular = ValueError("seven")
    circular.__cause__ = circular
    assert explain_no_room(circular) is None
    assert explain_no_room(ValueError("x")) is None
    assert explain_no_room(OSError(errno.EACCES, "no")) is None


def test_a_full_temporary_directory_of_a_run_is_chosen_with_tmpdir() -> None:
    place = "/mnt/.qnn-ci.staging-1f/fp16/artifact/program/source.tflite"
    explained = explain_no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place))
    assert explained
    assert explained.fix == "free some space, or choose another directory with TMPDIR"


def fail_to_copy_tree(source: Path, target: Path) -> BaseException:
    """The error of a copy of a tree to a disk that is full: shutil.Error names it only in text."""
    full = os.strerror(errno.ENOSPC)
    return shutil.Error([(str(source), str(target), f"[Errno {errno.ENOSPC}] {full}")])


def fail_to_copy_file(source: Path, target: Path) -> BaseException:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))


@pytest.mark.parametrize("fail", [fail_to_copy_tree, fail_to_copy_file])
def test_a_copy_to_a_full_disk_names_its_target(
    fail: Callable[[Path, Path], BaseException],
) -> None:
    error = fail(Path("/source/a"), Path("/full/a"))
    explained = explain_no_room(error)
    assert explained
    assert (explained.what, explained.place) == (
        "there is no space left for /full/a",
        Path("/full/a"),
    )
    assert "/source" not in str(explained)
    assert isinstance(error, OSError)
    assert explain_write(Path("/full"), error, "f").is_full


@pytest.mark.parametrize(
    "error",
    [
        OSError("4096 requested and 1024 written"),  # numpy
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        ValueError("Expecting value: line 1 column 1 (char 0)"),  # what was cut is read back
    ],
)
def test_a_failure_while_the_temporary_directory_is_full_is_a_full_disk(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert explain_no_room(error) is None
    monkeypatch.setattr("provisioning.files.free_bytes", lambda _: 4096)
    explained = explain_no_room(error)
    assert explained
    assert explained.what == f"there is no space left for {tempfile.gettempdir()}"
    assert explain_no_room(UsageError("it states its reason itself")) is None


HOLDER = """
import sys, time
from pathlib import Path
from provisioning.files import scratch_directory
with scratch_directory(Path(sys.argv[1]), "run") as scratch:
    (scratch / "file").write_text("x")
    print(scratch, flush=True)
    time.sleep(600)
"""


def test_scratch_directories_of_killed_processes_are_removed_and_others_stay(
    tmp_path: Path,
) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, living = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout]
    holders[0].kill()
    holders[0].wait()
    assert (killed / "file").exists()
    with scratch_directory(tmp_path, "run") as scratch:
        assert sorted(tmp_path.iterdir()) == sorted([living, scratch])
    assert list(tmp_path.iterdir()) == [living]
    holders[1].kill()
    for holder in holders:
        holder.communicate()


def test_scratch_directories_stay_where_directories_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses to lock a directory, because it cannot be opened for writing."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with scratch_directory(tmp_path, "run") as first, scratch_directory(tmp_path, "run") as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert not list(tmp_path.iterdir())


def test_temporary_files_of_killed_writers_are_removed_and_others_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f".report.json.{ended.pid}", f".report.json.{os.getppid()}", f".other.{ended.pid}"]
    other_names = [".report.json.bak", ".report.json.1.bak"]
    for name in [*names, *other_names]:
        (tmp_path / name).write_text("half")
    write_whole(tmp_path / "report.json", "{}")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"report.json", *other_names, *names[1:]}
    for name in (f".[ab].json.{ended.pid}", f".a.json.{ended.pid}"):
        (tmp_path / name).touch()
    write_whole(tmp_path / "[ab].json", "{}")
    assert {path.name for path in tmp_path.iterdir()} - left == {
        "[ab].json",
        f".a.json.{ended.pid}",
    }


@pytest.mark.parametrize("name", ["d", "d" * 200])
def test_a_tree_is_removed_and_walked_however_deep_it_is(tmp_path: Path, name: str) -> None:
    top, path = tmp_path / "tree", Path("tree")
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    (top / "link").symlink_to(tmp_path)
    (tmp_path / "kept").touch()
    assert sum(1 for _ in walk(top)) > 15
    remove_tree(top)
    assert [path_left.name for path_left in tmp_path.iterdir()] == ["kept"], path
