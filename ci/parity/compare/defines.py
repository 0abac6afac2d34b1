"""Defines that only one side sets for targets whose sources both sides compile."""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index
from ci.parity.facts import BuckTarget, CMakeTarget, Word
from ci.parity.policy import matches


def find_define_drift(index: Index, groups: Groups) -> Iterator[Finding]:
    """Defines by name: the two sides give values in too many ways to compare them."""
    for name in sorted(groups.buck_of):
        for target in groups.cmake.get(name, ()):
            if not groups.is_left_out(target):
                yield from _cmake_only(index, groups, target)
    for label in sorted(groups.cmake_of):
        buck = index.by_label[label]
        if not index.policy.is_twin(buck.name) and not groups.is_left_out(buck):
            yield from _buck_only(index, groups, buck)


def name_of(word: Word) -> str:
    """The macro that a define sets."""
    return word.text.partition("=")[0]


def is_told(index: Index, word: Word, paths: set[str]) -> bool:
    """Whether a define counts: certain, not ignored, and read by a file of its target."""
    name = name_of(word)
    if word.condition or matches(name, index.policy.ignored_defines):
        return False
    return not paths.isdisjoint(index.facts.macros.get(name, ()))


def _cmake_only(index: Index, groups: Groups, target: CMakeTarget) -> Iterator[Finding]:
    labels = groups.buck_of[target.name]
    reach = groups.buck_reach(labels)
    known = {name_of(d) for t in reach & index.by_label.keys() for d in index.by_label[t].defines}
    paths = {entry.path for entry in (*target.sources, *target.headers)}
    for word in target.defines:
        name = name_of(word)
        if name in known or not is_told(index, word, paths):
            continue
        label = min(labels)
        yield Finding(
            kind=Kind.DEFINE,
            path=word.place.path,
            level=Level.WARNING,
            message=f"CMake defines {word.text} for {target.name}, Buck does not for {label}",
            detail=f"{target.name}: {name}",
            buck_target=label,
            cmake_target=target.name,
            buck_place=index.by_label[label].place,
            cmake_place=word.place,
            fix=f'add "-D{word.text}" to the preprocessor_flags of {label}',
        )


def _buck_only(index: Index, groups: Groups, target: BuckTarget) -> Iterator[Finding]:
    names = groups.cmake_of[target.label]
    reach = {linked for name in names for linked in groups.cmake_reach(name)}
    owners = [owner for linked in reach for owner in groups.cmake.get(linked, ())]
    known = {name_of(w) for owner in owners for w in (*owner.defines, *owner.directory_defines)}
    entries = (*target.srcs, *target.headers, *target.exported_headers)
    paths = {entry.path for entry in index.resolved(entries)}
    for word in target.defines:
        name = name_of(word)
        if name in known or not is_told(index, word, paths):
            continue
        first = groups.cmake[min(names)][0]
        yield Finding(
            kind=Kind.DEFINE,
            path=word.place.path,
            level=Level.WARNING,
            message=f"Buck defines {word.text} for {target.label}, CMake does not for {first.name}",
            detail=f"{target.label}: {name}",
            buck_target=target.label,
            cmake_target=first.name,
            buck_place=word.place,
            cmake_place=first.place,
            fix=f"target_compile_definitions({first.name} PRIVATE {word.text})",
        )
