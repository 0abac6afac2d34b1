"""Find the files on which a session's first files depend, directly or through other files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ci.gate.dependencies.names import NOTHING, FileFacts
from ci.gate.dependencies.tree import TreeFiles
from ci.parity.facts import directory_of

Load = Callable[[Iterable[str]], Mapping[str, FileFacts]]
SHOWN = 3


@dataclass(frozen=True)
class Reach:
    """The first files of a session and everything that they depend on. ``parents`` maps each of
    these files to the file that depends on it, or to "" if it is a first file."""

    parents: Mapping[str, str]

    def __contains__(self, path: str) -> bool:
        return path in self.parents

    @cached_property
    def folders(self) -> frozenset[str]:
        """The directories that directly contain these files."""
        return frozenset(map(directory_of, self.parents))

    def explain(self, path: str) -> str:
        """Return the files through which ``path`` was reached, starting with the one that depends
        on it, such as ``a.py, by b.py, by c.py``. After three files, the rest is shown as ``...``.
        Return "" for a first file."""
        way: list[str] = []
        while (path := self.parents[path]) and len(way) < SHOWN:
            way.append(path)
        return ", by ".join([*way, *(["..."] if path else [])])


class Graph:
    """The dependencies of a tree's files, read when they are needed."""

    def __init__(self, tree: TreeFiles, load: Load) -> None:
        self.tree, self._load = tree, load
        self._edges: dict[str, tuple[str, ...]] = {}

    def follow(self, starts: Iterable[str]) -> Reach:
        """Return the files reached from ``starts``, including ``starts``."""
        parents = {path: "" for path in sorted(starts) if path in self.tree.files}
        wave = list(parents)
        while wave:
            self._read([path for path in wave if path not in self._edges])
            found: dict[str, str] = {}
            for path in wave:
                for inner in self._edges[path]:
                    if inner not in parents:
                        found.setdefault(inner, path)
            parents.update(found)
            wave = list(found)
        return Reach(parents)

    def _read(self, paths: list[str]) -> None:
        facts = self._load(paths)
        for path in paths:
            found = self.tree.list_dependencies(path, facts.get(path, NOTHING))
            self._edges[path] = tuple(sorted(found))
