"""Find dependencies that only one side has. Only dependencies between targets that both sides have,
and on libraries outside the tree, are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind, Level, at, noted
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index
from ci.parity.facts import (
    BuckTarget,
    BuildTarget,
    CMakeTarget,
    Word,
    closure,
    collect,
)
from ci.parity.policy import Library, matches


def find_dependency_drift(groups: Groups, told: set[str]) -> Iterator[Finding]:
    """Yield a finding for each dependency that only one side has. Only targets with sources that
    both sides compile are compared, and tests are left out.

    ``told`` are the details of other findings, in the form ``//a:b -> //c:d``. Dependencies that
    Buck lacks according to them are not reported again.
    """
    pairs = (detail.split(" -> ", 1) for detail in told)
    lacking = collect((label, wanted) for label, wanted in pairs)
    for name in sorted(groups.buck_of):
        for target in groups.cmake.get(name, ()):
            if not groups.is_left_out(target):
                yield from _cmake_only(groups, target, lacking)
    for label in sorted(groups.cmake_of):
        buck = groups.by_label[label]
        if not groups.policy.is_twin(buck.name) and not groups.is_left_out(buck):
            yield from _buck_only(groups, buck)


def _cmake_only(
    groups: Groups, target: CMakeTarget, lacking: dict[str, set[str]]
) -> Iterator[Finding]:
    labels = groups.labels_of(target)
    reach = groups.buck_reach(labels)
    for word in groups.certain(target, "links") if labels else ():
        name = groups.cmake_name(word.text)
        wanted = groups.linked_labels(target, name)
        library = library_of(groups, word.text, "cmake")
        if library is not None and reach.isdisjoint(groups.names_of(library, "buck")):
            yield _missing_in_buck(target, word, groups.main_label(labels, target), library.name)
        elif any(wanted & lacking.get(label, set()) for label in labels):
            continue
        elif wanted and not wanted & reach and is_compared(groups, name):
            used = sorted(label for label in wanted if uses(groups, target, label))
            users = {
                label
                for label in labels
                if any(uses(groups, groups.by_label[label], other) for other in used)
            }
            label = groups.main_label(users or labels, target)
            other = groups.main_label(used or wanted, groups.cmake[name][0])
            found = _missing_in_buck(target, word, label, other)
            if not used:
                # If a target in between lacks a dependency, that finding is enough.
                mended = closure(
                    labels, lambda each: {*groups.buck_edges(each), *lacking.get(each, ())}
                )
                levels = {"level": Level.NOTE} if wanted & mended else noted(found.level)
                found = replace(found, **levels)
            yield found


def _buck_only(groups: Groups, target: BuckTarget) -> Iterator[Finding]:
    names = groups.cmake_of[target.label]
    for word in (*target.deps, *target.exported_deps, *target.external_deps):
        wanted = groups.linked_for(word.text)
        library = library_of(groups, word.text, "buck")
        if library is not None:
            wanted = groups.names_of(library, "cmake")
        elif not wanted or any(is_implied(groups, name) for name in wanted):
            continue
        linkable = {name for name in wanted if not groups.is_program(name)}
        if word.condition or wanted & names or not linkable:
            continue
        lacking = {name for name in names if not groups.links(name, wanted)}
        late = {name for name in lacking if groups.is_completed(name, wanted)}
        used = {name for name in lacking if is_used(groups, name, target, word)}
        if missing := used - late if lacking != names or late else lacking:
            best = groups.main_name(linkable, word.text)
            yield _missing_in_cmake(groups, target, word, min(missing), best)
        elif used and lacking == names:
            best = groups.main_name(linkable, word.text)
            found = _missing_in_cmake(groups, target, word, min(used), best)
            yield replace(found, **noted(found.level))


def is_used(groups: Groups, name: str, target: BuckTarget, word: Word) -> bool:
    """Return whether the part of a Buck target that the CMake target ``name`` compiles needs a
    dependency.

    It does if the part includes a header of the dependency. If several CMake targets compile parts
    of a Buck target, each needs only the dependencies of its part.
    """
    needed, listed = groups.facts.needed, groups.files_of(target)
    own = closure(
        listed & groups.sources_of(name), lambda path: listed.intersection(needed.get(path, ()))
    )
    included = {header for path in own for header in needed.get(path, ())}
    standing = groups.standing_for(word.text) & groups.cmake_of.keys()
    return any(not included.isdisjoint(groups.files_of(groups.by_label[each])) for each in standing)


def uses(index: Index, target: BuildTarget, label: str) -> bool:
    """Return whether a file of a target includes a header of the Buck target ``label``.

    CMake targets often link more than they use, which does not break any Buck build.
    """
    buck = index.by_label[label]
    offered = {e.path for e in index.resolved((*buck.headers, *buck.exported_headers))}
    included = (index.facts.headers.get(entry.path, ()) for entry in target.entries)
    return any(not offered.isdisjoint(headers) for headers in included)


def library_of(index: Index, text: str, side: str) -> Library | None:
    """Return the library outside the tree that one side calls ``text``, or None if there
    is none.
    """
    for library in index.policy.library:
        if matches(text, library.buck if side == "buck" else library.cmake):
            return library
    return None


def is_compared(groups: Groups, name: str) -> bool:
    """Return whether links to a CMake target are compared. Links to the core, on which all targets
    depend, and to Python extension modules are not.
    """
    is_module = any(groups.is_python(linked) for linked in groups.cmake.get(name, ()))
    return not is_module and not is_implied(groups, name)


def is_implied(index: Index, name: str) -> bool:
    """Return whether all targets depend on a CMake target implicitly."""
    return matches(name, index.policy.implied)


def _missing_in_buck(target: CMakeTarget, word: Word, label: str, wanted: str) -> Finding:
    return Finding(
        kind=Kind.DEPENDENCY,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{target.name} links {word.text}, but {label} does not depend on {wanted}",
        detail=f"{target.name} -> {word.text}",
        buck_target=label,
        **at(target, word.place),
        fix=f'add "{wanted}" to the deps of {label}, or do not link {word.text}',
    )


def _missing_in_cmake(
    groups: Groups, target: BuckTarget, word: Word, name: str, wanted: str
) -> Finding:
    return Finding(
        kind=Kind.DEPENDENCY,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{target.label} depends on {word.text}, but {name} does not link {wanted}",
        detail=f"{target.label} -> {word.text}",
        **at(target, word.place),
        **at(groups.cmake[name][0]),
        fix=f"link {wanted} to {name}, or do not depend on {word.text}",
    )
