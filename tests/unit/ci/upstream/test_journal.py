"""The journal of a run survives a kill, and belongs to one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.upstream.journal import (
    JOURNAL,
    Entry,
    Header,
    Ran,
    kept_directory,
    open_journal,
    read_journal,
)
from provisioning.errors import UsageError

HEADER = Header(suite="upstream", soc="SM8650", identity="1", every=("a", "b"), tests=("a", "b"))
FIRST = Entry(test="a", ran=Ran.PASSED, wall_s=1.5, comparisons=1)


def write(directory: Path, *entries: Entry, resume: bool = False) -> list[Entry]:
    """Append entries, and return those that were there before."""
    with open_journal(directory, HEADER, resume=resume) as (journal, known):
        for entry in entries:
            journal.add(entry)
        return known


def test_entries_are_there_when_a_run_is_resumed(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    assert write(tmp_path, resume=True) == [FIRST]


def test_a_journal_is_made_where_nothing_is_yet(tmp_path: Path) -> None:
    assert write(tmp_path / "not" / "there" / "yet", FIRST) == []
    assert read_journal(tmp_path / "not" / "there" / "yet") == (HEADER, [FIRST])


def test_a_run_that_is_not_resumed_starts_empty(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    assert write(tmp_path) == []
    assert read_journal(tmp_path) == (HEADER, [])


def test_a_line_that_a_kill_cut_off_is_forgotten_and_the_next_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    with (tmp_path / JOURNAL).open("ab") as stream:
        stream.write(b'{"test": "b", "ra')
    second = replace(FIRST, test="b")
    assert write(tmp_path, second, resume=True) == [FIRST]
    assert write(tmp_path, resume=True) == [FIRST, second]


def test_resume_without_a_journal_starts_one(tmp_path: Path) -> None:
    assert write(tmp_path, FIRST, resume=True) == []
    assert read_journal(tmp_path) == (HEADER, [FIRST])


@pytest.mark.parametrize(
    "other",
    [replace(HEADER, identity="2"), replace(HEADER, tests=("a",)), replace(HEADER, soc="SM8750")],
)
def test_the_journal_of_another_run_is_not_resumed(tmp_path: Path, other: Header) -> None:
    write(tmp_path, FIRST)
    with (
        pytest.raises(UsageError, match="of another run"),
        open_journal(tmp_path, other, resume=True),
    ):
        pass


def test_two_runs_do_not_write_to_one_journal(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path, HEADER, resume=False),
        pytest.raises(UsageError, match="in use"),
        open_journal(tmp_path, HEADER, resume=True),
    ):
        pass


def test_names_that_differ_in_brackets_only_are_kept_apart(tmp_path: Path) -> None:
    names = ["x::test_abs[8a]", "x::test_abs(8a)", "x::test_abs[8a", "../x"]
    places = {kept_directory(tmp_path, name) for name in names}
    assert len(places) == len(names)
    assert all(tmp_path in place.resolve().parents for place in places)
