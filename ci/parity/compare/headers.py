"""Headers that belong to a library of Buck and that none of its targets exports."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.compare.index import BUILT, Index
from ci.parity.compare.sources import level_of, nearest_buck_target
from ci.parity.facts import directory_of, is_header, is_source


def find_header_drift(index: Index) -> Iterator[Finding]:
    """Headers that no Buck target lists, in a folder of headers or sources that Buck does list,
    or that CMake gives to a target."""
    listed = index.buck_mentions
    folders = {directory_of(path) for path in index.buck_uses if is_source(path)}
    folders |= {directory_of(path) for path in listed if is_header(path)}
    for path in sorted(index.facts.files - listed):
        if not is_header(path) or index.is_vendored(path) or index.policy.is_excluded(path):
            continue
        if index.package_of(path) not in index.native_packages:
            continue
        if directory_of(path) in folders or path in cmake_headers(index):
            yield _unexported(index, path)


def cmake_headers(index: Index) -> set[str]:
    """The headers that CMake gives to targets, on the platforms that are compared."""
    return {
        entry.path
        for configuration in BUILT
        if configuration in index.cmake
        for target in index.cmake[configuration].targets
        for entry in target.headers
    }


def is_used(index: Index, path: str) -> bool:
    """Whether any file of the tree includes a header of that name."""
    return path.rpartition("/")[2] in index.facts.header_names


def _unexported(index: Index, path: str) -> Finding:
    target = nearest_buck_target(index, path, None)
    package = index.package_of(path) or "."
    line = f'"{posixpath.relpath(path, package)}",'
    return Finding(
        kind=Kind.HEADER,
        path=path,
        level=level_of(index, path) if is_used(index, path) else Level.NOTE,
        message="no Buck target exports it"
        if is_used(index, path)
        else "no Buck target exports it, and nothing includes it",
        buck_target=target.label if target else "",
        buck_place=target.place if target else None,
        fix=f"add {line} to the exported_headers of {target.label} ({target.place})"
        if target
        else "export it",
    )
