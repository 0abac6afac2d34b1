"""The journal of a run survives a kill, and belongs to one run."""

from __future__ import annotations

from pathlib import Path

import msgspec
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
    size_whole,
)
from provisioning.errors import UsageError

HEADER = Header(
    suite="upstream", soc="SM8650", identity="1", suite_tests=("a", "b"), tests=("a", "b")
)
FIRST = Entry(test="a", ran=Ran.PASSED, wall_s=1.5, comparisons=1)


def write(directory: Path, *entries: Entry, resume: bool = False) -> list[Entry]:
    """Append entries, and return those that were there before."""
    with open_journal(directory, HEADER, resume=resume) as (add, earlier):
        for entry in entries:
            add(entry)
        return earlier


def test_journal_entries_are_read_back_when_a_run_is_resumed(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    assert write(tmp_path, resume=True) == [FIRST]


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


@pytest.mark.parametrize(
    "header",
    [replace(HEADER, identity="2"), replace(HEADER, tests=("a",)), replace(HEADER, soc="SM8750")],
)
def test_the_journal_of_another_run_is_not_resumed(tmp_path: Path, header: Header) -> None:
    write(tmp_path, FIRST)
    with (
        pytest.raises(UsageError, match="to another run") as caught,
        open_journal(tmp_path, header, resume=True),
    ):
        pass
    assert caught.value.what == f"{tmp_path}/journal.jsonl belongs to another run"
    assert caught.value.why == "its tests, SoC, tools or options differ from this run's"
    assert "--resume" in caught.value.fix


def test_two_runs_do_not_write_to_one_journal(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path, HEADER, resume=False),
        pytest.raises(UsageError) as caught,
        open_journal(tmp_path, HEADER, resume=True),
    ):
        pass
    error = caught.value
    expected = (
        f"{tmp_path} is in use",
        "another run is writing its journal there",
        "wait until it ends, or pass another directory to --reports",
    )
    assert (error.what, error.why, error.fix) == expected


def test_an_empty_or_truncated_journal_counts_as_missing(tmp_path: Path) -> None:
    assert read_journal(tmp_path) is None
    for data in (b"", b'{"suite"'):
        (tmp_path / JOURNAL).write_bytes(data)
        assert read_journal(tmp_path) is None
        assert size_whole(tmp_path) == 0
    assert write(tmp_path, FIRST, resume=True) == []
    assert read_journal(tmp_path) == (HEADER, [FIRST])


@pytest.mark.parametrize("line", [b"\0" * 9, b"\xff", b"[" * 9999, b'{"test":"b"}'])
def test_a_journal_that_is_damaged_is_kept_unless_a_new_run_starts(
    tmp_path: Path, line: bytes
) -> None:
    for journal in (line, msgspec.json.encode(HEADER) + b"\n" + line):
        (tmp_path / JOURNAL).write_bytes(journal + b"\n")
        with pytest.raises(UsageError, match="damaged"):
            write(tmp_path, resume=True)
        assert (tmp_path / JOURNAL).read_bytes() == journal + b"\n"
        assert write(tmp_path, FIRST) == []
        assert read_journal(tmp_path) == (HEADER, [FIRST])


def test_names_that_differ_in_brackets_only_are_kept_apart(tmp_path: Path) -> None:
    names = ["x::test_abs[8a]", "x::test_abs(8a)", "x::test_abs[8a", "../x"]
    places = {kept_directory(tmp_path, name) for name in names}
    assert len(places) == len(names)
    assert all(tmp_path in place.resolve().parents for place in places)
