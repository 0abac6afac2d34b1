"""Find mistakes that concern only one side.

These are repeated files and targets, files that are not in the tree, patterns without a match, and
dependencies on missing targets. Also find variants for one platform that use a file or a library of
the other platform.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from difflib import get_close_matches

from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind, Level, at, noted
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import BUILT, Index, Use, is_compiling
from ci.parity.compare.relations import library_of
from ci.parity.compare.sources import is_compared, level_of, nearest_buck_target
from ci.parity.facts import BuckTarget, CMakeTarget, Configuration, Place, suffix_of
from ci.parity.policy import matches

# A flag, a path, a library by its file, and a target of a package that find_package() found.
OUTSIDE = re.compile(r"^[-$]|[/\s]|^(?!executorch)\w+::|\.(?:a|so|lib|tbd|framework)$")
NEAR = 0.85


def find_repeated(index: Index) -> Iterator[Finding]:
    """Yield a finding for each target that is certainly defined twice."""
    repeated = (t for c in BUILT for t in index.sides[c].repeated)
    for target in (*index.facts.buck.repeated, *repeated):
        if not index.policy.is_excluded(target.place.path):
            side = "" if isinstance(target, BuckTarget) else "CMake target "
            yield Finding(
                kind=Kind.DUPLICATE_TARGET,
                path=target.place.path,
                message=f"{side}{target.label} is defined twice",
                detail=target.label,
                fix="rename or remove one of the targets",
                **at(target),
            )


def find_empty_globs(index: Index) -> Iterator[Finding]:
    """Yield a finding for each pattern of a glob() call that matches no file.

    If no other pattern of the call matches a file either, this is an error. Otherwise it is only a
    note, because some patterns are for future files.
    """
    for call in index.facts.buck.globs:
        for pattern in call.empty:
            path = f"{call.package}/{pattern}".lstrip("/")
            fixed = path.partition("*")[0]
            if index.is_outside(fixed) or index.policy.is_excluded(path):
                continue
            yield Finding(
                kind=Kind.EMPTY_GLOB,
                path=path,
                level=Level.ERROR if not call.matches else Level.NOTE,
                message=f"glob() in //{call.package}: no file matches {pattern!r}",
                detail=pattern,
                buck_place=call.place,
                fix="remove the pattern, or correct it",
            )


def find_missing(index: Index) -> Iterator[Finding]:
    """Yield a finding for each line that lists a file which is not in the tree."""
    places_of: dict[str, set[Place]] = defaultdict(set)
    for target in (*index.facts.buck.targets, *index.cmake_targets):
        for entry in target.entries:
            side = "buck" if isinstance(target, BuckTarget) else "cmake"
            places = places_of[f"{side} {entry.path}"]
            if entry.place not in places and _is_missing(index, entry.path):
                suffix = f": {target.label}" if places else ""
                places.add(entry.place)
                yield Finding(
                    kind=Kind.MISSING,
                    path=entry.path,
                    message=f"{target.label} lists this file, but it is not in the tree",
                    detail=side + suffix,
                    fix="remove the file from the list, or correct its name",
                    **at(target, entry.place),
                )


def _is_missing(index: Index, path: str) -> bool:
    if path.startswith(("/", "@", "..", "fbsource")) or "$" in path or ":" in path:
        return False
    return bool(suffix_of(path)) and not index.exists(path) and not index.is_outside(path)


def find_unknown_labels(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each dependency on a target that its package does not define. Buck fails
    to load a target with such a dependency.
    """
    for target in groups.facts.buck.targets:
        for word in (*target.deps, *target.exported_deps):
            label = groups.plain(word.text)
            package, _, name = label.removeprefix("//").partition(":")
            if label in groups.by_label or not (label[:2] == "//" and package in groups.packages):
                continue
            near = get_close_matches(
                name, [buck_target.name for buck_target in groups.by_package[package]], 1
            )
            yield Finding(
                kind=Kind.DEPENDENCY,
                path=word.place.path,
                message=f"{target.label} depends on {label}, but that target does not exist",
                detail=f"{target.label} -> {label}",
                fix=f"depend on //{package}:{near[0]}" if near else f"define it in {package}/BUCK",
                **at(target, word.place),
            )


