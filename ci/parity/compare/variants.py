"""Find variants for one platform that use a file or a library of the other platform."""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import BUILT, Index, Use
from ci.parity.compare.sources import is_compared, nearest_buck_target
from ci.parity.facts import BuckTarget, CMakeTarget, Configuration


def find_variant_files(index: Index) -> Iterator[Finding]:
    """Yield a finding for each file that Buck and CMake do not compile for the same platforms."""
    uses = {configuration: index.cmake_uses.get(configuration, {}) for configuration in BUILT}
    for path in sorted(index.buck_uses):
        if not is_compared(index, path) or not index.exists(path):
            continue
        buck = {c: u for u in index.buck_uses[path] for c in index.configurations(u)}
        cmake = {c: uses[c][path][0] for c in BUILT if path in uses[c]}
        if not cmake:
            continue
        for configuration in BUILT:
            other = BUILT[1 - BUILT.index(configuration)]
            if configuration in cmake and configuration not in buck and other in buck:
                yield _left_out(index, path, cmake[configuration], buck[other], configuration)
            elif configuration in buck and configuration not in cmake and other in cmake:
                use = buck[configuration]
                if len(index.configurations(use)) == 1:
                    yield _wrong_variant(path, cmake[other], use, configuration)
                elif not use.entry.condition and not Groups.is_python(cmake[other].target):
                    yield _everywhere(index, path, cmake[other], use, configuration)


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


def _left_out(
    index: Index,
    path: str,
    cmake: Use[CMakeTarget],
    buck: Use[BuckTarget],
    configuration: Configuration,
) -> Finding:
    target = nearest_buck_target(index, path, cmake.target, configuration) or buck.target
    return Finding(
        kind=Kind.CMAKE_ONLY,
        path=path,
        message=f"CMake compiles this file for {configuration.value}, but Buck has it only in "
        f"{buck.target.label}, which is for the other platform",
        configuration=configuration,
        **at(target),
        **at(cmake.target, cmake.entry.place),
        fix=f"add it to {target.label} ({target.place})",
    )


def _wrong_variant(
    path: str, cmake: Use[CMakeTarget], buck: Use[BuckTarget], configuration: Configuration
) -> Finding:
    return Finding(
        kind=Kind.VARIANT,
        path=path,
        message=f"{buck.target.label} is for {configuration.value}, but CMake compiles this file "
        f"only for the other platform",
        configuration=configuration,
        **at(buck.target, buck.entry.place),
        **at(cmake.target, cmake.entry.place),
        fix=f"use the file for {configuration.value} instead",
    )


def _everywhere(
    index: Index,
    path: str,
    cmake: Use[CMakeTarget],
    buck: Use[BuckTarget],
    configuration: Configuration,
) -> Finding:
    return Finding(
        kind=Kind.VARIANT,
        path=path,
        level=Level.NOTE if index.policy.is_test(path) else Level.WARNING,
        message=f"{buck.target.label} compiles this file for every platform, but "
        f"{cmake.target.name} does not compile it for {configuration.value}",
        configuration=configuration,
        **at(buck.target, buck.entry.place),
        **at(cmake.target, cmake.entry.place),
        fix=f"use select() for it in {buck.target.label}, or let CMake compile it for "
        f"{configuration.value} too",
    )
