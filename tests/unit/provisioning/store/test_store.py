"""The store at its edges: names, modes, staging, notes of use, room."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import IntegrityError, StoreError, UnfitError
from provisioning.store import store as stores
from provisioning.store.lock import HeldLock, find_callers, start_of
from provisioning.store.store import (
    SPARE_BYTES,
    TREE_FILE,
    Key,
    Published,
    Store,
    find_published,
    link_or_copy,
    store_home,
)
from provisioning.store.tree import Difference, Tree, TreeEntry

KEY = Key("sdk", "1.0", {"b": 1, "a": ["x"]})
TREE = Tree("sdk", "1.0", "00", (), (TreeEntry("a", 1),))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep/home")


def publish(store: Store, key: Key = KEY, tree: Tree = TREE, text: str = "x") -> Published:
    with store.stage(key) as staged:
        (staged / key.artifact / "a").write_text(text)
        return store.publish(key, staged, tree)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QNN_CI_HOME", "XDG_CACHE_HOME", "QNN_CI_CALLER_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/of/me")


@pytest.mark.usefixtures("no_variables")
def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_home() == Path("/home/of/me/.cache/executorch-qnn-ci")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert store_home() == Path("/cache/executorch-qnn-ci")
    monkeypatch.setenv("QNN_CI_HOME", "~/here")
    assert store_home() == Path("/home/of/me/here")
    assert Store().home == Path("/home/of/me/here")
    monkeypatch.setenv("QNN_CI_HOME", "here")
    assert store_home() == Path.cwd() / "here"
    monkeypatch.setenv("QNN_CI_CALLER_DIR", "/caller")
    assert store_home() == Path("/caller/here")


@pytest.mark.usefixtures("no_variables")
def test_a_home_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNN_CI_HOME", "~nobody-has-this-name/x")
    with pytest.raises(UnfitError) as caught:
        store_home()
    assert caught.value.what == "there is no home directory"
    file = tmp_path / "file"
    monkeypatch.setenv("QNN_CI_HOME", str(file))
    assert store_home() == file
    file.touch()
    with pytest.raises(UnfitError) as caught:
        store_home()
    assert caught.value.what == f"the path of the store, {file}, is not a directory"
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    assert store_home() == tmp_path


def test_a_key_is_its_recipe_in_any_order() -> None:
    digest = hashlib.sha256(b'{"a":["x"],"b":1}').hexdigest()[:12]
    assert KEY.directory == f"sdk-1.0-{digest}"
    assert Key("sdk", "1.0", {"a": ["x"], "b": 1}).directory == KEY.directory
    assert Key("sdk", "1.0", {"a": ["x"], "b": 2}).directory != KEY.directory


def test_where_things_are(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = ("trees", "downloads", "locks", "pins", "uses")
    found = [getattr(store, name).relative_to(tmp_path).as_posix() for name in names]
    assert found == ["store", "downloads", "locks", "pins", "uses"]


def test_published_it_is_found_with_its_tree(store: Store) -> None:
    assert store.find(KEY) is None
    found = publish(store)
    assert found == Published(store.trees / KEY.directory, "sdk")
    assert store.find(KEY) == found
    assert found.root == found.path / "sdk"
    assert found.read_tree() == TREE
    assert (found.root / "a").read_text() == "x"
    assert [path.name for path in store.trees.iterdir()] == [KEY.directory]
    assert store.find(dataclasses.replace(KEY, artifact="ndk")) is None


@pytest.mark.parametrize(
    "tree",
    [
        Tree("sdkk", "1.0", "00", (), TREE.files),
        Tree("sd", "k-1.0", "00", (), TREE.files),
        Tree("sdk", "1", "00", (), TREE.files),
        Tree("sdk", "1.0", "00", (), ()),
    ],
)
def test_a_tree_of_something_else_is_none(store: Store, tree: Tree) -> None:
    assert publish(store, tree=tree).read_tree() is None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_tree_that_is_no_file_is_none(store: Store, make: Callable[[Path], None]) -> None:
    found = publish(store)
    (found.path / TREE_FILE).unlink()
    make(found.path / TREE_FILE)
    assert found.read_tree() is None
    assert find_published(found.path) is None


def test_a_directory_that_cannot_be_read_holds_no_tree(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = publish(store)

    def refuse(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert find_published(found.path) is None


@pytest.mark.parametrize("data", [b"", b"{}", None])
def test_a_tree_that_cannot_be_read_is_none(store: Store, data: bytes | None) -> None:
    found = publish(store)
    (found.path / TREE_FILE).unlink()
    if data is not None:
        (found.path / TREE_FILE).write_bytes(data)
    assert found.read_tree() is None
    assert (store.find(KEY) is None) == (data is None)


@pytest.mark.parametrize("part", ["", "sdk", TREE_FILE])
def test_a_link_in_any_part_of_a_published_directory_is_none(
    store: Store, tmp_path: Path, part: str
) -> None:
    path = publish(store).path / part
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    assert store.find(KEY) is None
    assert list(store.editions(KEY)) == []


def test_a_repair_takes_the_place_of_what_was_there(store: Store, tmp_path: Path) -> None:
    publish(store)
    assert (publish(store, text="y").root / "a").read_text() == "y"
    path = store.trees / KEY.directory
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    assert (publish(store, text="z").root / "a").read_text() == "z"
    path.rename(tmp_path / "third")
    path.symlink_to(tmp_path / "not there")
    assert (publish(store, text="z").root / "a").read_text() == "z"
    assert (tmp_path / "away/sdk/a").read_text() == "y"
    assert [path.name for path in store.trees.iterdir()] == [KEY.directory]


def test_all_may_read_what_is_published_whatever_the_umask(store: Store) -> None:
    before = os.umask(0o077)
    try:
        with store.stage(KEY) as staged:
            (staged / "sdk/deep/er").mkdir(parents=True)
            found = store.publish(KEY, staged, TREE)
    finally:
        os.umask(before)
    for name in ("", "sdk", "sdk/deep", "sdk/deep/er"):
        assert mode_of(found.path / name) == 0o755
    assert mode_of(found.path / TREE_FILE) == 0o644


def test_editions_are_those_of_one_artifact_and_version(store: Store) -> None:
    keys = [dataclasses.replace(KEY, recipe=number) for number in range(3)]
    found = [publish(store, key) for key in keys]
    (found[0].path / TREE_FILE).write_text("damaged")
    for artifact, version in (("sdk", "1.1"), ("sdk", "1.0.1"), ("sd", "1.0")):
        publish(store, Key(artifact, version, 0))
    (store.trees / "sdk-1.0-empty").mkdir()
    assert list(store.editions(KEY)) == sorted(found, key=lambda one: one.path)


def test_a_stage_is_fresh_and_goes(store: Store) -> None:
    with store.stage(KEY) as staged:
        assert staged.parent == store.trees
        assert staged.name.startswith(".staging-sdk-")
        assert [path.name for path in staged.iterdir()] == ["sdk"]
        (staged / "sdk/ro").mkdir(mode=0o555)
    assert list(store.trees.iterdir()) == []


def test_what_the_system_refuses_is_said(store: Store) -> None:
    with pytest.raises(StoreError), store.stage(KEY):
        raise OSError(errno.EIO, "broken")
    assert list(store.trees.iterdir()) == []


def leave(store: Store, *names: str) -> None:
    for name in names:
        (store.trees / name / "deep").mkdir(parents=True)


STALE = (".staging-sdk-abcd1234", ".staging-sdk-gone77")
OTHERS = (".staging-sdk-x-abcd1234", ".staging-ndk-abcd1234", ".staging-sdkx-a", "sdk-1.0-abc")


def names_in(path: Path) -> set[str]:
    return {child.name for child in path.iterdir()}


def test_a_stage_takes_away_what_was_left_of_its_artifact_alone(store: Store) -> None:
    leave(store, *STALE, *OTHERS)
    with store.stage(KEY) as staged:
        assert names_in(store.trees) == {staged.name, *OTHERS}


def test_what_another_user_left_stops_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(store, *STALE)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(stores, "remove_tree", refuse)
    assert publish(store).read_tree() == TREE
    assert publish(store, text="y").read_tree() == TREE


def test_a_sweep_does_too_unless_somebody_is_at_work(store: Store) -> None:
    store.sweep("sdk")
    assert not store.home.exists()
    leave(store, *OTHERS)
    store.locks.mkdir()
    store.sweep("sdk")
    assert list(store.locks.iterdir()) == []
    leave(store, *STALE)
    held = HeldLock(store.locks / "sdk.lock")
    assert held.take()
    store.sweep("sdk")
    assert names_in(store.trees) == {*STALE, *OTHERS}
    held.release()
    store.sweep("sdk")
    assert names_in(store.trees) == set(OTHERS)
    assert held.take()
    held.release()


def test_a_sweep_opens_the_lock_to_whom_the_store_is_open(store: Store) -> None:
    leave(store, *STALE)
    store.locks.mkdir()
    store.home.chmod(0o777)
    store.sweep("sdk")
    assert mode_of(store.locks / "sdk.lock") == 0o666


def test_a_sweep_that_cannot_lock_leaves_it(store: Store) -> None:
    leave(store, *STALE)
    store.sweep("sdk")
    assert names_in(store.trees) == set(STALE)


def test_a_lock_is_of_an_artifact_and_of_its_download(store: Store) -> None:
    with store.lock(("sdk", "sdk.zip"), Progress()):
        assert names_in(store.locks) == {"sdk.lock", "sdk.zip.lock"}
        assert mode_of(store.locks / "sdk.lock") == 0o644
        for name in ("sdk", "sdk.zip"):
            assert not HeldLock(store.locks / f"{name}.lock").take()
        with store.lock(["ndk"], Progress()):
            assert names_in(store.locks) == {"sdk.lock", "sdk.zip.lock", "ndk.lock"}
    for name in ("sdk", "sdk.zip", "ndk"):
        held = HeldLock(store.locks / f"{name}.lock")
        assert held.take()
        held.release()


def test_locks_are_taken_in_one_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(store, "_wait", lambda _, name, __: taken.append(name))
    for names in (("a", "b"), ("b", "", "a")):
        with store.lock(names, Progress()):
            pass
    assert taken == ["a", "b", "a", "b"]


def test_a_download_may_have_the_name_of_its_artifact(store: Store) -> None:
    with store.lock(("sdk", "sdk"), Progress()):
        assert not HeldLock(store.locks / "sdk.lock").take()


@pytest.mark.parametrize("entry", [TreeEntry("b\udcff"), TreeEntry("l", link="b\udcff")])
def test_a_name_that_no_record_can_hold_is_refused(store: Store, entry: TreeEntry) -> None:
    with pytest.raises(IntegrityError, match="UTF-8") as caught:
        publish(store, tree=Tree("sdk", "1.0", "00", (), (entry,)))
    assert caught.value.why == repr("b\udcff")
    assert store.find(KEY) is None


def test_who_waits_says_for_whom_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    waits: list[float] = []
    with store.lock(["sdk"], Progress()):
        held = HeldLock(store.locks / "sdk.zip.lock")
        assert held.take()

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                held.release()

        monkeypatch.setattr("time.sleep", wait)
        with store.lock(("ndk", "sdk.zip"), Progress(said)):
            pass
    assert waits == [0.05] * 3
    assert said.getvalue().count("waiting") == 1
    assert f"sdk.zip: waiting for another process ({os.getpid()})" in said.getvalue()


def test_a_holder_that_is_not_known_is_another_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    with store.lock(["sdk"], Progress()):
        pass
    held = HeldLock(store.locks / "sdk.lock")
    assert held.take()
    held.path.write_text("")
    monkeypatch.setattr("time.sleep", lambda _: held.release())
    with store.lock(["sdk"], Progress(said)):
        pass
    assert "sdk: waiting for another process, " in said.getvalue()


def test_a_lock_that_cannot_be_made_is_said(store: Store) -> None:
    store.home.mkdir(parents=True)
    store.locks.touch()
    with pytest.raises(StoreError), store.lock(["sdk"], Progress()):
        pass


@pytest.mark.parametrize(
    ("mode", "lock"),
    [
        (0o755, 0o644),
        (0o775, 0o664),
        (0o777, 0o666),
        (0o2775, 0o664),
        (0o700, 0o644),
        (0o757, 0o646),
    ],
)
def test_who_may_write_home_may_write_its_parts(store: Store, mode: int, lock: int) -> None:
    store.home.mkdir(parents=True)
    store.home.chmod(mode)
    before = os.umask(0o077)
    try:
        with store.lock(["sdk"], Progress()):
            pass
    finally:
        os.umask(before)
    assert [mode_of(path) for path in (store.trees, store.downloads, store.locks, store.pins)] == [
        mode
    ] * 4
    assert mode_of(store.locks / "sdk.lock") == lock


def test_a_record_in_a_new_store_has_its_parts_with_the_modes_of_home(store: Store) -> None:
    store.home.mkdir(parents=True)
    store.home.chmod(0o775)
    store.write_record(store.pins / "sdk.json", b"{}")
    assert [mode_of(path) for path in (store.trees, store.downloads, store.locks, store.pins)] == [
        0o775
    ] * 4
    assert mode_of(store.pins / "sdk.json") == 0o644


def test_parts_that_are_there_keep_their_modes(store: Store) -> None:
    store.trees.mkdir(parents=True)
    store.trees.chmod(0o700)
    with store.lock(["sdk"], Progress()):
        pass
    assert mode_of(store.trees) == 0o700


def said_of(store: Store) -> str:
    said = io.StringIO()
    store.say_who_writes(Progress(said))
    return said.getvalue()


@pytest.mark.parametrize(
    ("mode", "shown"), [(0o755, ""), (0o700, ""), (0o775, "775"), (0o757, "757"), (0o1777, "1777")]
)
def test_a_store_that_others_can_change_is_said_once(store: Store, mode: int, shown: str) -> None:
    assert said_of(store) == ""
    store.home.mkdir(parents=True)
    store.home.chmod(mode)
    said = said_of(store)
    assert (f"the store {store.home} has mode {shown}: other users can change" in said) == bool(
        shown
    )
    assert ("QNN_CI_HOME" in said) == bool(shown)
    assert said_of(store) == ""


def test_a_store_of_another_user_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.home.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(store.home, 1234, 1234)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 1234)
    uid = store.home.stat().st_uid
    assert uid != os.geteuid()
    said = said_of(store)
    assert f"the store {store.home} belongs to user {uid}, who can change what you run" in said


def test_a_store_of_root_is_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    store.home.mkdir(parents=True, mode=0o755)
    if store.home.stat().st_uid == 0:
        assert said_of(store) == ""


def test_what_cannot_be_published_or_recorded_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(staged: Path, target: Path) -> None:
        raise OSError(errno.EIO, "broken")

    with store.stage(KEY) as staged:
        monkeypatch.setattr(stores, "publish_directory", refuse)
        with pytest.raises(StoreError):
            store.publish(KEY, staged, TREE)
        (store.pins / "d").mkdir()
        monkeypatch.setattr(stores, "write_whole", refuse)
        with pytest.raises(StoreError):
            store.write_record(store.pins / "e", b"")


def test_all_may_read_a_record_whatever_the_umask(store: Store) -> None:
    before = os.umask(0o077)
    try:
        store.write_record(store.pins / "a.json", b"one")
    finally:
        os.umask(before)
    assert mode_of(store.pins / "a.json") == 0o644


def test_a_record_takes_the_place_of_a_link(store: Store, tmp_path: Path) -> None:
    path = store.pins / "a.json"
    store.write_record(path, b"one")
    path.chmod(0o600)
    store.write_record(path, b"two")
    assert (path.read_bytes(), mode_of(path)) == (b"two", 0o644)
    (tmp_path / "mine").write_text("mine")
    path.unlink()
    path.symlink_to(tmp_path / "mine")
    store.write_record(path, b"three")
    assert (path.is_symlink(), path.read_bytes()) == (False, b"three")
    assert (tmp_path / "mine").read_text() == "mine"
    store.pins.joinpath("d").mkdir()
    with pytest.raises(StoreError):
        store.write_record(store.pins / "d", b"")


def test_a_use_is_noted_for_as_long_as_the_shell_lives(store: Store, tmp_path: Path) -> None:
    found = publish(store)
    store.note_use(found.root)
    callers = dict(find_callers())
    noted = {f"{KEY.directory}.{pid}.{start}" for pid, start in callers.items()}
    assert names_in(store.uses) == noted
    assert store.find_user(found.path) in callers
    for name in (f"{KEY.directory}x", KEY.directory[:-1], "sdk"):
        assert store.find_user(store.trees / name) is None
    before = names_in(store.uses)
    store.note_use(found.root / "deep")
    assert names_in(store.uses) == before
    other = publish(store, dataclasses.replace(KEY, artifact="ndk"), TREE)
    store.note_use(other.root)
    before |= {f"{other.path.name}.{pid}.{start}" for pid, start in callers.items()}
    store.note_use(tmp_path / "elsewhere")
    assert names_in(store.uses) == before


def test_a_note_of_a_shell_that_ended_goes(store: Store) -> None:
    store.uses.mkdir(parents=True)
    parent = os.getppid()
    (store.uses / "[a]-1.8388608.5").touch()
    (store.uses / f"[a]-1.{parent}.0").touch()
    (store.uses / "a-1.8388608.5").touch()
    assert store.find_user(store.trees / "[a]-1") is None
    assert names_in(store.uses) == {"a-1.8388608.5"}
    (store.uses / "[a]-1.8388608.5").touch()
    (store.uses / f"[a]-1.{parent}.{start_of(parent)}").touch()
    assert store.find_user(store.trees / "[a]-1") == parent


def test_a_note_that_another_process_removed_is_no_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.uses.mkdir(parents=True)
    note = store.uses / "a.8388608.5"
    note.touch()
    monkeypatch.setattr(stores, "is_alive", lambda pid, start: bool(note.unlink()))
    assert store.find_user(store.trees / "a") is None


def test_a_store_that_is_only_read_takes_no_notes(store: Store) -> None:
    store.home.mkdir(parents=True)
    store.uses.touch()
    store.note_use(store.trees / "a/a")
    assert store.uses.is_file()


def test_a_reserve_stays_free(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 5 << 20
    assert SPARE_BYTES == 64 << 20
    free = needed + SPARE_BYTES
    monkeypatch.setattr(stores, "free_bytes", lambda place: free if place == store.home else 0)
    store.check_space(needed, "it")
    with pytest.raises(StoreError) as caught:
        store.check_space(needed + 1, "it")
    assert caught.value.what == f"not enough space for it in {store.home}"
    assert caught.value.why == "it needs 69 MiB, but only 69 MiB are free"


@pytest.mark.parametrize("can_link", [True, False])
def test_a_second_name_or_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    if not can_link:

        def refuse(*words: object, **options: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr("os.link", refuse)
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    file.chmod(0o755)
    os.utime(file, (5, 5))
    link.symlink_to("nothing")
    link_or_copy(file, tmp_path / "one")
    link_or_copy(link, tmp_path / "two")
    one = (tmp_path / "one").stat()
    assert (one.st_ino == file.stat().st_ino) == can_link
    assert (stat.S_IMODE(one.st_mode), one.st_mtime, one.st_size) == (0o755, 5, 1)
    two = tmp_path / "two"
    assert two.readlink() == Path("nothing")
    assert (two.lstat().st_ino == link.lstat().st_ino) == can_link


def test_a_file_of_another_user_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second name would let that user change it."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("os.geteuid", lambda: OTHER)
    link_or_copy(tmp_path / "file", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "x"
    assert (tmp_path / "one").stat().st_ino != (tmp_path / "file").stat().st_ino


MINE, OTHER = os.geteuid(), os.geteuid() + 1


@pytest.mark.parametrize(
    ("home", "before", "after"),
    [
        (0o755, 0o777, 0o755),
        (0o755, 0o757, 0o755),
        (0o755, 0o775, 0o755),
        (0o755, 0o700, 0o700),
        (0o775, 0o775, 0o775),
        (0o775, 0o777, 0o775),
    ],
)
def test_a_directory_of_this_user_is_not_more_open_than_its_home(
    store: Store, monkeypatch: pytest.MonkeyPatch, home: int, before: int, after: int
) -> None:
    publish(store)
    places = (store.trees, store.downloads, store.locks, store.pins)
    store.home.chmod(home)
    for place in places:
        place.chmod(before)
    with monkeypatch.context() as patched:
        patched.setattr("os.geteuid", lambda: OTHER)
        publish(store, Key("b", "1", 0))
        assert [mode_of(place) for place in places] == [before] * 4
    publish(store, Key("c", "1", 0))
    assert [mode_of(place) for place in places] == [after] * 4


@pytest.mark.parametrize("place", ["./", "../", "../tree.json", "../../"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_place_that_others_may_change_is_named(store: Store, place: str, mode: int) -> None:
    published = publish(store)
    assert list(published.find_exposed(published.owners)) == []
    path = (published.root / place).resolve()
    before = mode_of(path)
    path.chmod(before | mode)
    found = list(published.find_exposed(published.owners))
    assert found == [Difference(place, "wrong mode", f"{before | mode:o}")]
    store.home.chmod(0o777)  # what is shared with everyone has a store/ that everyone may write to
    assert list(published.find_exposed(published.owners)) == ([] if place == "../../" else found)


def test_a_place_that_belongs_to_another_is_named(store: Store) -> None:
    """This user stands in for the other one."""
    published = publish(store)
    assert list(published.find_exposed(frozenset({OTHER}))) == [
        Difference(place, "belongs to another user", str(MINE))
        for place in ("./", "../", "../tree.json", "../../")
    ]
    store.home.chmod(0o777)
    assert [one.path for one in published.find_exposed(frozenset({OTHER}))] == [
        *("./", "../", "../tree.json")
    ]
