"""A pinned fetch whose first URL lists something else: the tree holds nothing of that listing."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioning.artifacts.consent import make_lock
from provisioning.artifacts.lockfile import project_lock_path
from provisioning.artifacts.provision import find_differences
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.progress import Progress
from provisioning.errors import StoreError
from provisioning.files import hash_file
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from provisioning.store.tree import encode_record
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.provisioned import provision_one

NOISE = random.Random(9).randbytes
FILES = {"a.txt": b"a", "lib/one": NOISE(9_000), "lib/two": NOISE(9_000), "bin/tool": NOISE(90_000)}


def pack(files: dict[str, bytes], size: int = 0) -> bytes:
    """A ZIP of stored members, with one more if that makes it ``size`` bytes long."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    data = packed.getvalue()
    if not size:
        return data
    name = "sdk/filler"
    left = size - len(data) - 30 - 46 - 2 * len(name)
    return pack({name: bytes(left), **files})


def list_nothing(size: int) -> bytes:
    return bytes(size - 22) + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)


def claim_much(size: int) -> bytes:
    """A member of which the directory says that it has a gigabyte."""
    data = bytearray(pack({"sdk/a.txt": b"a"}, size))
    at = data.rfind(b"PK\1\2")
    data[at + 24 : at + 28] = struct.pack("<I", 999_000_000)
    return bytes(data)


LISTINGS: dict[str, Callable[[int], bytes]] = {
    "more directories": lambda size: pack({"sdk/x/y/z/": b"", "sdk/lib/w/v/": b""}, size),
    "more files": lambda size: pack({"sdk/x/y": b"1", "sdk/lib/z": b"2"}, size),
    "a file in a directory's place": lambda size: pack({"sdk/lib": b"1", "sdk/bin": b"2"}, size),
    "a directory in a file's place": lambda size: pack(
        {"sdk/a.txt/": b"", "sdk/lib/one/": b""}, size
    ),
    "two members for one place": lambda size: pack({"sdk/a.txt": b"1", "old/a.txt": b"2"}, size),
    "nothing": list_nothing,
    "more than there is room for": claim_much,
    "names that a disk refuses": lambda size: pack(
        {f"sdk/{'d' * 250}/" * 1 + "e" * 250: b""}, size
    ),
    "the same names with other bytes": lambda size: pack(
        {f"sdk/{name}": bytes(len(data)) for name, data in FILES.items()}
    ),
    "less": lambda size: pack({f"sdk/{name}": FILES[name] for name in ("a.txt", "lib/one")}, size),
}


@pytest.fixture(scope="module")
def only_server() -> Iterator[BadServer]:
    with bad.running() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_server: BadServer) -> Store:
    only_server.files = {"good.zip": pack({f"sdk/{name}": data for name, data in FILES.items()})}
    (tmp_path / "good.zip").write_bytes(only_server.files["good.zip"])
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "1")
    for name in ("CI", "QNN_CI_MIRROR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    release = f"""
source = "archive"
filename = "sdk.zip"
url = "{only_server.url("bad.zip")}"
mirrors = ["{only_server.url("good.zip")}"]
size_bytes = {len(only_server.files["good.zip"])}
sha256 = "{hash_file(tmp_path / "good.zip")}"
layout = [{{ take = "sdk/**", put = "" }}, {{ take = "old/**", put = "" }}]
"""
    components = '[components]\nlibraries = ["lib/*"]'
    made.describe(tmp_path / "manifests", "sdk", release, more=components)
    return Store(tmp_path / "home")


def ask(*components: str) -> ArtifactRequest:
    toolchain = read_toolchain("sdk")
    return ArtifactRequest(toolchain, toolchain.release(), components)


def check_tree(store: Store, *components: str) -> None:
    """What a fetch leaves is the archive's tree, to its last directory."""
    request = ask(*components).pinned(store)
    root = provision_one(request, store, Progress()).root
    wanted = {name for name in FILES if not components or name.startswith("lib/")}
    found = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    assert found == wanted | {name.partition("/")[0] for name in wanted if "/" in name}
    assert all((root / name).read_bytes() == FILES[name] for name in wanted)
    published = store.find(request.key())
    assert published
    assert find_differences(request, published) == []
    assert sorted(path.name for path in published.path.iterdir()) == ["sdk", "tree.json"]


@pytest.mark.parametrize("kind", LISTINGS)
def test_nothing_of_a_bad_listing_is_in_the_tree(
    store: Store, only_server: BadServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = only_server.files["good.zip"]
    only_server.files["bad.zip"] = LISTINGS[kind](len(good))
    assert len(only_server.files["bad.zip"]) == len(good)
    if "room" in kind:
        monkeypatch.setattr(Store, "check_space", refuse_gigabytes)
    check_tree(store)


def refuse_gigabytes(store: Store, needed_bytes: int, what: str) -> None:
    if needed_bytes > 500_000_000:
        raise StoreError(what)


@pytest.mark.parametrize("kind", LISTINGS)
def test_nothing_of_a_bad_listing_is_in_a_part_of_the_tree(
    store: Store, only_server: BadServer, kind: str
) -> None:
    good = only_server.files["good.zip"]
    only_server.files["bad.zip"] = good
    path = project_lock_path("sdk", "1")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_record(make_lock(ask(), store, Progress())))
    (store.downloads / "sdk.zip").unlink()
    only_server.files["bad.zip"] = LISTINGS[kind](len(good))
    check_tree(store, "libraries")
