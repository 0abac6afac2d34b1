"""Find defines and dependencies that only one side has.

A define counts if files that both sides compile depend on it. Only dependencies between targets
that both sides have, and on libraries outside the tree, are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind, Level, at, noted
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index, name_of
from ci.parity.facts import (
    BuckTarget,
    BuildTarget,
    CMakeTarget,
    Configuration,
    Word,
    closure,
    collect,
)
from ci.parity.policy import Library, matches


def find_define_drift(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each define that only one side sets.

    Only names are compared, because the two sides format values differently. An exported define is
    checked in every target that it reaches.
    """
    for target in (target for name in sorted(groups.cmake) for target in groups.cmake[name]):
        if not groups.is_left_out(target):
            yield from _cmake_only_define(groups, target)
    for label in sorted(groups.by_label):
        buck = groups.by_label[label]
        if not groups.policy.is_twin(buck.name) and not groups.is_left_out(buck):
            yield from _buck_only_define(groups, buck)


def is_ignored(index: Index, word: Word) -> bool:
    """Return whether a define is not compared, because it has a condition or the policy
    ignores it.
    """
    return bool(word.condition) or matches(name_of(word), index.policy.ignored_defines)


def buck_names(groups: Groups, labels: Iterable[str]) -> set[str]:
    """Return the macros of Buck targets: their own, and those that their dependencies export to
    them.
    """
    names: set[str] = set()
    for label in labels:
        target = groups.by_label[label]
        names.update(map(name_of, target.defines))
        for giver in groups.passed_on(target) & groups.exporting.keys():
            names |= groups.exporting[giver]
    return names


def cmake_names(groups: Groups, name: str) -> set[str]:
    """Return the macros of the CMake targets called ``name``: their own, those of their
    directories, and those that other targets export to them.
    """
    defined = (
        word for t in groups.cmake.get(name, ()) for word in (*t.defines, *t.directory_defines)
    )
    linked = groups.cmake_reach(name) & groups.cmake_exporting
    inherited = (
        word for each in linked for owner in groups.cmake[each] for word in exported(owner)
    )
    return {name_of(word) for word in (*defined, *inherited)}


def exported(target: BuildTarget) -> Iterator[Word]:
    """Yield the defines of a target that also apply to its users."""
    return (word for word in target.defines if word.exported)


def _cmake_only_define(groups: Groups, target: CMakeTarget) -> Iterator[Finding]:
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
    target: BuildTarget, word: Word, reader: BuildTarget, counterpart: BuildTarget, fix: str
) -> Finding:
    """Return the finding that ``reader`` has a define of ``target``, and ``counterpart`` does
    not."""
    sides = ("Buck", "CMake") if isinstance(reader, BuckTarget) else ("CMake", "Buck")
    return Finding(
        kind=Kind.DEFINE,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{sides[0]} defines {word.text} for {reader.label}, but {sides[1]} does not "
        f"define it for {counterpart.label}",
        detail=f"{target.label}: {name_of(word)}",
        fix=fix,
        **at(reader, word.place),
        **at(counterpart),
    )


def cmake_readers(groups: Groups, target: CMakeTarget, word: Word) -> Iterator[CMakeTarget]:
    """Yield the CMake targets that have a Buck counterpart and a file that reads a define of
    ``target``. Targets other than ``target`` itself must link it, and the define must be exported.
    """
    files = groups.files_that_read(name_of(word))
    counterparts = [groups.by_label[label] for label in groups.buck_of.get(target.name, ())]
    # CMake's lists of sources rarely contain headers.
    headers = (e for buck in counterparts for e in (*buck.headers, *buck.exported_headers))
    if counterparts and any(entry.path in files for entry in (*target.entries, *headers)):
        yield target
    uses = groups.cmake_uses[Configuration.ANY]
    near = {use.target.name: use.target for path in files for use in uses.get(path, ())}
    for name in sorted(near) if word.exported else ():
        if name in groups.buck_of and target.name in groups.cmake_reach(name):
            yield near[name]


def _buck_only_define(groups: Groups, target: BuckTarget) -> Iterator[Finding]:
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
    lacking = {name for name in names if macro not in cmake_names(groups, name)}
    files = groups.files_that_read(macro) & groups.files_of(reader)
    reading = {name for name in names if not files.isdisjoint(groups.sources_of(name))}
    if is_own:
        return lacking if lacking == names else lacking & reading
    return lacking & reading if lacking >= reading else set()


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
    exported_names = {
        name_of(w) for twin in twins for w in (*exported(twin), *twin.directory_defines)
    }
    # Otherwise, every such target would be reported: ET_USE_THREADPOOL was found missing in
    # Cadence's operators, which CMake builds without a thread pool, and this hid the define that a
    # change took from the library.
    if not word.exported or name_of(word) in exported_names:
        return
    near = {u.target.label: u.target for path in files for u in groups.buck_uses.get(path, ())}
    for label in sorted(near):
        if label in groups.cmake_of and target.label in groups.passed_on(near[label]):
            yield near[label]


