"""Where a build lives: one directory a target, source and Python, below QNN_CI_HOME/builds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning.errors import UnfitError
from provisioning.store.collect import ORIGIN
from provisioning.store.lock import HeldLock
from provisioning.store.store import store_home


class Place:
    """The directories and files of one build; ``tree`` is the parent of the overlay, so that the
    overlay can have the name that it needs. ``origin`` names the sources, for `gc`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree, self.tree_record = root / "tree", root / "tree.json"
        self.stages, self.prefix = root / "stages", root / "prefix"
        self.artifacts, self.state = root / "artifacts", root / "state.json"
        self.stripped = root / "stripped"
        self.origin, self.proof = root / ORIGIN, root / "proof.json"
        self.log, self.cache_log = root / "build.log", root / "ccache.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this build alone. Raises UnfitError when another process holds it."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = HeldLock(self.root / "lock")
        if not lock.take():
            raise UnfitError(
                f"another build is running in {self.root}",
                why=f"process {lock.read_holder()} holds {lock.path}",
                fix="wait for it to end, or set QNN_CI_HOME to build beside it",
            )
        try:
            yield
        finally:
            lock.release()


def find_place(target: str, source: Path, variant: str) -> Place:
    """The place of ``target`` built from ``source``; ``variant`` tells apart what may coexist."""
    key = hashlib.sha256(f"{source.resolve()}\0{variant}".encode()).hexdigest()[:10]
    return Place(store_home() / "builds" / f"{target}-{key}")
