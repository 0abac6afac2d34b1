"""Find sources that only one side lists, or that neither side lists."""

from __future__ import annotations

import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind, Level, at, noted
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import BUILT, Index, Use, area_of, is_compiling, is_native, topmost_of
from ci.parity.facts import (
    BuckTarget,
    CMakeTarget,
    Configuration,
    ListEntry,
    closure,
    collect,
    directory_of,
    is_header,
    is_inside,
    is_source,
    stem_of,
)
from ci.parity.policy import matches

WHOLE_FOLDER = "folder"


def level_of(index: Index, path: str, level: Level = Level.ERROR) -> Level:
    """Return the level of a difference. It is a note for tests, because CMake builds only some of
    them.
    """
    return Level.NOTE if index.policy.is_test(path) else level


def levels_of(index: Index, path: str, level: Level = Level.WARNING) -> dict[str, Any]:
    """Return ``level`` and, for a test, ``when_new`` of a finding about a difference that breaks a
    Buck build. The finding is only a note if it is about a test and not new.
    """
    return noted(level) if index.policy.is_test(path) else {"level": level}


def is_compared(index: Index, path: str) -> bool:
    """Return whether ``path`` is a source that is compared: it is neither in a submodule nor
    excluded by the policy.
    """
    return is_source(path) and not index.is_outside(path)


def find_cmake_only(index: Index) -> Iterator[Finding]:
    """Yield a finding for each source that CMake compiles and Buck does not.

    If Buck compiles no C++ in the source's package, the outermost folder in which Buck compiles no
    C++ is reported instead. Tests and the policy's ``without_buck`` are then left out.
    """
    for configuration in BUILT:
        uses = index.cmake_uses[configuration]
        for path in sorted(uses):
            is_listed = path in index.buck_uses or not index.exists(path)
            if is_listed or not is_compared(index, path):
                continue
            use, is_test = uses[path][0], index.policy.is_test(path)
            if index.package_of(path) in index.native_packages:
                target = nearest_buck_target(index, path, use.target)
                yield Finding(
                    kind=Kind.CMAKE_ONLY,
                    path=path,
                    level=level_of(index, path),
                    message=f"CMake compiles this file in {use.target.name}, but no Buck target "
                    "lists it",
                    fix=fix_in_buck(index, path, target),
                    **at(target),
                    **at(use.target, use.entry.place),
                )
            elif directory_of(path) and not (is_test or matches(path, index.policy.without_buck)):
                folder = topmost_of(path, index.native_packages)
                yield Finding(
                    kind=Kind.CMAKE_ONLY,
                    path=folder,
                    **noted(Level.WARNING),
                    message=f"CMake compiles the folder's sources in {use.target.name}, but Buck "
                    "has no target for them",
                    detail=WHOLE_FOLDER,
                    fix=f"describe the libraries of {folder} in a BUCK file",
                    **at(use.target, use.entry.place),
                )


def find_buck_only(index: Index) -> Iterator[Finding]:
    """Yield a finding for each source that Buck compiles and no CMake target does. For files of the
    product, CMake's test programs do not count, and neither do its programs in folders of the
    policy's ``without_buck``.

    CMake may build no tests at all in an area, which is the first two folders of a path, such as
    ``backends/qualcomm``. The area is then reported once, as a note, instead of each test.
    """
    everywhere = index.cmake_mentions - index.not_in_product
    incomplete = {target.directory for target in index.cmake_targets if not target.complete}
    untested: dict[str, list[Use[BuckTarget]]] = defaultdict(list)
    for path in sorted(index.buck_uses):
        use = index.buck_uses[path][0]
        if path in everywhere or not index.exists(path) or not is_compared(index, path):
            continue
        if directory_of(path) in incomplete or not is_native(use.target):
            continue
        if index.policy.is_test(path) and area_of(path) not in index.tested_areas:
            untested[area_of(path)].append(use)
        else:
            yield _buck_only(index, path, use)
    for area, uses in untested.items():
        yield Finding(
            kind=Kind.BUCK_ONLY,
            path=area,
            level=Level.NOTE,
            message=f"Buck compiles this folder's tests, such as {uses[0].entry.path}, "
            "but CMake compiles none of them",
            detail=WHOLE_FOLDER,
            fix=f"add the tests to a CMakeLists.txt in {area}",
            **at(uses[0].target, uses[0].entry.place),
        )


