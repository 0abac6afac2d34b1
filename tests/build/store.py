"""A small store: published trees, directories as their records say, processes that use them."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning.store import collect
from provisioning.store.store import Key, Published, Store
from provisioning.store.tree import DIRECTORY_MODE, FILE_TIME_S, Tree, TreeEntry
from tests.stand_ins.waits import wait_until

KEY = Key("sdk", "1.0", {"b": 1, "a": ["x"]})
TREE = Tree("sdk", "1.0", "00", (), (TreeEntry("a", 1000),))


def publish(
    store: Store,
    artifact: str = "sdk",
    version: str = "1.0",
    recipe: object = None,
    text: str = "x",
) -> Published:
    """Publish a tree with the file ``a`` of 1000 bytes; by default that of KEY."""
    key = Key(artifact, version, KEY.recipe if recipe is None else recipe)
    with store.stage(key) as staged:
        (staged / artifact / "a").write_text(text * 1000)
        return store.publish(key, staged, Tree(artifact, version, "00", (), TREE.files))


def entry(path: str, data: bytes = b"some bytes", mode: int = 0o644) -> TreeEntry:
    """The record of a file with these bytes."""
    return TreeEntry(path, len(data), mode, hashlib.sha256(data).hexdigest())


def make_tree(root: Path) -> list[TreeEntry]:
    """Make files, a link and an empty directory, and return their records."""
    content = {"lib/a": b"some bytes", "lib/deep/er/b": b"more", "c": b"top"}
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if name.endswith("b") else 0o644)
        os.utime(path, (FILE_TIME_S, FILE_TIME_S))
    (root / "void").mkdir()
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(DIRECTORY_MODE)
    (root / "lib/link").symlink_to("deep/er/b")
    return [
        *(
            entry(name, data, 0o755 if name.endswith("b") else 0o644)
            for name, data in content.items()
        ),
        TreeEntry("lib/link", link="deep/er/b"),
        TreeEntry("void/", mode=DIRECTORY_MODE),
    ]


def touch(root: Path, *names: str) -> None:
    """Make empty files, and their directories."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def names_in(path: Path) -> set[str]:
    return {child.name for child in path.iterdir()}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def set_age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment), follow_symlinks=False)


@contextmanager
def masked(umask: int) -> Iterator[None]:
    """Run the block with this umask."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def using(**options: object) -> Iterator[int]:
    """A process that the collector sees: its ID."""
    with subprocess.Popen(["sleep", "60"], **options) as process:  # type: ignore[call-overload]
        shown = collect.PROC / str(process.pid)
        shown.symlink_to(f"/proc/{process.pid}")
        wait_until((shown / "environ").read_bytes)  # Popen returns before the kernel has set it
        try:
            yield process.pid
        finally:
            process.kill()
            shown.unlink()