def find_unknown_links(index: Index) -> Iterator[Finding]:
    """Yield a finding for each name that a CMake target links although it is neither a target, an
    alias, an imported library nor a library that the policy calls external.

    CMake then passes the name to the linker, which does not find such a library. In a tree that has
    it already, this is only a note, unless a target has nearly the same name. Without a list of
    external libraries in the policy, nothing is checked.
    """
    if not index.policy.external:
        return
    names = {target.name for target in index.cmake_targets}
    names |= {name for facts in index.facts.cmake for name in (*facts.aliases, *facts.imported)}
    names |= {pattern for library in index.policy.library for pattern in library.cmake}
    for target in index.cmake_targets:
        if index.is_outside(target.place.path):
            continue
        for word in target.links:
            name = word.text
            if name in names or OUTSIDE.search(name) or matches(name, index.policy.external):
                continue
            if library_of(index, name, "cmake") is not None:
                continue
            near = get_close_matches(name, names, 1, NEAR)
            yield Finding(
                kind=Kind.DEPENDENCY,
                path=word.place.path,
                **({} if near else noted(Level.ERROR)),
                message=f"{target.name} links {name}, but there is no such target or library",
                detail=f"{target.name} -> {name}",
                fix=f"link {near[0]}" if near else "link a target, or correct the name",
                **at(target, word.place),
            )


def find_duplicates(index: Index) -> Iterator[Finding]:
    """Yield a finding for each source that a target lists more than once under one condition."""
    compiling = (target for target in index.facts.buck.targets if is_compiling(target))
    for target in (*compiling, *index.built):
        last = {entry.path: entry for entry in target.srcs}
        for (path, _), count in Counter((e.path, e.condition) for e in target.srcs).items():
            if count > 1 and is_compared(index, path):
                yield Finding(
                    kind=Kind.DUPLICATE_SOURCE,
                    path=path,
                    message=f"{target.label} lists this file {count} times",
                    detail=target.label,
                    fix="keep only one of the entries",
                    **at(target, last[path].place),
                )


def find_variant_files(index: Index) -> Iterator[Finding]:
    """Yield a finding for each file that Buck and CMake do not compile for the same platforms."""
    uses = index.cmake_uses
    for path in sorted(index.buck_uses):
        if not is_compared(index, path) or not index.exists(path):
            continue
        buck = {c: u for u in index.buck_uses[path] for c in index.configurations(u)}
        cmake = {c: uses[c][path][0] for c in BUILT if path in uses[c]}
        for configuration, opposite in (BUILT, BUILT[::-1]):
            if configuration not in buck and opposite in buck and configuration in cmake:
                cmake_use, use = cmake[configuration], buck[opposite]
                near = nearest_buck_target(index, path, cmake_use.target, configuration)
                target = near or use.target
                yield Finding(
                    kind=Kind.CMAKE_ONLY,
                    path=path,
                    message=f"CMake compiles this file for {configuration.value}, but Buck has it "
                    f"only in {use.target.label}, which is for the other platform",
                    configuration=configuration,
                    **at(target),
                    **at(cmake_use.target, cmake_use.entry.place),
                    fix=f"add it to {target.label} ({target.place})",
                )
            elif configuration in buck and configuration not in cmake and opposite in cmake:
                yield from _overdone(
                    index, path, cmake[opposite], buck[configuration], configuration
                )


def _overdone(
    index: Index,
    path: str,
    cmake: Use[CMakeTarget],
    buck: Use[BuckTarget],
    configuration: Configuration,
) -> Iterator[Finding]:
    finding = Finding(
        kind=Kind.VARIANT,
        path=path,
        message=f"{buck.target.label} is for {configuration.value}, but CMake compiles this file "
        f"only for the other platform",
        configuration=configuration,
        **at(buck.target, buck.entry.place),
        **at(cmake.target, cmake.entry.place),
        fix=f"use the file for {configuration.value} instead",
    )
    if len(index.configurations(buck)) == 1:
        yield finding
    elif not buck.entry.condition and not Groups.is_python(cmake.target):
        yield replace(
            finding,
            level=level_of(index, path, Level.WARNING),
            message=f"{buck.target.label} compiles this file for every platform, but "
            f"{cmake.target.name} does not compile it for {configuration.value}",
            fix=f"use select() for it in {buck.target.label}, or let CMake compile it for "
            f"{configuration.value} too",
        )


def find_variant_dependencies(index: Index) -> Iterator[Finding]:
    """Yield a finding for each dependency of a target's variant for Android on another target's
    variant for the host.
    """
    for target in index.facts.buck.targets:
        if index.target_configurations(target) != (Configuration.ANDROID,):
            continue
        for word in (*target.deps, *target.exported_deps):
            twin = index.android_twin(word.text)
            if twin and not word.condition and not index.policy.is_excluded(target.place.path):
                yield Finding(
                    kind=Kind.VARIANT,
                    path=word.place.path,
                    message=f"{target.label} is for Android but depends on {word.text}, which is "
                    "for the host",
                    detail=f"{target.label} -> {word.text}",
                    configuration=Configuration.ANDROID,
                    **at(target, word.place),
                    fix=f"depend on {twin}",
                )
