"""The store: where it is, what is published in it, who may change it and who uses it."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, UnfitError
from provisioning.store import store as stores
from provisioning.store.home import FIX, require_store, store_home
from provisioning.store.lock import HeldLock, find_callers, start_of
from provisioning.store.store import (
    SPARE_BYTES,
    TREE_FILE,
    Key,
    Published,
    Store,
    find_published,
    link_or_copy,
)
from provisioning.store.tree import Difference, Tree
from tests.build.store import KEY, TREE, masked, mode_of, names_in, publish, touch
from tests.stand_ins.users import unprivileged

MINE, OTHER = os.geteuid(), os.geteuid() + 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep/home")


def parts_of(store: Store) -> tuple[Path, ...]:
    return store.trees, store.downloads, store.locks, store.pins


# -- its place ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({}, "/home/of/me/.cache/executorch-qnn-ci"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/executorch-qnn-ci"),
        ({"XDG_CACHE_HOME": "/cache", "QNN_CI_HOME": "~/here"}, "/home/of/me/here"),
        ({"QNN_CI_HOME": "here"}, str(Path.cwd() / "here")),
        ({"QNN_CI_HOME": "here", "QNN_CI_CALLER_DIR": "/caller"}, "/caller/here"),
        ({"QNN_CI_HOME": "TMP"}, "TMP"),
        ({"QNN_CI_HOME": "~nobody-has-this-name/x"}, "there is no home directory"),
        ({"QNN_CI_HOME": "TMP/file"}, "the path of the store, TMP/file, is not a directory"),
        ({"QNN_CI_HOME": "TMP/loop"}, "the path of the store, TMP/loop, is not a directory"),
    ],
)
def test_home_is_named_by_a_variable_or_below_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], home: str
) -> None:
    touch(tmp_path, "file")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("QNN_CI_HOME", "XDG_CACHE_HOME", "QNN_CI_CALLER_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/of/me", **variables}.items():
        monkeypatch.setenv(name, value.replace("TMP", str(tmp_path)))
    home = home.replace("TMP", str(tmp_path))
    if home.startswith("/"):
        assert Store().home == store_home() == Path(home)
    else:
        with pytest.raises(UnfitError) as caught:
            store_home()
        assert caught.value.what == home


@pytest.mark.parametrize("store", ["closed/store", "closed"])
def test_a_store_that_this_user_may_not_open_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / store))
    with unprivileged(tmp_path), pytest.raises(UnfitError) as caught:
        store_home()
    assert caught.value.what == f"the store {tmp_path}/{store} cannot be opened"
    assert (caught.value.why, caught.value.fix) == ("Permission denied", FIX)


@pytest.mark.parametrize(
    ("directories", "problem"),
    [
        ((), "home: Permission denied"),
        (("store", "downloads", "locks", "pins"), "home/store: Permission denied"),
        (("store", "locks"), "home/downloads: Permission denied"),
        (("store/sdk",), ""),  # a read-only store of which everything may be there
    ],
)
def test_a_store_without_content_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directories: tuple[str, ...], problem: str
) -> None:
    home = tmp_path / "home"
    for directory in directories:
        (home / directory).mkdir(parents=True)
    for directory in (tmp_path, *tmp_path.rglob("*")):
        directory.chmod(0o555)
    monkeypatch.setenv("QNN_CI_HOME", str(home))
    with unprivileged(tmp_path), pytest.raises(StoreError) if problem else nullcontext() as caught:
        require_store()
    if caught:
        assert str(caught.value) == (
            f"{home} cannot be written\n  why: {tmp_path}/{problem}\n  fix: {FIX}"
        )
        assert caught.value.exit_code == 4


def test_the_directories_of_a_new_store_are_made_when_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "deep/home"))
    require_store()
    made = Store()
    assert {*made.home.iterdir()} == {*parts_of(made)}
    assert not [path for part in parts_of(made) for path in part.iterdir()]


@pytest.mark.parametrize(
    ("home", "before", "after", "lock"),
    [
        (0o755, None, 0o755, 0o644),
        (0o775, None, 0o775, 0o664),
        (0o700, None, 0o700, 0o644),
        (0o775, 0o777, 0o775, 0o664),
    ],
)
def test_permissions_of_directories_are_no_wider_than_those_of_their_home(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    home: int,
    before: int | None,
    after: int,
    lock: int,
) -> None:
    """New ones have the mode of the home whatever the umask is; those of other users are not
    changed."""
    store.home.mkdir(parents=True)
    store.home.chmod(home)
    if before is not None:
        for part in parts_of(store):
            part.mkdir()
            part.chmod(before)
        with monkeypatch.context() as patched:
            patched.setattr("os.geteuid", lambda: OTHER)
            store.write_record(store.pins / "a", b"")
            assert [mode_of(part) for part in parts_of(store)] == [before] * 4
    with masked(0o077):
        store.write_record(store.pins / "sdk.json", b"{}")
        with store.lock(["sdk"], Progress()):
            pass
    assert [mode_of(part) for part in parts_of(store)] == [after] * 4
    assert (mode_of(store.pins / "sdk.json"), mode_of(store.locks / "sdk.lock")) == (0o644, lock)


def test_space_is_checked_with_a_reserve(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 5 << 20
    assert SPARE_BYTES == 64 << 20
    free = needed + SPARE_BYTES
    monkeypatch.setattr(stores, "free_bytes", lambda place: free if place == store.home else 0)
    store.check_space(needed, "it")
    with pytest.raises(StoreError) as caught:
        store.check_space(needed + 1, "it")
    assert caught.value.what == f"not enough space for it in {store.home}"
    assert caught.value.why == "it needs 69 MiB, but only 69 MiB are free"


# -- published directories ------------------------------------------------------------------------


def test_published_directory_is_found_with_its_record(store: Store) -> None:
    assert store.find(KEY) is None
    published = publish(store)
    assert published == Published(store.trees / KEY.directory, "sdk")
    assert (store.find(KEY), find_published(published.path)) == (published, (published, TREE))
    assert (published.read_tree(), (published.root / "a").read_text()) == (TREE, "x" * 1000)
    assert names_in(store.trees) == {KEY.directory}
    assert store.find(Key("ndk", "1.0", KEY.recipe)) is None


@pytest.mark.parametrize(
    "tree",
    [
        Tree("sdkk", "1.0", "00", (), TREE.files),
        Tree("sd", "k-1.0", "00", (), TREE.files),
        Tree("sdk", "1", "00", (), TREE.files),
        Tree("sdk", "1.0", "00", (), ()),
        *(b"", b"{}", None, os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")),
    ],
)
def test_record_of_another_tree_is_ignored(
    store: Store, tree: Tree | bytes | Callable[[Path], None] | None
) -> None:
    published = publish(store)
    path = published.path / TREE_FILE
    path.unlink()
    if isinstance(tree, Tree):
        path.write_bytes(stores.encode_record(tree))
    elif isinstance(tree, bytes):
        path.write_bytes(tree)
    elif tree:
        tree(path)
    assert (published.read_tree(), find_published(published.path)) == (None, None)
    assert (store.find(KEY) is None) == (not isinstance(tree, Tree | bytes))


@pytest.mark.parametrize("part", ["", "sdk", TREE_FILE])
def test_link_in_any_part_of_a_published_directory_is_not_followed(
    store: Store, tmp_path: Path, part: str
) -> None:
    path = publish(store).path / part
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    assert (store.find(KEY), list(store.editions(KEY))) == (None, [])


def test_repair_replaces_what_was_published(store: Store, tmp_path: Path) -> None:
    path = store.trees / KEY.directory
    for text, link in (("x", None), ("y", None), ("z", "away"), ("w", "not there")):
        if link:
            path.rename(tmp_path / f"before-{text}")
            path.symlink_to(tmp_path / (f"before-{text}" if link == "away" else link))
        assert (publish(store, text=text).root / "a").read_text() == text * 1000
        assert names_in(store.trees) == {KEY.directory}
    assert (tmp_path / "before-z/sdk/a").read_text() == "y" * 1000


def test_editions_lists_the_trees_of_one_artifact_and_version(store: Store) -> None:
    published = [publish(store, recipe=number) for number in range(3)]
    (published[0].path / TREE_FILE).write_text("damaged")
    for artifact, version in (("sdk", "1.1"), ("sdk", "1.0.1"), ("sd", "1.0")):
        publish(store, artifact, version)
    (store.trees / "sdk-1.0-empty").mkdir()
    assert list(store.editions(KEY)) == sorted(published, key=lambda edition: edition.path)


def test_errors_of_the_disk_name_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    store.write_record(store.pins / "a", b"")
    (store.pins / "d").mkdir()
    (store.locks / "d.lock").mkdir()
    monkeypatch.setattr(stores, "publish_directory", refuse)
    with store.stage(KEY) as staged, pytest.raises(StoreError, match="broken"):
        store.publish(KEY, staged, TREE)
    with pytest.raises(StoreError, match="broken") as caught, store.stage(KEY):
        refuse()
    assert caught.value.fix == "set QNN_CI_HOME to a writable directory"
    assert names_in(store.trees) == set()
    with pytest.raises(StoreError):
        store.write_record(store.pins / "d", b"")
    with pytest.raises(StoreError), store.lock(["d"], Progress()):
        pass


# -- leftovers ------------------------------------------------------------------------------------

STALE = (".sdk.staging-abcd1234", ".sdk.staging-gone77")
OTHERS = (".sdk-x.staging-abcd1234", ".ndk.staging-abcd1234", ".sdkx.staging-a", "sdk-1.0-abc")


def leave(store: Store, *names: str) -> None:
    touch(store.trees, *(f"{name}/deep/file" for name in names))


def test_staging_directory_is_fresh_and_leftovers_are_removed(store: Store) -> None:
    leave(store, *STALE, *OTHERS)
    with store.stage(KEY) as staged:
        assert (staged.parent, names_in(staged)) == (store.trees, {"sdk"})
        assert staged.name.startswith(".sdk.staging-")
        assert names_in(store.trees) == {staged.name, *OTHERS}
        assert mode_of(staged) == 0o700
        store.sweep("sdk")  # it is in use
        assert staged.is_dir()
        (staged / "sdk/ro").mkdir(mode=0o555)
    assert names_in(store.trees) == {*OTHERS}


def test_sweep_removes_leftovers(store: Store) -> None:
    store.sweep("sdk")
    assert not store.home.exists()
    leave(store, *STALE, *OTHERS)
    store.sweep("sdk")
    assert names_in(store.trees) == {*OTHERS}


# -- locks ----------------------------------------------------------------------------------------


def test_locks_of_an_artifact_and_its_download_are_held_together(store: Store) -> None:
    """A download may have the name of its artifact."""
    with store.lock(("sdk", "sdk.zip", "", "sdk"), Progress()):
        assert names_in(store.locks) == {"sdk.lock", "sdk.zip.lock"}
        for name in ("sdk", "sdk.zip"):
            assert not HeldLock(store.locks / f"{name}.lock").take()
        with store.lock(["ndk"], Progress()):
            assert names_in(store.locks) == {"sdk.lock", "sdk.zip.lock", "ndk.lock"}
    for name in ("sdk", "sdk.zip", "ndk"):
        lock = HeldLock(store.locks / f"{name}.lock")
        assert lock.take()
        lock.release()


def test_an_interrupt_ends_a_wait_for_a_lock(store: Store) -> None:
    store.write_record(store.pins / "a", b"")
    lock = HeldLock(store.locks / "sdk.lock")
    assert lock.take()

    def wait() -> None:
        with store.lock(["sdk"], Progress()):
            pass

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks([wait, lambda: None], 2, on_done=interrupt)
    assert lock.fd >= 0
    lock.release()


@pytest.mark.parametrize("is_known", [True, False])
def test_wait_for_a_lock_is_announced_once_with_its_holder(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    messages, waits = io.StringIO(), list[float]()
    store.write_record(store.pins / "a", b"")
    lock = HeldLock(store.locks / "sdk.zip.lock")
    assert lock.take()
    if not is_known:
        lock.path.write_text("")

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            lock.release()

    monkeypatch.setattr("time.sleep", wait)
    with store.lock(("ndk", "sdk.zip"), Progress(messages)):
        pass
    assert waits == [0.05] * 3
    holder = f" ({os.getpid()})" if is_known else ""
    assert (
        messages.getvalue()
        == f"sdk.zip: waiting for another process{holder}, which has locked it\n"
    )


# -- other users ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "owner", "shown"),
    [
        (0o755, MINE, ""),
        (0o775, MINE, "has mode 775: other users can change what you run"),
        (0o1777, MINE, "has mode 1777: other users can change what you run"),
        (0o755, 1234, "belongs to user 1234, who can change what you run"),
        (0o755, 0, ""),
    ],
)
def test_store_that_others_can_change_is_announced_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, shown: str
) -> None:
    messages = io.StringIO()
    store.say_who_writes(Progress(messages))
    store.home.mkdir(parents=True)
    store.home.chmod(mode)
    state = store.home.stat()
    fields = (state.st_mode, *state[1:4], owner, *state[5:10])
    real = Path.stat
    monkeypatch.setattr(
        Path,
        "stat",
        lambda path, **how: os.stat_result(fields) if path == store.home else real(path, **how),
    )
    for _ in range(2):
        store.say_who_writes(Progress(messages))
    text = messages.getvalue()
    assert text.count(f"the store {store.home} {shown}") == len(text.splitlines()) == bool(shown)
    assert ("QNN_CI_HOME" in text) == bool(shown)


@pytest.mark.parametrize("place", ["./", "../", "../tree.json", "../../"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_place_that_other_users_may_write_to_is_named(store: Store, place: str, mode: int) -> None:
    published = publish(store)
    assert list(published.find_exposed(published.owners)) == []
    path = (published.root / place).resolve()
    before = mode_of(path)
    path.chmod(before | mode)
    exposed = list(published.find_exposed(published.owners))
    assert exposed == [Difference(place, "wrong mode", f"{before | mode:o}")]
    store.home.chmod(0o777)  # what is shared with everyone has a store/ that everyone may write to
    assert list(published.find_exposed(published.owners)) == ([] if place == "../../" else exposed)


@pytest.mark.parametrize("why", ["linked", "no links", "another user"])
def test_file_is_hard_linked_or_copied_if_links_are_impossible_or_unsafe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Another user could change a file that has two names."""

    def refuse(*words: object, **options: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if why == "no links":
        monkeypatch.setattr("os.link", refuse)
    if why == "another user":
        monkeypatch.setattr("os.geteuid", lambda: OTHER)
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    file.chmod(0o755)
    os.utime(file, (5, 5))
    link.symlink_to("nothing")
    link_or_copy(file, tmp_path / "one")
    link_or_copy(link, tmp_path / "two")
    first, second = (tmp_path / "one").stat(), tmp_path / "two"
    assert (first.st_ino == file.stat().st_ino) == (why == "linked")
    assert (stat.S_IMODE(first.st_mode), first.st_mtime, first.st_size) == (0o755, 5, 1)
    assert second.readlink() == Path("nothing")
    assert (second.lstat().st_ino == link.lstat().st_ino) == (why == "linked")


# -- uses -----------------------------------------------------------------------------------------


def test_use_of_a_tree_is_noted_while_the_calling_shell_lives(store: Store, tmp_path: Path) -> None:
    published, other_published = publish(store), publish(store, "ndk")
    for root in (
        published.root,
        published.root / "deep",
        other_published.root,
        tmp_path / "elsewhere",
    ):
        store.note_use(root)
    callers = dict(find_callers())
    assert names_in(store.uses) == {
        f"{tree.path.name}.{pid}.{start}"
        for tree in (published, other_published)
        for pid, start in callers.items()
    }
    assert store.find_user(published.path) in callers
    for name in (f"{KEY.directory}x", KEY.directory[:-1], "sdk"):
        assert store.find_user(store.trees / name) is None


def test_note_of_a_shell_that_ended_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, gone = os.getppid(), "[a]-1.8388608.5"
    touch(store.uses, gone, f"[a]-1.{parent}.0", "a-1.8388608.5")
    assert store.find_user(store.trees / "[a]-1") is None
    assert names_in(store.uses) == {"a-1.8388608.5"}
    touch(store.uses, gone, f"[a]-1.{parent}.{start_of(parent)}")
    assert store.find_user(store.trees / "[a]-1") == parent
    note = store.uses / "a-1.8388608.5"  # another process removes it meanwhile
    monkeypatch.setattr(stores, "is_alive", lambda pid, start: bool(note.unlink()))
    assert store.find_user(store.trees / "a-1") is None
