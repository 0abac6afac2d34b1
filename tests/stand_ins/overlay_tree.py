"""A source tree with a few changes, as if somebody had committed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ci.parity.trees import SourceTree


class OverlayTree(SourceTree):
    """Another tree with some files replaced (text) or removed (None)."""

    def __init__(self, base: SourceTree, changes: Mapping[str, str | None]) -> None:
        self.base = base
        self.layout = base.layout
        self.changes = dict(changes)
        self.name = f"{base.name} with {len(self.changes)} changed files"
        added = {path for path, text in self.changes.items() if text is not None}
        self.files = (base.files - self.changes.keys()) | added
        self.submodules = base.submodules
        self.links = base.links

    def read(self, path: str) -> str | None:
        """The replaced text, or the base's."""
        return self.changes[path] if path in self.changes else self.base.read(path)

    def read_all(self, paths: Iterable[str]) -> None:
        """Let the base read in bulk what is not replaced."""
        self.base.read_all([path for path in paths if path not in self.changes])

    def digest(self, path: str) -> str:
        """A hash of the replaced text, or the base's digest."""
        return super().digest(path) if path in self.changes else self.base.digest(path)
