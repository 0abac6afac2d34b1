"""AARs of a Maven repository: where they are, and the SHA-1 that is published next to them; and
archives that somebody has already."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from provisioning.__main__ import main
from provisioning.artifacts.pins import plan_lock, take_archive
from provisioning.artifacts.sources import ArtifactRequest, FillJob, Options, aar
from provisioning.artifacts.sources.aar import check_published_sha1, locate_job, read_start
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, IntegrityError, StoreError, UsageError
from provisioning.manifest.reader import read_toolchain
from provisioning.manifest.releases import AarRelease, ArchiveRelease
from provisioning.store.store import Store
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer

DATA = b"an archive"
SHA1 = hashlib.sha1(DATA).hexdigest()  # noqa: S324
SHA256 = hashlib.sha256(DATA).hexdigest()
SAID = "g/q/i/runtime/2.1/runtime-2.1.aar.sha1"
ROWS = {
    "aar": 'source = "aar"\nversion = "2.1"\nfilename = "r.aar"\npackage = "g.q.i:runtime"\n'
    'package_version = "2.1"\n',
    "git": 'source = "git"\nversion = "1"\nurl = "https://vendor.invalid/x"\n'
    f'commit = "{"a" * 40}"\n',
}


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad.running() as server:
        yield server


def make_job(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, pin: str = "") -> FillJob:
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(folder / "manifests"))
    place = folder / "manifests" / "toolchains"
    place.mkdir(parents=True, exist_ok=True)
    sha256 = f'sha256 = "{pin}"\n' if pin else ""
    (place / "lib.toml").write_text(
        f'name = "lib"\nsummary = "tiny"\ndefault = "{"2.1" if kind == "aar" else "1"}"\n'
        f'[licence]\nname = "free"\ntext = "none"\n[[releases]]\n{ROWS[kind]}{sha256}'
    )
    toolchain = read_toolchain("lib")
    request = ArtifactRequest(toolchain, toolchain.release())
    return FillJob(request, folder / "root", Store(folder / "home"), Progress(io.StringIO()))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: BadServer) -> FillJob:
    """A job whose AAR has come, from this server."""
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "1")
    monkeypatch.setenv("QNN_CI_MAVEN", server.url(""))
    job = locate_job(make_job(tmp_path, monkeypatch, "aar"))
    job.store.downloads.mkdir(parents=True)
    (job.store.downloads / "r.aar").write_bytes(DATA)
    return job


def read_steps(job: FillJob) -> str:
    stream = job.progress.stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_coordinates_are_a_url_of_the_repository(
    job: FillJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: BadServer
) -> None:
    release = job.request.release_as(ArchiveRelease)
    assert release.url == server.url(SAID.removesuffix(".sha1"))
    assert (release.version, release.filename) == ("2.1", "r.aar")
    for base in ("https://h/mavenX", "https://h/mavenX//"):
        monkeypatch.setenv("QNN_CI_MAVEN", base)
        place = locate_job(make_job(tmp_path, monkeypatch, "aar")).request.release.place
        assert place == "https://h/mavenX/g/q/i/runtime/2.1/runtime-2.1.aar"
    job = make_job(tmp_path, monkeypatch, "aar")
    repacked = msgspec.structs.replace(job.request.release_as(AarRelease), package_version="2.2")
    job = locate_job(replace(job, request=replace(job.request, release=repacked)))
    assert job.request.release.version == "2.1"
    assert job.request.release.place.endswith("/runtime/2.2/runtime-2.2.aar")
    monkeypatch.delenv("QNN_CI_MAVEN")
    usual = locate_job(make_job(tmp_path, monkeypatch, "aar")).request.release_as(ArchiveRelease)
    assert usual.url.startswith("https://repo1.maven.org/maven2/g/q/i/runtime/2.1/runtime-2.1.aar")


@pytest.mark.parametrize("text", [SHA1, SHA1.upper(), f"  {SHA1}  r.aar\n"])
def test_an_equal_sha1_counts_however_it_is_written(
    job: FillJob, server: BadServer, text: str
) -> None:
    server.files[SAID] = text.encode()
    check_published_sha1(job)
    assert f"SHA-1 {SHA1} matches the published one; the SHA-256 is {SHA256}" in read_steps(job)
    assert (job.store.downloads / "r.aar").is_file()


def test_another_sha1_refuses_the_archive(job: FillJob, server: BadServer) -> None:
    server.files[SAID] = b"0" * 40
    with pytest.raises(IntegrityError, match=r"r\.aar does not match") as caught:
        check_published_sha1(job)
    assert caught.value.why == f"its SHA-1 is {SHA1}, but the repository states {'0' * 40}"
    assert not (job.store.downloads / "r.aar").exists()


def test_a_machine_that_allows_sha1_for_no_security_compares_it_too(
    job: FillJob, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in FIPS mode."""
    sha1 = hashlib.sha1

    def guarded(*words: bytes, usedforsecurity: bool = True) -> object:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return sha1(*words, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "sha1", guarded)
    server.files[SAID] = SHA1.encode()
    check_published_sha1(job)
    assert "matches the published one" in read_steps(job)