def _buck_only(index: Index, path: str, use: Use[BuckTarget]) -> Finding:
    target, entry = nearest_cmake_target(index, path, use.target)
    where = " to a CMake target"
    if target:
        where = f" to {target.name} ({entry.place if entry else target.place})"
    if target and target.kind == "add_executable" and len(target.srcs) == 1:
        where = f" to a new target, like {target.name} ({target.place})"
    return Finding(
        kind=Kind.BUCK_ONLY,
        path=path,
        level=level_of(index, path),
        message=f"Buck compiles this file in {use.target.label}, but no CMake target does",
        fix=f"add {path}{where}",
        **at(use.target, use.entry.place),
        **at(target, entry.place if entry else None),
    )


def find_unlisted(index: Index) -> Iterator[Finding]:
    """Yield a finding for each source that neither side lists, in folders where other sources are
    listed.

    Also yield a finding for a Python file that Buck does not list if a listed file imports it, or
    if Buck lists most of the other modules in its folder. For a test, one other module is enough.
    """
    listed = index.buck_mentions | index.cmake_mentions
    folders = {directory_of(path) for path in listed if is_source(path)}
    python = Counter(directory_of(p) for p in index.buck_mentions if p.endswith(".py"))
    modules = Counter(directory_of(path) for path in filter(is_module, index.facts.files))
    imports = index.facts.imports
    first = {file for path in listed for file in imports.get(path, ())}
    # What listed files import, directly or through unlisted files.
    needed = closure(first, lambda path: () if path in listed else imports.get(path, ()))
    for path in sorted(index.facts.files - listed):
        if index.is_outside(path):
            continue
        if is_source(path) and directory_of(path) in folders:
            yield _unlisted(index, path, "neither Buck nor CMake lists this file")
        elif path in needed and index.package_of(path) is None:
            folder = topmost_of(path, index.packages)
            yield Finding(
                kind=Kind.UNLISTED,
                path=folder,
                **noted(Level.WARNING),
                message=f"files that Buck lists import {path}, but this folder has no BUCK file",
                detail=WHOLE_FOLDER,
                fix=f"describe the Python libraries of {folder} in a BUCK file",
            )
        elif path in needed:
            why = "no Buck target lists this file, although listed files import it"
            yield replace(_unlisted(index, path, why), **levels_of(index, path))
        elif (listing := python[directory_of(path)]) and is_module(path):
            is_most = listing * 2 > modules[directory_of(path)]
            if is_most or index.policy.is_test(path):
                why = "no Buck target lists this file, although Buck lists others in its folder"
                yield _unlisted(index, path, why)


def _unlisted(index: Index, path: str, message: str) -> Finding:
    target = nearest_buck_target(index, path, None)
    # The product does not need a test, or a Python file that no file imports.
    is_idle = index.policy.is_test(path) or (path.endswith(".py") and path not in index.imported)
    return Finding(
        kind=Kind.UNLISTED,
        path=path,
        level=Level.NOTE if is_idle else Level.WARNING,
        message=message,
        fix=fix_in_buck(index, path, target),
        **at(target),
    )


def is_module(path: str) -> bool:
    """Return whether a file is a Python module, not a package's __init__.py."""
    return path.endswith(".py") and not path.endswith("__init__.py")


# A CMake target may list the sources of a library one by one. A new source is then easily forgotten
# in the list, even if some other target compiles it.

FEWEST_TAKEN = 5


