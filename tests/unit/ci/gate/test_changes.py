"""What git says of a difference, read."""

from __future__ import annotations

import pytest

from ci.gate.changes import Change, Kind, parse_name_status


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", []),
        ("A\0a\0", [("a", Kind.ADDED)]),
        ("D\0a\0", [("a", Kind.DELETED)]),
        ("M\0a\0", [("a", Kind.MODIFIED)]),
        ("T\0a\0", [("a", Kind.TYPE)]),
        ("U\0a\0M\0a\0", [("a", Kind.MODIFIED)]),
        ("M\0b\0D\0a\0A\0c\0", [("a", Kind.DELETED), ("b", Kind.MODIFIED), ("c", Kind.ADDED)]),
        ("M\0a b\n\tc\0", [("a b\n\tc", Kind.MODIFIED)]),
        ("A\0M\0", [("M", Kind.ADDED)]),
    ],
)
def test_what_git_says_is_read(text: str, changes: list[tuple[str, Kind]]) -> None:
    assert parse_name_status(text) == tuple(Change(*one) for one in changes)
