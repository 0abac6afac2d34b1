"""What is reached from where a session starts, and by which way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ci.gate.dependencies.names import NOTHING, FileFacts
from ci.gate.dependencies.tree import TESTS, TreeFiles

Load = Callable[[Iterable[str]], Mapping[str, FileFacts]]
SHOWN = 3


@dataclass(frozen=True)
class Reach:
    """Each file that is reached, with the one that led to it; "" for a start."""

    parents: Mapping[str, str]

    def __contains__(self, path: str) -> bool:
        return path in self.parents

    def explain(self, path: str) -> str:
        """The nearest files on the way to ``path``: ``a.py, by b.py, by c.py``; "" for a start."""
        way: list[str] = []
        while (path := self.parents[path]) and len(way) < SHOWN:
            way.append(path)
        return ", by ".join([*way, *(["..."] if path else [])])


class Graph:
    """The dependencies of a tree's files, read as far as they are asked for.

    ``named`` are modules that are imported by a name alone, which the reader gets from elsewhere:
    they are reached from a test that names them, and else count as starts themselves.
    """

    def __init__(self, tree: TreeFiles, load: Load, named: Mapping[str, str]) -> None:
        self.tree, self._load, self.named = tree, load, named
        self.facts: dict[str, FileFacts] = {}
        self._edges: dict[str, tuple[str, ...]] = {}

    def follow(self, starts: Iterable[str], *, by_name: bool = False) -> Reach:
        """All that is reached from ``starts``, which count too; ``by_name`` what tests name."""
        parents = {path: "" for path in sorted(starts) if path in self.tree.files}
        wave = list(parents)
        while wave:
            self._read([path for path in wave if path not in self._edges])
            found: dict[str, str] = {}
            for path in wave:
                more = self._list_named(path) if by_name else ()
                for inner in (*self._edges[path], *more):
                    if inner not in parents:
                        found.setdefault(inner, path)
            parents.update(found)
            wave = list(found)
        return Reach(parents)

    def profiles_of(self, path: str) -> set[str]:
        """The profiles that a file which was followed names as its own."""
        return self.facts.get(path, NOTHING).profiles

    def _list_named(self, path: str) -> Iterator[str]:
        if path.startswith(TESTS):
            strings = self.facts.get(path, NOTHING).strings
            yield from (self.named[word] for word in sorted(strings & self.named.keys()))

    def _read(self, paths: list[str]) -> None:
        self.facts.update(self._load(paths))
        left_out = frozenset(self.named.values())
        for path in paths:
            facts = self.facts.get(path, NOTHING)
            found = self.tree.list_dependencies(path, facts) - left_out
            self._edges[path] = tuple(sorted(found))
