"""Keys of TOML files as parts of their own: ``pyproject.toml#dependency-groups.lint``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEPTH = 2


def list_changed_keys(old: str, new: str) -> frozenset[str]:
    """The keys, dotted and at most two deep, whose values differ between two TOML texts.

    ``?`` is the whole, where one of the texts is not TOML. Comments change no key.
    """
    before, after = parse_table(old), parse_table(new)
    if before is None or after is None:
        return frozenset({"?"})
    return frozenset(_compare(before, after, "", DEPTH))


def parse_table(text: str) -> dict[str, Any] | None:
    """What a TOML text holds; None for one that is not TOML."""
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return table


def _compare(
    before: Mapping[str, Any], after: Mapping[str, Any], above: str, depth: int
) -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new and type(old) is type(new):
            continue
        name = f"{above}{key}"
        if depth > 1 and isinstance(old or new, dict) and isinstance(new or old, dict):
            yield from _compare(old or {}, new or {}, f"{name}.", depth - 1)
        else:
            yield name
