"""What may be removed and what is kept, next to things that look like it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.store import collect
from provisioning.store.collect import (
    HOME_NAMES,
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
from provisioning.store.store import TREE_FILE, Store
from tests.build.store import names_in, publish, set_age, touch, using

ROOT = Path(__file__).parents[4]
PART = ".a.zip.0123abcd.part"
FOREIGN, NEEDED = "qnn-ci did not create it", "a profile needs it"
FETCHED = "a package that upgrade-report fetched"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture(autouse=True)
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The part of /proc that the product sees: what ``using`` starts."""
    proc = tmp_path / "proc"
    proc.mkdir()
    monkeypatch.setattr(collect, "PROC", proc)
    return proc


def collect_from(
    store: Store, *named: str, filenames: tuple[str, ...] = (), downloads: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """What can be removed and what is kept, by name, and why."""
    garbage, spared = find_garbage(store, set(named), set(filenames), downloads=downloads)
    for item in garbage:
        assert item.size_bytes == measure(item.path)
    return {item.path.name: item.why for item in garbage}, {
        item.path.name: item.why for item in spared
    }


# -- trees ----------------------------------------------------------------------------------------


def test_published_tree_is_kept_while_it_is_needed_or_used(store: Store) -> None:
    assert collect_from(store, downloads=True) == ({}, {})
    published, other_name = publish(store), publish(store, "ndk").path.name
    name, own_pid = published.path.name, os.getpid()
    assert collect_from(store, name, other_name) == ({}, {name: NEEDED, other_name: NEEDED})
    assert collect_from(store, other_name) == ({name: "no profile needs it"}, {other_name: NEEDED})
    with using(cwd=published.root) as pid:
        assert collect_from(store, other_name)[1][name] == f"process {pid} uses it"
        assert collect_from(store, name, other_name)[1][name] == NEEDED
    touch(store.uses, f"{name}.{own_pid}.{start_of(own_pid)}")
    assert collect_from(store, other_name)[1][name] == f"process {own_pid} uses it"


def test_foreign_directories_in_the_store_are_kept(store: Store, tmp_path: Path) -> None:
    published, moved = publish(store), publish(store, "ndk").path
    digest = published.path.name[len("sdk-1.0-") :]
    touch(store.trees, "file")
    (store.trees / "link").symlink_to(published.path)
    (store.trees / "empty").mkdir()
    moved.rename(tmp_path / moved.name)
    moved.symlink_to(tmp_path / moved.name)
    names = {"file", "link", "empty", moved.name}
    for name in (f"sdk-1.0-{digest}0", f"sdk-1.0-{digest[1:]}", f"sdk-1.0-{digest[1:]}g"):
        touch(store.trees, f"{name}/sdk/a")
        (store.trees / name / TREE_FILE).write_bytes((published.path / TREE_FILE).read_bytes())
        names.add(name)
    garbage, spared = collect_from(store)
    assert (list(garbage), spared) == ([published.path.name], dict.fromkeys(names, FOREIGN))


def test_store_directory_is_ours_if_its_record_and_name_agree(store: Store) -> None:
    first, second, plus = publish(store), publish(store, "ndk"), publish(store, "a+b", "1+2")
    (first.path / "another").mkdir()
    assert (made_by_us(first.path), made_by_us(plus.path)) == ("sdk", "a+b")
    (second.path / "ndk").rename(second.path / "sdk")
    (first.path / TREE_FILE).unlink()
    like = plus.path.rename(store.trees / plus.path.name.replace("1+2", "1+2-1+2"))
    for path in (second.path, first.path, like, store.trees / "gone"):
        assert made_by_us(path) is None


# -- leftovers and downloads ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "is_removed"), [(86400 + 5, True), (86400 - 60, False), (-60, False)]
)
def test_leftovers_are_removed_after_a_day(store: Store, seconds: float, is_removed: bool) -> None:
    stages = [".sdk.staging-abcd", ".sdk-1.0-0123456789ab.staging-replaced"]
    scratch = [".pip-abcd", ".update-abcd"]
    files = [PART, ".a.zip.0123abcd.json", ".a.zip.parts", ".a.zip.4711"]
    touch(store.trees, *(f"{name}/file" for name in stages))
    touch(store.downloads, *(f"{name}/file" for name in scratch), *files)
    for path in (*store.trees.iterdir(), *store.downloads.iterdir()):
        set_age(path, seconds)
    if is_removed:
        left = dict.fromkeys([*stages, *scratch], "left by a killed process")
        assert collect_from(store) == (
            {**left, **dict.fromkeys(files, "an abandoned download")},
            {},
        )
    else:
        assert collect_from(store) == (
            {},
            dict.fromkeys(stages, "a process may still be writing it"),
        )


