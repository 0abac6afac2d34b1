"""Dependencies that only one side has: between mapped targets, and on outside libraries."""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index
from ci.parity.facts import BuckTarget, CMakeTarget, Word
from ci.parity.policy import Library, matches


def find_dependency_drift(index: Index, groups: Groups) -> Iterator[Finding]:
    """Dependencies of targets whose sources both sides compile; tests are left out."""
    for name in sorted(groups.buck_of):
        for target in groups.cmake.get(name, ()):
            if not groups.is_left_out(target):
                yield from _cmake_only(index, groups, target)
    for label in sorted(groups.cmake_of):
        buck = index.by_label[label]
        if not index.policy.is_twin(buck.name) and not groups.is_left_out(buck):
            yield from _buck_only(index, groups, buck)


def _cmake_only(index: Index, groups: Groups, target: CMakeTarget) -> Iterator[Finding]:
    labels = groups.buck_of[target.name]
    reach = groups.buck_reach(labels)
    for word in target.links:
        if word.condition:
            continue
        name = groups.cmake_name(word.text)
        wanted = groups.buck_of.get(name, set())
        library = library_of(index, word.text, "cmake")
        if library is not None and not any(matches(text, library.buck) for text in reach):
            yield _missing_in_buck(target, word, min(labels), library.name)
        elif wanted and not wanted & reach and not is_implied(index, name):
            yield _missing_in_buck(target, word, min(labels), min(wanted))


def _buck_only(index: Index, groups: Groups, target: BuckTarget) -> Iterator[Finding]:
    names = groups.cmake_of[target.label]
    for word in (*target.deps, *target.exported_deps, *target.external_deps):
        wanted = groups.cmake_of.get(word.text, set())
        library = library_of(index, word.text, "buck")
        if library is not None:
            wanted = set(library.cmake)
        elif not wanted or any(is_implied(index, name) for name in wanted):
            continue
        if word.condition or wanted & names or groups.links_in_the_end(names, wanted):
            continue
        yield _missing_in_cmake(groups, target, word, min(names), min(wanted))


def library_of(index: Index, text: str, side: str) -> Library | None:
    """The outside library that a name of one side stands for."""
    for library in index.policy.library:
        if matches(text, library.buck if side == "buck" else library.cmake):
            return library
    return None


def is_implied(index: Index, name: str) -> bool:
    """Whether everything depends on a CMake target without saying so."""
    return matches(name, index.policy.implied)


def _missing_in_buck(target: CMakeTarget, word: Word, label: str, wanted: str) -> Finding:
    return Finding(
        kind=Kind.DEPENDENCY,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{target.name} links {word.text}; {label} does not depend on {wanted}",
        detail=f"{target.name} -> {word.text}",
        buck_target=label,
        cmake_target=target.name,
        cmake_place=word.place,
        fix=f'add "{wanted}" to the deps of {label}, or do not link {word.text}',
    )


def _missing_in_cmake(
    groups: Groups, target: BuckTarget, word: Word, name: str, wanted: str
) -> Finding:
    owner = groups.cmake[name][0]
    return Finding(
        kind=Kind.DEPENDENCY,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{target.label} depends on {word.text}; {name} does not link {wanted}",
        detail=f"{target.label} -> {word.text}",
        buck_target=target.label,
        cmake_target=name,
        buck_place=word.place,
        cmake_place=owner.place,
        fix=f"link {wanted} to {name}, or do not depend on {word.text}",
    )
