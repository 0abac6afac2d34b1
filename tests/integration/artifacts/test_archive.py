"""Archives over HTTP: what came is proven before it counts, whole or in parts, pinned or not."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import struct
from collections.abc import Callable, Mapping

import msgspec
import pytest

from provisioning import files
from provisioning.archives.zipfiles import TAIL_BYTES
from provisioning.artifacts.lockfile import machine_lock_path, project_lock_path, read_lock
from provisioning.artifacts.pins import take_archive
from provisioning.artifacts.provision import find_differences
from provisioning.artifacts.sources import aar, archive
from provisioning.errors import DownloadError, IntegrityError, StoreError, UsageError
from provisioning.manifest.releases import ArchiveRelease, WheelRelease
from provisioning.store.store import Store
from tests.build.artifacts import Workspace, ask, of, pack_tar, pack_zip, read_tree, run_verb, write
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer

NOISE = random.Random(3).randbytes
FILES = {"a.txt": b"a", "lib/one": NOISE(90_000), "lib/two": NOISE(90_000), "lib/z": NOISE(10)}
LIBRARIES = {name: data for name, data in FILES.items() if name.startswith("lib/")}
COMPONENTS = '[components]\nlibraries = ["lib/*"]\none = ["lib/one"]'
LAYOUT = '{ take = "sdk/**", put = "" }, { take = "old/**", put = "" }'
MOST_BYTES = 1_000_000


def serve(sdk: Workspace, server: BadServer, *names: str, **how: object) -> None:
    """Describe the archive ``good`` at these names of the server."""
    server.files["good"] = server.files.get("good", pack_zip(FILES))
    sdk.archive.write_bytes(server.files["good"])
    urls = [server.url(name) for name in names]
    how = {"added": "", "tables": COMPONENTS, "layout": LAYOUT, **how}
    sdk.describe(*urls, **how)  # type: ignore[arg-type]


def lock(sdk: Workspace, server: BadServer) -> None:
    """Write the project's lock, and forget what was fetched for it."""
    sdk.lock()
    shutil.rmtree(sdk.store.home)
    server.requests.clear()


def asked(server: BadServer) -> list[str]:
    """The files that were asked for whole, in order."""
    return [request.name for request in server.requests if not request.range]


def check_tree(sdk: Workspace, expected_files: Mapping[str, bytes], *components: str) -> None:
    """What a fetch leaves is the wanted part of the archive's tree, to its last directory."""
    request = sdk.ask(*components).pinned(sdk.store)
    root = sdk.provision(*components).root
    assert read_tree(root) == expected_files
    directories = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}
    assert directories == {name.partition("/")[0] for name in expected_files if "/" in name}
    published = sdk.store.find(request.key())
    assert published
    assert find_differences(request, published) == []
    assert sorted(path.name for path in published.path.iterdir()) == ["sdk", "tree.json"]


# -- pinned archives ------------------------------------------------------------------------------


def test_whole_archive_is_requested_once(sdk: Workspace, server: BadServer) -> None:
    serve(sdk, server, "good")
    check_tree(sdk, FILES)
    assert [(request.name, request.range) for request in server.requests] == [("good", "")]


def test_locked_parts_are_fetched_alone_and_never_offline(
    sdk: Workspace, server: BadServer
) -> None:
    serve(sdk, server, "good")
    lock(sdk, server)
    with pytest.raises(DownloadError, match="--offline"):
        sdk.provision("one", offline=True)
    assert server.requests == []
    check_tree(sdk, {"lib/one": FILES["lib/one"]}, "one")
    assert sum(request.sent for request in server.requests) < len(server.files["good"])
    check_tree(sdk, LIBRARIES, "libraries")
    check_tree(sdk, FILES)  # the rest comes in parts, too
    assert asked(server) == []
    assert not list(sdk.store.downloads.iterdir())


def list_nothing(size: int) -> bytes:
    return bytes(size - 22) + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)


