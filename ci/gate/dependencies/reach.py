"""Find the files on which a session's first files depend, directly or through other files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ci.gate.dependencies.names import NOTHING, FileFacts
from ci.gate.dependencies.tree import TESTS, TreeFiles

Load = Callable[[Iterable[str]], Mapping[str, FileFacts]]
SHOWN = 3


@dataclass(frozen=True)
class Reach:
    """The first files of a session and everything that they depend on. ``parents`` maps each of
    these files to the file that depends on it, or to "" if it is a first file."""

    parents: Mapping[str, str]

    def __contains__(self, path: str) -> bool:
        return path in self.parents

    def explain(self, path: str) -> str:
        """Return the files through which ``path`` was reached, starting with the one that depends
        on it, such as ``a.py, by b.py, by c.py``. After three files, the rest is shown as ``...``.
        Return "" for a first file."""
        way: list[str] = []
        while (path := self.parents[path]) and len(way) < SHOWN:
            way.append(path)
        return ", by ".join([*way, *(["..."] if path else [])])


class Graph:
    """The dependencies of a tree's files, read when they are needed.

    ``named`` maps names, such as models of the suite, to modules that code imports by these names.
    Such a module is reached only if it is a first file, or from a test that contains its name (see
    ``follow``). It is never a dependency of another file.
    """

    def __init__(self, tree: TreeFiles, load: Load, named: Mapping[str, str]) -> None:
        self.tree, self._load, self.named = tree, load, named
        self.facts: dict[str, FileFacts] = {}
        self._edges: dict[str, tuple[str, ...]] = {}

    def follow(self, starts: Iterable[str], *, by_name: bool = False) -> Reach:
        """Return the files reached from ``starts``, including ``starts``. With ``by_name``, this
        also includes each module in ``named`` whose name a reached test contains."""
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
        """Return the profiles that a file names, or an empty set if ``follow`` has not read the
        file yet."""
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