def find_dependency_drift(groups: Groups, details: set[str]) -> Iterator[Finding]:
    """Yield a finding for each dependency that only one side has. Only targets with sources that
    both sides compile are compared, and tests are left out.

    ``details`` are those of other findings, in the form ``//a:b -> //c:d``. Dependencies that
    Buck lacks according to them are not reported again.
    """
    pairs = (detail.split(" -> ", 1) for detail in details)
    lacking = collect((label, dependency) for label, dependency in pairs)
    for name in sorted(groups.buck_of):
        for target in groups.cmake.get(name, ()):
            if not groups.is_left_out(target):
                yield from _cmake_only_link(groups, target, lacking)
    for label in sorted(groups.cmake_of):
        buck = groups.by_label[label]
        if not groups.policy.is_twin(buck.name) and not groups.is_left_out(buck):
            yield from _buck_only_dependency(groups, buck)


def _cmake_only_link(
    groups: Groups, target: CMakeTarget, lacking: dict[str, set[str]]
) -> Iterator[Finding]:
    labels = groups.labels_of(target)
    reach = groups.buck_reach(labels)
    for word in groups.certain(target, "links") if labels else ():
        name = groups.cmake_name(word.text)
        linked = groups.linked_labels(target, name)
        library = library_of(groups, word.text, "cmake")
        if library is not None and reach.isdisjoint(groups.names_of(library, "buck")):
            yield _missing_in_buck(target, word, groups.main_label(labels, target), library.name)
        elif any(linked & lacking.get(label, set()) for label in labels):
            continue
        elif linked and not linked & reach and is_compared(groups, name):
            used = sorted(label for label in linked if uses(groups, target, label))
            users = set()
            for label in labels:
                if any(uses(groups, groups.by_label[label], provider) for provider in used):
                    users.add(label)
            label = groups.main_label(users or labels, target)
            dependency = groups.main_label(used or linked, groups.cmake[name][0])
            finding = _missing_in_buck(target, word, label, dependency)
            if not used:
                # If a target in between lacks a dependency, that finding is enough.
                mended = closure(
                    labels, lambda each: {*groups.buck_edges(each), *lacking.get(each, ())}
                )
                levels = {"level": Level.NOTE} if linked & mended else noted(finding.level)
                finding = replace(finding, **levels)
            yield finding


def _buck_only_dependency(groups: Groups, target: BuckTarget) -> Iterator[Finding]:
    names = groups.cmake_of[target.label]
    for word in (*target.deps, *target.exported_deps, *target.external_deps):
        standing = groups.standing_for(word.text)
        counterparts = {name for label in standing for name in groups.cmake_of.get(label, ())}
        library = library_of(groups, word.text, "buck")
        if library is not None:
            counterparts = groups.names_of(library, "cmake")
        elif not counterparts or any(matches(name, groups.policy.implied) for name in counterparts):
            continue
        # A program cannot be linked: nothing of CMake stands for a dependency that only programs
        # compile.
        linkable = {name for name in counterparts if not groups.is_program(name)}
        if word.condition or counterparts & names or not linkable:
            continue
        lacking = {name for name in names if groups.cmake_reach(name).isdisjoint(counterparts)}
        late = {name for name in lacking if groups.is_completed(name, counterparts)}
        used = {name for name in lacking if is_used(groups, name, target, word)}
        if missing := used - late if lacking != names or late else lacking:
            best = groups.main_name(linkable, word.text)
            yield _missing_in_cmake(groups, target, word, min(missing), best)
        elif used and lacking == names:
            best = groups.main_name(linkable, word.text)
            finding = _missing_in_cmake(groups, target, word, min(used), best)
            yield replace(finding, **noted(finding.level))


def is_used(groups: Groups, name: str, target: BuckTarget, word: Word) -> bool:
    """Return whether the part of a Buck target that the CMake target ``name`` compiles needs a
    dependency.

    It does if the part includes a header of the dependency. If several CMake targets compile parts
    of a Buck target, each needs only the dependencies of its part.
    """
    needed, listed = groups.facts.needed, groups.files_of(target)
    sources = closure(
        listed & groups.sources_of(name), lambda path: listed.intersection(needed.get(path, ()))
    )
    included = {header for path in sources for header in needed.get(path, ())}
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
    return not is_module and not matches(name, groups.policy.implied)


def _missing_in_buck(target: CMakeTarget, word: Word, label: str, dependency: str) -> Finding:
    return Finding(
        kind=Kind.DEPENDENCY,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{target.name} links {word.text}, but {label} does not depend on {dependency}",
        detail=f"{target.name} -> {word.text}",
        buck_target=label,
        **at(target, word.place),
        fix=f'add "{dependency}" to the deps of {label}, or do not link {word.text}',
    )


def _missing_in_cmake(
    groups: Groups, target: BuckTarget, word: Word, name: str, library: str
) -> Finding:
    return Finding(
        kind=Kind.DEPENDENCY,
        path=word.place.path,
        level=Level.WARNING,
        message=f"{target.label} depends on {word.text}, but {name} does not link {library}",
        detail=f"{target.label} -> {word.text}",
        **at(target, word.place),
        **at(groups.cmake[name][0]),
        fix=f"link {library} to {name}, or do not depend on {word.text}",
    )
