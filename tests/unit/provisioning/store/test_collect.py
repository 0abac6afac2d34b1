"""What may go and what stays, each with the thing beside it that must not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioning.store import collect
from provisioning.store.collect import (
    HOME_PARTS,
    LEFTOVER_AGE_S,
    CachePart,
    Garbage,
    Kept,
    find_garbage,
    find_removable,
    find_users,
    list_parts,
    made_by_us,
    measure,
    remove_garbage,
)
from provisioning.store.lock import start_of
from provisioning.store.store import TREE_FILE, Key, Published, Store
from provisioning.store.tree import Tree, TreeEntry

ROOT = Path(__file__).parents[4]
PART = ".a.zip.0123abcd.part"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def publish(store: Store, artifact: str = "sdk", version: str = "1.0") -> Published:
    key = Key(artifact, version, 0)
    tree = Tree(artifact, version, "00", (), (TreeEntry("a", 1000),))
    with store.stage(key) as staged:
        (staged / artifact / "a").write_bytes(bytes(1000))
        return store.publish(key, staged, tree)


@pytest.fixture(autouse=True)
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The part of /proc that the product sees: what ``using`` starts."""
    proc = tmp_path / "proc"
    proc.mkdir()
    monkeypatch.setattr(collect, "PROC", proc)
    return proc


@contextmanager
def using(**options: object) -> Iterator[int]:
    """A process: its number."""
    with subprocess.Popen(["sleep", "60"], **options) as process:  # type: ignore[call-overload]
        shown = collect.PROC / str(process.pid)
        shown.symlink_to(f"/proc/{process.pid}")
        while not (shown / "environ").read_bytes():  # Popen returns before the kernel has set it
            time.sleep(0.001)
        try:
            yield process.pid
        finally:
            process.kill()
            shown.unlink()


def find_user(directory: Path) -> int | None:
    return find_users([directory]).get(directory)


def collect_from(
    store: Store, *named: str, filenames: tuple[str, ...] = (), downloads: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """What goes and what stays, by name, and why."""
    garbage, kept = find_garbage(store, set(named), set(filenames), downloads=downloads)
    for item in garbage:
        assert item.size_bytes == measure(item.path)
    return {one.path.name: one.why for one in garbage}, {one.path.name: one.why for one in kept}


def test_nothing_is_in_an_empty_store(store: Store) -> None:
    assert collect_from(store, downloads=True) == ({}, {})


def test_a_published_tree_stays_as_long_as_it_is_named(store: Store) -> None:
    one, two = publish(store).path.name, publish(store, "ndk").path.name
    stays = "a profile needs it"
    assert collect_from(store, one, two) == ({}, {one: stays, two: stays})
    assert collect_from(store, one) == ({two: "no profile needs it"}, {one: stays})


def test_what_is_not_ours_stays(store: Store, tmp_path: Path) -> None:
    found = publish(store)
    digest = found.path.name[len("sdk-1.0-") :]
    (store.trees / "file").touch()
    (store.trees / "link").symlink_to(found.path)
    (store.trees / "empty").mkdir()
    names = {"file", "link", "empty"}
    for name in (f"sdk-1.0-{digest}0", f"sdk-1.0-{digest[1:]}", f"sdk-1.0-{digest[1:]}g"):
        (store.trees / name / "sdk").mkdir(parents=True)
        (store.trees / name / TREE_FILE).write_bytes((found.path / TREE_FILE).read_bytes())
        names.add(name)
    garbage, kept = collect_from(store)
    assert list(garbage) == [found.path.name]
    assert kept == dict.fromkeys(names, "qnn-ci did not create it")


def test_a_link_with_the_name_of_a_tree_stays(store: Store, tmp_path: Path) -> None:
    path = publish(store).path
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    assert collect_from(store) == ({}, {path.name: "qnn-ci did not create it"})


def test_whose_a_directory_is(store: Store, tmp_path: Path) -> None:
    found = publish(store)
    assert made_by_us(found.path) == "sdk"
    (found.path / "another").mkdir()
    assert made_by_us(found.path) == "sdk"
    other = publish(store, "ndk")
    (other.path / "ndk").rename(other.path / "sdk")
    assert made_by_us(other.path) is None
    (found.path / TREE_FILE).unlink()
    assert made_by_us(found.path) is None
    plus = publish(store, "a+b", "1+2")
    assert made_by_us(plus.path) == "a+b"
    like = plus.path.rename(store.trees / plus.path.name.replace("1+2", "1+2-1+2"))
    assert made_by_us(like) is None


def age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment), follow_symlinks=False)