def pad(files: Mapping[str, bytes], size: int, links: Mapping[str, str] | None = None) -> bytes:
    """A ZIP of these members, with one more that makes it ``size`` bytes long."""
    left = size - len(pack_zip(files, "", links)) - 30 - 46 - 2 * len("sdk/filler")
    return pack_zip({"sdk/filler": bytes(left), **files}, "", links)


def claim_much(size: int) -> bytes:
    """The directory says that a member has a gigabyte."""
    data = bytearray(pad({"sdk/a.txt": b"a"}, size))
    at = data.rfind(b"PK\1\2")
    data[at + 24 : at + 28] = struct.pack("<I", 999_000_000)
    return bytes(data)


def add_link(size: int) -> bytes:
    """The wanted files with one link more, and a comment that makes the archive long enough."""
    data = pack_zip(LIBRARIES, links={"lib/l": "z"})
    left = size - len(data)
    return data[:-2] + struct.pack("<H", left) + bytes(left)


# What a host has that is as long as the pinned archive, or claims to be.
LISTINGS: Mapping[str, Callable[[int], bytes]] = {
    "more files": lambda size: pad({"sdk/x/y": b"1", "sdk/lib/y": b"2"}, size),
    "a file instead of a directory": lambda size: pad({"sdk/lib": b"1"}, size),
    "a directory instead of a file": lambda size: pad({"sdk/lib/one/": b""}, size),
    "more than there is room for": claim_much,
    "the same names with other bytes": lambda size: pack_zip(
        {name: bytes(len(data)) for name, data in FILES.items()}
    ),
    "another link": add_link,
    "another size": lambda size: pack_zip(
        FILES | {"a.txt": b"aa", "lib/z": FILES["lib/z"][1:]}
    ),
    "noise": NOISE,
}  # fmt: skip


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("kind", LISTINGS)
def test_no_file_of_a_misbehaving_host_gets_into_the_tree(
    sdk: Workspace, server: BadServer, monkeypatch: pytest.MonkeyPatch, kind: str, is_part: bool
) -> None:
    check_space = Store.check_space

    def refuse_gigabytes(store: Store, needed_bytes: int, purpose: str) -> None:
        if needed_bytes > 500_000_000:
            raise StoreError(purpose)
        check_space(store, needed_bytes, purpose)

    serve(sdk, server, "good")
    lock(sdk, server)
    if not is_part:
        project_lock_path("sdk", "1.2.3").unlink()
    server.files["bad"] = LISTINGS[kind](len(server.files["good"]))
    serve(sdk, server, "bad", "good")
    monkeypatch.setattr(Store, "check_space", refuse_gigabytes)
    check_tree(sdk, LIBRARIES, "libraries")
    assert {request.name for request in server.requests} == {"bad", "good"}
    assert (asked(server) == []) is is_part
    if (kind, is_part) == ("another size", True):  # only the directory of the other is read
        assert [request.range for request in server.requests if request.name == "bad"] == [
            f"bytes=-{TAIL_BYTES}"
        ]


def test_parts_that_no_host_has_come_with_the_whole_archive(
    sdk: Workspace, server: BadServer
) -> None:
    serve(sdk, server, "good")
    lock(sdk, server)
    server.usual = bad.whole()  # no ranges
    try:
        check_tree(sdk, LIBRARIES, "libraries")
    finally:
        server.usual = bad.serve
    assert "cannot be fetched in parts from" in sdk.printed()
    assert (sdk.store.downloads / "sdk.zip").is_file()
    check_tree(sdk, {"lib/one": FILES["lib/one"]}, "one")  # from the archive that is there
    assert all("parts" not in line for line in sdk.printed().splitlines())