@pytest.mark.parametrize(
    "name",
    [
        *(".a.zip.0123abcd.partx", ".a.zip.0123abc.part", ".a.zip.0123abcdg.part", "..parts"),
        *(".a.zip.0123abcd.txt", "a.zip.0123abcd.part", "mine", ".piq-x"),
    ],
)
def test_file_with_another_name_is_kept_however_old_it_is(store: Store, name: str) -> None:
    touch(store.downloads, name, f"{name}.d/file")
    for path in store.downloads.iterdir():
        set_age(path, 2 * LEFTOVER_AGE_S)
    assert collect_from(store, downloads=True) == ({}, {})


def test_downloads_of_manifests_are_removed_if_asked_for(store: Store, tmp_path: Path) -> None:
    touch(store.downloads, "a.zip", "b.zip", "d.zip/file")
    (store.downloads / "b.zip").write_bytes(bytes(10))
    (store.downloads / PART).symlink_to(tmp_path / "big")
    for name in ("b.zip", PART):
        set_age(store.downloads / name, 2 * LEFTOVER_AGE_S)
    names, link = ("a.zip", "d.zip"), {PART: "an abandoned download"}
    assert collect_from(store, filenames=names) == (link, {})
    removable = {**link, "a.zip": "a finished download"}
    assert collect_from(store, filenames=names, downloads=True) == (removable, {})


# -- builds and packages --------------------------------------------------------------------------


def test_build_is_kept_while_its_sources_and_package_exist(store: Store, tmp_path: Path) -> None:
    wheel, source, build = tmp_path / "wheel", tmp_path / "source", store.home / "builds/aot-1"
    wheel.mkdir()
    touch(build, "overlay/executorch/own", "origin.txt")
    (build / "overlay/executorch/exir").symlink_to(wheel)
    (build / "origin.txt").write_text(str(source))
    gone = ({"aot-1": f"its sources are gone: {source}"}, {})
    assert collect_from(store) == gone
    source.touch()
    assert collect_from(store) == gone
    source.unlink()
    source.mkdir()
    assert collect_from(store) == ({}, {"aot-1": "its sources exist"})
    wheel.rmdir()
    why = "the executorch package that its overlay is based on is gone"
    assert collect_from(store) == ({"aot-1": why}, {})
    with using(cwd=build) as pid:
        assert collect_from(store) == ({}, {"aot-1": f"process {pid} uses it"})
    (build / "origin.txt").unlink()
    assert collect_from(store) == ({}, {"aot-1": "it has no record of its sources"})


def test_fetched_packages_are_removed_unless_a_process_uses_them(store: Store) -> None:
    home, name = store.home / "packages", "onnxruntime-qnn-2.7.0-cpython-311"
    touch(home, f"{name}/lib.so", "mine/file", ".fetching.x/file")
    (home / "link-1.0-cpython-311").symlink_to(home / name)
    spared = {"mine": FOREIGN, "link-1.0-cpython-311": FOREIGN}
    assert collect_from(store) == ({name: FETCHED}, spared)
    with using(cwd=home / name) as pid:
        assert collect_from(store) == ({}, {**spared, name: f"process {pid} uses it"})


# -- processes ------------------------------------------------------------------------------------


def start_in(directory: Path) -> dict[str, object]:
    return {"cwd": directory}


