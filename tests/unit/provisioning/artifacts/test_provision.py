"""A tiny archive through every gate between its pin and its tree, each failing alone."""

from __future__ import annotations

import argparse
import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from provisioning.__main__ import main
from provisioning.artifacts import consent, environment, sources
from provisioning.artifacts import provision as provisions
from provisioning.artifacts.consent import check_machines, check_version, make_lock
from provisioning.artifacts.environment import DROPPED_VARIABLES
from provisioning.artifacts.lockfile import (
    Lock,
    find_lock,
    machine_lock_path,
    project_lock_path,
    read_lock,
)
from provisioning.artifacts.pins import Change, plan_lock, plan_update, take_archive
from provisioning.artifacts.provision import (
    Provisioned,
    check_adopted,
    check_lock,
    find_differences,
    provision_artifacts,
    trusted_tree,
)
from provisioning.artifacts.selection import (
    all_requests,
    stored_requests,
    stored_trees,
    unreadable_trees,
)
from provisioning.artifacts.sources import (
    ArtifactRequest,
    FillJob,
    Options,
    archive,
    git,
    local,
    substitute,
)
from provisioning.artifacts.sources.local import check_minimum, read_version
from provisioning.artifacts.sources.unpacking import unpack_file
from provisioning.console.progress import Progress
from provisioning.doctor import examine
from provisioning.errors import (
    DownloadError,
    ExitCode,
    IntegrityError,
    ManifestError,
    StoreError,
    UnfitError,
    UsageError,
)
from provisioning.fetch.ranges import CostlyError
from provisioning.fetch.transfer import PermanentError, redact_url
from provisioning.manifest.reader import manifests_root, read_toolchain
from provisioning.manifest.releases import ArchiveRelease, LocalRelease, Release
from provisioning.store.store import TREE_FILE, Published, Store
from provisioning.store.tree import (
    DIRECTORY_MODE,
    GIT,
    Difference,
    Tree,
    TreeEntry,
    encode_record,
    parse_tree,
)
from provisioning.verbs import env, fetch, path, update, verify
from provisioning.verbs.fetch import _write_sums, fill_mirror
from provisioning.verbs.lock import conclude
from tests.stand_ins import toolchains as made
from tests.stand_ins.provisioned import provision_one

FILES = {
    "sdk.yaml": b"version: 1.2.3\n",
    "include/a.h": b"#pragma once\n",
    "lib/one.so": b"one" * 100,
    "lib/two.so": b"two" * 100,
}
OTHER = FILES | {"lib/two.so": b"TWO" * 100}


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"sdk/{name}", data)
    return path


def describe(manifests: Path, archive: Path, *, pinned: bool = True, write: str = "x") -> None:
    data = archive.read_bytes()
    pin = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nsize_bytes = {len(data)}'
    more = """
[adoption]
variable = "TINY_ROOT"
markers = ["sdk.yaml"]
version_file = "sdk.yaml"
[components]
base = ["*"]
headers = ["include/**"]
libraries = ["lib/**"]
"""
    release = f"""
source = "archive"
filename = "sdk.zip"
url = "{archive.as_uri()}"
unpacked_bytes = 1000000
layout = [{{ take = "sdk/**", put = "" }}]
links = {{ "lib/link.so" = "one.so" }}
write = {{ "note" = "{write}" }}
{pin if pinned else ""}
"""
    made.describe(manifests, "sdk", release, version="1.2.3", more=more)


@pytest.fixture
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    manifests = tmp_path / "manifests"
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(manifests))
    for name in ("CI", "TINY_ROOT", "QNN_CI_MIRROR", "QNN_CI_ACCEPT_LICENCE"):
        monkeypatch.delenv(name, raising=False)
    describe(manifests, pack(tmp_path / "vendor.zip", FILES))
    (manifests / "profiles.toml").write_text(made.PROFILES.replace("qnn-runtime", "sdk"))
    return manifests


@pytest.fixture
def store(tmp_path: Path, manifests: Path) -> Store:
    return Store(tmp_path / "home")


def ask(*components: str, trust: bool = False, offline: bool = False) -> ArtifactRequest:
    toolchain = read_toolchain("sdk")
    options = Options(offline=offline, trust_first_use=trust, accept_licence=True)
    return ArtifactRequest(toolchain, toolchain.release(), components, options)


def provision(store: Store, *components: str, verify: bool = False) -> tuple[Provisioned, str]:
    said = io.StringIO()
    found = provision_one(ask(*components), store, Progress(said), verify=verify)
    return found, said.getvalue()


def write_lock(store: Store) -> Lock:
    lock = make_lock(ask(), store, Progress())
    path = project_lock_path("sdk", "1.2.3")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_record(lock))
    return lock


def names_below(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()
    )


def overwrite(path: Path, data: bytes) -> None:
    """Write to a file of the store, which is read-only."""
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def test_a_tree_is_made_once(store: Store) -> None:
    found, said = provision(store)
    assert (found.fetched, found.version, found.repaired) == (True, "1.2.3", ())
    assert "sdk 1.2.3: ready, 6 files" in said
    assert names_below(found.root) == sorted([*FILES, "lib/link.so", "note"])
    left = store.trees / ".staging-sdk-0123"  # of a killed process
    left.mkdir()
    assert provision(store) == (replace(found, fetched=False), "")
    assert not left.exists()


def entry(path: str, text: str, **more: object) -> TreeEntry:
    return TreeEntry(path, 1, 0o644, text, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ([entry("a", "1")], "b"),
        ([entry("a", "1"), entry("b", "2"), entry("c", "3")], "c"),
        ([entry("a", "9"), entry("b", "2")], "a"),
        ([entry("a", "1"), TreeEntry("b", 2, 0o644, "2")], "b"),
        ([entry("a", "1"), TreeEntry("b", 0, 0o644, "2")], "b"),
        ([entry("a", "1"), TreeEntry("b", 1, 0o755, "2")], "b"),
        ([entry("a", "1"), TreeEntry("b", link="a")], "b"),
        ([entry("a", "1"), entry("b", "2"), TreeEntry("c/")], "c/"),
    ],
)
def test_each_way_to_differ_from_the_lock_is_refused(
    store: Store, change: list[TreeEntry], path: str
) -> None:
    wanted = (entry("a", "1"), entry("b", "2"))
    lock = Lock("sdk", "1.2.3", "u", 1, "00", "today", files=wanted)
    request = replace(ask(), lock=lock)
    check_lock(request, wanted)
    with pytest.raises(
        IntegrityError, match=f"^{path} in sdk 1.2.3 does not match the lock"
    ) as caught:
        check_lock(request, change)
    came, locked = caught.value.why.split("; the lock has ")
    for rows, shown in ((change, came), (wanted, locked)):
        here = [one for one in rows if one.path == path]
        kinds = {"b": "a link to 'a'", "c/": "an empty directory"}
        sizes = {0: "0 bytes", 1: "1 byte", 2: "2 bytes"}
        told = [f"{e.sha256}, {sizes[e.size]}," if e.sha256 else kinds[e.path] for e in here]
        assert all(text in shown for text in told)
        assert bool(here) == ("nothing" not in shown)
    check_lock(replace(request, lock=None), change)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
        (Path.mkdir, "it is a directory"),
        (lambda path: path.symlink_to(path), os.strerror(errno.ELOOP)),
    ],
)
def test_a_lock_that_is_no_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    make(tmp_path / "sdk-1.json")
    with pytest.raises(ManifestError) as caught:
        read_lock(tmp_path / "sdk-1.json")
    assert caught.value.why == why
    assert read_lock(tmp_path / "none-1.json") is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"artifact": "\xff"}', b'{"artifact": "sdk"}', b"[]"]
)
def test_a_lock_that_is_damaged_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "sdk-1.json").write_bytes(data)
    with pytest.raises(ManifestError, match="cannot read the lock") as caught:
        read_lock(tmp_path / "sdk-1.json")
    assert caught.value.why
    assert read_lock(tmp_path / "sdk-1.json" / "below a file-1.json") is None


def test_a_lock_of_files_is_compared_with_what_came(store: Store) -> None:
    lock = write_lock(store)
    assert [one.path for one in lock.files] == sorted([*FILES, "lib/link.so", "note"])
    assert provision(store, "libraries")[0].fetched
    shutil.rmtree(store.trees)
    shorter = msgspec.structs.replace(lock, files=lock.files[:-1])
    project_lock_path("sdk", "1.2.3").write_bytes(encode_record(shorter))
    with pytest.raises(IntegrityError, match=r"sdk\.yaml in .* does not match the lock"):
        provision(store)
    assert not any(path.name.startswith(".staging") for path in store.trees.iterdir())


def test_a_lock_is_of_all_components(store: Store) -> None:
    lock = make_lock(ask("headers"), store, Progress())
    assert {"lib/one.so", "sdk.yaml"} <= {one.path for one in lock.files}


def test_the_projects_lock_goes_before_this_machines(store: Store, tmp_path: Path) -> None:
    lock = write_lock(store)
    own = machine_lock_path(store, "sdk", "1.2.3")
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(encode_record(msgspec.structs.replace(lock, size_bytes=1)))
    assert find_lock("sdk", ask().release, store) == lock
    project_lock_path("sdk", "1.2.3").unlink()
    assert find_lock("sdk", ask().release, store) == read_lock(own)
    near = lock.sha256[:-1] + ("1" if lock.sha256.endswith("0") else "0")
    for digest in ("0" * 64, "f" * 64, near):
        own.write_bytes(encode_record(msgspec.structs.replace(lock, sha256=digest)))
        with pytest.raises(IntegrityError, match="have different hashes") as caught:
            ask().pinned(store)
        assert re.search(f"lock .*{digest}.* manifest .*{lock.sha256}", caught.value.why)


