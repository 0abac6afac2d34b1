"""Headers that belong to a library of Buck and that none of its targets exports."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.index import Index
from ci.parity.compare.sources import level_of, nearest_buck_target
from ci.parity.facts import directory_of, is_header, is_source


def find_header_drift(index: Index) -> Iterator[Finding]:
    """Headers that no Buck target lists, in a folder of headers or sources that Buck does list,
    or that CMake gives to a target."""
    listed = index.buck_mentions
    folders = {directory_of(path) for path in index.buck_uses if is_source(path)}
    folders |= {directory_of(path) for path in listed if is_header(path)}
    given = {entry.path for target in index.built for entry in target.headers}
    for path in sorted(index.facts.files - listed):
        if not is_header(path) or index.is_vendored(path) or index.policy.is_excluded(path):
            continue
        if index.package_of(path) not in index.native_packages:
            continue
        if directory_of(path) in folders or path in given:
            yield _unexported(index, path)


def _unexported(index: Index, path: str) -> Finding:
    target = nearest_buck_target(index, path, None)
    package = index.package_of(path) or "."
    line = f'"{posixpath.relpath(path, package)}",'
    is_used = path.rpartition("/")[2] in index.facts.header_names
    return Finding(
        kind=Kind.HEADER,
        path=path,
        level=level_of(index, path) if is_used else Level.NOTE,
        message="no Buck target exports it" + ("" if is_used else ", and nothing includes it"),
        fix=f"add {line} to the exported_headers of {target.label} ({target.place})"
        if target
        else "export it",
        **at(target),
    )
