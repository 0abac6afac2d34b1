"""What is reached from where a session starts, and by which way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ci.gate.edges.python import PythonFacts, parse_python
from ci.gate.edges.tree import SOURCES, TESTS, TreeFiles

Load = Callable[[Iterable[str]], Mapping[str, str]]
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
    they are reached from a test that names them, and else are starts of their own.
    """

    def __init__(
        self,
        tree: TreeFiles,
        load: Load,
        known: dict[str, PythonFacts],
        named: Mapping[str, str],
    ) -> None:
        self.tree, self._load, self._known, self.named = tree, load, known, named
        self.facts: dict[str, PythonFacts] = {}
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

    def profiles_of(self, path: str) -> frozenset[str]:
        """The profiles that a file which was followed names as its own."""
        return self.facts[path].profiles if path in self.facts else frozenset()

    def _list_named(self, path: str) -> Iterator[str]:
        if path.startswith(TESTS) and path in self.facts:
            yield from (
                self.named[word] for word in sorted(self.facts[path].strings & self.named.keys())
            )

    def _read(self, paths: list[str]) -> None:
        texts = self._load([path for path in paths if path.endswith((".py", *SOURCES))])
        left_out = frozenset(self.named.values())
        for path in paths:
            text = texts.get(path)
            facts: PythonFacts | str | None = text
            if text is not None and path.endswith(".py"):
                facts = self.facts[path] = self._parse(text)
            found = self.tree.list_dependencies(path, facts) - left_out
            self._edges[path] = tuple(sorted(found))

    def _parse(self, text: str) -> PythonFacts:
        if text not in self._known:
            self._known[text] = parse_python(text)
        return self._known[text]