def test_locks_are_read_once_a_fetch(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more for a first use, under the artifact's lock: another may have been faster."""
    read: list[str] = []

    def count(name: str, release: Release, where: Store) -> Lock | None:
        read.append(name)
        return find_lock(name, release, where)

    monkeypatch.setattr(sources, "find_lock", count)
    provision(store)
    provision(store, verify=True)
    assert read == ["sdk"] * 2
    unpin(manifests, tmp_path)
    trust(store)
    assert read == ["sdk"] * 4


@pytest.mark.parametrize("change", [{"artifact": "sd"}, {"version": "1.2"}])
def test_a_lock_tells_of_what_its_name_does(store: Store, change: dict[str, str]) -> None:
    lock = write_lock(store)
    path = project_lock_path("sdk", "1.2.3")
    path.write_bytes(encode_record(msgspec.structs.replace(lock, **change)))
    with pytest.raises(ManifestError, match="is for another artifact"):
        read_lock(path)


def test_an_update_of_an_archive_moves_its_row_and_its_lock(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    row = manifests / "toolchains" / "sdk.toml"
    for version in ("1.3.0", "1.2.3"):
        files = FILES | {"sdk.yaml": f"version: {version}\n".encode()}
        archive = pack(tmp_path / f"vendor-{version}.zip", files)
        describe(manifests, archive, write=f"of {version}")
    row.write_text(row.read_text().replace('"sdk.zip"', '"sdk-1.2.3.zip"'))
    for change in plan_lock(ask(), store, Progress()):
        change.write()
    path = project_lock_path("sdk", "1.2.3")
    path.write_text(re.sub(r'"recorded": *"[^"]*"', '"recorded": "2020-01-01"', path.read_text()))
    assert "2020-01-01" in path.read_text()
    assert plan_lock(ask(), store, Progress()) == []
    old = ask().release_as(ArchiveRelease)
    figures = manifests / "baselines" / "sdk-1.2.3.toml"
    figures.parent.mkdir()
    for text in ("# figures\n", ""):
        figures.write_text(text)
        dropped = plan_update(ask(trust=True), "1.3.0", store, Progress(), carry=False)
        assert (dropped[-1].path, dropped[-1].before, dropped[-1].after) == (figures, text, "")
    figures.write_text("# figures\n")
    *changes, carried = plan_update(ask(trust=True), "1.3.0", store, Progress())
    assert (carried.path.name, carried.after, carried.old) == (
        "sdk-1.3.0.toml",
        "# figures\n",
        figures,
    )
    assert [one.path.name for one in changes] == ["sdk.toml", "sdk-1.3.0.json"]
    assert [one.before for one in changes] == [row.read_text(), path.read_text()]
    assert (changes[1].old, changes[1].path) == (path, project_lock_path("sdk", "1.3.0"))
    assert all("1.2.3" in one.diff() and "1.3.0" in one.diff() for one in changes)
    assert ask().release == old  # nothing is written yet
    for change in changes:
        change.write()
    new = ask().release_as(ArchiveRelease)
    assert (new.version, new.filename) == ("1.3.0", "sdk-1.3.0.zip")
    assert new.write == {"note": "of 1.3.0"}
    assert new.url == old.url.replace("1.2.3", "1.3.0")
    assert new.sha256 == hashlib.sha256((tmp_path / "vendor-1.3.0.zip").read_bytes()).hexdigest()
    assert new.size_bytes == (tmp_path / "vendor-1.3.0.zip").stat().st_size
    assert not project_lock_path("sdk", "1.2.3").exists()
    lock = read_lock(project_lock_path("sdk", "1.3.0"))
    assert lock
    assert (lock.sha256, lock.version) == (new.sha256, "1.3.0")
    assert plan_update(ask(), "1.3.0", store, Progress()) == []
    assert provision(store)[0].version == "1.3.0"
    assert not [path for path in store.downloads.iterdir() if path.name.startswith(".update-")]
    describe(manifests, tmp_path / "vendor.zip")
    with pytest.raises(UsageError, match=r"the URL of sdk 2\.0") as caught:
        plan_update(ask(), "2.0", store, Progress())
    assert "vendor.zip, which does not contain 1.2.3" in caught.value.why
    assert caught.value.fix


def test_an_update_of_a_repository_moves_its_row_alone(
    store: Store, manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, old, new = "https://h/r.git", "1" * 40, "2" * 40
    made.describe(manifests, "sdk", f'source = "git"\nurl = "{url}"\ncommit = "{old}"')
    before = ask().release
    newer = msgspec.structs.replace(before, commit=new)
    monkeypatch.setattr(git, "find_release", lambda job, version: newer if version else before)
    assert plan_update(ask(), "", store, Progress()) == []
    (change,) = plan_update(ask(), "9", store, Progress())
    change.write()
    assert ask().release == newer
    assert not (manifests / "locks").exists()
    path = project_lock_path("sdk", "1.2.3")
    path.parent.mkdir()
    path.write_bytes(encode_record(Lock("sdk", "1.2.3", "u", 1, "5" * 64, "today")))
    assert ask().pinned(store) == ask()  # only files have locks
    with pytest.raises(UsageError, match="sdk cannot be locked") as caught:
        plan_lock(ask(), store, Progress())
    assert "its source is git" in caught.value.why


def test_an_update_of_an_archive_without_a_published_hash_writes_it_into_its_lock_alone(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    for version in ("1.3.0", "1.2.3"):
        files = FILES | {"sdk.yaml": f"version: {version}\n".encode()}
        describe(manifests, pack(tmp_path / f"vendor-{version}.zip", files), pinned=False)
    row = manifests / "toolchains" / "sdk.toml"
    row.write_text(row.read_text().replace('"sdk.zip"', '"sdk-1.2.3.zip"'))
    for change in plan_lock(ask(trust=True), store, Progress()):
        change.write()
    for change in plan_update(ask(trust=True), "1.3.0", store, Progress()):
        change.write()
    digest = hashlib.sha256((tmp_path / "vendor-1.3.0.zip").read_bytes()).hexdigest()
    assert "sha256" not in row.read_text()
    assert ask().release.version == "1.3.0"
    lock = read_lock(project_lock_path("sdk", "1.3.0"))
    assert lock
    assert lock.sha256 == digest
    assert not project_lock_path("sdk", "1.2.3").exists()


def test_a_lock_is_made_of_the_archive_and_not_of_trees_that_came_before(store: Store) -> None:
    write_lock(store)
    provision(store)
    shutil.rmtree(store.downloads)
    assert plan_lock(ask(), store, Progress()) == []
    assert (store.downloads / "sdk.zip").is_file()


def test_an_archive_that_only_a_lock_pins_is_taken_if_it_is_that_one(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "vendor.zip"
    write_lock(store)
    describe(manifests, archive, pinned=False)
    take_archive(ask(), archive, store)
    with pytest.raises(IntegrityError, match="is not the pinned sdk"):
        take_archive(ask(), pack(tmp_path / "other.zip", OTHER), store)
    assert (store.downloads / "sdk.zip").read_bytes() == archive.read_bytes()


def test_an_archive_that_only_a_lock_pins_is_not_locked_again_if_it_is_another(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "vendor.zip"
    write_lock(store)
    describe(manifests, archive, pinned=False)
    pack(archive, OTHER)
    (store.downloads / "sdk.zip").write_bytes(archive.read_bytes())
    with pytest.raises(IntegrityError):
        plan_lock(ask(trust=True), store, Progress())


def test_what_a_store_holds_is_listed_and_what_cannot_be_read_apart(store: Store) -> None:
    assert (stored_requests(store), unreadable_trees(store)) == ([], [])
    for components in ((), ("headers",)):
        provision(store, *components)
    for name in (".staging-0123456789ab", "other", "sdk-0123456789abc"):
        (store.trees / name).mkdir()
    paths = [published.path for published, _ in stored_trees(store)]
    assert (paths, len(paths)) == (sorted(paths), 2)
    stored = stored_requests(store)
    assert [(one.name, one.components) for one in stored] == [("sdk", ()), ("sdk", ("headers",))]
    assert [request.name for request in all_requests(Options())] == ["sdk"]
    assert unreadable_trees(store) == []
    (store.trees / stored[1].key().directory / TREE_FILE).write_text("{")
    assert unreadable_trees(store) == [store.trees / stored[1].key().directory]
    assert [one.components for one in stored_requests(store)] == [()]
    (store.home / "pins").mkdir(exist_ok=True)
    machine_lock_path(store, "sdk", "1.2.3").write_text("{")
    assert stored_requests(store) == []


def test_a_damaged_tree_that_no_profile_names_is_one_of_the_stored(
    store: Store, manifests: Path
) -> None:
    (manifests / "profiles.toml").write_text("")
    (provision(store)[0].root.parent / TREE_FILE).write_text("{")
    (request,) = stored_requests(store)
    assert (request.label, request.components) == ("sdk 1.2.3", ())


def test_a_stored_tree_of_a_component_that_is_gone_hides_no_other(
    store: Store, manifests: Path
) -> None:
    for components in ((), ("headers",), ("libraries",)):
        provision(store, *components)
    (file,) = manifests.glob("toolchains/sdk.toml")
    file.write_text(file.read_text().replace("\nheaders = ", "\nincludes = "))
    assert [one.components for one in stored_requests(store)] == [(), ("libraries",)]


def test_a_verification_fails_where_one_of_several_is_missing(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    row = manifests / "toolchains" / "sdk.toml"
    (row.with_name("other.toml")).write_text(row.read_text().replace('"sdk"', '"other"'))
    provision(store)
    assert [main(["verify", *names]) for names in (["sdk"], ["sdk", "other"], ["other"])] == [
        *(0, 4, 4)
    ]
    overwrite(provision(store)[0].root / "lib/one.so", b"1")
    assert [main(["verify", *words]) for words in ([], ["--repair"], [])] == [4, 0, 0]


def test_a_damaged_record_of_a_tree_is_reported_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    (provision(store)[0].root.parent / TREE_FILE).write_text("{")
    capsys.readouterr()
    assert main(["verify", "--json"]) == 4
    (row,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert (row["name"], len(row["differences"])) == ("sdk", 1)


@pytest.mark.parametrize("version", ["../1.3", 'x"y', "a/b", "1.3\n"])
def test_a_version_that_cannot_be_one_is_a_mistake_of_the_user(store: Store, version: str) -> None:
    row = manifests_root() / "toolchains" / "sdk.toml"
    row.write_text(row.read_text().replace("vendor.zip", "vendor-1.2.3.zip"))
    with pytest.raises(UsageError, match="version"):
        plan_update(ask(), version, store, Progress())


def test_a_verification_prints_each_artifact_and_what_differs(
    store: Store,
    manifests: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))

    def tell(*words: str) -> tuple[int, str]:
        code = main(["verify", *words])
        return code, capsys.readouterr().out

    assert tell() == (0, f"the store {store.home} contains no artifact\n")
    assert tell("sdk") == (4, "sdk 1.2.3 is not in the store\n")
    root = provision(store)[0].root
    capsys.readouterr()
    assert tell() == (0, "sdk 1.2.3: 6 files, 0 MiB, all unchanged\n")
    overwrite(root / "lib/one.so", b"1")
    (root / "lib/two.so").unlink()
    code, text = tell()
    first, *differences, last = text.splitlines()
    assert (code, first) == (4, "sdk 1.2.3: 2 differences")
    assert [line.split()[0] for line in differences] == ["lib/one.so:", "lib/two.so:"]
    assert last == "  run `verify` again with --repair"
    code, text = tell("--repair")
    assert (code, text.splitlines()[-1]) == (0, "  repaired")
    assert main(["verify", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert row.pop("size_bytes") > 600
    assert row == {
        "name": "sdk",
        "version": "1.2.3",
        "root": str(root),
        "published": True,
        "files": 6,
        "differences": [],
        "repaired": [],
    }


OWN_OPTIONS = Options(offline=False, trust_first_use=True, accept_licence=True)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("options", [None, OWN_OPTIONS])
def test_a_profile_is_fetched_with_the_options_that_are_given(
    store: Store,
    manifests: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Options | None,
    offline: bool,
    verify: bool,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    asked = []

    def note(requests: Sequence[ArtifactRequest], *_: object, verify: bool) -> list[Provisioned]:
        asked.append((requests[0].options, verify))
        return [Provisioned("sdk", "1.2.3", Path("/sdk"))]

    monkeypatch.setattr(environment, "provision_artifacts", note)
    found = environment.provision_profile(
        "emulator", Progress(), verify=verify, offline=offline, options=options
    )
    assert asked == [(options or Options(offline=offline), verify)]
    assert found.variables["QNN_SDK_ROOT"] == "/sdk"


def test_a_part_of_the_cache_is_shown_alone_if_it_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    provision(store)
    capsys.readouterr()
    shown = {}
    for words in ([], ["all"], ["store"], ["downloads", "store"]):
        assert main(["cache", "info", *words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["size_bytes"] == sum(one["size_bytes"] for one in told["parts"])
        shown[" ".join(words)] = [one["name"] for one in told["parts"]]
    assert shown[""] == shown["all"]
    assert {"store", "downloads"} < {*shown[""]}
    assert shown["store"] == ["store"]
    assert shown["downloads store"] == ["downloads", "store"]


def test_a_list_has_what_this_machine_trusted_as_its_pin(
    store: Store,
    manifests: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    unpin(manifests, tmp_path)
    told = []
    for act in (lambda: None, lambda: trust(store)):
        act()
        assert main(["list", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["artifacts"]
        told.append((row["pinned"], row["files_locked"], len(row["stored"])))
        assert main(["list"]) == 0
        assert f" {row['pinned'][:12] or 'no hash'} " in capsys.readouterr().out.splitlines()[1]
    digest = hashlib.sha256((tmp_path / "vendor.zip").read_bytes()).hexdigest()
    assert told == [("", False, 0), (digest, True, 1)]
    own = machine_lock_path(store, "sdk", "1.2.3")
    lock = read_lock(own)
    assert lock
    own.write_bytes(encode_record(msgspec.structs.replace(lock, files=())))
    assert main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert (row["pinned"], row["files_locked"]) == (digest, False)


def test_a_list_tells_of_a_lock_that_is_damaged(
    store: Store,
    manifests: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    path = project_lock_path("sdk", "1.2.3")
    path.parent.mkdir()
    path.write_text("{")
    assert main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert str(path) in row["problem"]
    assert row["files_locked"] is False
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "damaged lock" in said
    assert row["problem"].splitlines()[0] in said


def test_a_list_has_each_release_with_its_pin_and_what_is_stored_of_it(
    store: Store,
    manifests: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    row = manifests / "toolchains" / "sdk.toml"
    url = "https://vendor.invalid/x"
    newer = f"""
[[releases]]
version = "1.3.0"
source = "git"
url = "{url}"
commit = "{"a" * 40}"
"""
    row.write_text(row.read_text() + newer)
    parts = [provision(store, *names)[0] for names in ((), ("headers",))]
    assert main(["list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    digest = hashlib.sha256((tmp_path / "vendor.zip").read_bytes()).hexdigest()
    stored = {tuple(one["components"]): one for one in data["artifacts"][0].pop("stored")}
    assert {names: one["path"] for names, one in stored.items()} == {
        (): str(parts[0].root),
        ("headers",): str(parts[1].root),
    }
    assert all(one["bytes"] > 0 for one in stored.values())
    same = {
        "name": "sdk",
        "problem": "",
        "files_locked": False,
        "licence": "free",
        "components": ["base", "headers", "libraries"],
    }
    assert data["artifacts"] == [
        {**same, "version": "1.2.3", "default": True, "source": "archive", "pinned": digest},
        {
            **same,
            "version": "1.3.0",
            "default": False,
            "source": "git",
            "pinned": "a" * 40,
            "stored": [],
        },
    ]
    assert data["profiles"] == {"emulator": ["sdk"]}
    assert main(["list"]) == 0
    _, first, second, *_, profile = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["sdk", "1.2.3", "archive", digest[:12]]
    assert second.split() == ["sdk*", "1.3.0", "git", "a" * 12, "-"]  # not the default
    assert profile == "profile emulator: sdk"


@pytest.mark.parametrize(
    ("words", "locked"),
    [(["store"], ["sdk"]), (["downloads"], ["sdk"]), (["parity"], []), (["all", "--dry-run"], [])],
)
def test_what_a_fetch_may_write_is_cleaned_under_its_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch, words: list[str], locked: list[str]
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    provision(store)
    held: list[str] = []
    lock = Store.lock

    def note(own: Store, names: Sequence[str], progress: Progress) -> AbstractContextManager[None]:
        held.extend(names)
        return lock(own, names, progress)

    monkeypatch.setattr(Store, "lock", note)
    assert main(["cache", "clean", *words]) == 0
    assert held == locked
    assert bool(list(store.trees.iterdir())) == (words != ["store"])


@pytest.mark.parametrize("redistribute", [True, False])
def test_a_cache_holds_what_hashes_prove_and_its_readers_may_have(
    store: Store,
    manifests: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    redistribute: bool,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    row = manifests / "toolchains" / "sdk.toml"

    def ask_key(*words: str) -> dict[str, Any]:
        assert main(["cache-key", "sdk", "--json", *words]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    if redistribute:
        row.write_text(row.read_text().replace("[licence]", "[licence]\nredistribute = true"))
    pinned, private = ask_key(), ask_key("--private")
    assert private["paths"] == [str(store.downloads / "sdk.zip")]
    assert private["left_out"] == {}
    if redistribute:
        assert pinned == private
    else:
        assert (pinned["paths"], [*pinned["left_out"]]) == ([], ["sdk"])
    write_lock(store)
    locked = ask_key("--private")
    assert locked["paths"] == [str(store.trees / ask().pinned(store).key().directory)]
    assert len({one["key"] for one in (pinned, private, locked)}) == 3 - redistribute
    path = project_lock_path("sdk", "1.2.3")
    lock = read_lock(path)
    assert lock
    path.write_bytes(encode_record(msgspec.structs.replace(lock, files=())))
    assert ask_key("--private")["paths"] == private["paths"]
    path.unlink()
    unpin(manifests, tmp_path)
    assert ask_key("--private")["paths"] == []


def test_who_waited_finds_it_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process publishes between the look and the lock."""
    provision(store)
    looks = iter([None, store.find(ask().pinned(store).key())])
    monkeypatch.setattr(store, "find", lambda key: next(looks))
    assert not provision(store)[0].fetched


def test_a_repair_names_what_it_mended_and_proves_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = provision(store)[0].root
    (root / "lib/one.so").chmod(0o600)
    (root / "extra").touch()
    found, said = provision(store, verify=True)
    assert found.repaired == ("extra", "lib/one.so")
    assert "repaired extra, lib/one.so" in said
    assert not found.fetched
    assert provision(store, verify=True)[0].repaired == ()
    written = (root / "lib/one.so").stat()
    overwrite(root / "lib/one.so", b"x" * written.st_size)  # only its hash differs
    os.utime(root / "lib/one.so", ns=(written.st_atime_ns, written.st_mtime_ns))
    monkeypatch.setattr(provisions, "_fetch", lambda *words: None)
    with pytest.raises(IntegrityError, match="cannot be repaired"):
        provision(store, verify=True)


@pytest.mark.parametrize("count", [10, 12])
def test_a_repair_of_many_files_prints_the_first_and_returns_all(store: Store, count: int) -> None:
    root = provision(store)[0].root
    names = [f"extra-{number:02}" for number in range(count)]
    for name in names:
        (root / name).touch()
    found, said = provision(store, verify=True)
    assert found.repaired == tuple(names)
    *rows, last = [line for line in said.splitlines() if "ready" not in line and "extra" in line]
    assert [row.split()[2].rstrip(":") for row in rows] == names[:10]
    assert ("2 more like these" in said, " and 2 more" in last) == (count == 12, count == 12)
    assert ("more" in said) == (count == 12)


def test_a_tree_is_located_by_the_pin_that_this_machine_trusted(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    unpin(manifests, tmp_path)
    assert provisions.locate_artifact(ask(), store, Progress()) is None
    root = trust(store).root
    found = provisions.locate_artifact(ask(), store, Progress())
    assert found
    assert (found.root, found.fetched, found.adopted) == (root, False, False)


def test_the_key_of_what_has_no_pin_is_that_of_its_place(
    manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpin(manifests, tmp_path)
    request = ask()
    key = request.key()
    monkeypatch.setenv("TINY_ROOT", str(tmp_path))
    assert request.key() == key
    release = msgspec.structs.replace(request.release, url="https://h/other.zip")
    assert replace(request, release=release).key() != key


def test_a_fetch_is_described_by_places_sizes_and_pins(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask()
    large = msgspec.structs.replace(request.release, unpacked_bytes=3 << 20, size_bytes=2 << 20)
    lock = Lock("sdk", "1.2.3", "u", 2 << 20, "5" * 64, "today")
    files = msgspec.structs.replace(lock, files=(entry("a", "1"), entry("b", "2")))
    local_release = LocalRelease(version="1.2.3")
    monkeypatch.setenv("TINY_ROOT", "/opt/tiny")
    rows = (
        replace(request, release=large),
        replace(request, release=large).locked_by(lock),
        replace(request, release=large).locked_by(files),
        replace(request, release=local_release),
    )
    head, *lines = provisions.describe_fetch(rows, store)
    assert head.startswith("artifacts to fetch: 4; at most 9 MiB unpacked; ")
    assert [line for line in lines if not line.startswith("  ")] == [
        *["sdk 1.2.3: 2 MiB from " + (tmp_path / "vendor.zip").as_uri()] * 3,
        "sdk 1.2.3: a git checkout from /opt/tiny",
    ]
    assert [line for line in lines if line.startswith("  checked")] == [
        f"  checked: pinned, {request.release.pin[:16]}",
        "  checked: pinned, 5555555555555555",
        "  checked: SHA-256 of each of its 2 locked files",
        "  checked: no hash is published, so you have to trust the first download",
    ]
    newer = msgspec.structs.replace(request.release, version="1.3")
    words = [replace(ask("headers", "base"), release=newer), ask("headers"), ask()]
    assert [provisions._name(one) for one in words] == [
        *("sdk@1.3:headers,base", "sdk:headers", "sdk")
    ]


def test_a_tree_is_trusted_for_what_was_asked_alone(store: Store) -> None:
    for components in ((), ("libraries",), ("libraries", "headers")):
        provision(store, *components)
    for asked in ((), ("libraries",), ("libraries", "headers"), ("headers", "libraries")):
        request = ask(*asked).pinned(store)
        published = store.find(request.key())
        assert published is not None
        assert trusted_tree(request, published) is not None
        for other in ((), ("libraries",), ("libraries", "headers"), ("base",)):
            if sorted(other) != sorted(asked):
                assert trusted_tree(ask(*other), published) is None
        release = msgspec.structs.replace(request.release, sha256="0" * 64)
        assert trusted_tree(replace(request, release=release), published) is None
    whole = store.find(ask().key())
    assert whole
    record = whole.path / TREE_FILE
    tree = msgspec.structs.replace(parse_tree(record.read_bytes()), components=("gone",))
    record.write_bytes(encode_record(tree))
    assert trusted_tree(ask(), whole) is None


def test_a_tree_is_what_its_lock_says_whatever_its_own_record_says(store: Store) -> None:
    root = provision(store)[0].root
    write_lock(store)
    record = root.parent / "tree.json"
    tree = msgspec.json.decode(record.read_bytes(), type=Tree)
    overwrite(root / "lib/one.so", b"another")
    files = [
        msgspec.structs.replace(one, size=7, sha256=hashlib.sha256(b"another").hexdigest())
        if one.path == "lib/one.so"
        else one
        for one in tree.files
    ]
    record.write_bytes(encode_record(msgspec.structs.replace(tree, files=tuple(files))))
    assert provision(store, verify=True)[0].repaired == ("lib/one.so",)


def test_a_tree_without_its_record_is_made_anew(store: Store) -> None:
    root = provision(store)[0].root
    (root.parent / "tree.json").write_text("{")
    found, _ = provision(store, verify=True)
    assert (found.fetched, found.repaired) == (True, ("tree.json",))


def test_a_checkout_whose_record_names_nothing_of_git_is_not_trusted() -> None:
    toolchain = read_toolchain("executorch")
    request = ArtifactRequest(toolchain, toolchain.release())
    version, pin = request.release.version, request.release.pin
    rows = (("a", f"{GIT}/config"), (), True), (("a",), (), False)
    for names, parts, is_trusted in (*rows, (("a", f"{GIT}/config"), ("runner",), False)):
        tree = Tree("executorch", version, pin, parts, tuple(entry(name, "") for name in names))
        published: Any = SimpleNamespace(read_tree=lambda tree=tree: tree)
        assert (trusted_tree(request, published) is not None) == is_trusted


def test_files_are_hashed_again_only_for_whoever_asks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root,) = {provision(store)[0].root}
    (root / "extra").touch()
    (found,) = provision_artifacts([ask()], store, Progress())
    assert found.repaired == provisions.provision_pinned(ask(), store, Progress()).repaired == ()
    assert (root / "extra").exists()
    write_lock(store)
    provision(store)
    installed = shutil.copytree(root, root.parents[3] / "installed", symlinks=True)
    (installed / "lib/one.so").chmod(0o644)
    (installed / "lib/one.so").write_bytes(b"another")
    monkeypatch.setenv("TINY_ROOT", str(installed))
    adopted = provisions.adopt_artifact(ask(), store, Progress())
    assert adopted
    assert adopted.adopted
    with pytest.raises(UnfitError):
        provisions.adopt_artifact(ask(), store, Progress(), verify=True)


def test_a_tree_of_every_component_is_one_of_the_stored(store: Store) -> None:
    asked = [("base", "headers", "libraries"), ("headers",), ()]
    for components in asked:
        provision(store, *components)
    found = {one.components for one in stored_requests(store) if one.name == "sdk"}
    assert {frozenset(one) for one in found} == {frozenset(one) for one in asked}


def test_a_file_that_the_manifest_writes_begins_with_its_first_line(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    """A text of several lines begins on the line after its quotes."""
    describe(manifests, tmp_path / "vendor.zip", write="\\n\\n  x\\n")
    root = provision(store)[0].root
    assert (root / "note").read_bytes() == b"  x\n"
    assert stat.S_IMODE((root / "note").stat().st_mode) == 0o444


def test_a_key_holds_all_that_makes_the_tree(store: Store, manifests: Path, tmp_path: Path) -> None:
    keys = [ask().key().directory, ask("headers").key().directory]
    assert ask("headers", "libraries").key() == ask("libraries", "headers").key()
    describe(manifests, tmp_path / "vendor.zip", write="y")
    keys.append(ask().key().directory)
    path = manifests / "toolchains/sdk.toml"
    for old, new in (
        ('"lib/link.so"', '"lib/other.so"'),
        ('put = ""', 'put = "deep/"'),
        (r'sha256 = "\w{9}', 'sha256 = "000000000'),
    ):
        text = re.sub(old, new, path.read_text())
        path.write_text(text)
        keys.append(ask().key().directory)
    assert len(set(keys)) == len(keys)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "installed"
    for name, data in (FILES | {"note": b"x"}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        (root / name).chmod(0o600)
    (root / "lib/link.so").symlink_to("one.so")
    monkeypatch.setenv("TINY_ROOT", str(root))
    return root


def adopt(store: Store, version: str = "1.2.3") -> None:
    adopted = Provisioned("sdk", version, Path(os.environ["TINY_ROOT"]), adopted=True)
    check_adopted(ask().pinned(store), adopted)


def test_an_installation_may_have_more_and_other_modes(store: Store, installation: Path) -> None:
    write_lock(store)
    (installation / "lib/more.so").touch()
    adopt(store)
    (installation / "lib/two.so").write_bytes(b"x" * 300)
    for version in ("1.2.3", "1.2.3.99"):
        with pytest.raises(UnfitError, match=r"does not match the lock of sdk") as caught:
            adopt(store, version)
        assert caught.value.why.startswith("lib/two.so: changed bytes")
        assert "more)" not in caught.value.why
    assert provision(store)[0].adopted
    with pytest.raises(UnfitError, match="does not match the lock of"):
        provision(store, verify=True)
    adopt(store, "1.2.4")
    (installation / "lib/one.so").unlink()
    with pytest.raises(UnfitError) as caught:
        adopt(store)
    assert caught.value.why == "lib/one.so: is missing (and 1 more)"


def test_only_an_archive_of_the_pin_gives_files_to_another_tree(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    write_lock(store)
    whole = provision(store)[0].root
    shutil.rmtree(store.downloads)
    (tmp_path / "vendor.zip").rename(tmp_path / "away.zip")
    part = provision(store, "libraries")[0].root
    assert names_below(part) == ["lib/link.so", "lib/one.so", "lib/two.so"]
    assert (part / "lib/one.so").stat().st_ino == (whole / "lib/one.so").stat().st_ino
    shutil.rmtree(part.parent)
    (whole / "lib/two.so").chmod(0o644)
    (whole / "lib/two.so").write_bytes(b"x" * 300)
    with pytest.raises(DownloadError):
        provision(store, "libraries")
    (whole / "lib/two.so").write_bytes(FILES["lib/two.so"])
    tree = whole.parent / TREE_FILE
    other = msgspec.structs.replace(parse_tree(tree.read_bytes()), source_sha256="0" * 64)
    (whole / "lib/two.so").chmod(0o444)
    tree.write_bytes(msgspec.json.encode(other))
    with pytest.raises(DownloadError):
        provision(store, "libraries")


def test_a_link_to_a_file_of_another_tree_is_kept(store: Store, manifests: Path) -> None:
    row = manifests / "toolchains/sdk.toml"
    row.write_text(row.read_text().replace("\nheaders =", '\none = ["lib/one.so"]\nheaders ='))
    write_lock(store)
    provision(store, "one")
    root = provision(store, "libraries")[0].root
    assert names_below(root) == ["lib/link.so", "lib/one.so", "lib/two.so"]


def test_links_wait_for_the_files_that_another_tree_lacks(store: Store, tmp_path: Path) -> None:
    write_lock(store)
    provision(store, "headers")
    job = FillJob(ask("headers", "libraries").pinned(store), tmp_path / "root", store, Progress())
    job.root.mkdir()
    assert [entry.path for entry in archive.reuse_published(job)] == ["include/a.h"]
    assert names_below(job.root) == ["include/a.h"]


def test_parts_of_a_tarball_come_from_a_whole_tree_alone(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    """A tarball is read from its start, so that a tree with some of the files saves nothing."""
    vendor = tmp_path / "vendor.tar.gz"
    with tarfile.open(vendor, "w:gz") as packed:
        for name, data in FILES.items():
            member = tarfile.TarInfo(f"sdk/{name}")
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    describe(manifests, vendor)
    row = manifests / "toolchains/sdk.toml"
    row.write_text(row.read_text().replace('"sdk.zip"', '"sdk.tar.gz"'))
    write_lock(store)
    provision(store, "headers")
    job = FillJob(ask("headers", "libraries").pinned(store), tmp_path / "root", store, Progress())
    job.root.mkdir()
    assert archive.reuse_published(job) == []
    assert not list(job.root.iterdir())
    whole = provision(store)[0].root
    shutil.rmtree(store.downloads)
    vendor.unlink()
    part = provision(store, "libraries")[0].root
    assert names_below(part) == ["lib/link.so", "lib/one.so", "lib/two.so"]
    assert (part / "lib/one.so").stat().st_ino == (whole / "lib/one.so").stat().st_ino
    entries = archive.reuse_published(job)
    assert sorted(entry.path for entry in entries) == [entry.path for entry in job.locked]


def test_a_tree_of_another_archive_does_not_hide_the_one_that_fits(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(store)
    provision(store, "headers")
    provision(store)
    job = FillJob(ask("libraries").pinned(store), tmp_path / "root", store, Progress())
    other, whole = sorted(
        store.editions(job.request.key()), key=lambda one: (one.root / "sdk.yaml").exists()
    )
    tree = msgspec.structs.replace(other.read_tree(), source_sha256="0" * 64)
    (other.root.parent / TREE_FILE).write_bytes(msgspec.json.encode(tree))
    empty = [TreeEntry(f"lib/{name}/", mode=DIRECTORY_MODE) for name in ("empty", "other")]
    lock = job.request.lock
    assert lock
    lock = msgspec.structs.replace(lock, files=(*lock.files, *empty))
    job = replace(job, request=replace(job.request, lock=lock))
    for editions in ([other, whole], [whole, other]):
        monkeypatch.setattr(Store, "editions", lambda self, key, found=editions: found)
        job.root.mkdir()
        assert {entry.path for entry in archive.reuse_published(job)} == {
            *("lib/one.so", "lib/two.so", "lib/link.so", "lib/empty/", "lib/other/")
        }
        assert (job.root / "lib/empty").is_dir()
        assert (job.root / "lib/other").is_dir()
        shutil.rmtree(job.root)


@pytest.mark.parametrize("sha256", ["5" * 64, ""])
def test_a_tarball_without_a_hash_is_read_to_its_end(
    store: Store, tmp_path: Path, sha256: str
) -> None:
    """What is verified may be read up to the last wanted file."""
    packed = tmp_path / "sdk.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for name in ("sdk/a", "../outside"):
            archive.addfile(tarfile.TarInfo(name))
    rule = msgspec.structs.replace(ask().release.layout[0], take="sdk/a", put="a")
    fields = {"layout": [rule], "links": {}, "write": {}, "filename": packed.name}
    release = msgspec.structs.replace(ask().release, sha256=sha256, **fields)
    job = FillJob(replace(ask(), release=release), tmp_path / "root", store, Progress())
    job.root.mkdir()
    if sha256:
        assert [entry.path for entry in unpack_file(packed, job)] == ["a"]
    else:
        with pytest.raises(IntegrityError, match="outside"):
            unpack_file(packed, job)


def test_transfers_end_if_provisioning_is_interrupted_and_may_begin_again_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def end() -> Iterator[None]:
        seen.append("end")
        yield
        seen.append("over")

    def run(tasks: Sequence[Callable[[], Any]], most: int, abort: Callable[[], Any]) -> list[Any]:
        abort()
        seen.append("tasks")
        return [task() for task in tasks]

    monkeypatch.setattr(provisions, "end_transfers", end)
    monkeypatch.setattr(provisions, "run_tasks", run)
    (found,) = provision_artifacts([ask()], store, Progress())
    assert found.fetched
    assert seen == ["end", "tasks", "over"]


@pytest.mark.parametrize("compiled", [[], ["libatomic"], ["libatomic", "libother"]])
@pytest.mark.parametrize("missing", [False, True])
def test_what_has_to_be_compiled_is_made_first_and_bars_are_shown_of_one_artifact_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, compiled: list[str], missing: bool
) -> None:
    sdk, part = ask(), ask("headers")
    monkeypatch.delenv("QNN_CI_MANIFESTS")
    toolchain = read_toolchain("libatomic")
    built = ArtifactRequest(toolchain, toolchain.release())
    others = [
        replace(built, toolchain=msgspec.structs.replace(toolchain, name=name)) for name in compiled
    ]
    requests, several = [sdk, part, *others], bool(others)
    compiled = compiled if missing else []
    done: list[Any] = []

    def provide(request: ArtifactRequest, _: Store, progress: Progress, **more: bool) -> Any:
        done.append((request.name, request.components, more, progress))
        return f"{request.name} {request.components}"

    monkeypatch.setattr(provisions, "provision_pinned", provide)
    monkeypatch.setattr(provisions, "adopt_artifact", lambda *_, **__: None)
    monkeypatch.setattr(Store, "find", lambda *_: None if missing else "published")
    shown: list[Any] = []
    monkeypatch.setattr(provisions, "show_outline", lambda *given: shown.append(given))
    progress = Progress(io.StringIO())
    found: Any = provision_artifacts(requests, store, progress, verify=True)
    assert found == [f"{one.name} {one.components}" for one in requests]
    outlines = [([one.name for one in asked], *rest) for asked, *rest in shown]
    assert outlines == ([([one.name for one in requests], store, progress)] if missing else [])
    assert [name for name, _, more, _ in done if not more] == compiled
    assert [name for name, *_ in done][: len(compiled)] == compiled
    rest = done[len(compiled) :]
    assert sorted(one[:2] for one in rest) == sorted((one.name, one.components) for one in requests)
    assert [more for *_, more, _ in rest] == [{"verify": True}] * len(requests)
    for *_, own in rest:
        assert (own is progress) is not (several and missing)
        assert own.stream is progress.stream


def test_an_update_works_in_a_hidden_directory_beside_the_downloads(
    store: Store, manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc knows what a killed update leaves by this name."""
    roots: list[Path] = []

    def find(job: FillJob, version: str) -> Release:
        roots.append(job.root)
        assert job.root.is_dir()
        assert (job.store, version) == (store, "9")
        return job.request.release

    monkeypatch.setattr(archive, "find_release", find)
    assert plan_update(ask(), "9", store, Progress()) == []
    (root,) = roots
    assert root.parent == store.downloads
    assert root.name.startswith(".update-")
    assert not root.exists()


def test_an_installation_of_unknown_version_is_not_too_old(store: Store) -> None:
    request = replace(ask(), minimum="1.3")
    for version in ("unknown", "1.3", "2.0"):
        check_minimum(request, "TINY_ROOT", version)
    with pytest.raises(UnfitError):
        check_minimum(request, "TINY_ROOT", "1.2.9")


def test_parts_are_fetched_over_http_alone(store: Store) -> None:
    """A file on this machine is copied whole, without a word about parts."""
    write_lock(store)
    shutil.rmtree(store.home)
    found, said = provision(store, "libraries")
    assert found.fetched
    assert "parts" not in said
    assert (store.downloads / "sdk.zip").is_file()


@pytest.mark.parametrize(
    ("filename", "urls", "errors", "asked", "told"),
    [
        ("sdk.zip", ("file:///a", "http://b", "https://c"), (), ["http://b"], []),
        ("sdk.tar.gz", ("http://a", "https://b"), (), [], []),
        (
            "sdk.zip",
            ("http://a", "http://u:p@b/x?t=1", "http://c"),
            (PermanentError("no ranges"), IntegrityError("bad", why="a byte differs")),
            ["http://a", "http://u:p@b/x?t=1", "http://c"],
            ["http://a: no ranges", f"{redact_url('http://u:p@b/x?t=1')}: a byte differs"],
        ),
        (
            "sdk.zip",
            ("http://a", "http://b"),
            (CostlyError("too many requests"),),
            ["http://a"],
            ["http://a: too many requests"],
        ),
    ],
)
def test_parts_come_from_the_first_url_that_has_them_unless_they_cost_too_much(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    filename: str,
    urls: tuple[str, ...],
    errors: tuple[Exception, ...],
    asked: list[str],
    told: list[str],
) -> None:
    """What a failed attempt leaves is removed; what was there before it is not."""
    lock = make_lock(ask(), store, Progress())
    shutil.rmtree(store.downloads)
    release = msgspec.structs.replace(
        ask().release, url=urls[0], mirrors=urls[1:], filename=filename
    )
    request = replace(ask("libraries"), release=release).locked_by(lock)
    said = io.StringIO()
    job = FillJob(request, store.home / "root", store, Progress(said))
    job.root.mkdir(parents=True)
    (job.root / "before").touch()
    tried: list[str] = []

    def unpack(url: str, same: FillJob) -> Any:
        assert same is job
        assert names_below(job.root) == ["before"]
        tried.append(url)
        if len(tried) <= len(errors):
            (job.root / "left").touch()
            raise errors[len(tried) - 1]
        return ("an entry",)

    monkeypatch.setattr(archive, "_unpack_remote", unpack)
    found: Any = archive._fetch_parts(job)
    assert found == (("an entry",) if len(asked) > len(errors) else ())
    assert tried == asked
    assert [line.split(" in parts from ")[1] for line in said.getvalue().splitlines()] == told
    assert names_below(job.root) == ["before"]
    tried.clear()
    whole = replace(job, request=replace(request, components=()))
    unlocked = replace(job, request=replace(request, lock=None))
    offline = replace(job, request=replace(request, options=Options(offline=True)))
    for other in (whole, unlocked, offline):
        assert archive._fetch_parts(other) == ()
    store.downloads.mkdir()
    (store.downloads / filename).touch()
    assert archive._fetch_parts(job) == ()
    assert tried == []


@pytest.mark.parametrize("release", ["archive", "tarball", "zig"])
def test_a_lock_has_each_kind_of_evidence(
    store: Store, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """And says of a tarball, or of what was built here, that no file has a checksum of its own."""
    for name in ("check_version", "check_machines", "prove_skels"):
        monkeypatch.setattr(consent, name, lambda *given, name=name: [f"{name} {len(given)}"])
    found = ask().release
    if release == "tarball":
        found = msgspec.structs.replace(found, filename="sdk.tar.xz")
    entries = [*(TreeEntry(name, sha256="5" * 64) for name in "abc"), TreeEntry("d/")]
    if release == "zig":
        monkeypatch.delenv("QNN_CI_MANIFESTS")
        found = read_toolchain("libatomic").release()
    counted = consent._count_files(found, entries)
    assert counted.startswith("3 files")
    assert ("no checksums of single files" in counted) is (release == "tarball")
    assert ("built" in counted) is (release == "zig")
    assert ("each matches its checksum" in counted) is (release == "archive")
    if release == "archive":
        lock = make_lock(ask(), store, Progress())
        count, *others = lock.evidence
        assert count.startswith(f"{len(FILES) + 1} files unpacked")
        assert others == ["check_version 2", "check_machines 1", "prove_skels 2"]


def test_a_lock_is_recorded_with_all_that_identifies_the_archive_and_no_login(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    vendor = tmp_path / "vendor.zip"
    data = vendor.read_bytes()
    url = "https://me:secret@vendor.invalid/sdk.zip"
    changed = {"url": f"{url}?key=secret", "sha256": "", "mirrors": ("https://mirror.invalid/a",)}
    release = msgspec.structs.replace(ask().release, **changed)
    request = replace(ask(trust=True), release=release)
    take_archive(request, vendor, store)
    lock = make_lock(request, store, Progress())
    tree = parse_tree((provision(store)[0].root.parent / TREE_FILE).read_bytes())
    assert lock == Lock(
        "sdk",
        "1.2.3",
        "https://vendor.invalid/sdk.zip",
        len(data),
        hashlib.sha256(data).hexdigest(),
        "1970-01-02",
        lock.evidence,
        tree.files,
    )


def test_a_kept_archive_is_looked_at(store: Store, tmp_path: Path) -> None:
    for data, words in ((b"short", "it is 5 bytes long"), (None, "its SHA-256 is")):
        store.downloads.mkdir(parents=True, exist_ok=True)
        kept = store.downloads / "sdk.zip"
        good = (tmp_path / "vendor.zip").read_bytes()
        kept.write_bytes(data or bytes([good[0] ^ 1]) + good[1:])
        with pytest.raises(DownloadError, match="--offline"):
            provision_one(ask(offline=True), store, Progress())
        assert kept.is_file()
        said = provision(store)[1]
        assert f"the existing sdk.zip does not match its pin: {words}" in said
        shutil.rmtree(store.home)


def unpin(manifests: Path, tmp_path: Path) -> None:
    describe(manifests, tmp_path / "vendor.zip", pinned=False)


def trust(store: Store) -> Provisioned:
    return provision_one(ask(trust=True), store, Progress())


def test_a_first_use_is_recorded_and_binds(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpin(manifests, tmp_path)
    with pytest.raises(IntegrityError, match="no known SHA-256"):
        provision(store)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(IntegrityError, match="no known SHA-256"):
        trust(store)
    assert not list(store.downloads.iterdir())
    monkeypatch.delenv("CI")
    assert trust(store).fetched
    lock = read_lock(machine_lock_path(store, "sdk", "1.2.3"))
    assert lock is not None
    assert lock.sha256 == hashlib.sha256((tmp_path / "vendor.zip").read_bytes()).hexdigest()
    assert lock.evidence[1] == "sdk.yaml says 1.2.3"
    assert "files unpacked, each matches its checksum in the archive" in lock.evidence[0]
    shutil.rmtree(store.trees)
    shutil.rmtree(store.downloads)
    pack(tmp_path / "vendor.zip", OTHER)
    with pytest.raises(IntegrityError, match="does not match its pin"):
        trust(store)


def test_a_first_use_that_is_refused_is_forgotten(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    pack(tmp_path / "vendor.zip", FILES | {"sdk.yaml": b"version: 1.2.2\n"})
    unpin(manifests, tmp_path)
    with pytest.raises(IntegrityError, match="contradicts its manifest"):
        trust(store)
    assert not (store.downloads / "sdk.zip").exists()
    assert not machine_lock_path(store, "sdk", "1.2.3").exists()
    describe(manifests, tmp_path / "vendor.zip")
    with pytest.raises(IntegrityError, match="contradicts its manifest"):
        make_lock(ask(), store, Progress())
    assert (store.downloads / "sdk.zip").exists()  # its hash is pinned: it is the vendor's


@pytest.mark.parametrize(
    ("folder", "machine"),
    [
        ("lib/x86_64-linux-clang", 62),
        ("bin/x86_64-linux-clang", 62),
        ("qnn/lib/x86_64-linux-clang", 62),
        ("lib/aarch64-android", 183),
        ("qnn/bin/aarch64-android", 183),
        ("lib/hexagon-v75/unsigned", 164),
        ("qnn/lib/lpai-v6/unsigned", 164),
    ],
)
def test_each_directory_has_its_machine(tmp_path: Path, folder: str, machine: int) -> None:
    (tmp_path / folder).mkdir(parents=True)
    library = tmp_path / folder / "libA.so"
    library.write_bytes(made.make_library(machine, 9000))
    library.with_name("libB.so").write_bytes(library.read_bytes())
    library.with_name("libLink.so").symlink_to("libA.so")
    (found,) = check_machines(tmp_path)
    assert found.startswith("2 libraries are ")
    library.with_name("libB.so").unlink()
    library.with_name("libLink.so").unlink()
    library.write_bytes(made.make_library(243, 9000))
    with pytest.raises(IntegrityError, match="is for the wrong machine") as caught:
        check_machines(tmp_path)
    assert caught.value.fix
    library.write_bytes(b"no ELF")
    with pytest.raises(IntegrityError, match="is not a library"):
        check_machines(tmp_path)
    library.rename(tmp_path / "libA.so")
    assert check_machines(tmp_path) == []


def test_libraries_name_the_version_of_their_archive(store: Store, tmp_path: Path) -> None:
    release = msgspec.structs.replace(ask().release, version=made.VERSION)
    request = replace(ask(), release=release)
    root = tmp_path / "root"
    root.mkdir()
    (root / "sdk.yaml").write_text(f"version: {made.VERSION}175447\n")
    (root / "libA.so").write_bytes(made.make_library(62, 9000))
    (root / "libB.so").write_bytes(made.make_library(62, 9001))
    (root / "libLink.so").symlink_to("libA.so")
    (root / "libGenie.so").write_bytes(b"AISW_VERSION: 2.49.40\0")  # only a part of a build
    (root / "libQnnSystem.so").write_bytes(b"\x00260810104044\0")
    stated, found = check_version(request, root)
    assert stated == f"sdk.yaml says {made.VERSION}175447"
    assert found.startswith("2 libraries say 2.37.0.")
    (root / "libB.so").write_bytes(made.make_library(62, 9000, "2.36.0.250724"))
    with pytest.raises(IntegrityError, match="contradicts its manifest") as caught:
        check_version(request, root)
    assert caught.value.why.startswith("1 library is from 2.36.0")
    (root / "sdk.yaml").write_text("no version\n")
    (root / "libB.so").unlink()
    assert request.toolchain.adoption
    assert read_version(root, request.toolchain.adoption) == "unknown"
    nowhere = msgspec.structs.replace(request.toolchain.adoption, version_file="")
    assert read_version(root, nowhere) == "unknown"
    assert len(check_version(request, root)) == 1


def test_a_mirror_holds_files_sums_and_locks(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpin(manifests, tmp_path)
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    old = f"{'5e' * 32}  other.zip\n{'0' * 64}  sdk.zip\n"
    (mirror / "SHA256SUMS").write_text(old)
    before = os.umask(0o077)
    try:
        written = fill_mirror([ask(trust=True)], mirror, store, Progress())
    finally:
        os.umask(before)
    assert written == [mirror / "sdk.zip"]
    digest = hashlib.sha256((tmp_path / "vendor.zip").read_bytes()).hexdigest()
    sums = f"{'5e' * 32}  other.zip\n{digest}  sdk.zip\n"
    assert (mirror / "SHA256SUMS").read_text() == sums
    assert stat.S_IMODE((mirror / "sdk.zip").stat().st_mode) == 0o644
    lock = machine_lock_path(store, "sdk", "1.2.3")
    assert (mirror / lock.name).read_bytes() == lock.read_bytes()
    (tmp_path / "vendor.zip").unlink()
    path = manifests / "toolchains/sdk.toml"
    path.write_text(path.read_text().replace("url =", f'sha256 = "{digest}"\nurl ='))
    monkeypatch.setenv("QNN_CI_MIRROR", str(mirror))
    assert provision_one(ask(), Store(tmp_path / "elsewhere"), Progress()).fetched
    (mirror / "sdk.zip").chmod(0o600)
    fill_mirror([ask()], mirror, Store(tmp_path / "third"), Progress())
    assert stat.S_IMODE((mirror / "sdk.zip").stat().st_mode) == 0o644


def test_a_mirror_is_written_twice_and_holds_files_and_no_links(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / ".sdk.zip").write_text("of a killed command")
    for _ in range(2):
        fill_mirror([ask()], mirror, store, Progress())
        assert (mirror / "sdk.zip").read_bytes() == (tmp_path / "vendor.zip").read_bytes()
        assert sorted(path.name for path in mirror.iterdir()) == ["SHA256SUMS", "sdk.zip"]
    fill_mirror([ask()], store.downloads, store, Progress())
    assert sorted(path.name for path in store.downloads.iterdir()) == ["SHA256SUMS", "sdk.zip"]
    own = (store.downloads / "sdk.zip").rename(tmp_path / "own.zip")
    own.chmod(0o600)
    (store.downloads / "sdk.zip").symlink_to(own)
    fill_mirror([ask()], mirror, store, Progress())
    assert not (mirror / "sdk.zip").is_symlink()
    assert (mirror / "sdk.zip").read_bytes() == own.read_bytes()
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_a_tree_that_is_removed_while_it_is_verified_is_not_in_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(store)
    request = ask().pinned(store)
    published = store.find(request.key())
    assert published

    def remove(*_: object, **__: object) -> list[Difference]:
        shutil.rmtree(published.path)
        return []

    monkeypatch.setattr("provisioning.artifacts.provision.compare_tree", remove)
    row = verify._verify(request, argparse.Namespace(quick=False, repair=False), store, Progress())
    assert (row["published"], row["differences"]) == (False, [])
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    for words, code in (([], ExitCode.OK), (["sdk"], ExitCode.DOWNLOAD)):
        assert provision(store)[0].fetched
        assert main(["verify", *words]) == code
        assert not published.path.exists()


def test_sums_that_are_none_are_left_out(tmp_path: Path) -> None:
    row = f"{'5e' * 32}  other.zip\n"
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff\n\nshort  x\n" + row.encode())
    (tmp_path / "a").write_text("a")
    _write_sums(tmp_path, [tmp_path / "a"])
    sums = f"{hashlib.sha256(b'a').hexdigest()}  a\n{row}"
    assert (tmp_path / "SHA256SUMS").read_text() == sums


def test_a_mirror_without_files_has_no_sums(tmp_path: Path) -> None:
    _write_sums(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("a")
    _write_sums(tmp_path, [tmp_path / "a"])
    before = (tmp_path / "SHA256SUMS").read_text()
    assert before == f"{hashlib.sha256(b'a').hexdigest()}  a\n"
    _write_sums(tmp_path, [])
    assert (tmp_path / "SHA256SUMS").read_text() == before


def test_a_mirror_of_a_repository_has_no_sum(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "mirror/git/code.git"
    copy.mkdir(parents=True)
    source = SimpleNamespace(mirror=lambda *_: [copy])
    monkeypatch.setattr(fetch, "load_source", lambda _: source)
    assert fill_mirror([ask()], tmp_path / "mirror", store, Progress()) == [copy]
    assert [one.name for one in (tmp_path / "mirror").iterdir()] == ["git"]


def test_a_licence_is_accepted_before_anything_comes_or_goes_into_a_mirror(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    path = manifests / "toolchains/sdk.toml"
    path.write_text(path.read_text().replace('text = "none"', 'text = "none"\naccept = true'))
    request = replace(ask(), options=Options())
    said = io.StringIO()
    with pytest.raises(UnfitError, match="licence that you have not accepted"):
        provision_artifacts([request], store, Progress(said))
    assert "artifacts to fetch: 1; " in said.getvalue()
    assert "  to read: none\n" in said.getvalue()
    for plan in (
        lambda: plan_lock(request, store, Progress()),
        lambda: plan_update(request, "1.3", store, Progress()),
    ):
        with pytest.raises(UnfitError, match="licence that you have not accepted"):
            plan()
    with pytest.raises(UnfitError, match="licence that you have not accepted"):
        provision_one(request, store, Progress())
    with pytest.raises(UnfitError, match="licence that you have not accepted"):
        fill_mirror([request], tmp_path / "mirror", store, Progress())
    assert not list(store.downloads.iterdir())
    assert provision(store)[0].fetched
    (record,) = json.loads((store.home / "licences.json").read_text()).values()
    assert (record["licence"], record["how"]) == ("free", "--accept-licence")
    accepted = replace(request, components=("libraries",))
    assert provision_one(accepted, store, Progress()).fetched
    newer = msgspec.structs.replace(request.release, version="1.2.4")
    with pytest.raises(UnfitError, match="licence that you have not accepted"):
        provision_one(replace(request, release=newer), store, Progress())


@pytest.mark.parametrize("ci", ["", "true"])
def test_two_licences_are_asked_for_by_one_command(
    store: Store, manifests: Path, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    row = manifests / "toolchains" / "sdk.toml"
    row.write_text(row.read_text().replace("[licence]", "[licence]\naccept = true"))
    row.with_name("other.toml").write_text(row.read_text().replace('"sdk"', '"other"'))
    other = read_toolchain("other")
    requests = [
        replace(ask("headers"), options=Options()),
        ArtifactRequest(other, other.release()),
    ]
    with pytest.raises(UnfitError, match="needs your consent to 2") as caught:
        provision_artifacts(requests, store, Progress())
    assert caught.value.why.count("has a licence") == 2
    assert "`qnn-ci fetch sdk:headers other --accept-licence`" in caught.value.fix
    assert not store.trees.exists() or not list(store.trees.iterdir())


@pytest.mark.parametrize("ci", ["", "true"])
def test_two_first_uses_are_asked_for_by_one_command_except_in_ci(
    store: Store, manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    unpin(manifests, tmp_path)
    row = manifests / "toolchains" / "sdk.toml"
    row.with_name("other.toml").write_text(row.read_text().replace('"sdk"', '"other"'))
    other = read_toolchain("other")
    requests = [ask(), ArtifactRequest(other, other.release())]
    with pytest.raises(IntegrityError, match="needs your consent to 2") as caught:
        provision_artifacts(requests, store, Progress())
    assert ("`qnn-ci fetch sdk other --trust-first-use`" in caught.value.fix) == (not ci)
    assert ("--accept-licence" in caught.value.fix) is False


def test_nobody_else_waits_for_a_whole_tree(store: Store) -> None:
    """A second thread that wants the same tree gets the one that the first has made."""
    found: list[Provisioned] = []
    threads = [threading.Thread(target=lambda: found.append(provision(store)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.fetched for one in found) == [False, False, False, True]


def test_there_must_be_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = ask().release_as(ArchiveRelease).size_bytes
    monkeypatch.setattr(
        "provisioning.store.store.free_bytes", lambda place: (64 << 20) + packed - 1
    )
    with pytest.raises(StoreError, match=r"not enough space for sdk\.zip"):
        provision(store)
    assert not list(store.downloads.iterdir())
    unpacked = sum(map(len, FILES.values()))
    monkeypatch.setattr(
        "provisioning.store.store.free_bytes", lambda place: (64 << 20) + unpacked - 1
    )
    with pytest.raises(StoreError, match=r"not enough space for sdk 1\.2\.3 unpacked"):
        provision(store)
    monkeypatch.setattr("provisioning.store.store.free_bytes", lambda place: (64 << 20) + unpacked)
    assert provision(store)[0].fetched


def test_a_version_is_not_part_of_a_longer_number() -> None:
    words = {"1.2": "1.3"}
    same = ["1.2.5", "11.2", "0.1.2", "1.25", "a1.21"]
    assert [substitute(text, words) for text in same] == same
    assert substitute("v1.2/1.2-1.2.zip", words) == "v1.3/1.3-1.3.zip"
    assert substitute("a 1.2", {}) == "a 1.2"
    assert substitute("r26c", {"r26": "r27", "r26c": "r28"}) == "r28"
    assert substitute("1.2.0 1.2", {"1.2": "2", "1.2.0": "3"}) == "3 2"
    assert substitute("a1x2 1+0 110", {"1.2": "x", "1+0": "2"}) == "a1x2 2 110"


def raise_first(error: Exception) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise error

    return refuse


def test_a_copy_of_an_installation_keeps_what_may_be_run(
    store: Store,
    manifests: Path,
    installation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = manifests / "toolchains/sdk.toml"
    head = path.read_text().partition("[[releases]]")[0]
    rules = 'layout = [{ take = "**", put = "" }]'
    path.write_text(f'{head}[[releases]]\nsource = "local"\nversion = "1.2.3"\n{rules}\n')
    (installation / "lib/one.so").chmod(0o710)
    (installation / "sdk.yaml").chmod(0o777)
    (installation / "lib/away.so").symlink_to("../not there")
    found = provision(store)[0]
    root = found.root
    assert (found.adopted, found.fetched) == (False, True)
    assert stat.S_IMODE((root / "lib/one.so").stat().st_mode) & 0o555 == 0o554
    assert stat.S_IMODE((root / "lib/two.so").stat().st_mode) & 0o555 == 0o444
    assert stat.S_IMODE((root / "sdk.yaml").stat().st_mode) == 0o555
    assert names_below(root) == sorted([*FILES, "lib/link.so", "note"])
    (root / "lib/one.so").unlink()
    assert provision(store, verify=True)[0].repaired == ("lib/one.so",)
    path.write_text(
        path.read_text().replace('take = "**", put = ""', 'take = "lib/*", put = "so/"')
    )
    assert names_below(provision(store)[0].root) == ["so/link.so", "so/one.so", "so/two.so"]
    job = FillJob(ask(), tmp_path / "root", store, Progress(), only=frozenset({"so/one.so"}))
    job.root.mkdir()
    assert [entry.path for entry in local.fill(job)] == names_below(job.root) == ["so/one.so"]
    whole = replace(job, root=tmp_path / "whole", only=None)
    whole.root.mkdir()
    entries = [entry.path for entry in local.fill(whole)]
    assert entries == ["so/link.so", "so/one.so", "so/two.so"]
    with monkeypatch.context() as patch:
        refused = PermissionError(errno.EACCES, "Permission denied", str(installation / "a"))
        patch.setattr(local, "copy_installation", raise_first(refused))
        with pytest.raises(UnfitError, match="a cannot be read"):
            local.fill(job)
    assert local.mirror(job, tmp_path) == []
    assert local.find_release(job, "9") is job.request.release
    path.write_text(
        path.read_text().replace('take = "lib/*", put = "so/"', 'take = "**", put = ""')
    )
    os.mkfifo(installation / "pipe")
    (root / "lib/one.so").unlink()
    with pytest.raises(UnfitError, match="pipe is not a file") as caught:
        provision(store, verify=True)
    assert caught.value.fix
    monkeypatch.delenv("TINY_ROOT")
    with pytest.raises(
        UnfitError, match="must be copied from the directory in TINY_ROOT, which is not set"
    ):
        provision(store)


def spoil_outside(published: Path) -> dict[str, Callable[[], None]]:
    root = published / "sdk"
    return {
        "./": lambda: root.chmod(0o777),
        "../": lambda: published.chmod(0o775),
        "../tree.json": lambda: (published / "tree.json").chmod(0o666),
        "../../": lambda: published.parent.chmod(0o777),
    }


@pytest.mark.parametrize("place", ["./", "../", "../tree.json", "../../"])
def test_what_others_can_change_is_found_and_repaired(store: Store, place: str) -> None:
    found, _ = provision(store)
    published = Published(found.root.parent, "sdk")
    request = ask().pinned(store)
    assert find_differences(request, published) == []
    spoil_outside(found.root.parent)[place]()
    assert [one.path for one in find_differences(request, published)] == [place]
    assert provision(store, verify=True)[0].repaired == (place,)
    assert find_differences(request, published) == []


def test_files_of_another_user_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = provision(store)
    request, published = ask().pinned(store), Published(found.root.parent, "sdk")
    monkeypatch.setattr(Published, "owners", frozenset({os.geteuid() + 1}))
    spoiled = {one.path for one in find_differences(request, published)}
    assert {"./", "../", "sdk.yaml", "lib/"} <= spoiled


def test_a_store_that_is_open_to_others_may_hold_trees_of_others(store: Store) -> None:
    found, _ = provision(store)
    store.home.chmod(0o777)
    store.trees.chmod(0o777)
    said = io.StringIO()
    (again,) = provision_artifacts([ask()], store, Progress(said))
    assert (again.root, "can change what you run from it" in said.getvalue()) == (found.root, True)
    other = Store(store.home.with_name("other"))
    other.home.mkdir()
    other.home.chmod(0o777)
    said = io.StringIO()
    assert provisions.locate_artifact(ask(), other, Progress(said)) is None
    assert f"{other.home} has mode 777" in said.getvalue()
    published = Published(found.root.parent, "sdk")
    if os.geteuid() == 0:
        for path in (found.root.parent, *found.root.parent.rglob("*")):
            os.lchown(path, 4321, -1)
    assert find_differences(ask().pinned(store), published) == []
    found.root.chmod(0o777)
    assert find_differences(ask().pinned(store), published)[0].path == "./"


def test_directories_that_are_1500_deep_are_found_and_removed(store: Store) -> None:
    root = provision(store)[0].root
    for name in ("d", "e" * 200):
        here = os.open(root, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        assert provision(store, verify=True)[0].repaired[0].startswith(name[:1])
        assert provision(store, verify=True)[0].repaired == ()


# -- verbs ----------------------------------------------------------------------------------------

Tell = Callable[..., Any]


@pytest.fixture
def tell(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tell:
    """The data of a verb on ``store``, which ends with ``code``."""
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))

    def run(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that a store is locked for."""
    names: list[str] = []
    lock = Store.lock

    def note(own: Store, wanted: Sequence[str], progress: Progress) -> AbstractContextManager[None]:
        names.extend(wanted)
        return lock(own, wanted, progress)

    monkeypatch.setattr(Store, "lock", note)
    return names


def test_parts_of_a_cache_are_counted_once(store: Store, tell: Tell) -> None:
    provision(store)
    every, one = tell("cache", "info"), tell("cache", "info", "downloads")
    assert every["size_bytes"] == sum(row["size_bytes"] for row in every["parts"])
    assert [row["name"] for row in one["parts"]] == ["downloads"]
    (store.downloads / "other.zip").write_bytes(b"other")
    removed = {str(path): path.stat().st_size for path in store.downloads.iterdir()}
    told = tell("cache", "clean", "downloads", "downloads")
    assert {row["path"]: row["size_bytes"] for row in told["removed"]} == removed
    assert told["freed_bytes"] == sum(removed.values())


def test_a_cache_is_cleaned_of_the_parts_that_are_named(
    store: Store, tell: Tell, held: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    provision(store)
    own = {"path": str(store.downloads / "sdk.zip")}
    own["size_bytes"] = (store.downloads / "sdk.zip").stat().st_size  # type: ignore[assignment]
    parts = tell("cache", "info")["parts"]
    names = [row["name"] for row in parts]
    (row,) = [row for row in parts if row["name"] == "downloads"]
    assert (row["path"], row["size_bytes"]) == (str(store.downloads), own["size_bytes"])
    assert row["about"]
    (nox,) = [one for one in parts if one["name"] == "environments"]
    assert Path(nox["path"]).name == ".nox"
    assert tell("cache", "info", "store")["home"] == str(store.home)
    for words, fix in ((["clean"], "use all, or some of"), (["info", "store", "x"], ", or all")):
        assert main(["cache", *words]) == ExitCode.USAGE
        said = capsys.readouterr().err
        assert fix in said
        assert all(name in said for name in names)
    assert tell("cache", "clean", "downloads", "--dry-run") == {
        "freed_bytes": 0,
        "removed": [own],
        "kept": [],
        "dry_run": True,
    }
    held.clear()
    assert main(["cache", "clean", "downloads", "--dry-run"]) == ExitCode.OK
    assert capsys.readouterr().out == "would remove 0 MiB from downloads\n"
    assert (held, (store.downloads / "sdk.zip").is_file()) == ([], True)
    told = tell("cache", "clean", "downloads")
    assert told == {
        "freed_bytes": own["size_bytes"],
        "removed": [own],
        "kept": [],
        "dry_run": False,
    }
    assert held


def test_what_is_kept_of_a_cache_is_listed_with_the_reason(
    store: Store, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    provision(store)
    others = [store.trees / name for name in ("mine", "other")]
    for path_ in others:
        path_.write_text("kept")
    why = "qnn-ci did not create it"
    kept = tell("cache", "clean", "store", "--dry-run")["kept"]
    assert sorted(kept, key=str) == [{"path": str(one), "why": why} for one in others]
    capsys.readouterr()
    assert main(["cache", "clean", "store", "downloads"]) == ExitCode.OK
    *rows, last = capsys.readouterr().out.splitlines()
    assert sorted(rows) == [f"{one}  kept: {why}" for one in others]
    assert last == "removed 0 MiB from store, downloads"
    assert sorted(store.trees.iterdir()) == others


def test_cleaning_makes_no_store(store: Store, tell: Tell) -> None:
    for words in (["cache", "clean", "store", "downloads"], ["gc"], ["gc", "--downloads"]):
        assert tell(*words)["freed_bytes"] == 0
    assert not store.home.exists()


def test_a_cache_has_a_path_for_each_tree_and_a_key_for_each_pin(
    store: Store,
    manifests: Path,
    tmp_path: Path,
    tell: Tell,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = tell("cache-key", "sdk", "--private")
    describe(manifests, pack(tmp_path / "vendor.zip", OTHER))
    new = tell("cache-key", "sdk", "--private")
    assert old["paths"] == new["paths"]
    assert old["key"] != new["key"]
    write_lock(store)
    parts = ["sdk:headers", "sdk:libraries"]
    told = tell("cache-key", *parts, "--private")
    assert len(told["paths"]) == 2
    assert tell("cache-key", *reversed(parts), "--private") == told
    assert main(["cache-key", "sdk:headers", "--private", "--github"]) == 0
    rows = dict(line.split("=") for line in capsys.readouterr().out.splitlines())
    assert rows.keys() == {"key", "paths"}
    assert rows["paths"] in told["paths"]


def test_a_cache_holds_no_checkout_of_a_repository(
    store: Store, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNN_CI_MANIFESTS")
    told = tell("cache-key", "executorch", "--private")
    assert (told["paths"], [*told["left_out"]]) == ([], ["executorch"])


def test_an_environment_is_used_and_unsets_only_what_it_does_not_set(
    store: Store, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Path] = []
    monkeypatch.setattr(Store, "note_use", lambda own, root: used.append(root))
    told = tell("env", "emulator")
    assert used == [Path(one["root"]) for one in told["artifacts"]] != []
    assert told["variables"]["QNN_SDK_ROOT"] == str(used[0])
    assert told["unset"] == sorted(set(DROPPED_VARIABLES) - told["variables"].keys())
    assert told["profile"] == "emulator"
    assert [(one["name"], one["version"]) for one in told["artifacts"]] == [("sdk", "1.2.3")]
    assert {*DROPPED_VARIABLES} == {
        *("QNN_SDK_ROOT", "QAIRT_SDK_ROOT", "QAIRT_ROOT", "SNPE_ROOT", "AISW_SDK_ROOT"),
        *("QNN_SRC_DIR", "LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "DSP_LIBRARY_PATH"),
        "SNPE_TARGET_ARCH",
    }


@pytest.mark.parametrize(
    ("words", "profile", "settles", "overlay"),
    [
        (["emulator"], "emulator", False, False),
        (["emulator-sdk"], "emulator", False, False),
        (["emulator", "--sdk", "pinned"], "emulator-sdk", True, False),
        (["emulator", "--adaptor", "overlay"], "emulator", True, False),
        (["aot", "--sdk", "pinned"], "aot", False, True),
        (["aot"], "aot", False, False),
        (["android"], "android", False, False),
    ],
)
def test_an_environment_is_of_the_chosen_qnn_and_adaptor(
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    profile: str,
    settles: bool,
    overlay: bool,
) -> None:
    """The newest overlay that fits is in the environment of aot alone."""
    asked: list[Any] = []
    for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR"):
        monkeypatch.setenv(name, "")

    def provision_own(name: str, _: Progress, *, options: Options) -> Any:
        asked.append((name, options))
        return environment.Environment(name, (), {"X": "plain"})

    def settle(chosen: Any, found: Any, _: Progress) -> Any:
        asked.append((chosen.sdk, chosen.adaptor, found.profile))
        verdict = SimpleNamespace(require=lambda: asked.append("required"))
        return environment.Environment(found.profile, (), {"X": "settled"}), verdict

    monkeypatch.setattr(env, "provision_profile", provision_own)
    monkeypatch.setattr(examine, "settle_adaptor", settle)
    monkeypatch.setattr(env, "find_built", lambda _: Path("/overlay") if overlay else None)
    monkeypatch.setattr(env.choice, "lay_over", lambda *given: given)
    parser = argparse.ArgumentParser()
    env.add_arguments(parser)
    found: Any = env._compose(parser.parse_args([*words, "--offline"]), Progress())
    first, *rest = asked
    assert first == (profile, Options(offline=True))
    chosen = (os.environ["QNN_CI_SDK"] or "wheel", os.environ["QNN_CI_ADAPTOR"])
    assert rest == ([(*chosen, profile), "required"] if settles else [])
    if overlay:
        laid, place, base = found
        assert (laid.variables, place, base) == ({"X": "plain"}, Path("/overlay"), os.environ)
    else:
        assert found.variables == {"X": "settled" if settles else "plain"}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], Options()),
        (["--offline"], Options(offline=True)),
        (["--trust-first-use"], Options(trust_first_use=True)),
        (["--accept-licence"], Options(accept_licence=True)),
    ],
)
def test_each_option_of_a_fetch_is_one_of_its_own(words: list[str], options: Options) -> None:
    parser = argparse.ArgumentParser()
    fetch.add_arguments(parser)
    assert fetch.read_options(parser.parse_args(words)) == options


def test_a_fetch_looks_at_files_when_it_is_told_to(store: Store, tell: Tell) -> None:
    (provision(store)[0].root / "lib/one.so").unlink()
    for words, repaired in (([], []), (["--verify"], ["lib/one.so"])):
        (row,) = tell("fetch", "sdk", *words)["artifacts"]
        assert row["repaired"] == repaired


def test_a_fetch_holds_the_locks_of_an_artifact_and_its_file(tell: Tell, held: list[str]) -> None:
    """Two artifacts may come from one file."""
    root = Path(tell("fetch", "sdk")["artifacts"][0]["root"])
    assert held == ["sdk", "sdk.zip"]
    (root / "extra").touch()
    tell("fetch", "sdk", "--verify")
    assert held == ["sdk", "sdk.zip"] * 2
    tell("fetch", "sdk")
    assert held == ["sdk", "sdk.zip"] * 2


def test_what_programs_read_is_printed_as_it_is(
    store: Store,
    manifests: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home.with_name("##[home]")))
    with (manifests / "profiles.toml").open("a") as file:
        file.write('MARK = "##[a]"\n')
    for words, mark in (
        (["env"], "MARK='##[a]'"),
        (["env", "--github"], "MARK=##[a]"),
        (["path", "sdk"], "/##[home]/"),
        (["cache-key", "sdk", "--private", "--github"], "/##[home]/"),
    ):
        assert main(words) == 0
        assert mark in capsys.readouterr().out


def test_a_mirror_is_filled_under_the_locks_of_an_artifact_and_its_file(
    tell: Tell, held: list[str], tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "SHA256SUMS").write_text(f"{'5e' * 32}  zz.zip\n")
    assert tell("fetch", "sdk", "--to", str(mirror)) == {"mirror": [str(mirror / "sdk.zip")]}
    assert {"sdk", "sdk.zip"} <= {*held}
    rows = (mirror / "SHA256SUMS").read_text().splitlines()
    assert [row[66:] for row in rows] == ["sdk.zip", "zz.zip"]


def test_a_mirror_is_named_by_its_whole_path(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(store.home))
    monkeypatch.delenv("QNN_CI_CALLER_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["fetch", "sdk", "--to", "mirror"]) == 0
    assert f"QNN_CI_MIRROR={tmp_path / 'mirror'}\n" in capsys.readouterr().out


def test_a_mirror_asks_for_a_licence_before_trust_and_for_trust_once(
    store: Store, manifests: Path, tmp_path: Path
) -> None:
    unpin(manifests, tmp_path)
    path = manifests / "toolchains/sdk.toml"
    path.write_text(path.read_text().replace('text = "none"', 'text = "none"\naccept = true'))
    refused = replace(ask(), options=Options(trust_first_use=True))
    with pytest.raises(UnfitError, match="licence"):
        fill_mirror([refused], tmp_path / "mirror", store, Progress())
    assert not list(store.downloads.iterdir())
    assert not machine_lock_path(store, "sdk", "1.2.3").exists()
    for trusts in (True, False):
        written = fill_mirror([ask(trust=trusts)], tmp_path / "mirror", store, Progress())
        assert [one.name for one in written] == ["sdk.zip"]


def test_a_mirror_is_not_filled_with_what_a_lock_contradicts(store: Store, tmp_path: Path) -> None:
    lock = write_lock(store)
    other = msgspec.structs.replace(lock, sha256="0" * 64)
    project_lock_path("sdk", "1.2.3").write_bytes(encode_record(other))
    with pytest.raises(IntegrityError):
        fill_mirror([ask()], tmp_path / "mirror", store, Progress())
    assert not list((tmp_path / "mirror").iterdir())


def test_gc_keeps_what_profiles_name_by_any_lock_and_archives_until_they_are_asked_for(
    store: Store,
    manifests: Path,
    tmp_path: Path,
    tell: Tell,
    held: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    unpin(manifests, tmp_path)
    whole, part = trust(store).root.parent, provision(store, "headers")[0].root.parent
    held.clear()
    dry = tell("gc", "--dry-run")
    assert (dry["freed_bytes"], dry["dry_run"], held) == (0, True, [])
    assert [row["path"] for row in dry["garbage"]] == [str(part)]
    assert [row["path"] for row in dry["kept"]] == [str(whole)]
    (part / "sdk" / "more").write_bytes(bytes(3 << 20))
    assert main(["gc", "--dry-run"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first.startswith(f"{part}  3.0 MiB  "), last) == (True, "would free 3.0 MiB")
    (part / "sdk" / "more").unlink()
    done = tell("gc")
    assert (done["freed_bytes"], held) == (dry["garbage"][0]["size_bytes"], ["sdk"])
    archive = store.downloads / "sdk.zip"
    assert (whole.exists(), part.exists(), archive.exists()) == (True, False, True)
    assert [row["path"] for row in tell("gc", "--downloads")["garbage"]] == [str(archive)]
    assert (whole.exists(), archive.exists()) == (True, False)
    row = manifests / "toolchains/sdk.toml"
    release = row.read_text().partition("[[releases]]")[2]
    older = release.replace('"1.2.3"', '"1.2.2"').replace('"sdk.zip"', '"old.zip"')
    row.write_text(f"{row.read_text()}\n[[releases]]{older}")
    archives = [store.downloads / name for name in ("old.zip", "sdk.zip", "mine.zip")]
    for one in archives:
        one.touch()
    assert sorted(one["path"] for one in tell("gc", "--downloads")["garbage"]) == [
        str(one) for one in archives[:2]
    ]


def test_a_list_has_a_row_for_each_release(store: Store, manifests: Path, tell: Tell) -> None:
    provision(store)
    row = manifests / "toolchains" / "sdk.toml"
    release = row.read_text().partition("[[releases]]")[2]
    older = release.replace('"1.2.3"', '"1.2.2"').replace('"sdk.zip"', '"old.zip"')
    row.write_text(f"{row.read_text()}\n[[releases]]{older}")
    rows = {one["version"]: one for one in tell("list")["artifacts"]}
    assert {name: one["default"] for name, one in rows.items()} == {"1.2.3": True, "1.2.2": False}
    assert {name: len(one["stored"]) for name, one in rows.items()} == {"1.2.3": 1, "1.2.2": 0}


def test_locks_are_written_before_the_manifest_that_asks_for_them(manifests: Path) -> None:
    row, lock = manifests / "toolchains" / "sdk.toml", manifests / "locks" / "sdk.json"
    before = row.read_text()
    plans = {
        "sdk": [Change(row, before, f"{before}# new\n"), Change(lock, "", "{}\n")],
        "other": list[Change](),
    }
    lock.parent.write_text("in the way")
    with pytest.raises(StoreError):
        conclude(plans, write=True)
    assert row.read_text() == before
    lock.parent.unlink()
    for write in (False, True):
        data = conclude(plans, write=write, by_hand=["README.md:1: 1.2.3"]).data
        assert (data["changed"], data["written"]) == (["sdk"], write)
        assert data["by_hand"] == ["README.md:1: 1.2.3"]
        assert lock.exists() is write
        assert (row.read_text() != before) is write


@pytest.mark.parametrize(
    ("words", "carry"), [([], True), (["--baselines", "carry"], True), (["--baselines", "drop"], 0)]
)
def test_an_update_passes_on_what_it_is_told(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, words: list[str], carry: bool
) -> None:
    asked: list[tuple[Any, ...]] = []

    def plan(
        request: ArtifactRequest, version: str, *_: object, carry: bool = True
    ) -> list[Change]:
        asked.append((request.name, version, request.options, carry))
        return []

    monkeypatch.setattr(update, "plan_update", plan)
    assert tell("update", "sdk@1.3.0", "sdk", "--offline", *words)["changed"] == []
    options = Options(offline=True)
    assert asked == [("sdk", version, options, bool(carry)) for version in ("1.3.0", "")]


def test_an_update_of_several_lists_the_lines_of_each(
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
    manifests: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def plan(request: ArtifactRequest, *_: object, **__: object) -> list[Change]:
        return [Change(manifests / request.name, "", "new\n")]

    def read(name: str) -> Any:
        return msgspec.structs.replace(read_toolchain("sdk"), name=name)

    monkeypatch.setattr(update, "read_toolchain", read)
    monkeypatch.setattr(update, "plan_update", plan)
    monkeypatch.setattr(update, "list_by_hand", lambda plan, name, old: [f"{name} {old}"])
    data = tell("update", "one@1.3.0", "two@1.4.0", "--offline")
    assert data["changed"] == data["by_hand"] == ["one 1.2.3", "two 1.2.3"]
    capsys.readouterr()
    for name in ("qnn-runtime", "qnn-sdk", "android-ndk"):
        for words in ([], ["--write"]):
            assert main(["update", name, *words]) == ExitCode.OK
            hinted = "upgrade-report 1.2.3 NEW" in capsys.readouterr().err
            assert hinted is (name.startswith("qnn-") and not words)


def test_the_path_is_that_of_one_artifact(
    store: Store, tell: Tell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(provision(store)[0].root)
    assert tell("path", "sdk")["root"] == tell("path", "emulator")["root"] == root
    other = replace(ask(), toolchain=msgspec.structs.replace(ask().toolchain, name="other"))
    monkeypatch.setattr(path, "parse_selection", lambda *_: [ask(), other, other])
    assert main(["path", "emulator"]) == ExitCode.USAGE
    assert "pass one of sdk, other\n" in capsys.readouterr().err


def test_the_path_of_what_is_not_there_is_told_with_the_command_that_fetches_it(
    store: Store, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["path", "sdk:headers"]) == ExitCode.ENVIRONMENT
    said = capsys.readouterr().err
    assert f"it is not in the store {store.home}" in said
    assert "fetch sdk:headers`" in said


def test_the_lock_of_a_local_archive_is_made_without_the_network(
    store: Store,
    manifests: Path,
    tmp_path: Path,
    tell: Tell,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unpin(manifests, tmp_path)
    vendor = tmp_path / "vendor.zip"
    own = vendor.rename(tmp_path / "own.zip")
    assert main(["lock", "sdk", "--accept-licence"]) == ExitCode.DOWNLOAD
    capsys.readouterr()
    pinned = hashlib.sha256(own.read_bytes()).hexdigest()
    for write in (False, True):
        words = ["--accept-licence", *(["--write"] if write else [])]
        told = tell("lock", "sdk", "--from", str(own), *words)
        assert (told["changed"], told["written"], told["by_hand"]) == (["sdk 1.2.3"], write, [])
        assert f'"{pinned}"' in told["diff"]
        assert project_lock_path("sdk", "1.2.3").is_file() is write
    assert main(["lock", "sdk", "sdk:headers", "--from", str(own)]) == ExitCode.USAGE
    assert "one artifact only" in capsys.readouterr().err
    assert main(["lock", "sdk", "--from", str(own), "--accept-licence"]) == ExitCode.OK
    assert capsys.readouterr().out == "nothing changed\n"


def test_a_plan_is_shown_with_its_hint_and_the_lines_that_are_left(manifests: Path) -> None:
    plans = {"sdk": [Change(manifests / "a", "", "1\n"), Change(manifests / "b", "", "2\n")]}
    diff = "".join(one.diff() for one in plans["sdk"])
    assert conclude(plans, write=False).text == f"{diff}nothing was written; add --write\n"
    lines = conclude(plans, write=True, by_hand=["a:1: x", "b:2: y"]).text.splitlines()
    assert "\n".join(lines[:-3]) + "\n" == diff
    assert "by hand" in lines[-3]
    assert lines[-2:] == ["  a:1: x", "  b:2: y"]


PROPOSED = {
    "qnn-runtime": ("onnxruntime-qnn==2.5.0", "onnxruntime-qnn==NEW"),
    "qnn-sdk": ("2.37.0.250724", "NEW"),
}


@pytest.mark.parametrize("name", ["qnn-runtime", "qnn-sdk", "libcxx"])
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_both_versions_are_to_be_tried_before_programs_are_lowered_with_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    write: bool,
    is_new: bool,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    path = manifests_root() / "x"
    plan = [Change(path, "", "1\n")] if is_new else []
    monkeypatch.setattr(Change, "write", lambda _: None)
    monkeypatch.setattr(update, "plan_update", lambda *_, **__: plan)
    asked: list[Any] = []
    monkeypatch.setattr(update, "list_by_hand", lambda *given: asked.append(given) or [])
    words = ["--write"] if write else []
    assert main(["update", name, *words]) == ExitCode.OK
    said = capsys.readouterr().err
    toolchain = read_toolchain(name)
    assert asked == ([(plan, name, toolchain.default)] if is_new else [])
    is_told = is_new and not write and name in PROPOSED
    assert ("upgrade-report" in said) is is_told
    if is_told:
        assert "upgrade-report {} {}`".format(*PROPOSED[name]) in said


def test_only_wheels_have_a_date_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    asked: list[int] = []
    monkeypatch.setattr(
        update,
        "plan_update",
        lambda request, *_, **__: asked.append(request.options.cooldown_days) or [],
    )
    for name, words, code in (
        ("qnn-runtime", ["--cooldown", "7"], ExitCode.OK),
        ("qnn-runtime", [], ExitCode.OK),
        ("qnn-sdk", [], ExitCode.OK),
        ("qnn-sdk", ["--cooldown", "7"], ExitCode.USAGE),
    ):
        assert main(["update", name, *words]) == code
    assert asked == [7, 0, 0]
    assert "--cooldown does not work with qnn-sdk" in capsys.readouterr().err


def test_a_verification_tells_what_to_do_about_each_difference(
    store: Store, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    root = provision(store)[0].root
    (root / "sdk.yaml").chmod(0o600)
    for path_ in (root / "note", root / "sdk.yaml"):
        path_.chmod(0o644)
        path_.write_text("changed")
    (store.trees / "sdk-0123456789ab").mkdir()
    write = machine_lock_path(store, "sdk", "9")
    write.parent.mkdir(exist_ok=True)
    write.write_text("no lock")
    assert main(["verify"]) == ExitCode.DOWNLOAD
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("sdk 1.2.3: ")
    assert rows.index("  run `verify` again with --repair") == int(first.split()[2])
    left = rows[int(first.split()[2]) + 1 :]
    assert [row.split(": ")[0] for row in left if not row.startswith(" ")] == [
        "sdk-0123456789ab",
        "lock",
    ]
    assert not any("--repair" in row for row in left)  # it would not help
    assert any("remove the directory" in row for row in left)
    assert any("restore sdk-9.json" in row for row in left)
    assert main(["verify", "sdk", "--repair"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-1] == "  repaired"


def test_a_quick_verification_goes_by_times_and_a_repair_by_bytes(store: Store, tell: Tell) -> None:
    path = provision(store)[0].root / "lib/one.so"
    state = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"ONE" * 100)
    path.chmod(state.st_mode)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert tell("verify", "--quick")["artifacts"][0]["differences"] == []
    (row,) = tell("verify", "--quick", "--repair")["artifacts"]
    assert row["repaired"] == ["lib/one.so"]
    (path.parents[2] / TREE_FILE).write_text("{}")
    (row,) = tell("verify", "sdk", code=4)["artifacts"]
    assert (row["files"], row["size_bytes"], row["repaired"]) == (0, 0, [])
    assert [one["path"] for one in row["differences"]] == ["tree.json"]
    (row,) = tell("verify", "sdk", "--repair")["artifacts"]
    assert (row["repaired"], row["files"]) == (["tree.json"], len(FILES) + 2)
    (row,) = tell("verify")["artifacts"]
    sizes = [len(data) for data in FILES.values()]
    assert (row["files"], row["differences"]) == (len(FILES) + 2, [])
    assert row["size_bytes"] >= sum(sizes)


def test_a_verification_of_names_is_of_those_and_without_names_of_everything(
    store: Store, manifests: Path, tmp_path: Path, tell: Tell
) -> None:
    assert tell("verify")["artifacts"] == []
    assert tell("verify", "sdk", code=4)["artifacts"][0]["published"] is False
    unpin(manifests, tmp_path)
    root = trust(store).root
    part = provision(store, "headers")[0].root
    other = store.trees / "sdk-0123456789ab"
    other.mkdir()
    (row,) = tell("verify", "sdk")["artifacts"]
    assert (row["root"], row["published"]) == (str(root), True)
    rows = tell("verify", code=4)["artifacts"]
    assert {row["root"] for row in rows} == {str(root), str(part), str(other)}
    assert [row["root"] for row in rows if row["differences"]] == [str(other)]
