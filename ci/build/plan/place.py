"""Where a build lives: one directory a target, source and Python, below QNN_CI_HOME/builds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from provisioning.errors import UnfitError
from provisioning.store.store import store_home

LOCK_S = 1.0


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
        try:
            with FileLock(self.root / "lock", timeout=LOCK_S):
                yield
        except Timeout as error:
            raise UnfitError(
                f"another build is running in {self.root}",
                fix="wait for it to end, or set QNN_CI_HOME to build beside it",
            ) from error


def find_place(target: str, source: Path, variant: str) -> Place:
    """The place of ``target`` built from ``source``; ``variant`` tells apart what may coexist."""
    key = hashlib.sha256(f"{source.resolve()}\0{variant}".encode()).hexdigest()[:10]
    return Place(store_home() / "builds" / f"{target}-{key}")
