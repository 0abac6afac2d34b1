"""What somebody did to the store: nothing outside it is touched, nothing wrong passes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioning.__main__ import VERBS
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.command import run_command
from provisioning.console.progress import Progress
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.provisioned import provision_one
from tests.stand_ins.toolchains import VERSION, World

LIBRARY = "lib/x86_64-linux-clang/libQnnHtp.so"
LOCK = f"qnn-sdk-{VERSION}.json"


def fetch(
    *components: str, name: str = "qnn-sdk", verify: bool = False, trust: bool = False
) -> tuple[Provisioned, str]:
    toolchain = read_toolchain(name)
    options = Options(accept_licence=True, trust_first_use=trust)
    request = ArtifactRequest(toolchain, toolchain.release(), components, options)
    stream = io.StringIO()
    return provision_one(request, Store(), Progress(stream), verify=verify), stream.getvalue()


def run(*words: str) -> tuple[int, str]:
    """A verb's exit code and what it prints."""
    return run_command("python -m provisioning", VERBS, words)


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Every path below a directory with its mode and what it holds."""
    entries = {}
    for path in sorted(root.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes().hex()
        entries[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return entries


def check_tree(root: Path) -> None:
    for name, data in made.sdk_files().items():
        assert (root / name).read_bytes() == data, name
        assert not any(parent.is_symlink() for parent in (root / name).parents)


@dataclass(frozen=True)
class Scene:
    """A published tree, and a directory that is none of the store's business."""

    root: Path
    outside: Path


def link_directory(scene: Scene) -> None:
    shutil.rmtree(scene.root / "lib")
    (scene.root / "lib").symlink_to(scene.outside)


def link_deep_directory(scene: Scene) -> None:
    shutil.rmtree(scene.root / "lib/x86_64-linux-clang")
    (scene.root / "lib/x86_64-linux-clang").symlink_to(scene.outside / "x86_64-linux-clang")


def link_root(scene: Scene) -> None:
    shutil.rmtree(scene.root)
    scene.root.symlink_to(scene.outside)


def link_published(scene: Scene) -> None:
    away = scene.outside / "published"
    scene.root.parent.rename(away)
    scene.root.parent.symlink_to(away)


def link_file(scene: Scene) -> None:
    (scene.root / LIBRARY).unlink()
    (scene.root / LIBRARY).symlink_to(scene.outside / "keep.txt")


def hard_link_file(scene: Scene) -> None:
    """A second name elsewhere, with another mode and the right bytes."""
    os.link(scene.root / "sdk.yaml", scene.outside / "mine.yaml")
    (scene.outside / "mine.yaml").chmod(0o600)


def add_git_files(scene: Scene) -> None:
    (scene.root / "lib/.git/hooks").mkdir(parents=True)
    (scene.root / "lib/.git/hooks/post-checkout").write_text("#!/bin/sh\n")
    (scene.root / ".git").write_text("gitdir: elsewhere\n")


def name_no_files(scene: Scene) -> None:
    path = scene.root.parent / "tree.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": []}))


