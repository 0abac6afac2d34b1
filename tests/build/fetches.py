"""Fetches in processes of their own, and what is true of the store meanwhile and afterwards."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from provisioning.store.tree import compare_tree, parse_tree
from tests.stand_ins.forks import Forks
from tests.stand_ins.toolchains import World

PARTS = ["qnn-sdk:host", "qnn-sdk", "libcxx"]
# What a fetch imports before its first step, and on its way.
MODULES = (
    "provisioning.__main__",
    "provisioning.verbs.fetch",
    "provisioning.artifacts.sources.archive",
    "provisioning.artifacts.sources.unpacking",
    "provisioning.fetch.ranges",
    "requests",
    "tests.stand_ins.kills",
)
FETCH = """
import sys
from provisioning.__main__ import main
from tests.stand_ins import kills
{}
sys.exit(main(["fetch", "--verify", *sys.argv[1:]]))
"""


def list_variables(world: World) -> dict[str, str]:
    variables = {**os.environ, **world.variables, "QNN_CI_ACCEPT_LICENCE": "all"}
    variables.pop("CI", None)
    return variables


def fetch(forks: Forks, world: World, *parts: str, kill: str = "") -> int:
    """Return the exit code of a fork that fetches ``parts``, by default all. It has to succeed,
    unless ``kill`` is a line of code that lets it be killed."""
    words = parts or PARTS
    ended = forks.run(FETCH.format(kill), *words, cwd=Path.cwd(), env=list_variables(world))
    assert kill or not ended.returncode, ended.stderr
    return ended.returncode


def start(world: World, *words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start ``python -m provisioning``, whose output goes to a file."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "provisioning", *words],
            env=list_variables(world),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def lock(world: World) -> None:
    """Lock every file, so that parts come over ranges."""
    words = [sys.executable, "-m", "provisioning", "lock", "qnn-sdk", "--write"]
    subprocess.run(words, env=list_variables(world), check=True, capture_output=True)
    shutil.rmtree(world.home)


class Reader(threading.Thread):
    """Looks at the store all the time, as a reader does, and remembers what was not whole."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home, self.partial, self.looks = home, list[str](), 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.01):
            for path in (self.home / "store").glob("[!.]*"):
                self.look(path)

    def look(self, path: Path) -> None:
        """One look. While another tree takes the place it sees parts of both, and is void."""
        self.looks += 1
        try:
            place = path.stat().st_ino
            tree = parse_tree((path / "tree.json").read_bytes())
        except FileNotFoundError:
            self.partial.append(f"{path.name} without tree.json")
            return
        names = {entry.path for entry in tree.files}
        present = {
            item.relative_to(path / tree.artifact).as_posix()
            for item in (path / tree.artifact).rglob("*")
            if not item.is_dir() or item.is_symlink()
        }
        if names - present and path.stat().st_ino == place:
            self.partial.append(f"{path.name} lacks {names - present}")


def check_published(home: Path) -> None:
    """Every published tree is byte for byte what its record says."""
    for path in (home / "store").glob("[!.]*"):
        tree = parse_tree((path / "tree.json").read_bytes())
        assert compare_tree(path / tree.artifact, tree.files) == []


def check_store(home: Path) -> None:
    """All trees are published and whole, and nothing is left half-made."""
    names = [path.name for path in (home / "store").iterdir()]
    assert names
    assert [name for name in names if name.startswith(".")] == []
    check_published(home)


def forget_all(home: Path, dice: random.Random) -> None:
    """Take everything away, the record of accepted licences, too."""
    shutil.rmtree(home)


def empty(home: Path, dice: random.Random) -> None:
    """Take all trees and downloads away."""
    shutil.rmtree(home / "store")
    shutil.rmtree(home / "downloads", ignore_errors=True)


def damage(home: Path, dice: random.Random) -> None:
    """Change a byte of a published library."""
    libraries = sorted((home / "store").glob("[!.]*/*/lib/**/*.so*"))
    path = dice.choice([path for path in libraries if not path.is_symlink()])
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def drop_one(home: Path, dice: random.Random) -> None:
    """Take one published tree away, in one rename as gc does."""
    path = dice.choice(sorted((home / "store").glob("[!.]*")))
    gone = home / "gone"
    path.rename(gone)
    shutil.rmtree(gone)
