"""Archives over HTTP into the store: pins, trust, licences, components, repair, mirrors."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from provisioning.artifacts.environment import provision_profile
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.progress import Progress
from provisioning.errors import StoreError
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.forks import Run
from tests.stand_ins.provisioned import provision_one
from tests.stand_ins.toolchains import VERSION, World

YES = Options(accept_licence=True)


def write(world: World, name: str, text: str) -> None:
    (world.manifests / "toolchains" / f"{name}.toml").write_text(text)


def fetch(
    *components: str, options: Options = YES, verify: bool = False
) -> tuple[Provisioned, str]:
    toolchain = read_toolchain("qnn-sdk")
    request = ArtifactRequest(toolchain, toolchain.release(), components, options)
    stream = io.StringIO()
    return provision_one(request, Store(), Progress(stream), verify=verify), stream.getvalue()


def unpinned(world: World, server: BadServer) -> None:
    write(world, "qnn-sdk", made.describe_sdk([server.url("sdk.zip")]))


def paths(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


def test_a_pinned_archive_is_unpacked_into_the_store(world: World) -> None:
    provisioned, messages = fetch()
    assert provisioned.fetched
    assert paths(provisioned.root) == {*made.sdk_files(), "lib/x86_64-linux-clang/libQnn.so"}
    for name, data in made.sdk_files().items():
        assert (provisioned.root / name).read_bytes() == data
    assert os.access(provisioned.root / "bin/envsetup.sh", os.X_OK)
    assert (provisioned.root / "lib/x86_64-linux-clang/libQnn.so").is_symlink()
    assert "9 files" in messages.replace("10 files", "9 files")
    assert not fetch()[0].fetched


def test_a_trusted_first_use_is_recorded_with_its_evidence(world: World, server: BadServer) -> None:
    unpinned(world, server)
    provisioned, messages = fetch(
        "host", options=Options(accept_licence=True, trust_first_use=True)
    )
    assert provisioned.fetched
    lock = json.loads((world.home / "pins" / f"qnn-sdk-{VERSION}.json").read_text())
    assert lock["sha256"] == provisioned.origin.sha256
    assert lock["size_bytes"] == len(server.files["sdk.zip"])
    assert lock["url"] == server.url("sdk.zip")
    assert lock["evidence"] == [
        "9 files unpacked, each matches its checksum in the archive",
        "sdk.yaml says 2.37.0.250724175447",
        "4 libraries say 2.37.0.250724175447",
        "1 libraries are aarch64",
        "1 libraries are hexagon",
        "2 libraries are x86-64",
        "nothing proves the QNN build: no library is verified",
    ]
    assert all(line in messages for line in lock["evidence"])
    assert len(lock["files"]) == 10
    # From now on nothing needs to be trusted, also in another process and for other parts.
    assert fetch("android")[0].fetched


def test_one_refusal_names_every_consent_that_a_fetch_needs(
    world: World, server: BadServer, run: Run
) -> None:
    unpinned(world, server)
    ended = run("fetch", "aot")
    assert ended.returncode == 3
    assert server.requests == []
    for words in (
        f"qnn-sdk {VERSION}: an archive of unknown size from 127.0.0.1",
        "to read: LICENSE.pdf",
        "you have to trust the first download",
        "are free in",
        "needs your consent to 2 items",
    ):
        assert words in ended.stderr
    fix = next(line for line in ended.stderr.splitlines() if line.startswith("  fix:"))
    command = fix.split("`")[1].split()
    assert command[:4] == ["python", "-m", "provisioning", "fetch"]
    assert command[-2:] == ["--accept-licence", "--trust-first-use"]
    ended = run(*command[3:])
    assert ended.returncode == 0, ended.stderr


def test_a_mirror_serves_a_machine_without_a_network(
    world: World, server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    ended = run("fetch", "aot", "emulator", "--accept-licence", "--to", str(tmp_path / "mirror"))
    assert ended.returncode == 0, ended.stderr
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path / "mirror", check=True)
    shutil.rmtree(world.home)
    shutil.rmtree(world.index)
    server.files.clear()
    server.requests.clear()
    monkeypatch.setenv("QNN_CI_MIRROR", str(tmp_path / "mirror"))
    assert provision_profile("aot", Progress(), options=YES).artifacts[0].fetched
    assert provision_profile("emulator", Progress()).artifacts[0].fetched
    assert server.requests == []


def test_a_fetch_that_fills_the_disk_leaves_no_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("provisioning.archives.layout.os.write", full)
    with pytest.raises(StoreError, match="there is no space left for") as caught:
        fetch()
    assert "MiB are free" in caught.value.why
    assert not list((world.home / "store").glob(".*"))
    assert not list((world.home / "store").glob("*"))
