"""Buck libraries whose files include headers that their deps do not reach.

CMake finds every header through a few include directories; Buck only those of dependencies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index, is_compiling, is_native
from ci.parity.facts import BuckTarget, closure, is_header, is_source


def find_undeclared_headers(index: Index, groups: Groups) -> Iterator[Finding]:
    """Headers that a compiled source needs, directly or through other headers.

    A header whose library nothing compiles is judged in the sources that include it.
    """
    owners = find_owners(index)
    for label in sorted(index.by_label):
        target = index.by_label[label]
        if is_judged(index, target):
            yield from _missing(index, groups, target, owners)


def find_owners(index: Index) -> dict[str, set[str]]:
    """The labels of the Buck targets that list a header."""
    owners: dict[str, set[str]] = defaultdict(set)
    for target in index.facts.buck.targets:
        made = (entry.made_as for entry in target.entries)
        for path in (*made, *(entry.path for entry in index.resolved(target.entries))):
            if is_header(path):
                owners[path].add(target.label)
    return owners


def is_judged(index: Index, target: BuckTarget) -> bool:
    is_library = is_native(target) and is_compiling(target)
    left_out = index.policy.is_twin(target.name) or index.policy.is_excluded(target.place.path)
    return is_library and not left_out


def _missing(
    index: Index, groups: Groups, target: BuckTarget, owners: dict[str, set[str]]
) -> Iterator[Finding]:
    reached = find_visible(groups, target)
    needed = index.facts.needed
    sources = [e.path for e in index.resolved(target.srcs) if is_source(e.path)]
    for source in sources:
        for path in sorted(closure([source], lambda each: needed.get(each, ()))):
            near = {target.label} if path == source else owners[path] & reached
            for header in needed.get(path, ()) if near else ():
                wanted = owners.get(header)
                if wanted and not wanted & reached:
                    owner = index.by_label[target.label if target.label in near else best(near)]
                    yield _undeclared(index, owner, path, header, best(wanted))


def find_visible(groups: Groups, target: BuckTarget) -> set[str]:
    """The labels whose headers a target may include: its dependencies, and what these export."""
    words = (*target.deps, *target.exported_deps, *target.external_deps)
    direct = {groups.plain(word.text) for word in words}
    return closure({target.label, *direct, *groups.index.policy.given}, groups.exported_edges)


def best(labels: set[str]) -> str:
    """The plainest of several labels: the others are variants of it."""
    return min(labels, key=lambda label: (len(label), label))


def _undeclared(index: Index, target: BuckTarget, path: str, header: str, wanted: str) -> Finding:
    attribute = "exported_deps" if is_header(path) else "deps"
    return Finding(
        kind=Kind.DEPENDENCY,
        path=target.place.path,
        level=Level.NOTE if index.policy.is_test(path) else Level.WARNING,
        message=f"{path} includes {header}; {target.label} does not depend on {wanted}",
        detail=f"{target.label} -> {wanted}",
        fix=f'add "{wanted}" to the {attribute} of {target.label} ({target.place})',
        **at(target),
    )
