"""Map the targets of the two sides to each other by the files that both compile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import compress, takewhile

from ci.parity.compare.index import Index, is_compiling
from ci.parity.facts import (
    BuckTarget,
    BuildTarget,
    CMakeTarget,
    Configuration,
    ParityFacts,
    Word,
    closure,
    collect,
    group,
    is_inside,
    is_source,
)
from ci.parity.policy import Library, ParityPolicy, matches

FINAL_KINDS = {"shared", "module", "add_executable", "pybind11_add_module"}


Edges = Callable[[str], Iterable[str]]


class Reached(AbstractSet[str]):
    """A set of names of a graph, as the bits of a number. ``places`` are their numbers."""

    def __init__(self, places: dict[str, int], bits: int) -> None:
        self.places, self.bits = places, bits

    def __contains__(self, name: object) -> bool:
        return name in self.places and bool(self.bits >> self.places[str(name)] & 1)

    def __iter__(self) -> Iterator[str]:
        return compress(self.places, (digit == "1" for digit in reversed(f"{self.bits:b}")))

    def __len__(self) -> int:
        return self.bits.bit_count()

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> set[str]:  # type: ignore[override]
        return {*names}


class Graph:
    """Tells what is reachable along the edges of a graph.

    Sets of names would have as many elements as there are pairs of targets, so they are the bits of
    numbers.
    """

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.places: dict[str, int] = {}
        self.reached: list[int] = []  # by place

    def reach(self, start: Iterable[str]) -> Reached:
        """Return the names in ``start``, and all that they reach."""
        bits = 0
        for name in start:
            if name not in self.places:
                self._visit(name)
            bits |= self.reached[self.places[name]]
        return Reached(self.places, bits)

    def _visit(self, root: str) -> None:
        """Find what ``root`` and all that it reaches reach.

        Most names have a lower place than those that they reach, so a few passes from the last to
        the first one are enough.
        """
        first, edges_of = len(self.places), list[list[str]]()
        names = [root]
        for name in names:  # more are added below
            if name not in self.places:
                self.reached.append(1 << len(self.places))
                self.places[name] = len(self.places)
                edges_of.append([*self.edges(name)])
                names += edges_of[-1]
        targets = []
        for edges in edges_of:
            places = {self.places[name] for name in edges}
            targets.append(places)
        before: list[int] = []
        while self.reached[first:] != before:
            before = self.reached[first:]
            for place in reversed(range(first, len(self.places))):
                for target in targets[place - first]:
                    self.reached[place] |= self.reached[target]


# One Buck target can be about twenty CMake libraries, so targets are mapped by their files.
class Groups(Index):
    """An index with the mapping between targets of the two sides, and the dependencies that each
    target reaches.

    It uses the configuration ANY, in which every branch is taken, so that libraries of a single
    platform are known.
    """

    def __init__(self, tree: ParityFacts, policy: ParityPolicy) -> None:
        super().__init__(tree, policy)
        facts = self.sides[Configuration.ANY]
        self.cmake_any = facts.targets
        self.cmake = group((target.name, target) for target in facts.targets)
        self.aliases = facts.aliases
        self._built = group(((target.directory, target.name), target) for target in self.built)
        self._library_names: dict[str, set[str]] = {}
        self._exported = Graph(self.exported_edges)
        self._buck = Graph(self.buck_edges)
        self._cmake = Graph(self.cmake_edges)

    @cached_property
    def buck_of(self) -> dict[str, set[str]]:
        """Maps the name of each CMake target to the labels of the Buck targets that compile its
        files.

        Buck has to compile more than half of the CMake target's sources, and at least one of them
        has to be in the target's folder. An example program that compiles one file of a library is
        therefore not mapped to that library.
        """
        labels_of: dict[str, set[str]] = defaultdict(set)
        mapped = set()
        for target in self.cmake_any:
            paths = set(filter(is_source, target.sources))
            shared, folder = paths & self.shared_files, f"{target.directory}/".lstrip("/")
            at_home = any(path.startswith(folder) for path in shared)
            if at_home and len(shared) * 2 > len(paths):
                mapped.add((target.name, target.place))
        for path in self.shared_files:
            uses = [use.target for use in self.buck_uses[path]]
            originals = [target for target in uses if not self.policy.is_twin(target.name)]
            labels = {target.label for target in originals or uses}
            users = [use.target for use in self.cmake_uses[Configuration.ANY].get(path, ())]
            product = [target for target in users if not self.is_test_program(target)]
            for target in product or users:
                if (target.name, target.place) in mapped:
                    labels_of[target.name] |= labels
        return labels_of

    @cached_property
    def cmake_of(self) -> dict[str, set[str]]:
        """Maps the label of each Buck target to the names of the CMake targets that compile its
        files.
        """
        return collect((label, name) for name, labels in self.buck_of.items() for label in labels)

    def standing_for(self, label: str) -> set[str]:
        """Return the label of a Buck target and, if the target has no files, the labels of its
        dependencies. A dependency without files is followed in the same way.
        """
        return closure([label], lambda each: () if self.has_files(each) else self.buck_edges(each))

    def has_files(self, label: str) -> bool:
        """Return whether a Buck target with this label lists a file."""
        return any(target.entries for target in self.labelled.get(label, ()))

    def labels_of(self, target: CMakeTarget) -> set[str]:
        """Return the labels of the Buck targets that compile files of ``target`` itself, not of
        another target with the same name.
        """
        uses = (u for path in target.sources for u in self.buck_uses.get(path, ()))
        return self.buck_of.get(target.name, set()) & {use.target.label for use in uses}

    def linked_labels(self, target: CMakeTarget, name: str) -> set[str]:
        """Return the Buck labels that correspond to the link of ``target`` to ``name``.

        If mutually exclusive directories have targets called ``name``, the nearest one is used.
        """
        namesakes = self.cmake.get(name, ())

        def count_shared(namesake: CMakeTarget) -> int:
            """Return how many folders at the start of both targets' paths are the same."""
            folder_pairs = zip(
                target.directory.split("/"), namesake.directory.split("/"), strict=False
            )
            return sum(1 for _ in takewhile(lambda folders: folders[0] == folders[1], folder_pairs))

        labels: set[str] = set()
        most_shared = max(map(count_shared, namesakes), default=0)
        for namesake in namesakes:
            if count_shared(namesake) == most_shared:
                labels |= self.labels_of(namesake)
        return labels

    def main_label(self, labels: Iterable[str], target: CMakeTarget) -> str:
        """Return the best Buck counterpart of a CMake target among ``labels``.

        Labels in or below the target's directory are preferred, then those that share the most
        sources with the target.
        """
        sources = target.sources

        def rank(label: str) -> tuple[bool, int, int, str]:
            buck = self.by_label[label]
            shared = sum(entry.path in sources for entry in self.resolved(buck.srcs))
            return (not is_inside(buck.package, [target.directory]), -shared, len(label), label)

        return min(labels, key=rank)

    def main_name(self, names: Iterable[str], label: str) -> str:
        """Return the name in ``names`` of the CMake target that shares the largest fraction of its
        sources with the Buck dependency ``label``.
        """
        bucks = [t for each in self.standing_for(label) for t in self.labelled.get(each, ())]
        buck_sources = {entry.path for buck in bucks for entry in self.resolved(buck.srcs)}

        def rank(name: str) -> tuple[float, str]:
            sources = {path for target in self.cmake.get(name, ()) for path in target.sources}
            return (-len(sources & buck_sources) / max(len(sources), 1), name)

        return min(names, key=rank)

    def cmake_name(self, text: str) -> str:
        """Return the name of the CMake target that ``text``, a linked name or alias, refers to."""
        name = self.aliases.get(text, text)
        return name if name in self.cmake else name.rpartition("::")[2]

    def cmake_edges(self, name: str) -> Iterable[str]:
        """Yield the names that the CMake targets called ``name`` link."""
        for target in self.cmake.get(name, ()):
            for word in target.links:
                yield self.cmake_name(word.text)

    @cached_property
    def buck_edges(self) -> Edges:
        """A function from the label of a Buck target to the direct dependencies of the target,
        including names outside the tree.
        """
        edges: dict[str, set[str]] = {}
        for label, targets in self.labelled.items():
            words = (w for t in targets for w in (*t.deps, *t.exported_deps, *t.external_deps))
            files = (e.path for t in targets if not is_compiling(t) for e in t.srcs)
            edges[label] = {*(self.plain(word.text) for word in words), *files}
        return lambda label: edges.get(self.plain(label), ())

    @cached_property
    def exported_edges(self) -> Edges:
        """A function from the label of a Buck target to the dependencies whose headers the target
        passes on.

        These are the exported dependencies of a C++ rule with files, and all dependencies of any
        other rule.
        """
        edges: dict[str, set[str]] = defaultdict(set)
        for label, targets in self.labelled.items():
            for target in targets:
                if "cxx" in target.kind and target.entries:
                    edges[label].update(self.plain(word.text) for word in target.exported_deps)
                else:
                    edges[label].update(self.buck_edges(label))
        return lambda label: edges.get(self.plain(label), ())

    def passed_on(
        self, target: BuckTarget, further_labels: Iterable[str] = (), *, exported: bool = False
    ) -> Reached:
        """Return the labels from which a Buck target gets headers and macros, including its own,
        and those from which users of ``further_labels`` get them.

        If ``exported`` is true, return the labels from which the target's users get headers and
        macros through the target.
        """
        words = target.exported_deps
        if not exported:
            words = (*words, *target.deps, *target.external_deps)
        direct = {self.plain(word.text) for word in words}
        return self._exported.reach({target.label, *direct, *further_labels})

    def plain(self, label: str) -> str:
        """Return ``label`` without the suffix that one of Meta's macros added, if only the shorter
        label has a target. Otherwise, return it unchanged.
        """
        labelled = self.labelled
        if label in labelled or not label.endswith(self.policy.suffixes):
            return label
        cuts = (label.removesuffix(suffix) for suffix in self.policy.suffixes)
        return next((cut for cut in cuts if cut in labelled), label)

    def buck_reach(self, labels: Iterable[str]) -> Reached:
        """Return the Buck targets ``labels`` and all targets that they depend on,
        directly or not.
        """
        return self._buck.reach(labels)

    def cmake_reach(self, name: str) -> Reached:
        """Return a CMake target and all targets that it links, directly or not."""
        return self._cmake.reach([name])

    def names_of(self, library: Library, side: str) -> set[str]:
        """Return the names by which a side depends on a library outside the tree."""
        key = f"{side} {library.name}"
        if key not in self._library_names:
            patterns, reached = library.buck, self._buck.reach(self.labelled)
            if side == "cmake":
                patterns, reached = library.cmake, self._cmake.reach(self.cmake)
            names = {*patterns, *reached}
            self._library_names[key] = {name for name in names if matches(name, patterns)}
        return self._library_names[key]

    @cached_property
    def finals(self) -> set[str]:
        """The names of CMake's executables and shared libraries."""
        return {target.name for target in self.cmake_any if target.kind in FINAL_KINDS}

    @cached_property
    def cmake_exporting(self) -> set[str]:
        """The names of the CMake targets with defines that also apply to their users."""
        names = set()
        for target in self.cmake_any:
            if any(word.exported for word in target.defines):
                names.add(target.name)
        return names

    def is_completed(self, name: str, libraries: set[str]) -> bool:
        """Return whether all executables and shared libraries that link the CMake target ``name``
        also link one of ``libraries``.

        A static library need not list its dependencies if everything that links it does.
        """
        reached = [self.cmake_reach(final) for final in self.finals - {name}]
        finals = [names for names in reached if name in names]
        return bool(finals) and not any(names.isdisjoint(libraries) for names in finals)

    def certain(self, target: CMakeTarget, attribute: str) -> list[Word]:
        """Return the links or defines (``attribute``) that a CMake target has whenever it exists.

        A link or define for one platform is included if it has no condition in that platform's
        configuration.
        """
        rows = [target, *self._built.get((target.directory, target.name), ())]
        words = (word for row in rows for word in getattr(row, attribute) if not word.condition)
        return list({word.text: word for word in words}.values())

    def sources_of(self, name: str) -> set[str]:
        """Return the sources of the CMake targets called ``name``, except for targets that are not
        compared.
        """
        targets = (target for target in self.cmake[name] if not self.is_left_out(target))
        return {path for target in targets for path in target.sources}

    @staticmethod
    def is_python(target: BuildTarget) -> bool:
        """Return whether a target is a Python extension module, whose links differ by design."""
        return "python" in target.kind or target.kind in {"module", "pybind11_add_module"}

    def is_left_out(self, target: BuildTarget) -> bool:
        """Return whether dependencies and defines of a target are not compared."""
        return (
            self.is_test(target)
            or self.is_python(target)
            or self.policy.is_excluded(target.place.path)
        )

    def is_program(self, name: str) -> bool:
        """Return whether the CMake targets called ``name`` are executables, which cannot
        be linked.
        """
        targets = self.cmake.get(name, ())
        return bool(targets) and all(target.kind == "add_executable" for target in targets)

    def is_test(self, target: BuildTarget) -> bool:
        """Return whether a target has sources, and all of them belong to tests."""
        return bool(target.srcs) and all(map(self.policy.is_test, target.sources))
