"""What is wrong with decoded TOML: the key, its line, and what was probably meant.

msgspec names neither the key of a table nor a line; a policy is written by hand.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

Path = tuple[str | int, ...]
_HEAD = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[\w.-]|\"[^\"]*\"|'[^']*')(?:[\w\s.-]|\"[^\"]*\"|'[^']*')*?)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")


def find_faults(value: Any, kind: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Each place below ``value`` that does not fit ``kind``, a Struct or a type of its fields, and
    why."""
    table = _find_table(kind)
    if table and isinstance(value, dict):
        yield from _find_in_table(value, table, path)
    elif get_origin(kind) is dict and isinstance(value, dict):
        keys, values = get_args(kind)
        for key, one in value.items():
            yield from _explain(key, keys, (*path, key))
            yield from find_faults(one, values, (*path, key))
    elif get_origin(kind) is tuple and isinstance(value, list):
        for index, one in enumerate(value):
            yield from find_faults(one, get_args(kind)[0], (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"{value} is not a number that anything could be compared with"
    else:
        yield from _explain(value, kind, path)


def _find_table(kind: Any) -> Any:
    """Return the Struct that a table of ``kind`` is decoded into, None if there are several."""
    kinds = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
    tables = [one for one in kinds if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    return tables[0] if len(tables) == 1 and not tables[0].__struct_config__.tag else None


def _find_in_table(value: dict[str, Any], kind: Any, path: Path) -> Iterator[tuple[Path, str]]:
    hints = get_type_hints(kind, include_extras=True)
    for key, one in value.items():
        if key in hints:
            yield from find_faults(one, hints[key], (*path, key))
        else:
            yield (*path, key), f"there is no such key{_suggest(key, hints)}"
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            yield path, f"the key {field.name} is missing"


def _explain(value: Any, kind: Any, path: Path) -> Iterator[tuple[Path, str]]:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        known = [one.value for one in kind] if isinstance(kind, type(Enum)) else get_args(kind)
        if isinstance(value, str) and known and all(isinstance(one, str) for one in known):
            yield path, f"{value!r} is not one of those it takes{_suggest(value, known)}"
        else:
            yield path, str(error)


def _suggest(word: str, known: Iterable[str]) -> str:
    every = list(known)
    near = difflib.get_close_matches(word, every, n=1)
    return f"; did you mean {near[0]}?" if near else f"; it takes {', '.join(every)}"


def show_path(path: Path) -> str:
    """``models.net.limits``, ``override[0].scheme``."""
    shown = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    return shown.lstrip(".") or "the file"


def find_line(text: str, path: Path) -> int:
    """The line that a key, or what it is in, is written on; 0 where it cannot be seen."""
    wanted = [str(one) for one in path]
    best, best_line, table, counts = 0, 0, [""] * 0, dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            table = _split(head[1])
            if line.lstrip().startswith("[["):
                index = counts[head[1]] = counts.get(head[1], -1) + 1
                table = [*table, str(index)]
            here = table
        elif key := _KEY.match(line):
            here = [*table, *_split(key[1])]
        else:
            continue
        if here == wanted[: len(here)] and len(here) > best:
            best, best_line = len(here), number
    return best_line


def _split(dotted: str) -> list[str]:
    return [one[0] or one[1] or one[2] for one in _PART.findall(dotted)]
