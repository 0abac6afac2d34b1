"""Where a build lives: one directory a target, source and Python, below QNN_CI_HOME/builds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import UnfitError
from provisioning.store.lock import HeldLock
from provisioning.store.store import store_home


@dataclass(frozen=True)
class Place:
    """The directories and files of one build."""

    root: Path

    @property
    def tree(self) -> Path:
        """The parent of the overlay, so that the overlay can have the name that it needs."""
        return self.root / "tree"

    @property
    def tree_record(self) -> Path:
        return self.root / "tree.json"

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    @property
    def prefix(self) -> Path:
        return self.root / "prefix"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def log(self) -> Path:
        return self.root / "build.log"

    @property
    def cache_log(self) -> Path:
        return self.root / "ccache.log"

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