def test_a_day_is_the_age_of_a_leftover() -> None:
    assert LEFTOVER_AGE_S == 86400


@pytest.mark.parametrize(
    ("seconds", "goes"), [(LEFTOVER_AGE_S + 5, True), (LEFTOVER_AGE_S - 60, False), (-60, False)]
)
def test_leftovers_of_a_day_go(store: Store, seconds: float, goes: bool) -> None:
    stage = store.trees / ".staging-sdk-abcd"
    scratch = [store.downloads / name for name in (".pip-abcd", ".update-abcd")]
    files = [PART, ".a.zip.0123abcd.json", ".a.zip.parts", ".a.zip.4711"]
    for path in (stage, *scratch):
        path.mkdir(parents=True)
        (path / "file").write_bytes(bytes(10))
    for name in files:
        (store.downloads / name).write_bytes(bytes(10))
    for path in (stage, *scratch, *(store.downloads / name for name in files)):
        age(path, seconds)
    garbage, kept = collect_from(store)
    if goes:
        assert garbage == {
            **dict.fromkeys((path.name for path in (stage, *scratch)), "left by a killed process"),
            **dict.fromkeys(files, "an abandoned download"),
        }
        assert kept == {}
    else:
        assert (garbage, kept) == ({}, {stage.name: "a process may still be writing it"})


def test_an_age_at_its_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = store.trees / ".staging-sdk-abcd"
    store.downloads.mkdir(parents=True)
    stage.mkdir(parents=True)
    (store.downloads / PART).touch()
    for path in (stage, store.downloads / PART):
        os.utime(path, (1000, 1000))
    monkeypatch.setattr("time.time", lambda: 1000 + LEFTOVER_AGE_S)
    assert collect_from(store)[0] == {}
    monkeypatch.setattr("time.time", lambda: 1000 + LEFTOVER_AGE_S + 0.5)
    assert set(collect_from(store)[0]) == {stage.name, PART}


@pytest.mark.parametrize(
    "name",
    [
        ".a.zip.0123abcd.partx",
        ".a.zip.0123abc.part",
        ".a.zip.0123abcdg.part",
        ".a.zip.0123abcd.txt",
        "a.zip.0123abcd.part",
        "..parts",
        "mine",
        ".piq-x",
    ],
)
def test_what_we_did_not_name_stays_however_old(store: Store, name: str) -> None:
    store.downloads.mkdir(parents=True)
    (store.downloads / name).touch()
    (store.downloads / f"{name}.d").mkdir()
    for path in store.downloads.iterdir():
        age(path, 2 * LEFTOVER_AGE_S)
    assert collect_from(store, downloads=True) == ({}, {})


def test_kept_downloads_go_when_asked_for_and_named(store: Store) -> None:
    store.downloads.mkdir(parents=True)
    for name in ("a.zip", "b.zip"):
        (store.downloads / name).write_bytes(bytes(10))
    age(store.downloads / "b.zip", 2 * LEFTOVER_AGE_S)
    (store.downloads / "d.zip").mkdir()
    names = ("a.zip", "d.zip")
    assert collect_from(store, filenames=names) == ({}, {})
    assert collect_from(store, filenames=names, downloads=True) == (
        {"a.zip": "a finished download"},
        {},
    )