def find_partial_drift(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each source of a Buck library that is missing from a CMake target,
    although the target compiles other sources of the library. A source is not missing if a library
    that the target links compiles it.

    A missing source is reported if it is the only one, and the target compiles at least
    FEWEST_TAKEN others. Sources that may be missing according to the allow-list do not count. A
    missing source is also reported if the library is in other folders than the target, and the
    target includes the header of the source. Some other CMake target must compile it; otherwise, it
    is a finding of ``find_buck_only``.
    """
    libraries = {}
    for target in groups.facts.buck.targets:
        if is_compiling(target) and not groups.policy.is_twin(target.name):
            paths = {entry.path for entry in groups.resolved(target.srcs)}
            libraries[target.label] = {p for p in paths if is_source(p) and groups.exists(p)}
    compiling = collect((path, t.name) for t in groups.cmake_any for path in t.sources)
    order = {label: place for place, label in enumerate(libraries)}
    owners = collect((path, label) for label, sources in libraries.items() for path in sources)
    kind, entries = Kind.BUCK_ONLY.value, groups.policy.allow
    for name, targets in sorted(groups.cmake.items()):
        reach = groups.cmake_reach(name)
        compiled = {path for target in targets for path in target.sources}
        partly = set[str]().union(*(owners[path] for path in compiled & owners.keys()))
        for label in sorted(partly, key=order.__getitem__):
            sources = libraries[label]
            taken = sources & compiled
            missing = {path for path in sources if reach.isdisjoint(compiling[path])}
            needed = set()
            for path in missing:
                if not any(entry.covers(kind, path, name) for entry in entries):
                    needed.add(path)
            if len(taken) < FEWEST_TAKEN or len(needed) > 1:
                is_apart = taken and missing and is_foreign(groups, targets, sources)
                missing = missing & find_halves(groups, compiled) if is_apart else set()
            for path in sorted(missing & groups.shared_files):
                place = next(entry.place for entry in targets[0].srcs if entry.path in taken)
                yield Finding(
                    kind=Kind.BUCK_ONLY,
                    path=path,
                    level=level_of(groups, path, Level.WARNING),
                    message=f"{name} compiles {len(taken)} other sources of {label}, but not this "
                    "one",
                    detail=name,
                    fix=f"add {path} to {name} ({place})",
                    **at(groups.by_label[label], groups.buck_uses[path][0].entry.place),
                    **at(targets[0], place),
                )


def is_foreign(index: Index, targets: list[CMakeTarget], sources: set[str]) -> bool:
    """Return whether no source in ``sources`` is in the folders of ``targets``, and none of the
    targets compiles a test.
    """
    folders = [target.directory for target in targets]
    paths = (path for target in targets for path in target.sources)
    is_apart = not any(is_inside(path, folders) for path in sources)
    return is_apart and not any(map(index.policy.is_test, paths))


def find_halves(index: Index, sources: set[str]) -> set[str]:
    """Return the sources that belong to headers which ``sources`` include, such as a.cpp
    for a.h.
    """
    included = closure(sources, lambda path: index.facts.headers.get(path, ()))
    stems = {stem_of(path) for path in included if is_header(path)}
    return {path for path in index.shared_files if stem_of(path) in stems}


# Choose the target that a missing file belongs to


def nearest_buck_target(
    index: Index,
    path: str,
    cmake: CMakeTarget | None,
    configuration: Configuration | None = None,
) -> BuckTarget | None:
    """Return the Buck target that should most likely list ``path``, or None if there is no
    candidate. If ``configuration`` is given, only targets for that platform are candidates.

    These targets are preferred, in this order:

    - a target that does not repeat another one
    - a target that lists the counterpart (a.h for a.cpp)
    - a target with files in the same folder
    - the target with the most sources in the same folder (for a header, also headers) or in common
      with ``cmake``
    """
    votes: Counter[str] = Counter()
    homes: set[str] = set()
    halves: set[str] = set()
    folder = directory_of(path)
    attribute = "entries" if is_header(path) else "srcs"
    for entry in cmake.srcs if cmake else ():
        for use in index.buck_uses.get(entry.path, ()):
            is_near = directory_of(entry.path) == folder
            votes[use.target.label] += 10 if is_near else 1
    for target in index.by_package.get(index.package_of(path) or "", ()):
        if suffix_fits(target, path):
            near = sum(directory_of(e.path) == folder for e in getattr(target, attribute))
            votes[target.label] += near * 2 + 1
            homes.update({target.label} if near else ())
            halves.update({target.label} if has_half(target, path) else ())

    def rank(label: str) -> tuple[bool, bool, bool, int, str]:
        is_twin = index.policy.is_twin(label.rpartition(":")[2])
        return (not is_twin, label in halves, label in homes, votes[label], label)

    fitting = [
        label
        for label in votes
        if configuration is None
        or configuration in index.target_configurations(index.by_label[label])
    ]
    best = max(fitting, key=rank, default=None)
    return index.by_label[best] if best else None


def fix_in_buck(index: Index, path: str, target: BuckTarget | None, attribute: str = "") -> str:
    """Return a fix that adds the file ``path`` to ``target``. ``attribute`` may name an attribute
    of the target, as in "the exported_headers of ".

    If ``target`` is None, the fix adds a new target. It also does so if the targets next to the
    file usually have a single source each. That does not apply with an ``attribute``, or if
    ``target`` lists the file's counterpart (a.h for a.cpp).
    """
    line = f'"{posixpath.relpath(path, index.package_of(path) or ".")}"'
    if target is None:
        return f"add a new Buck target that lists {line}"
    if is_alone(index, path, target) and not (attribute or has_half(target, path)):
        like = f"{target.label} ({target.place})"
        return f"add a new Buck target that lists {line}, like {like}"
    return f"add {line} to {attribute}{target.label} ({target.place})"


def has_half(target: BuckTarget, path: str) -> bool:
    """Return whether a target lists the counterpart of a file (a.h for a.cpp)."""
    return any(stem_of(entry.path) == stem_of(path) for entry in target.entries)


def is_alone(index: Index, path: str, target: BuckTarget) -> bool:
    """Return whether the targets near a file usually have a single source each.

    The package must have at least two targets for files of this kind, and ``target`` or most of the
    targets near the file must have a single source. Near means with sources in the file's folder
    or, if there are no such targets, in the package.
    """
    folder = directory_of(path)
    rows = [row for row in index.by_package[target.package] if suffix_fits(row, path)]
    folders_of = [set(map(directory_of, _paths(row))) for row in rows]
    near = [row for row, folders in zip(rows, folders_of, strict=True) if folder in folders]
    single = [row for row in near or rows if len(_paths(row)) == 1]
    return len(rows) > 1 and (len(target.srcs) == 1 or len(single) * 2 > len(near or rows))


def _paths(target: BuckTarget) -> set[str]:
    """Return the distinct paths of a target's sources."""
    return {entry.path for entry in target.srcs}


def suffix_fits(target: BuckTarget, path: str) -> bool:
    """Return whether a Buck target is of a kind that may list ``path``."""
    if path.endswith(".py"):
        return target.kind.startswith("python")
    return is_native(target) and (is_source(path) or is_header(path))


def nearest_cmake_target(
    index: Index, path: str, buck: BuckTarget
) -> tuple[CMakeTarget | None, ListEntry | None]:
    """Return the CMake target that should most likely compile ``path``, and the entry in it that
    ``path`` should be added next to. Return None for both if there is no candidate.

    A target that lists the counterpart (a.h for a.cpp, in the same folder or above) is preferred,
    then the target with the most sources in the same folder or in common with ``buck``.
    """
    votes: Counter[str] = Counter()
    candidates: dict[str, tuple[CMakeTarget, ListEntry]] = {}
    siblings = {entry.path for entry in buck.srcs}
    for source, rows in index.cmake_uses[Configuration.ANY].items():
        is_near = directory_of(source) == directory_of(path)
        if is_near or source in siblings:
            if source == path or index.policy.is_test(source) != index.policy.is_test(path):
                continue
            for use in rows:
                votes[use.target.name] += 2 if is_near else 1
                candidates.setdefault(use.target.name, (use.target, use.entry))
    halves = find_cmake_halves(index, path)
    candidates = {**halves, **candidates}
    if not candidates:
        return None, None

    def rank(name: str) -> tuple[bool, int, bool, str]:
        at_home = candidates[name][0].directory == directory_of(path)
        return (name in halves, votes[name], at_home, name)

    return candidates[max(candidates, key=rank)]


def find_cmake_halves(index: Index, path: str) -> dict[str, tuple[CMakeTarget, ListEntry]]:
    """Return the CMake targets that can compile ``path`` and list its header, each with the entry
    of the header. The header is in the folder of ``path`` or in one above.
    """
    name = posixpath.basename(stem_of(path))
    return {
        target.name: (target, entry)
        for target in index.sides[Configuration.ANY].targets
        for entry in target.headers
        if posixpath.basename(stem_of(entry.path)) == name
        and is_inside(path, [directory_of(entry.path)])
        and target.kind != "interface"
        and not index.is_test_program(target)
    }
