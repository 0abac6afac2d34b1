"""Headers that no Buck target exports, and includes that none of them resolves."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.index import Index, is_compiling
from ci.parity.compare.sources import level_of, nearest_buck_target
from ci.parity.facts import BuckTarget, Include, directory_of, is_header, is_source


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


def find_include_drift(index: Index) -> Iterator[Finding]:
    """Includes that no header map, namespace or include directory of any Buck target resolves.

    Any target's will do: which of them a target reaches depends on Meta's own macros too.
    """
    targets = index.facts.buck.targets
    names = {name for target in targets for name in target.include_names}
    folders = {folder for target in targets for folder in target.include_directories}
    owners: dict[str, BuckTarget] = {}
    for target in targets:
        for entry in target.entries if is_compiling(target) else ():
            owners.setdefault(entry.path, target)
    for row in index.facts.includes:
        header = posixpath.normpath(posixpath.join(row.directory or "", row.text))
        owner = owners.get(row.place.path)
        if owner is None or row.text in names or is_left_out(index, row.place.path, header):
            continue
        if not any(index.exists(posixpath.normpath(posixpath.join(f, row.text))) for f in folders):
            yield _unresolved(index, row, header, owner)


def is_left_out(index: Index, path: str, header: str) -> bool:
    return any(index.is_vendored(p) or index.policy.is_excluded(p) for p in (path, header))


def _unresolved(index: Index, row: Include, header: str, owner: BuckTarget) -> Finding:
    package = index.package_of(header) or ""
    inside = posixpath.relpath(header, package or ".")
    return Finding(
        kind=Kind.INCLUDE,
        path=row.place.path,
        level=Level.NOTE if index.policy.is_test(row.place.path) else Level.WARNING,
        message=f"it includes {row.text}, which CMake finds in {row.directory or 'the root'}; no "
        "Buck target offers a header of that name",
        detail=row.text,
        cmake_place=row.place,
        fix=f'a library of //{package} with exported_headers = {{"{row.text}": "{inside}"}} '
        'and header_namespace = "", or include it by its whole path',
        **at(owner),
    )