def test_a_link_in_downloads_is_measured_as_one(store: Store, tmp_path: Path) -> None:
    store.downloads.mkdir(parents=True)
    (tmp_path / "big").write_bytes(bytes(5000))
    (store.downloads / PART).symlink_to(tmp_path / "big")
    age(store.downloads / PART, 2 * LEFTOVER_AGE_S)
    garbage, _ = find_garbage(store, set(), set(), downloads=False)
    assert [one.size_bytes for one in garbage] == [len(str(tmp_path / "big"))]


def make_build(store: Store, source: Path, link: Path) -> Path:
    build = store.home / "builds" / "aot-1"
    (build / "overlay/executorch").mkdir(parents=True)
    (build / "overlay/executorch/exir").symlink_to(link)
    (build / "overlay/executorch/own").touch()
    (build / "origin.txt").write_text(str(source))
    return build


def test_why_a_build_stays_or_goes(store: Store, tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    source = tmp_path / "source"
    build = make_build(store, source, wheel)
    name = build.name
    assert collect_from(store) == ({name: f"its sources are gone: {source}"}, {})
    source.touch()
    assert collect_from(store) == ({name: f"its sources are gone: {source}"}, {})
    source.unlink()
    source.mkdir()
    assert collect_from(store) == ({}, {name: "its sources exist"})
    wheel.rmdir()
    assert collect_from(store) == (
        {name: "the executorch package that its overlay is based on is gone"},
        {},
    )
    with using(cwd=build) as pid:
        assert collect_from(store) == ({}, {name: f"process {pid} uses it"})
    (build / "origin.txt").unlink()
    assert collect_from(store) == ({}, {name: "it has no record of its sources"})


def test_packages_that_upgrade_report_fetched_go_unless_a_process_uses_them(store: Store) -> None:
    home = store.home / "packages"
    fetched, own = home / "onnxruntime-qnn-2.7.0-cpython-311", home / "mine"
    for path in (fetched, own, home / ".fetching.x"):
        path.mkdir(parents=True)
    (fetched / "lib.so").write_bytes(bytes(10))
    (home / "link-1.0-cpython-311").symlink_to(fetched)
    stays = {
        "mine": "qnn-ci did not create it",
        "link-1.0-cpython-311": "qnn-ci did not create it",
    }
    why = "a package that upgrade-report fetched"
    assert collect_from(store) == ({fetched.name: why}, stays)
    with using(cwd=fetched) as pid:
        assert collect_from(store) == ({}, {**stays, fetched.name: f"process {pid} uses it"})
    remove_garbage(store, find_garbage(store, set(), set(), downloads=False)[0])
    assert not fetched.exists()
    assert own.is_dir()


def test_a_tree_that_a_process_or_a_shell_uses_stays(store: Store) -> None:
    found = publish(store)
    name = found.path.name
    with using(cwd=found.root) as pid:
        assert collect_from(store) == ({}, {name: f"process {pid} uses it"})
        assert collect_from(store, name) == ({}, {name: "a profile needs it"})
    assert name in collect_from(store)[0]
    (store.home / "uses").mkdir()
    (store.home / "uses" / f"{name}.{os.getpid()}.{start_of(os.getpid())}").touch()
    assert collect_from(store) == ({}, {name: f"process {os.getpid()} uses it"})
    assert collect_from(store, name) == ({}, {name: "a profile needs it"})


def start_in(directory: Path) -> dict[str, object]:
    return {"cwd": directory}


def open_file(directory: Path) -> dict[str, object]:
    (directory / "file").write_bytes(b"x")
    return {"stdin": os.open(directory / "file", os.O_RDONLY)}


def name_in_environment(directory: Path) -> dict[str, object]:
    return {"env": {**os.environ, "SDK": f"{directory}/lib"}}


@pytest.mark.parametrize("use", [start_in, open_file, name_in_environment])
def test_how_a_process_uses_a_directory(
    tmp_path: Path, use: Callable[[Path], dict[str, object]]
) -> None:
    used, beside = tmp_path / "used", tmp_path / "beside"
    used.mkdir()
    beside.mkdir()
    options = use(used)
    with using(**options) as pid:
        if isinstance(file := options.get("stdin"), int):
            os.close(file)
        assert find_user(used) == pid
        assert find_user(beside) is None
        (tmp_path / "link").symlink_to(used)
        assert find_user(tmp_path / "link") == pid
    assert find_user(used) is None


def make_process(proc: Path, number: str, **files: bytes) -> Path:
    process = proc / number
    (process / "fd").mkdir(parents=True)
    for name, data in files.items():
        (process / name).write_bytes(data)
    return process


def test_the_processes_of_this_machine_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        assert find_user(tmp_path) == process.pid
        process.kill()


def test_each_place_of_a_process_is_looked_at(tmp_path: Path, proc: Path) -> None:
    used = tmp_path / "used"
    assert find_user(used) is None
    name = os.fsencode(used)
    make_process(proc, "self", maps=name)
    make_process(proc, str(os.getpid()), maps=name)
    assert find_user(used) is None
    make_process(proc, "11", maps=b"7f-80 r-xp " + name + b"/lib.so\n")
    assert find_user(used) == 11
    (proc / "11/maps").unlink()
    assert find_user(used) is None
    (proc / "11/environ").write_bytes(b"A=1\0B=" + name + b"\0")
    assert find_user(used) == 11
    (proc / "11/environ").write_bytes(b"")
    for link in ("cwd", "exe", "fd/3"):
        (proc / "11" / link).symlink_to(used / "deep")
        assert find_user(used) == 11
        (proc / "11" / link).unlink()
        (proc / "11" / link).symlink_to(f"/root{used}")
        assert find_user(used) is None
        (proc / "11" / link).unlink()
    (proc / "11/fd").rmdir()
    (proc / "11/exe").symlink_to(used / "python")
    assert find_user(used) == 11


def test_bytes_of_files_links_and_directories(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "one").write_bytes(bytes(100))
    (root / "a/two").write_bytes(bytes(20))
    (root / "a/b/three").write_bytes(bytes(3))
    assert measure(root) == 123
    assert measure(root / "one") == 100
    (tmp_path / "link").symlink_to(root)
    assert measure(tmp_path / "link") == len(str(root))
    (root / "dangling").symlink_to("xx")
    assert measure(root) == 125


def test_what_is_removed_is_counted_and_goes(store: Store, tmp_path: Path) -> None:
    found, other = publish(store), publish(store, "ndk")
    file, link, folder = (store.home / name for name in ("file", "link", "folder"))
    file.touch()
    (tmp_path / "mine").mkdir()
    link.symlink_to(tmp_path / "mine")
    folder.mkdir()
    (folder / "deep").touch()
    paths = [found.path, file, link, folder, store.home / "gone already"]
    assert remove_garbage(store, [Garbage(path, 10, "") for path in paths]) == 50
    assert not any(path.exists() or path.is_symlink() for path in paths)
    assert (tmp_path / "mine").is_dir()
    assert [path.name for path in store.trees.iterdir()] == [other.path.name]


def test_what_another_process_removes_meanwhile_counts_as_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = publish(store)
    real = collect.walk

    def vanish(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
        for directory, names, files in real(top):
            yield directory, names, [*files, "gone"]

    before = measure(found.path)
    monkeypatch.setattr(collect, "walk", vanish)
    assert measure(found.path) == before
    assert measure(store.trees / "gone") == 0
    assert made_by_us(store.trees / "gone") is None


def test_a_tree_that_a_killed_repair_moved_aside_is_a_leftover(store: Store) -> None:
    aside = store.trees / ".sdk-1.0-0123456789ab.staging-replaced"
    aside.mkdir(parents=True)
    assert not find_garbage(store, set(), set(), downloads=False)[0]
    os.utime(aside, (1, 1))
    found, _ = find_garbage(store, set(), set(), downloads=False)
    assert [one.path for one in found] == [aside]


def test_a_tree_is_out_of_sight_before_it_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = publish(store)
    gone: list[Path] = []

    def stop(path: Path) -> None:
        gone.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(collect, "remove_tree", stop)
    with pytest.raises(KeyboardInterrupt):
        remove_garbage(store, [Garbage(found.path, 10, "")])
    assert [path.name.startswith(".staging-sdk-") for path in gone] == [True]
    assert (gone[0] / TREE_FILE).is_file()
    assert not found.path.exists()
    store.locks.mkdir(exist_ok=True)
    store.sweep("sdk")
    assert list(store.trees.iterdir()) == []


def test_the_parts_of_a_cache(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "CHECKOUT", tmp_path)
    parts = list_parts(store)
    assert {part.name: part.path for part in parts} == {
        name: store.home / name for name in HOME_PARTS
    }
    assert {part.name: part.about for part in parts} == HOME_PARTS
    (tmp_path / "noxfile.py").touch()
    last = list_parts(store)[-1]
    assert last == CachePart(
        "environments", tmp_path / ".nox", "Python environments of nox sessions (.nox)"
    )
    assert len(list_parts(store)) == len(HOME_PARTS) + 1


def test_every_directory_that_our_code_names_below_the_home_is_a_part() -> None:
    records = {"locks", "pins", "uses"}  # they say what is published, and who uses it
    named = re.compile(r'(?:store_home\(\)|store\.home|request\.home|self\.home) / "([a-z]+)"')
    files = [one for room in ("ci", "provisioning") for one in (ROOT / room).rglob("*.py")]
    found = {name for one in files for name in named.findall(one.read_text("utf-8"))}
    assert {"store", "lowered", "decoders"} < found
    assert found - records <= HOME_PARTS.keys()


def test_a_part_is_a_directory_of_ours(tmp_path: Path) -> None:
    part = CachePart("bench", tmp_path / "bench", "inputs")
    assert (list(part.entries()), part.size_bytes()) == ([], 0)
    part.path.mkdir()
    for name in ("b", "a"):
        (part.path / name).write_bytes(bytes(7))
    assert [path.name for path in part.entries()] == ["a", "b"]
    assert part.size_bytes() == 14
    link = CachePart("bench", tmp_path / "link", "inputs")
    link.path.symlink_to(part.path)
    assert (list(link.entries()), link.size_bytes()) == ([], 0)
    with (part.path / "a").open() as file, using(cwd="/", stdin=file) as pid:
        assert find_removable([part]) == (
            [Garbage(part.path / "b", 7, "inputs")],
            [Kept(part.path / "a", f"process {pid} uses it")],
        )


def test_of_the_store_only_what_is_ours_may_go(store: Store) -> None:
    found = publish(store)
    (store.trees / "file").touch()
    (store.trees / "mine").mkdir()
    part = next(part for part in list_parts(store) if part.name == "store")
    garbage, kept = find_removable([part])
    assert garbage == [Garbage(found.path, measure(found.path), "verified toolchains")]
    assert kept == [
        Kept(store.trees / name, "qnn-ci did not create it") for name in ("file", "mine")
    ]
    other = CachePart("bench", store.trees, "")
    assert find_removable([other])[1] == []


@pytest.mark.parametrize("prefix", ["test", "test/inner"])
def test_the_environment_that_this_runs_from_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    place = tmp_path / "environments"
    for name in ("bootstrap-1", "test", "tests", "lint"):
        (place / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(place / prefix))
    garbage, kept = find_removable([CachePart("environments", place, "")])
    assert [one.path.name for one in garbage] == ["lint", "tests"]
    assert kept == [
        Kept(place / name, "this command runs from it") for name in ("bootstrap-1", "test")
    ]
    assert find_removable([CachePart("bench", place, "")])[1] == []


def test_without_directories_no_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_look_into", lambda process: pytest.fail(str(process)))
    with using():
        assert find_users([]) == {}


def test_without_proc_no_user_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "PROC", tmp_path / "gone")
    assert find_users([tmp_path]) == {}
