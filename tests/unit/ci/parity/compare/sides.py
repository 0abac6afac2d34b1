"""Both sides of a tree in a few words, without any file: a target is its label and its sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ci.parity.facts import (
    BuckFacts,
    BuckTarget,
    CMakeFacts,
    CMakeTarget,
    Configuration,
    ListEntry,
    ParityFacts,
    Place,
    Word,
)

ENTRIES = ("srcs", "headers", "exported_headers")
WORDS = ("deps", "exported_deps", "external_deps", "defines", "links", "directory_defines")


def buck(label: str, *srcs: str, kind: str = "cxx_library", **options: Any) -> BuckTarget:
    """``p:name``, at line 10 of its build file; what it lists stands in the lines below."""
    package, _, name = label.partition(":")
    file = f"{package}/BUCK".lstrip("/")
    place, values = Place(file, 10), _place(file, {"srcs": srcs, **options})
    return BuckTarget(package=package, name=name, kind=kind, place=place, **values)


def cmake(
    name: str, *sources: str, directory: str = "", kind: str = "static", **options: Any
) -> CMakeTarget:
    """A target at line 10 of its CMakeLists.txt; headers stand above sources."""
    file = f"{directory}/CMakeLists.txt".lstrip("/")
    place, values = Place(file, 10), _place(file, {**options, "srcs": sources}, ENTRIES[::-1])
    return CMakeTarget(name=name, kind=kind, place=place, directory=directory, **values)


def _place(
    file: str, options: Mapping[str, Any], entries: tuple[str, ...] = ENTRIES
) -> dict[str, Any]:
    values, line = dict(options), 10
    for key in (*entries, *WORDS):
        make = entry if key in ENTRIES else word
        rows = list(options.get(key, ()))
        values |= (
            {key: tuple(make(row, file, line + i) for i, row in enumerate(rows, 1))} if rows else {}
        )
        line += len(rows)
    return values


def entry(text: str, file: str = "f", line: int = 1) -> ListEntry:
    """``path``, or ``path if key``."""
    path, _, condition = text.partition(" if ")
    return ListEntry(path, Place(file, line), condition)


def word(text: str, file: str = "f", line: int = 1) -> Word:
    """``text``, ``text if key``; with a ``+`` before it is exported."""
    name, _, condition = text.lstrip("+").partition(" if ")
    return Word(name, Place(file, line), condition, exported=text.startswith("+"))


def facts(
    bucks: Iterable[BuckTarget] = (),
    cmakes: Iterable[CMakeTarget] = (),
    *,
    host: Iterable[CMakeTarget] | None = None,
    android: Iterable[CMakeTarget] | None = None,
    globs: tuple[Any, ...] = (),
    repeated: tuple[BuckTarget, ...] = (),
    packages: tuple[str, ...] = (),
    not_evaluated: tuple[Any, ...] = (),
    files: Iterable[str] = (),
    gone: Iterable[str] = (),
    sides: Mapping[str, Any] | None = None,
    **other_facts: Any,
) -> ParityFacts:
    """A tree whose files are those that targets list, and ``files``, without ``gone``.

    ``host`` and ``android`` are CMake's targets of one platform, where they are not all.
    """
    bucks, cmakes = tuple(bucks), tuple(cmakes)
    chosen = {
        Configuration.HOST: cmakes if host is None else tuple(host),
        Configuration.ANDROID: cmakes if android is None else tuple(android),
        Configuration.ANY: cmakes,
    }
    listed = {e.path for target in (*bucks, *cmakes) for e in target.entries}
    native = {target.package for target in bucks}
    return ParityFacts(
        buck=BuckFacts(bucks, globs, repeated, (*native, *packages), not_evaluated),
        cmake=tuple(
            CMakeFacts(configuration, rows, **sides or {}) for configuration, rows in chosen.items()
        ),
        files=frozenset((listed | set(files)) - set(gone)),
        **other_facts,
    )