def open_file(directory: Path) -> dict[str, object]:
    (directory / "file").write_bytes(b"x")
    return {"stdin": os.open(directory / "file", os.O_RDONLY)}


def name_in_environment(directory: Path) -> dict[str, object]:
    return {"env": {**os.environ, "SDK": f"{directory}/lib"}}


@pytest.mark.parametrize("use", [start_in, open_file, name_in_environment])
def test_process_that_uses_a_directory_is_found(
    tmp_path: Path, use: Callable[[Path], dict[str, object]]
) -> None:
    used, beside, link = (tmp_path / name for name in ("used", "beside", "link"))
    for path in (used, beside):
        path.mkdir()
    link.symlink_to(used)
    with using(**(options := use(used))) as pid:
        if isinstance(file := options.get("stdin"), int):
            os.close(file)
        assert find_users([used, beside, link]) == {used: pid, link: pid}
    assert find_users([used]) == {}


# -- sizes and removal ----------------------------------------------------------------------------


def test_removed_bytes_are_counted_and_links_are_not_followed(store: Store, tmp_path: Path) -> None:
    published, other_published = publish(store), publish(store, "ndk")
    touch(tmp_path, "mine/file")
    touch(store.home, "file", "folder/deep")
    (store.home / "link").symlink_to(tmp_path / "mine")
    paths = [published.path, *(store.home / name for name in ("file", "link", "folder", "gone"))]
    assert remove_garbage(store, [Garbage(path, 10, "") for path in paths]) == 50
    assert not any(os.path.lexists(path) for path in paths)
    assert (tmp_path / "mine/file").is_file()
    assert names_in(store.trees) == {other_published.path.name}


def test_tree_is_renamed_before_it_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, gone = publish(store), list[Path]()

    def stop(path: Path) -> None:
        gone.append(path)
        assert (path / TREE_FILE).is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(collect, "remove_tree", stop)
    with pytest.raises(KeyboardInterrupt):
        remove_garbage(store, [Garbage(published.path, 10, "")])
    (left,) = gone
    assert left.parent.name.startswith(".sdk.staging-")
    assert not published.path.exists()
    assert names_in(store.trees) == set()


# -- parts of the cache ---------------------------------------------------------------------------


def test_every_directory_below_the_home_that_our_code_names_is_in_home_parts() -> None:
    records = {"locks", "pins", "uses"}  # no caches: records of the store
    assert records < HOME_NAMES
    named = re.compile(r'(?:store_home\(\)|store\.home|request\.home|self\.home) / "([a-z]+)"')
    files = [file for room in ("ci", "provisioning") for file in (ROOT / room).rglob("*.py")]
    names = {name for file in files for name in named.findall(file.read_text("utf-8"))}
    assert {"store", "lowered", "decoders"} < names
    assert names - records <= HOME_PARTS.keys()


def test_only_our_trees_are_removed_from_the_store(store: Store) -> None:
    published = publish(store)
    touch(store.trees, "file", "mine/file")
    part = next(part for part in list_parts(store) if part.name == "store")
    assert find_removable(store, [part]) == (
        [Garbage(published.path, measure(published.path), "verified toolchains")],
        [Kept(store.trees / name, FOREIGN) for name in ("file", "mine")],
    )
    assert find_removable(store, [CachePart("bench", store.trees, "")])[1] == []


@pytest.mark.parametrize("prefix", ["test", "test/inner"])
def test_environment_that_this_runs_from_is_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    place = tmp_path / "environments"
    touch(place, *(f"{name}/file" for name in ("bootstrap-1", "test", "tests", "lint")))
    monkeypatch.setattr(sys, "prefix", str(place / prefix))
    garbage, spared = find_removable(store, [CachePart("environments", place, "")])
    assert [item.path.name for item in garbage] == ["lint", "tests"]
    why = "this command runs from it"
    assert spared == [Kept(place / name, why) for name in ("bootstrap-1", "test")]
    assert find_removable(store, [CachePart("bench", place, "")])[1] == []
