"""A source tree at a pinned commit with the wanted submodules, from a local git server."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.progress import Progress
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins.provisioned import provision_one
from tests.stand_ins.toolchains import World, describe_git, make_world

IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.c",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.c",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def git(where: Path, *words: str) -> str:
    argv = ["git", "-c", "protocol.file.allow=always", "-C", str(where), *words]
    ended = subprocess.run(
        argv, env={**os.environ, **IDENTITY}, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def make_repository(path: Path, files: dict[str, str], modules: dict[str, Path]) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "config", "uploadpack.allowAnySHA1InWant", "true")
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    (path / "link").symlink_to(next(iter(files)))
    for name, source in modules.items():
        git(path, "submodule", "--quiet", "add", f"file://{source}", name)
    git(path, "add", "-A")
    git(path, "commit", "--quiet", "-m", "one")
    return path


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``main`` with its submodules, one of which has a submodule; they name each other by links in
    ``servers``."""
    base = tmp_path_factory.mktemp("git")

    def make(name: str, files: dict[str, str], **modules: str) -> None:
        submodules = {path: base / "servers" / module for path, module in modules.items()}
        repository = make_repository(base / name, files, submodules)
        (base / "servers").mkdir(exist_ok=True)
        (base / "servers" / name).symlink_to(repository)

    make("nested", {"n.h": "n"})
    make("json", {"json.hpp": "j"})
    make("flatcc", {"flatcc.c": "f"}, deep="nested")
    make("other", {"o.c": "o"})
    files = {"CMakeLists.txt": "project(x)", "version.txt": "1.0\n"}
    make("main", files, **{f"third-party/{name}": name for name in ("json", "flatcc", "other")})
    git(base / "main", "tag", "v1.0")
    (base / "main" / "later").touch()
    git(base / "main", "add", "-A")
    git(base / "main", "commit", "--quiet", "-m", "two")
    return base


@pytest.fixture
def servers(repositories: Path) -> Path:
    """Where the repositories are found; a test may write into ``main``, and remove any of them."""
    servers = repositories / "servers"
    shutil.rmtree(servers, ignore_errors=True)
    servers.mkdir()
    for name in ("nested", "json", "flatcc", "other"):
        (servers / name).symlink_to(repositories / name)
    shutil.copytree(repositories / "main", servers / "main", symlinks=True)
    return servers


@pytest.fixture
def world(tmp_path: Path, servers: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = make_world(tmp_path)
    write(world, f"file://{servers}/main", git(servers / "main", "rev-parse", "v1.0"))
    for name, value in {**world.variables, **IDENTITY}.items():
        monkeypatch.setenv(name, value)
    return world


def write(world: World, url: str, commit: str) -> None:
    components = """
[components]
adaptor = ["third-party/json"]
runner = ["third-party/json", "third-party/flatcc"]
llama = ["third-party/flatcc/**"]
wrong = ["third-party/none"]
"""
    describe_git(world.manifests, url, commit, components)


def fetch(*components: str, offline: bool = False, verify: bool = False) -> tuple[Provisioned, str]:
    toolchain = read_toolchain("executorch")
    request = ArtifactRequest(toolchain, toolchain.release(), components, Options(offline=offline))
    stream = io.StringIO()
    return provision_one(request, Store(), Progress(stream), verify=verify), stream.getvalue()


def test_a_checkout_is_verified_and_repaired_without_a_network(world: World, servers: Path) -> None:
    root = fetch("adaptor")[0].root
    assert fetch("adaptor", verify=True)[0].repaired == ()
    git(root, "status")
    shutil.rmtree(servers)
    (root / "third-party/json/json.hpp").write_text("x")
    (root / "bin").mkdir()
    (root / "bin" / "flatcc").touch()
    provisioned, messages = fetch("adaptor", verify=True)
    assert provisioned.repaired == ("bin/flatcc", "third-party/json/json.hpp")
    assert "bin/flatcc: does not belong to the artifact" in messages
    assert fetch("adaptor", verify=True)[0].repaired == ()


def test_without_the_commit_in_the_git_mirror_the_original_host_is_used(
    world: World, servers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror has a repository with another commit, a damaged one and an empty directory."""
    mirror = tmp_path / "mirror/git" / str(servers).lstrip("/")
    mirror.mkdir(parents=True)
    for name in ("main", "json"):
        make_repository(mirror / name, {"other": "o"}, {})
    (mirror / "json/.git/HEAD").write_text("x")
    (mirror / "flatcc").mkdir()
    monkeypatch.setenv("QNN_CI_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setattr("provisioning.artifacts.sources.git.ATTEMPTS", 1)
    provisioned, messages = fetch("runner")
    for name, text in {"json/json.hpp": "j", "flatcc/flatcc.c": "f"}.items():
        assert (provisioned.root / "third-party" / name).read_text() == text
    assert (provisioned.root / "CMakeLists.txt").is_file()
    assert not (provisioned.root / "other").exists()
    assert messages.count(f"{tmp_path}/mirror/git/ failed") == 3, messages


def test_a_silent_git_mirror_times_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.artifacts.sources.git.ATTEMPTS", 1)
    monkeypatch.setenv("QNN_CI_TIMEOUT_S", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("QNN_CI_MIRROR", url)
        assert (fetch()[0].root / "CMakeLists.txt").is_file()


def test_a_tampered_git_directory_is_repaired_and_changes_no_file_outside_it(
    world: World, tmp_path: Path
) -> None:
    root, outside = fetch("adaptor")[0].root, tmp_path / "outside"
    shutil.copytree(root, outside, symlinks=True)
    (outside / "mine").write_text("mine")

    def add_hook() -> None:
        (root / ".git/hooks").mkdir()
        (root / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\nrm -rf {outside}\n")
        (root / ".git/hooks/post-checkout").chmod(0o755)

    def add_alternates() -> None:
        (root / ".git/objects/info").mkdir(exist_ok=True)
        (root / ".git/objects/info/alternates").write_text(f"{outside}/.git/objects\n")

    def move_submodule() -> None:
        folder = outside / ".git/modules/third-party/json"
        (root / "third-party/json/.git").write_text(f"gitdir: {folder}\n")

    def link() -> None:
        shutil.rmtree(root / ".git")
        (root / ".git").symlink_to(outside / ".git")

    before = {path: path.lstat().st_mtime_ns for path in outside.rglob("*")}
    for tamper in (
        lambda: git(root, "config", "core.worktree", str(outside)),
        *(add_hook, add_alternates, move_submodule, link),
    ):
        tamper()
        assert fetch("adaptor", verify=True)[0].repaired, tamper
        assert (root / "third-party/json/json.hpp").read_text() == "j"
        after = {path: path.lstat().st_mtime_ns for path in outside.rglob("*")}
        assert after == before, tamper
    assert fetch("adaptor", verify=True)[0].repaired == ()
