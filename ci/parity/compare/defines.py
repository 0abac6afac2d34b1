"""Find defines that only one side sets, if files that both sides compile depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index, name_of
from ci.parity.facts import BuckTarget, BuildTarget, CMakeTarget, Configuration, Word
from ci.parity.policy import matches


def find_define_drift(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each define that only one side sets.

    Only names are compared, because the two sides format values differently. An exported define is
    checked in every target that it reaches.
    """
    for target in (target for name in sorted(groups.cmake) for target in groups.cmake[name]):
        if not groups.is_left_out(target):
            yield from _cmake_only(groups, target)
    for label in sorted(groups.by_label):
        buck = groups.by_label[label]
        if not groups.policy.is_twin(buck.name) and not groups.is_left_out(buck):
            yield from _buck_only(groups, buck)


def is_ignored(index: Index, word: Word) -> bool:
    """Return whether a define is not compared, because it has a condition or the policy
    ignores it.
    """
    return bool(word.condition) or matches(name_of(word), index.policy.ignored_defines)


def buck_names(groups: Groups, labels: Iterable[str]) -> set[str]:
    """Return the macros of Buck targets: their own, and those that their dependencies export to
    them.
    """
    found: set[str] = set()
    for label in labels:
        target = groups.by_label[label]
        found.update(map(name_of, target.defines))
        for giver in groups.passed_on(target) & groups.exporting.keys():
            found |= groups.exporting[giver]
    return found


def cmake_names(groups: Groups, names: Iterable[str]) -> set[str]:
    """Return the macros of CMake targets: their own, those of their directories, and those that
    other targets export to them.
    """
    found: set[str] = set()
    for name in names:
        for own in groups.cmake.get(name, ()):
            found.update(map(name_of, (*own.defines, *own.directory_defines)))
        for linked in groups.cmake_reach(name) & groups.cmake_exporting:
            for owner in groups.cmake[linked]:
                found.update(map(name_of, exported(owner)))
    return found


def exported(target: BuildTarget) -> Iterator[Word]:
    """Yield the defines of a target that also apply to its users."""
    return (word for word in target.defines if word.exported)


def _cmake_only(groups: Groups, target: CMakeTarget) -> Iterator[Finding]:
    for word in groups.certain(target, "defines"):
        name = name_of(word)
        if is_ignored(groups, word):
            continue
        for reader in cmake_readers(groups, target, word):
            labels = groups.buck_of[reader.name]
            if name in buck_names(groups, labels) or groups.is_left_out(reader):
                continue
            label = min(labels)
            fix = f'add "-D{word.text}" to the preprocessor_flags of {label}'
            yield _lacking(target, word, reader, groups.by_label[label], fix)
            break


def _lacking(
    target: BuildTarget, word: Word, reader: BuildTarget, other: BuildTarget, fix: str
) -> Finding:
    """Return the finding that ``reader`` has a define of ``target``, and ``other`` does not."""
    sides = ("Buck", "CMake") if isinstance(reader, BuckTarget) else ("CMake", "Buck")
    return Finding(
        kind=Kind.DEFINE,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{sides[0]} defines {word.text} for {reader.label}, but {sides[1]} does not "
        f"define it for {other.label}",
        detail=f"{target.label}: {name_of(word)}",
        fix=fix,
        **at(reader, word.place),
        **at(other),
    )


def cmake_readers(groups: Groups, target: CMakeTarget, word: Word) -> Iterator[CMakeTarget]:
    """Yield the CMake targets that have a Buck counterpart and a file that reads a define of
    ``target``. Targets other than ``target`` itself must link it, and the define must be exported.
    """
    files = groups.files_that_read(name_of(word))
    if target.name in groups.buck_of and not files.isdisjoint(groups.readable_files(target)):
        yield target
    uses = groups.cmake_uses[Configuration.ANY]
    near = {use.target.name: use.target for path in files for use in uses.get(path, ())}
    for name in sorted(near) if word.exported else ():
        if name in groups.buck_of and target.name in groups.cmake_reach(name):
            yield near[name]


def _buck_only(groups: Groups, target: BuckTarget) -> Iterator[Finding]:
    for word in target.defines:
        name = name_of(word)
        if is_ignored(groups, word):
            continue
        for reader in buck_readers(groups, target, word):
            lacking = find_lacking(groups, reader, name, is_own=reader is target)
            if not lacking or groups.is_left_out(reader):
                continue
            first = groups.cmake[min(lacking)][0]
            giver = min(groups.cmake_of.get(target.label, ()), default="")
            fix = f"target_compile_definitions({first.name} PRIVATE {word.text})"
            if giver and reader is not target:
                fix = f"target_compile_definitions({giver} PUBLIC {word.text})"
            yield _lacking(target, word, reader, first, fix)
            break


def find_lacking(groups: Groups, reader: BuckTarget, macro: str, *, is_own: bool) -> set[str]:
    """Return the CMake counterparts of the Buck target ``reader`` that should define a macro but do
    not.

    - ``reader`` itself defines the macro (``is_own``): if all counterparts lack it, return all of
      them. Otherwise, return the counterparts that lack it and read it.
    - Another target exports the macro: if all counterparts that read it lack it, return these.
      Otherwise, return an empty set.
    """
    names = groups.cmake_of[reader.label]
    lacking = {name for name in names if macro not in cmake_names(groups, [name])}
    reading = names_that_read(groups, reader, macro)
    if is_own:
        return lacking if lacking == names else lacking & reading
    return lacking & reading if lacking >= reading else set()


def names_that_read(groups: Groups, target: BuckTarget, macro: str) -> set[str]:
    """Return the CMake counterparts of a Buck target that compile one of its files that reads
    ``macro``.
    """
    files = groups.files_that_read(macro) & groups.files_of(target)
    names = groups.cmake_of[target.label]
    return {name for name in names if not files.isdisjoint(groups.sources_of(name))}


def buck_readers(groups: Groups, target: BuckTarget, word: Word) -> Iterator[BuckTarget]:
    """Yield the Buck targets that have a CMake counterpart and a file that reads a define of
    ``target``. Targets other than ``target`` itself must depend on it, and the define must be
    exported.

    Targets that depend on it are left out if CMake's counterpart of ``target`` also exports the
    define. A CMake target without the define then lacks the dependency, and that is a separate
    finding.
    """
    files = groups.files_that_read(name_of(word))
    names = groups.cmake_of.get(target.label, set())
    if names and not files.isdisjoint(groups.files_of(target)):
        yield target
    twins = (twin for name in names for twin in groups.cmake.get(name, ()))
    known = {name_of(w) for twin in twins for w in (*exported(twin), *twin.directory_defines)}
    if not word.exported or name_of(word) in known:
        return
    near = {u.target.label: u.target for path in files for u in groups.buck_uses.get(path, ())}
    for label in sorted(near):
        if label in groups.cmake_of and target.label in groups.passed_on(near[label]):
            yield near[label]
