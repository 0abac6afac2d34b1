"""A run of a suite with a pool that runs nothing: order, dead and late workers, resume, repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.cases.pool import Ended
from ci.upstream.expectations import Ratchet
from ci.upstream.jobs import RunTest, TestEnd
from ci.upstream.journal import Entry, Header, Ran, kept_directory, read_journal
from ci.upstream.session import DURATIONS, SuiteRun, list_tests
from provisioning.console.progress import Progress
from provisioning.errors import FailedError, UsageError

TESTS = ("C::test_a", "C::test_cdist", "C::test_dies", "C::test_hangs", "C::test_refused")
FAILURES = {
    "C::test_dies": "C::test_dies: its process was killed by SIGSEGV without a result",
    "C::test_hangs": "did not end within 7 s",
}
RATCHET = Ratchet(run=0, unsupported=9, timeout_s=7.0, slow={"*cdist*": 200.0})


class StubPool:
    """Answers for workers; ``calls`` are the tests in their order with their limits."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def run(self, job: RunTest, log: Path, timeout_s: float) -> Ended:
        self.calls.append((job.name, timeout_s))
        log.write_text("QNN's words", encoding="utf-8")
        if failure := FAILURES.get(job.name):
            return Ended(None, failure, "the last words")
        refusal = "upstream expects it to be refused: x" if "refused" in job.name else ""
        return Ended(TestEnd("passed", "", 0.5, 1, refusal), "", "chatter")

    def close(self) -> None:
        pass


def run(
    place: Path, *, resume: bool = False, repeat: int = 1, tests: tuple[str, ...] = TESTS
) -> tuple[dict[tuple[str, int], Entry], StubPool]:
    pool: Any = StubPool()
    header = Header(
        suite="upstream", soc="SM8650", identity="1", every=TESTS, tests=tests, repeat=repeat
    )
    made = SuiteRun(directory=place, header=header, ratchet=RATCHET, timeout_s=7.0, resume=resume)
    entries = made.run(pool, Progress())
    return {(one.test, one.repeat): one for one in entries}, pool


def test_slow_tests_start_first_and_have_a_longer_limit(tmp_path: Path) -> None:
    _, pool = run(tmp_path)
    assert pool.calls[0] == ("C::test_cdist", 407.0)
    assert {limit for name, limit in pool.calls[1:]} == {7.0}


def test_the_next_run_starts_with_what_took_longest(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / DURATIONS).write_text('{"C::test_a": 900.0}', encoding="utf-8")
    _, pool = run(tmp_path)
    assert [name for name, _ in pool.calls][:2] == ["C::test_a", "C::test_cdist"]


def test_a_test_that_dies_or_hangs_is_told_from_one_that_fails(tmp_path: Path) -> None:
    entries, _ = run(tmp_path)
    assert entries["C::test_dies", 0].ran is Ran.DIED
    assert "SIGSEGV" in entries["C::test_dies", 0].told
    assert entries["C::test_hangs", 0].ran is Ran.LATE
    assert entries["C::test_hangs", 0].log_tail == "the last words"
    assert entries["C::test_a", 0].ran is Ran.PASSED
    assert entries["C::test_refused", 0].refusal


def test_resume_runs_only_what_is_missing(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:9])  # killed while it wrote the third
    entries, pool = run(tmp_path, resume=True)
    assert len(pool.calls) == 3
    assert {test for test, _ in entries} == set(TESTS)
    assert len((read_journal(tmp_path) or (None, []))[1]) == len(TESTS)


def test_a_new_run_forgets_what_an_earlier_one_kept(tmp_path: Path) -> None:
    run(tmp_path)
    old = kept_directory(tmp_path, "C::test_gone")
    old.mkdir(parents=True)
    run(tmp_path)
    assert not old.exists()
    assert kept_directory(tmp_path, "C::test_a").is_dir()


def test_each_repeat_is_a_run_of_its_own(tmp_path: Path) -> None:
    entries, pool = run(tmp_path, repeat=3, tests=("C::test_a",))
    assert [name for name, _ in pool.calls] == ["C::test_a"] * 3
    assert set(entries) == {("C::test_a", turn) for turn in range(3)}


def test_resume_with_other_tests_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(UsageError, match="another run"):
        run(tmp_path, resume=True, tests=TESTS[:1])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (((), ()), "no test was found"),
        ((("a",), ("x.py: No module named 'new'",)), "No module named 'new'"),
    ],
)
def test_a_suite_that_cannot_be_collected_ends_the_run(
    tmp_path: Path, found: Any, words: str
) -> None:
    pool: Any = StubPool()
    pool.run = lambda *_: Ended(found, "", "")
    with pytest.raises(FailedError) as caught:
        list_tests(pool, tmp_path)
    assert words in str(caught.value)