# What else can differ is in tests/unit/provisioning/store (test_tree, test_store).
TAMPERINGS: dict[str, Callable[[Scene], None]] = {
    "a directory is a link": link_directory,
    "a deep directory is a link": link_deep_directory,
    "a file is a link": link_file,
    "a file has a second name": hard_link_file,
    "git files": add_git_files,
    "tree.json names no files": name_no_files,
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    (path / "x86_64-linux-clang").mkdir(parents=True)
    (path / "keep.txt").write_text("keep")
    (path / "x86_64-linux-clang/libQnnHtp.so").write_text("mine")
    return path


# If there is a lock, it decides what the tree contains, not tree.json.
LOCKED = ("a directory is a link", "a file is a link", "git files", "tree.json names no files")


@pytest.mark.parametrize(
    ("name", "locked"),
    [*((name, False) for name in TAMPERINGS), *((name, True) for name in LOCKED)],
)
def test_repair_restores_the_tree_and_touches_nothing_else(
    world: World, outside: Path, name: str, locked: bool
) -> None:
    if locked:
        assert run("lock", "qnn-sdk", "--write", "--accept-licence")[0] == 0
    root = fetch()[0].root
    TAMPERINGS[name](Scene(root, outside))
    before = snapshot(outside)
    code, output = run("verify")
    assert code == 4, output
    code, output = run("verify", "qnn-sdk", "--repair")
    assert code == 0, output
    assert "repaired" in output
    check_tree(root)
    assert snapshot(outside) == before
    assert run("verify", "qnn-sdk")[0] == 0
    assert run("verify", "--quick")[0] == 0


@pytest.mark.parametrize("tamper", [link_root, link_published])
def test_a_link_in_place_of_a_published_directory_is_not_accepted(
    world: World, outside: Path, tamper: Callable[[Scene], None]
) -> None:
    root = fetch()[0].root
    tamper(Scene(root, outside))
    before = snapshot(outside)
    assert run("verify", "qnn-sdk")[0] == 4
    assert fetch()[0].fetched
    check_tree(root)
    assert snapshot(outside) == before


def lock_world(world: World) -> Path:
    assert run("lock", "qnn-sdk", "--write", "--accept-licence")[0] == 0
    return world.manifests / "locks" / LOCK


def test_two_artifacts_with_one_file_name_do_not_share_a_part_file(
    world: World, server: BadServer, tmp_path: Path
) -> None:
    other_archive = made.make_sdk(tmp_path / "other.zip", machine_of_first=183)
    server.files["other.zip"] = other_archive.read_bytes()
    text = made.describe_sdk([server.url("other.zip")], other_archive).replace(
        '"qnn-sdk"', '"other"'
    )
    (world.manifests / "toolchains/other.toml").write_text(text)
    server.faults = {name: [bad.serve, bad.slow(0.3)] for name in ("sdk.zip", "other.zip")}
    words = [sys.executable, "-m", "provisioning", "fetch", "--accept-licence"]
    processes = [
        subprocess.Popen([*words, name], stderr=subprocess.PIPE, text=True)
        for name in ("qnn-sdk", "other")
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    check_tree(fetch()[0].root)


@pytest.mark.parametrize("suffix", ["parts", "part", "json"])
def test_a_link_in_the_place_of_an_unfinished_download_is_not_followed(
    world: World, outside: Path, server: BadServer, suffix: str
) -> None:
    lock_world(world)
    shutil.rmtree(world.home)
    downloads = world.home / "downloads"
    downloads.mkdir(parents=True)
    short = hashlib.sha256(server.url("sdk.zip").encode()).hexdigest()[:8]
    name = f".qairt-{VERSION}.zip" + (".parts" if suffix == "parts" else f".{short}.{suffix}")
    for number, make in enumerate((Path.symlink_to, Path.hardlink_to)):
        make(downloads / name, outside / "keep.txt")
        before = snapshot(outside)
        assert fetch(*(["host"] if number else []))[0].fetched
        assert snapshot(outside) == before
        shutil.rmtree(world.home / "store")
        shutil.rmtree(downloads)
        downloads.mkdir()


@pytest.mark.parametrize(
    ("make", "name", "end"),
    [
        (Path.symlink_to, "locks/qnn-sdk.lock", "keep.txt"),
        (Path.hardlink_to, "locks/qnn-sdk.lock", "keep.txt"),
        (Path.symlink_to, "licences.json", "keep.txt"),
        (Path.hardlink_to, "licences.json", "keep.txt"),
        (Path.symlink_to, f"pins/{LOCK}", "not there"),
    ],
)
def test_a_link_in_the_place_of_a_record_is_not_written_through(
    world: World,
    outside: Path,
    server: BadServer,
    make: Callable[[Path, Path], None],
    name: str,
    end: str,
) -> None:
    text = made.describe_sdk([server.url("sdk.zip")])
    (world.manifests / "toolchains/qnn-sdk.toml").write_text(text)
    (world.home / name).parent.mkdir(parents=True, exist_ok=True)
    make(world.home / name, outside / end)
    before = snapshot(outside)
    assert fetch(trust=True)[0].fetched
    assert snapshot(outside) == before


@pytest.mark.parametrize("name", ["licences.json", "locks/qnn-sdk.lock"])
def test_a_fetch_does_not_wait_for_a_pipe_in_the_place_of_a_record(
    world: World, server: BadServer, name: str
) -> None:
    text = made.describe_sdk([server.url("sdk.zip")])
    (world.manifests / "toolchains/qnn-sdk.toml").write_text(text)
    (world.home / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(world.home / name)
    words = ("fetch", "qnn-sdk", "--accept-licence", "--trust-first-use")
    ended = subprocess.run(
        [sys.executable, "-m", "provisioning", *words],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert (world.home / name).is_file()
