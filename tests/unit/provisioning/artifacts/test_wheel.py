"""Wheels that pip brings, that are installed or have a compiler: only the pinned one counts."""

from __future__ import annotations

import hashlib
import re
import stat
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.artifacts.sources import ArtifactRequest, FillJob, wheel
from provisioning.errors import DownloadError, IntegrityError, QnnCiError, ToolError, UnfitError
from provisioning.manifest.releases import WheelRelease
from provisioning.store.tree import TreeEntry
from tests.build.artifacts import Pip, Workspace, ask, of, write
from tests.stand_ins import toolchains as made

GOOD = made.pack_wheel(made.WHEEL, "tiny-qnn", tuple(made.LIBRARIES.items()))


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A pip that brings the pinned wheel."""
    pip = Pip({made.WHEEL: GOOD})
    monkeypatch.setattr(wheel, "run_process", pip.run)
    return pip


@pytest.fixture
def job(sdk: Workspace, pip: Pip) -> FillJob:
    """A job for the wheel."""
    write(sdk.root / made.WHEEL, GOOD)
    manifest = made.describe_wheel(sdk.root / made.WHEEL)
    sdk.manifest.with_name("qnn-runtime.toml").write_text(manifest)
    sdk.store.downloads.mkdir(parents=True)
    return sdk.job(ask("qnn-runtime"))


def obtain(job: FillJob, request: ArtifactRequest | None = None) -> Path:
    return wheel.obtain_wheel(replace(job, request=request or job.request))


@pytest.mark.parametrize(
    ("brings", "error", "why"),
    [
        ({made.WHEEL: GOOD[:-1] + b"x"}, IntegrityError, "its SHA-256 is"),
        ({made.WHEEL: GOOD[:-1]}, IntegrityError, "bytes long"),
        ({"a.whl": b"", "b.whl": b""}, DownloadError, "pip downloaded a.whl, b.whl"),
        ({}, DownloadError, "pip downloaded nothing"),
    ],
)
def test_wheel_from_pip_that_is_not_the_pinned_one_is_refused(
    job: FillJob, pip: Pip, brings: Mapping[str, bytes], error: type[QnnCiError], why: str
) -> None:
    pip.brings = brings
    with pytest.raises(error) as caught:
        obtain(job)
    assert why in caught.value.why
    assert list(job.store.downloads.iterdir()) == []
    unpinned = of(job.request, sha256="")
    with pytest.raises(IntegrityError, match="sha256"):
        obtain(job, unpinned)
    assert len(pip.commands) == 1


@pytest.mark.parametrize("mirrored", [None, GOOD[:-1], GOOD])
def test_mirror_of_the_user_is_asked_before_pip(
    job: FillJob, pip: Pip, sdk: Workspace, monkeypatch: pytest.MonkeyPatch, mirrored: bytes | None
) -> None:
    mirror = sdk.root / "mirror"
    mirror.mkdir()
    if mirrored:
        write(mirror / made.WHEEL, mirrored)
    monkeypatch.setenv("QNN_CI_MIRROR", mirror.as_uri())
    assert obtain(job).read_bytes() == GOOD
    assert len(pip.commands) == (mirrored != GOOD)
    (copy,) = wheel.mirror(job, sdk.root / "home")
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (GOOD, 0o644)


@pytest.mark.parametrize(("mirror", "is_named"), [("gone", True), ("home", False)])
def test_a_mirror_that_is_missing_is_named_if_nothing_else_has_the_wheel(
    job: FillJob, sdk: Workspace, monkeypatch: pytest.MonkeyPatch, mirror: str, is_named: bool
) -> None:
    def run(*_: object, **__: object) -> None:
        raise ToolError("pip exited with 1", why="ERROR: no network")

    monkeypatch.setattr(wheel, "run_process", run)
    monkeypatch.setenv("QNN_CI_MIRROR", str(sdk.root / mirror))
    with pytest.raises(DownloadError) as caught:
        obtain(job)
    named = f"the directory in QNN_CI_MIRROR, {sdk.root / mirror}, does not exist; "
    assert caught.value.why == f"{named if is_named else ''}no network"


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("a\nERROR: one\nb\nERROR: two \nc", "one; two"),
        ("a\nlast line", "last line"),
        ("", ""),
        (
            "WARNING: try again\nconnection broken by 'ProxyError(x)'\nERROR: No matching",
            "the package index cannot be reached (ProxyError); No matching",
        ),
    ],
)
def test_failure_of_pip_is_explained(
    job: FillJob, monkeypatch: pytest.MonkeyPatch, output: str, why: str
) -> None:
    def run(*_: object, **__: object) -> None:
        raise ToolError("pip exited with 1", why=output)

    monkeypatch.setattr(wheel, "run_process", run)
    with pytest.raises(DownloadError) as caught:
        wheel.find_release(job, "9")
    assert (caught.value.what, caught.value.why) == ("tiny-qnn==9 could not be fetched", why)
    assert caught.value.fix.startswith(
        "name a version of tiny-qnn, of which 1.0 contains qnn-runtime 9.9.9 (`qnn-ci update"
    )
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnfitError, match="this Python has no pip") as missing:
        wheel.find_release(job, "9")
    assert missing.value.fix == f"run `{sys.executable} -m ensurepip`"


# -- installed wheels -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, "copying 0 MiB of the installed tiny-qnn 1.0"),
        ({"data": b"other"}, "lib/a.so of the installed tiny-qnn does not match the lock"),
        ({"version": "1.1"}, "fetching"),
        ({"platform": "manylinux_2_35_aarch64"}, "fetching"),
        ({"kept": True}, ""),
    ],
)
def test_files_of_the_installed_wheel_are_used_if_all_match_the_lock(
    job: FillJob,
    sdk: Workspace,
    pip: Pip,
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, Any],
    message: str,
) -> None:
    distribution = {
        "version": "1.0",
        "platform": "manylinux_2_35_x86_64",
        "data": b"bytes",
        **installed,
    }
    if distribution["version"]:
        info = sdk.root / "site" / f"tiny_qnn-{distribution['version']}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: tiny-qnn\nVersion: {distribution['version']}\n"
        write(info / "METADATA", metadata)
        write(info / "WHEEL", f"Tag: cp312-cp312-{distribution['platform']}\n")
        write(info / "RECORD", "tiny_qnn/lib/a.so,,\n")
        write(sdk.root / "site/tiny_qnn/lib/a.so", distribution["data"]).chmod(0o700)
    monkeypatch.syspath_prepend(str(sdk.root / "site"))
    pip.brings = {}
    entry = TreeEntry("lib/a.so", 5, 0o444, hashlib.sha256(b"bytes").hexdigest())
    layout = [msgspec.structs.replace(job.request.release.layout[0], take="tiny_qnn/**", put="")]
    request = of(job.request, layout=layout, links={}, write={})
    job = replace(job, request=replace(request, lock=sdk.lock(files=(entry,))))
    if "kept" in installed:
        write(job.store.downloads / made.WHEEL, GOOD)
        assert "libQnnHtp.so" in {entry_of_wheel.path for entry_of_wheel in wheel.fill(job)}
    elif message.startswith("copying"):
        assert wheel.fill(job) == (entry,)
        assert (job.root / "lib/a.so").read_bytes() == b"bytes"
    else:
        with pytest.raises(QnnCiError, match="could not be fetched"):
            wheel.fill(job)
    assert message in sdk.printed()


# -- other versions -------------------------------------------------------------------------------


def test_release_of_another_wheel_has_its_name_sizes_links_and_qnn_version(
    job: FillJob, pip: Pip
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
    data = made.pack_wheel(name, "tiny-qnn", tuple(content.items()))
    pip.brings = {name: data}
    new = wheel.find_release(job, "1.1")
    with zipfile.ZipFile(job.store.downloads / name) as archive:
        unpacked_bytes = sum(member.file_size for member in archive.infolist())
    assert (job.store.downloads / name).read_bytes() == data  # which the next fetch finds
    assert new == msgspec.structs.replace(
        job.request.release_as(WheelRelease),
        version="2.50.1",
        package_version="1.1",
        filename=name,
        platform="manylinux_2_34_x86_64",
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        unpacked_bytes=unpacked_bytes,
        links={"lib/x86_64-linux-clang/libc++.so.1": "libc++-9f.so.1.0"},
    )
    large = of(job.request, unpacked_bytes=1 << 30).release_as(WheelRelease)
    described = wheel.describe_wheel(large, job.store.downloads / name)
    assert described.unpacked_bytes == 1 << 30  # a limit is not lowered


@pytest.mark.parametrize(
    ("newest", "content", "requested", "is_taken"),
    [
        ("0.9", b"other", "", False),  # the newest that the cooldown allows
        ("0.9", b"other", "0.9", True),
        ("1.1", b"other", "", True),
        ("1.0", b"", "", False),
    ],
)
def test_older_wheel_is_accepted_only_if_requested(
    job: FillJob, pip: Pip, newest: str, content: bytes, requested: str, is_taken: bool
) -> None:
    name = made.WHEEL.replace("1.0", newest)
    files = {**made.LIBRARIES, "tiny_qnn/libQnnHtp.so": content * 1000} if content else {}
    data = made.pack_wheel(name, "tiny-qnn", tuple((files or made.LIBRARIES).items()))
    pip.brings = {name: data}
    old, new = job.request.release_as(WheelRelease), wheel.find_release(job, requested)
    if not is_taken:
        assert new == old
        return
    assert (new.package_version, new.filename) == (newest, name)
    assert (new.version, new.sha256) == (newest, hashlib.sha256(data).hexdigest())


def test_library_link_follows_the_only_matching_file_of_a_wheel() -> None:
    links = {"lib/libc++.so.1": "libc++-1a.so.1.0"}
    libraries = ["lib/libc++-9f.so.1.0", "lib/libc++abi-9f.so.1.0", "other/libc++-77.so.1.0"]
    assert wheel.follow_links(links, libraries) == {"lib/libc++.so.1": "libc++-9f.so.1.0"}
    assert wheel.follow_links(links, [*libraries, "lib/libc++-1a.so.1.0"]) == links
    for paths, words in (
        ([*libraries, "lib/libc++-8e.so.1.0"], "libc++-9f.so.1.0, libc++-8e.so.1.0"),
        (libraries[1:], "no such file"),
    ):
        with pytest.raises(IntegrityError, match=re.escape(words)):
            wheel.follow_links(links, paths)