@pytest.mark.parametrize("text", ["", " \n", "<html>", SHA1[:39], f"{SHA1}0", "g" * 40])
def test_what_is_no_sha1_is_none(job: FillJob, server: BadServer, text: str) -> None:
    server.files[SAID] = text.encode()
    check_published_sha1(job)
    steps = read_steps(job)
    assert ("no SHA-1 is published" in steps, "matches the published one" in steps) == (True, False)
    assert repr(" ".join(text.split())[:40]) in steps
    assert (job.store.downloads / "r.aar").is_file()


@pytest.mark.parametrize(
    ("pin", "offline", "compares"),
    [("", False, True), (SHA256, False, False), ("", True, False), (SHA256, True, False)],
)
def test_what_no_pin_speaks_for_is_compared_with_what_is_published(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: BadServer,
    pin: str,
    offline: bool,
    compares: bool,
) -> None:
    monkeypatch.setenv("QNN_CI_MAVEN", server.url(""))
    job = make_job(tmp_path, monkeypatch, "aar", pin)
    job = replace(job, request=replace(job.request, options=Options(offline=offline)))
    checked: list[FillJob] = []
    monkeypatch.setattr(aar.archive, "fill", lambda _: ())
    monkeypatch.setattr(aar, "check_published_sha1", checked.append)
    assert aar.fill(job) == ()
    assert bool(checked) is compares


@pytest.mark.parametrize("status", [404, 503])
def test_a_repository_without_one_is_noted(job: FillJob, server: BadServer, status: int) -> None:
    server.faults[SAID] = [bad.status(status)]
    check_published_sha1(job)
    assert "the published SHA-1 could not be fetched: " in read_steps(job)


def test_the_start_of_a_body_is_read_however_it_comes() -> None:
    assert read_start(iter([b"a", b"bc", b"d"]), 3) == b"abc"
    assert read_start(iter([b"ab", b"cd"]), 3) == b"abc"
    assert read_start(iter([b"a"]), 3) == b"a"
    assert read_start(iter([]), 3) == b""
    rest = iter([b"abc", b"d"])
    assert read_start(rest, 3) == b"abc"
    assert next(rest) == b"d"


# -- archives that somebody has -------------------------------------------------------------------


@pytest.mark.parametrize("pin", ["", SHA256])
def test_an_archive_is_taken_if_it_is_the_pinned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: str
) -> None:
    job = make_job(tmp_path, monkeypatch, "aar", pin)
    file = tmp_path / "mine"
    file.write_bytes(DATA)
    before = os.umask(0o077)
    try:
        take_archive(job.request, file, job.store)
    finally:
        os.umask(before)
    assert [one.name for one in job.store.downloads.iterdir()] == ["r.aar"]
    assert (job.store.downloads / "r.aar").stat().st_mode & 0o777 == 0o644
    assert (job.store.downloads / "r.aar").read_bytes() == DATA
    with pytest.raises(UsageError, match="is not a file"):
        take_archive(job.request, tmp_path, job.store)
    file.write_bytes(b"other")
    if pin:
        with pytest.raises(IntegrityError) as caught:
            take_archive(job.request, file, job.store)
        assert f"the pin is {SHA256}" in caught.value.why
        assert (job.store.downloads / "r.aar").read_bytes() == DATA
    else:
        take_archive(job.request, file, job.store)
        assert (job.store.downloads / "r.aar").read_bytes() == b"other"


def test_an_archive_that_cannot_be_taken_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, monkeypatch, "aar")
    (tmp_path / "mine").write_bytes(DATA)
    (job.store.downloads / "r.aar").mkdir(parents=True)
    with pytest.raises(StoreError):
        take_archive(job.request, tmp_path / "mine", job.store)
    assert [one.name for one in job.store.downloads.iterdir()] == ["r.aar"]


def test_a_lock_of_an_archive_that_somebody_has_asks_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: FillJob, server: BadServer
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(job.store.home))
    with zipfile.ZipFile(tmp_path / "mine", "w") as file:
        file.writestr("jni/arm64-v8a/libQnnHtp.so", "x")
    (tmp_path / "manifests/profiles.toml").touch()
    words = ["lock", "lib", "--from", str(tmp_path / "mine"), "--accept-licence"]
    assert main(words) == ExitCode.OK
    assert not server.requests


def test_a_repository_is_neither_one_file_nor_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, monkeypatch, "git")
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="lib is not downloaded as a single file") as caught:
        take_archive(job.request, tmp_path / "mine", job.store)
    assert "--from" in caught.value.fix
    with pytest.raises(UsageError, match="lib cannot be locked") as caught:
        plan_lock(job.request, job.store, job.progress)
    assert caught.value.why == "its source is git, and only single files can be locked"