def test_mirror_of_the_user_is_asked_first(sdk: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    release = sdk.ask().release_as(ArchiveRelease)
    release = msgspec.structs.replace(release, url="u", mirrors=("m",))
    monkeypatch.setenv("QNN_CI_MIRROR", "https://mirror/m")
    assert archive.archive_urls(release) == ["https://mirror/m/sdk.zip", "u", "m"]
    monkeypatch.delenv("QNN_CI_MIRROR")
    assert archive.archive_urls(msgspec.structs.replace(release, url="")) == ["m"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"layout": '{ take = "sdk/a.txt", put = "z" }, { take = "sdk/lib/*", put = "z/" }'},
        {"added": 'write = { "lib/one" = "x" }'},
    ],
)
@pytest.mark.parametrize("name", ["sdk.zip", "sdk.tar.gz"])
def test_clashing_files_of_a_manifest_are_an_integrity_error_not_one_of_the_disk(
    sdk: Workspace, overrides: dict[str, str], name: str
) -> None:
    sdk.archive.write_bytes((pack_tar if "tar" in name else pack_zip)(FILES))
    sdk.describe(**{"added": "", **overrides, "filename": name})  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match=name):
        sdk.provision()


@pytest.mark.parametrize("name", ["sdk.zip", "sdk.tar.gz"])
@pytest.mark.parametrize("is_pinned", [True, False])
def test_archive_is_unpacked_within_the_limits_of_its_release(
    sdk: Workspace, name: str, is_pinned: bool
) -> None:
    pack = pack_tar if "tar" in name else pack_zip
    for content in ({"zeros": bytes(MOST_BYTES + 1)}, FILES | {"A.txt": b"A"}):
        sdk.archive.write_bytes(pack(content))
        sdk.describe(added="", filename=name, pinned=is_pinned)
        with pytest.raises((IntegrityError, DownloadError)):
            sdk.provision(trust=True)
    sdk.describe(added="case_collisions = true", filename=name, pinned=is_pinned)
    assert sdk.provision(trust=True).fetched


def test_link_out_of_a_component_is_skipped_in_whole_and_partial_downloads(
    sdk: Workspace, server: BadServer
) -> None:
    server.files["good"] = pack_zip(FILES, links={"lib/out": "../a.txt", "lib/also": "../a.txt"})
    serve(sdk, server, "good")
    check_tree(sdk, LIBRARIES, "libraries")  # of the whole
    assert ": skipped links to files that are not wanted: lib/also, lib/out\n" in sdk.printed()
    lock(sdk, server)
    check_tree(sdk, LIBRARIES, "libraries")  # in parts
    assert asked(server) == []
    assert (sdk.provision().root / "lib/out").read_bytes() == b"a"
    shutil.rmtree(sdk.store.trees / sdk.ask("libraries").pinned(sdk.store).key().directory)
    check_tree(sdk, LIBRARIES, "libraries")  # of the other tree


# -- first uses -----------------------------------------------------------------------------------

