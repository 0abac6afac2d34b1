"""Lists of sources that CMake takes from a query of Buck, as ExecuTorch's did until August 2025.

A TOML file of the tree has a table for each list: the Buck targets whose files are taken, with
those of all that they depend on; expressions that a path must match, or must not; and the lists
that have their files already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from ci.parity.buck.reader import read_buck
from ci.parity.cmake.regex import UnknownMatchError, search
from ci.parity.facts import BuckFacts, BuckTarget, closure
from ci.parity.trees import SourceTree

DEFAULT = "DEFAULT"


class Query(msgspec.Struct, frozen=True):
    """One list: labels of Buck targets, expressions to search paths for, and other lists."""

    buck_targets: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    deps: tuple[str, ...] = ()


class Queries(msgspec.Struct, frozen=True):
    """The whole file; ``target_base`` is added to each of ``targets``."""

    targets: dict[str, Query] = {}
    target_base: Query = Query()


def find_queries(tree: SourceTree) -> str | None:
    """The file of a tree's queries, where it has one."""
    return next((path for path in tree.layout.queries if path in tree.files), None)


def read_lists(tree: SourceTree) -> dict[str, str]:
    """CMake's variable of each list, and its value; a list that cannot be told is left out."""
    path = find_queries(tree)
    if path is None:
        return {}
    try:
        queries = msgspec.toml.decode(tree.read(path) or "", type=Queries)
    except msgspec.DecodeError:
        return {}
    graph = Graph(queries, read_buck(tree))
    found: dict[str, str] = {}
    for name in queries.targets:
        try:
            files = graph.find(name)
        except (KeyError, RecursionError, UnknownMatchError):
            continue
        found[tree.layout.generated.replace("*", name)] = ";".join(sorted(files & tree.files))
    return found


class Graph:
    """What Buck's targets read, and on what they depend in the open source build."""

    def __init__(self, queries: Queries, facts: BuckFacts) -> None:
        self.queries = queries
        self.found: dict[str, set[str]] = {}
        self.targets: dict[str, list[BuckTarget]] = defaultdict(list)
        for target in facts.targets:
            self.targets[target.label].append(target)

    def find(self, name: str) -> set[str]:
        """The files of one list. Raises KeyError for a target or a list that there is not,
        RecursionError for lists that leave their files to each other, and UnknownMatchError."""
        if name not in self.found:
            self.found[name] = self._find(self.queries.targets[name], self.queries.target_base)
        return self.found[name]

    def _find(self, query: Query, base: Query) -> set[str]:
        filters = (*base.filters, *query.filters)
        excludes = (*base.excludes, *query.excludes)
        files = {
            path
            for path in self.inputs((*base.buck_targets, *query.buck_targets))
            if all(search(each, path) for each in filters)
            and not any(search(each, path) for each in excludes)
        }
        return files.difference(*map(self.find, query.deps))

    def inputs(self, labels: tuple[str, ...]) -> set[str]:
        """Buck's ``inputs(deps(...))``. Raises KeyError for a target that there is not."""
        missing = next((label for label in labels if label not in self.targets), None)
        if missing:
            raise KeyError(missing)
        reached = closure(labels, self.edges)
        return {path for label in reached for path in self.files(label)}

    def edges(self, label: str) -> Iterator[str]:
        """A target's dependencies, and the rules that make its files."""
        for target in self.targets.get(label, ()):
            words = (*target.deps, *target.exported_deps)
            yield from (word.text for word in words if is_for_linux(word.condition))
        yield from (path.partition("[")[0] for path in self.files(label))

    def files(self, label: str) -> Iterator[str]:
        """The files that a target lists, and the labels of those that rules make."""
        for target in self.targets.get(label, ()):
            yield from (entry.path for entry in target.entries if is_for_linux(entry.condition))


def is_for_linux(condition: str) -> bool:
    """Whether what stands under a select() key is in a build on Linux, where the query is run."""
    return not condition or "linux" in condition or condition == DEFAULT
