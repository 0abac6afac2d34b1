"""Variables: strings, lists in strings, alternatives of branches, and what is not known.

A value is a tuple of alternatives, nearly always of one. UNKNOWN marks text that only a real
configuration could tell; whatever contains it is not evaluated instead of guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Value: TypeAlias = tuple[str, ...]

UNKNOWN = "\x01"
MOST_ALTERNATIVES = 12
REFERENCE = re.compile(r"\$(ENV|CACHE)?\{([^${}]*)\}")
GENEX = re.compile(r"\$<[^<>]*>")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", ";": "\\;", "\n": ""}


def unknown(name: str) -> Value:
    """A value that cannot be told, named after where it came from."""
    return (f"{UNKNOWN}{name}{UNKNOWN}",)


def is_unknown(text: str) -> bool:
    """Whether a string contains something that could not be told."""
    return UNKNOWN in text


def split_list(text: str) -> list[str]:
    """The elements of a CMake list; an escaped semicolon does not separate."""
    if not text:
        return []
    if "\\;" not in text:
        return text.split(";")
    return [part.replace("\0", ";") for part in text.replace("\\;", "\0").split(";")]


def expand(text: str, lookup: Callable[[str, str], Value]) -> Value:
    """Every alternative of ``text`` with its references replaced, innermost first.

    ``lookup(kind, name)`` gives a variable; kind is empty, ENV or CACHE.
    """
    if "$" not in text:
        return (unescape(text),)
    done: list[str] = []
    pending = [text]
    while pending and len(done) < MOST_ALTERNATIVES:
        current = pending.pop(0)
        match = REFERENCE.search(current)
        if match is None:
            done.append(unescape(current))
            continue
        values = lookup(match.group(1) or "", match.group(2))
        room = MOST_ALTERNATIVES - len(done) - len(pending)
        for value in values[: max(room, 1)]:
            # A value's own dollar signs and backslashes are text, not references.
            shielded = value.replace("\\", "\\\\").replace("$", "\x02")
            pending.append(current[: match.start()] + shielded + current[match.end() :])
    return tuple(dict.fromkeys(done))


def unescape(text: str) -> str:
    """Resolve backslash escapes, and give back the dollar signs of values."""
    if "\\" in text:
        text = ESCAPE.sub(lambda match: ESCAPED.get(match.group(1), match.group(1)), text)
    return text.replace("\x02", "$")


def strip_genex(text: str) -> str:
    """``text`` without its generator expressions."""
    shorter = GENEX.sub("", text)
    return shorter if shorter == text else strip_genex(shorter)


def merge_value(before: Value | None, left: Value | None, right: Value | None) -> Value | None:
    """One value of two branches that could both be taken.

    Lists that grow from the same beginning keep both growths; a single word becomes an
    alternative; what only one branch sets is set.
    """
    if left == right or not right or right == ("",):
        return left
    if not left or left == ("",):
        return right
    if len(left) == 1 and len(right) == 1:
        first, second = split_list(left[0]), split_list(right[0])
        if len(first) > 1 or len(second) > 1:
            base = split_list(before[0]) if before and len(before) == 1 else []
            return (";".join(_merge_lists(base, first, second)),)
    return tuple(dict.fromkeys(left + right))[:MOST_ALTERNATIVES]


def _merge_lists(base: list[str], left: list[str], right: list[str]) -> list[str]:
    size = len(base)
    if left[:size] == base and right[:size] == base:
        known = set(left[size:])
        return left + [item for item in right[size:] if item not in known]
    known = set(left)
    return left + [item for item in right if item not in known]
