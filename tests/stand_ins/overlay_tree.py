"""A source tree with a few changes, as if somebody had committed them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property

from ci.parity.trees import SourceTree


class OverlayTree:
    """Another tree with some files replaced (text) or removed (None)."""

    def __init__(self, base: SourceTree, changes: Mapping[str, str | None]) -> None:
        self.base = base
        self.layout = base.layout
        self.changes = dict(changes)

    @property
    def name(self) -> str:
        """How a report calls this tree."""
        return f"{self.base.name} with {len(self.changes)} changed files"

    @cached_property
    def files(self) -> frozenset[str]:
        """The base's files, with additions and without removals."""
        added = {path for path, text in self.changes.items() if text is not None}
        return (self.base.files - self.changes.keys()) | added

    @property
    def submodules(self) -> tuple[str, ...]:
        """The base's."""
        return self.base.submodules

    @property
    def links(self) -> Mapping[str, str]:
        """The base's."""
        return self.base.links

    def read(self, path: str) -> str | None:
        """The replaced text, or the base's."""
        return self.changes[path] if path in self.changes else self.base.read(path)

    def read_all(self, paths: Iterable[str]) -> None:
        """Let the base read in bulk what is not replaced."""
        self.base.read_all([path for path in paths if path not in self.changes])

    def digest(self, path: str) -> str:
        """A hash of the replaced text, or the base's digest."""
        if path not in self.changes:
            return self.base.digest(path)
        return hashlib.sha256((self.changes[path] or "").encode()).hexdigest()[:20]
