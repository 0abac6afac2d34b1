"""A source tree that exists only in memory: file names and their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from ci.parity.policy import Layout
from provisioning.console.git import parse_submodules


class TextTree:
    """A tree of a few files."""

    def __init__(self, texts: Mapping[str, str], layout: Layout) -> None:
        self.texts = dict(texts)
        self.layout = layout
        self.name = "a tree in memory"
        self.files = frozenset(self.texts)
        self.submodules = parse_submodules(self.texts.get(".gitmodules", ""))
        self.links: Mapping[str, str] = {}

    def read(self, path: str) -> str | None:
        """The text of a file, or None when there is none."""
        return self.texts.get(path)

    def read_all(self, paths: Iterable[str]) -> None:
        """Everything is read already."""

    def digest(self, path: str) -> str:
        """A hash of the text; empty when there is no such file."""
        text = self.texts.get(path)
        return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:20]
