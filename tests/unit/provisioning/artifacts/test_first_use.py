"""First uses: what no hash speaks for is judged as an archive, retried, and sought elsewhere."""

from __future__ import annotations

import hashlib
import io
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from provisioning import files
from provisioning.archives import zipfiles
from provisioning.artifacts.lockfile import machine_lock_path, read_lock
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError, StoreError
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.provisioned import provision_one

NOISE = random.Random(7).randbytes
FILES = {"a.txt": b"a", "lib/one": NOISE(90_000), "lib/two": NOISE(90_000), "share/doc": b"doc"}
MOST_BYTES = 1_000_000
LIMITED = b'{"fault": "Rate limit quota violation"}'


def pack_zip(content: Mapping[str, bytes], prefix: str = "sdk/") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(prefix + name), data)
    return packed.getvalue()


def pack_tar(content: Mapping[str, bytes], prefix: str = "sdk/") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


PACKERS: dict[str, Callable[..., bytes]] = {"sdk.zip": pack_zip, "sdk.tar.gz": pack_tar}


@pytest.fixture(scope="module")
def only_server() -> Iterator[BadServer]:
    with bad.running() as server:
        yield server


@pytest.fixture(params=PACKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(only_server: BadServer) -> BadServer:
    for one in (only_server.files, only_server.faults, only_server.requests):
        one.clear()
    return only_server


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: BadServer, name: str) -> Store:
    """A store beside manifests of one archive at two hosts, of which no hash is known."""
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "2")
    monkeypatch.setenv("QNN_CI_BACKOFF_S", "0")
    for variable in ("CI", "GITHUB_ACTIONS", "QNN_CI_MIRROR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    release = f"""
source = "archive"
filename = "{name}"
url = "{server.url("first")}"
mirrors = ["{server.url("second")}"]
unpacked_bytes = {MOST_BYTES}
layout = [{{ take = "sdk/**", put = "" }}]
"""
    components = '[components]\nlibraries = ["lib/*"]'
    made.describe(tmp_path / "manifests", "sdk", release, more=components)
    server.files["first"] = server.files["second"] = PACKERS[name](FILES)
    return Store(tmp_path / "home")


def fetch(store: Store, *components: str) -> Path:
    toolchain = read_toolchain("sdk")
    options = Options(trust_first_use=True)
    request = ArtifactRequest(toolchain, toolchain.release(), components, options)
    return provision_one(request, store, Progress()).root


def read_tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def asked(server: BadServer) -> list[str]:
    """The files that were asked for whole, in order."""
    return [one.name for one in server.requests if not one.range.startswith("bytes=-")]


def test_a_small_body_that_is_no_archive_is_tried_again(store: Store, server: BadServer) -> None:
    server.files["first"] = LIMITED
    server.faults["second"] = [bad.whole(LIMITED, Content_Type="application/octet-stream")]
    assert read_tree(fetch(store)) == FILES
    assert asked(server) == ["first", "first", "second", "second"]
    lock = read_lock(machine_lock_path(store, "sdk", "1"))
    assert lock
    assert lock.sha256 == hashlib.sha256(server.files["second"]).hexdigest()


OTHERS: dict[str, Callable[[Callable[..., bytes]], bytes]] = {
    "nothing": lambda pack: b"",
    "a word": lambda pack: b"busy",
    "noise": lambda pack: NOISE(100_000),
    "an empty archive": lambda pack: pack({}),
    "an archive of something else": lambda pack: pack(FILES, "other/"),
    "a stub of the archive": lambda pack: pack({"lib/one": bytes(MOST_BYTES // 10_000 - 1)}),
    "an archive that is cut": lambda pack: pack(FILES)[:-3000],
    "an archive that leads out": lambda pack: pack({"../../x": b"x", **FILES}),
    "an archive that unpacks to too much": lambda pack: pack({"zeros": bytes(MOST_BYTES + 1)}),
}


def test_an_archive_may_have_a_ten_thousandth_of_what_is_allowed(
    store: Store, server: BadServer, name: str
) -> None:
    server.files["first"] = PACKERS[name]({"lib/one": bytes(MOST_BYTES // 10_000)})
    assert list(read_tree(fetch(store))) == ["lib/one"]
    assert "second" not in asked(server)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_host_that_has_something_else_is_left_for_the_next(
    store: Store, server: BadServer, name: str, kind: str
) -> None:
    server.files["first"] = OTHERS[kind](PACKERS[name])
    assert read_tree(fetch(store)) == FILES
    assert asked(server)[-1] == "second"
    server.files["second"] = server.files["first"]
    shutil.rmtree(store.home)
    with pytest.raises((DownloadError, IntegrityError)):
        fetch(store)
    assert list(store.downloads.iterdir()) == []
    assert list(store.pins.iterdir()) == []


def test_a_body_without_a_length_that_ends_early_is_not_the_archive(
    store: Store, server: BadServer
) -> None:
    server.faults["first"] = [bad.cut(0.9, sized=False)]
    assert read_tree(fetch(store)) == FILES
    assert "second" not in asked(server)


def test_the_rest_of_a_body_ends_where_the_server_said_that_it_does(
    store: Store, server: BadServer
) -> None:
    """A range without a length of its own: its total tells."""

    def serve_short(handler: bad.Handler, data: bytes) -> None:
        start, _ = handler.span(data) or (0, 0)
        where = f"bytes {start}-{len(data) - 1}/{len(data)}"
        handler.head(206, None, ETag=bad.etag(data), Content_Range=where)
        handler.body(data[start:-9000])
        handler.hang_up()

    server.faults["first"] = [bad.cut(0.5), serve_short]
    assert read_tree(fetch(store)) == FILES


def endless(handler: bad.Handler, data: bytes) -> None:
    """An archive's beginning, then noise without an end: 400 MB, to spare the disk of a test that
    fails."""
    handler.head(200, None)
    handler.body(data)
    for _ in range(4_000):
        handler.body(bytes(100_000))


def test_no_more_comes_than_the_archive_may_unpack_to(store: Store, server: BadServer) -> None:
    server.faults["first"] = [endless] * 9
    assert read_tree(fetch(store)) == FILES
    server.faults["first"] = [bad.whole(b"PK", length=MOST_BYTES * 900)] * 9
    shutil.rmtree(store.home)
    assert read_tree(fetch(store)) == FILES
    assert max(one.sent for one in server.requests) < 40 * MOST_BYTES


def test_no_more_comes_than_the_disk_has_room_for(
    store: Store, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=(64 << 20) + 100_000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: usage)
    for fault in (bad.serve, endless):
        server.faults["first"] = [fault] * 9
        with pytest.raises(StoreError):
            fetch(store)
        assert not list(store.downloads.glob(".*.part"))


def test_what_was_unpacked_to_be_judged_is_what_is_published(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    written: list[str] = []
    real = zipfiles.FileWriter.finish

    def count(writer: zipfiles.FileWriter, mode: int) -> object:
        written.append(writer.path)
        return real(writer, mode)

    monkeypatch.setattr(zipfiles.FileWriter, "finish", count)
    root = fetch(store, "libraries")
    assert read_tree(root) == {path: FILES[path] for path in ("lib/one", "lib/two")}
    assert sorted(path.name for path in root.iterdir()) == ["lib"]
    assert sorted(written) == sorted(FILES)
    written.clear()
    assert read_tree(fetch(store)) == FILES
    shutil.rmtree(store.home)
    written.clear()
    assert read_tree(fetch(store)) == FILES
    assert sorted(written) == sorted(FILES)
    assert [path.name for path in store.trees.iterdir() if path.name.startswith(".")] == []
