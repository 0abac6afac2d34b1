"""A source tree that exists only in memory: file names and their texts."""

from __future__ import annotations

from collections.abc import Mapping

from ci.parity.policy import Layout
from ci.parity.trees import SourceTree


class TextTree(SourceTree):
    """A tree of a few files."""

    def __init__(self, texts: Mapping[str, str], layout: Layout) -> None:
        self.texts = dict(texts)
        self.layout = layout
        self.name = "a tree in memory"
        self.files = frozenset(self.texts)

    def read(self, path: str) -> str | None:
        """The text of a file, or None when there is none."""
        return self.texts.get(path)
