"""Dotted versions compared as numbers."""

from __future__ import annotations

import re


def parse_version(text: str) -> tuple[int, ...]:
    """(2, 13, 0) of ``2.13.0+cpu``: the leading numbers."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def is_older(version: str, than: str) -> bool:
    """Whether ``version`` comes before ``than``; 13 and 13.0 are the same."""
    left, right = parse_version(version), parse_version(than)
    width = max(len(left), len(right))
    return left + (0,) * (width - len(left)) < right + (0,) * (width - len(right))


def is_same(left: str, right: str, parts: int = 3) -> bool:
    """Whether the first ``parts`` numbers agree, as far as both have them."""
    pairs = zip(parse_version(left)[:parts], parse_version(right)[:parts], strict=False)
    return all(a == b for a, b in pairs)