PACKERS: Mapping[str, Callable[..., bytes]] = {"sdk.zip": pack_zip, "sdk.tar.gz": pack_tar}
LIMITED = b'{"fault": "Rate limit quota violation"}'
OTHERS: Mapping[str, Callable[[Callable[..., bytes]], bytes]] = {
    "nothing": lambda pack: b"",
    "noise": lambda pack: NOISE(100_000),
    "a stub of the archive": lambda pack: pack({"lib/one": bytes(MOST_BYTES // 10_000 - 1)}),
    "an archive that is cut": lambda pack: pack(FILES)[:-3000],
    "an archive that leads out": lambda pack: pack({"../../x": b"x", **FILES}),
    "an archive that unpacks to too much": lambda pack: pack({"zeros": bytes(MOST_BYTES + 1)}),
}


@pytest.fixture(params=PACKERS)
def name(
    request: pytest.FixtureRequest,
    sdk: Workspace,
    server: BadServer,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """An archive without a hash at two hosts."""
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "2")
    name = str(request.param)
    server.files["good"] = server.files["first"] = server.files["second"] = PACKERS[name](FILES)
    serve(sdk, server, "first", "second", pinned=False, filename=name)
    return name


def test_small_body_that_is_no_archive_is_tried_again(
    sdk: Workspace, server: BadServer, name: str
) -> None:
    server.files["first"] = LIMITED
    server.faults["second"] = [bad.whole(LIMITED, Content_Type="application/octet-stream")]
    assert read_tree(sdk.provision(trust=True).root) == FILES
    assert asked(server) == ["first", "first", "second", "second"]
    recorded = read_lock(machine_lock_path(sdk.store, "sdk", "1.2.3"))
    assert recorded
    assert recorded.sha256 == hashlib.sha256(server.files["second"]).hexdigest()
    assert ("no checksums of single files" in recorded.evidence[0]) == ("tar" in name)


@pytest.mark.parametrize("kind", OTHERS)
def test_host_that_serves_another_file_is_skipped_for_the_next_host(
    sdk: Workspace, server: BadServer, name: str, kind: str
) -> None:
    server.files["first"] = OTHERS[kind](PACKERS[name])
    assert read_tree(sdk.provision(trust=True).root) == FILES
    assert asked(server)[-1] == "second"
    server.files["second"] = server.files["first"]
    shutil.rmtree(sdk.store.home)
    with pytest.raises((DownloadError, IntegrityError)):
        sdk.provision(trust=True)
    assert [*sdk.store.downloads.iterdir(), *sdk.store.pins.iterdir()] == []


def endless(handler: bad.Handler, data: bytes) -> None:
    """An archive's beginning, then noise: 400 MB, to spare the disk of a test that fails."""
    handler.head(200, None)
    handler.body(data)
    for _ in range(4_000):
        handler.body(bytes(100_000))


def test_download_reads_no_more_than_the_archive_or_the_disk_may_hold(
    sdk: Workspace, server: BadServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault in (endless, bad.whole(b"PK", length=MOST_BYTES * 900)):
        server.faults["first"] = [fault] * 9
        assert read_tree(sdk.provision(trust=True).root) == FILES
        shutil.rmtree(sdk.store.home)
    assert max(request.sent for request in server.requests) < 40 * MOST_BYTES
    usage = shutil.disk_usage("/")._replace(free=(64 << 20) + 100_000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: usage)
    for fault in (bad.serve, endless):  # nor than the disk has room for
        server.faults["first"] = [fault] * 9
        with pytest.raises(StoreError):
            sdk.provision(trust=True)
        assert not list(sdk.store.downloads.glob(".*.part"))


# -- archives that the user has, other versions, AARs ---------------------------------------------


def test_local_archive_is_taken_if_it_is_the_pinned_one(sdk: Workspace) -> None:
    file, download = (
        write(sdk.root / "mine", sdk.archive.read_bytes()),
        sdk.store.downloads / "sdk.zip",
    )
    before = os.umask(0o077)
    try:
        take_archive(sdk.ask(), file, sdk.store)
    finally:
        os.umask(before)
    assert (download.stat().st_mode & 0o777, download.read_bytes()) == (0o644, file.read_bytes())
    lock = sdk.lock()
    for unpinned in (False, True):  # then only the lock pins it
        sdk.describe(pinned=not unpinned)
        with pytest.raises(IntegrityError, match="is not the pinned sdk") as caught:
            take_archive(sdk.ask(), write(sdk.root / "other", "other"), sdk.store)
        assert caught.value.why.endswith(f"the pin is {lock.sha256}")
        assert download.read_bytes() == file.read_bytes()
    write(download, "other")
    assert run_verb("lock", "sdk", "--trust-first-use", "--offline").code == 4  # nor locked again
    write(download, file.read_bytes())
    project_lock_path("sdk", "1.2.3").unlink()
    take_archive(sdk.ask(), sdk.root / "other", sdk.store)
    assert download.read_bytes() == b"other"
    download.unlink()
    download.mkdir()
    with pytest.raises(StoreError):
        take_archive(sdk.ask(), file, sdk.store)
    assert [path.name for path in sdk.store.downloads.iterdir()] == ["sdk.zip"]


def test_release_of_another_version_has_neither_its_hash_nor_its_size(sdk: Workspace) -> None:
    request = of(sdk.ask(), version="1.2", url="https://h/v1.2/sdk-1.2.zip", filename="sdk-1.2.zip")
    with pytest.raises(TypeError, match=r"sdk 1\.2 is not a WheelRelease"):
        request.release_as(WheelRelease)
    unknown = {"version": "1.3", "filename": "sdk-1.3.zip", "sha256": "", "size_bytes": 0}
    for url, new in (("https://h/v1.2/sdk-1.2.zip", "https://h/v1.3/sdk-1.3.zip"), ("", "")):
        job = sdk.job(of(request, url=url))
        old = job.request.release
        assert archive.find_release(job, "1.2") == old
        assert archive.find_release(job, "1.3") == msgspec.structs.replace(old, url=new, **unknown)
    row = 'source = "aar"\nfilename = "r-2.1.aar"\npackage = "g.q:r"\npackage_version = "2.1"\n'
    pin = f'sha256 = "{"5" * 64}"\nsize_bytes = 7\n'
    made.describe(sdk.manifests, "lib", row + pin, version="2.1")
    job = sdk.job(ask("lib"))
    unknown = {"version": "2.2", "package_version": "2.2", "filename": "r-2.2.aar", "sha256": ""}
    release = aar.find_release(job, "2.2")
    assert release == msgspec.structs.replace(job.request.release, **unknown, size_bytes=0)
    assert aar.find_release(job, "2.1") == job.request.release
    for module in (aar, archive):
        with pytest.raises(UsageError, match=r"the version of .* is missing"):
            module.find_release(job if module is aar else sdk.job(), "")


AAR = pack_zip({"jni/libQnnHtp.so": b"x"}, "")
SHA1 = hashlib.sha1(AAR).hexdigest()  # noqa: S324
AAR_NAME = "g/q/i/runtime/2.1/runtime-2.1.aar"


@pytest.fixture
def lib(sdk: Workspace, server: BadServer, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """An AAR without a hash in a Maven repository on the server."""
    monkeypatch.setenv("QNN_CI_MAVEN", server.url(""))
    server.files[AAR_NAME] = AAR
    row = 'source = "aar"\nfilename = "r.aar"\npackage = "g.q.i:runtime"\npackage_version = "2.1"'
    layout = 'layout = [{ take = "jni/*", put = "" }]'
    made.describe(sdk.manifests, "lib", f"{row}\n{layout}\n", version="2.1")
    return sdk


MATCHES = f"SHA-1 {SHA1} matches the published one; the SHA-256 is "
NONE = "no SHA-1 is published: the server sent"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, MATCHES) for text in (SHA1, SHA1.upper(), f"  {SHA1}  r.aar\n")),
        ("<html>  a", f"{NONE} '<html> a'"),
        ("g" * 40, f"{NONE} '{'g' * 40}'"),
        (None, "the published SHA-1 could not be fetched: "),
        ("0" * 40, ""),
    ],
)
def test_aar_without_a_hash_is_compared_with_the_sha1_of_its_repository(
    lib: Workspace,
    server: BadServer,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    message: str,
) -> None:
    """Also in FIPS mode, in which SHA-1 is disabled for security."""
    sha1 = hashlib.sha1

    def guarded(*words: bytes, usedforsecurity: bool = True) -> object:
        assert not usedforsecurity
        return sha1(*words, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "sha1", guarded)
    if text is not None:
        server.files[f"{AAR_NAME}.sha1"] = text.encode()
    job = lib.job(ask("lib"))
    if message:
        assert [entry.path for entry in aar.fill(job)] == ["libQnnHtp.so"]
        assert f"lib 2.1: {message}" in lib.printed()
    else:
        with pytest.raises(IntegrityError, match=r"r\.aar does not match") as caught:
            aar.fill(job)
        assert caught.value.why == f"its SHA-1 is {SHA1}, but the repository states {'0' * 40}"
    assert (lib.store.downloads / "r.aar").is_file() == bool(message)
