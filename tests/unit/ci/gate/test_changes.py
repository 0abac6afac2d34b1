"""What git says of a difference, read."""

from __future__ import annotations

import pytest

from ci.gate.changes import Change, Kind, parse_raw_diff

ZERO, ONE, TWO = "0" * 40, "1" * 40, "2" * 40
FILE, PROGRAM, LINK, MODULE = "100644", "100755", "120000", "160000"


def row(old_mode: str, new_mode: str, old: str, new: str, status: str, *paths: str) -> str:
    return "\0".join([f":{old_mode} {new_mode} {old} {new} {status}", *paths]) + "\0"


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", []),
        (row("000000", FILE, ZERO, ONE, "A", "a"), [("a", Kind.ADDED)]),
        (row(FILE, "000000", ONE, ZERO, "D", "a"), [("a", Kind.DELETED)]),
        (row(FILE, FILE, ONE, TWO, "M", "a"), [("a", Kind.MODIFIED)]),
        (row(FILE, FILE, ONE, ZERO, "M", "a"), [("a", Kind.MODIFIED)]),
        (row(FILE, PROGRAM, ONE, ONE, "M", "a"), [("a", Kind.MODE)]),
        (row(FILE, PROGRAM, ONE, TWO, "M", "a"), [("a", Kind.MODIFIED)]),
        (row(FILE, LINK, ONE, TWO, "T", "a"), [("a", Kind.TYPE)]),
        (row(FILE, FILE, ONE, ONE, "U", "a"), [("a", Kind.MODIFIED)]),
        (row(MODULE, MODULE, ONE, TWO, "M", "m"), [("m", Kind.SUBMODULE)]),
        (row("000000", MODULE, ZERO, TWO, "A", "m"), [("m", Kind.SUBMODULE)]),
        (row(MODULE, "000000", ONE, ZERO, "D", "m"), [("m", Kind.SUBMODULE)]),
        (
            row(FILE, FILE, ONE, ONE, "R100", "old", "new"),
            [("new", Kind.RENAMED_TO), ("old", Kind.RENAMED_FROM)],
        ),
        (row(FILE, FILE, ONE, TWO, "C075", "from", "to"), [("to", Kind.COPIED_TO)]),
        (
            row(FILE, FILE, ONE, TWO, "M", "b") + row(FILE, FILE, ONE, ONE, "R099", "a", "c"),
            [("a", Kind.RENAMED_FROM), ("b", Kind.MODIFIED), ("c", Kind.RENAMED_TO)],
        ),
        (row(FILE, FILE, ONE, TWO, "M", "a b\n\tc"), [("a b\n\tc", Kind.MODIFIED)]),
        (row(FILE, FILE, ONE, TWO, "M", ":a"), [(":a", Kind.MODIFIED)]),
    ],
)
def test_what_git_says_is_read(text: str, changes: list[tuple[str, Kind]]) -> None:
    assert parse_raw_diff(text) == tuple(Change(*one) for one in changes)


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="git diff --raw"):
        parse_raw_diff("M\0a\0")
