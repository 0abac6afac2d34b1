"""Targets and globs: a name given twice, a pattern that matches nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.index import BUILT, Index
from ci.parity.facts import BuckTarget


def find_target_drift(index: Index) -> Iterator[Finding]:
    yield from find_repeated(index)
    yield from find_empty_globs(index)


def find_repeated(index: Index) -> Iterator[Finding]:
    again = (t for c in BUILT if c in index.cmake for t in index.cmake[c].repeated)
    for target in (*index.facts.buck.repeated, *again):
        if not index.policy.is_excluded(target.place.path):
            side = "" if isinstance(target, BuckTarget) else "CMake target "
            yield Finding(
                kind=Kind.DUPLICATE_TARGET,
                path=target.place.path,
                message=f"{side}{target.label} is defined twice",
                detail=target.label,
                fix="rename or remove one of them",
                **at(target),
            )


def find_empty_globs(index: Index) -> Iterator[Finding]:
    """glob() patterns that match no file: errors when the whole call comes to nothing.

    A pattern beside others that do match is a note: some are kept for files to come.
    """
    for call in index.facts.buck.globs:
        for pattern in call.empty:
            path = f"{call.package}/{pattern}".lstrip("/")
            fixed = path.partition("*")[0]
            if index.is_vendored(fixed) or index.policy.is_excluded(path):
                continue
            yield Finding(
                kind=Kind.EMPTY_GLOB,
                path=path,
                level=Level.ERROR if not call.matches else Level.NOTE,
                message=f"glob() of //{call.package}: no file matches {pattern!r}",
                detail=pattern,
                buck_place=call.place,
                fix="take the pattern out, or correct it",
            )
