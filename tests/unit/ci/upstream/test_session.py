"""A run of a suite with a pool that runs nothing: order, dead and late workers, resume, repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.cases.pool import Ended
from ci.upstream.expectations import Ratchet
from ci.upstream.journal import Entry, Header, Ran, kept_directory, read_journal
from ci.upstream.session import RunTest, SuiteRun, list_tests
from provisioning.console.progress import Progress
from provisioning.errors import FailedError, UsageError

TESTS = ("C::test_a", "C::test_cdist", "C::test_dies", "C::test_hangs", "C::test_refused")
FAILURES = {
    "C::test_dies": "C::test_dies: the process was killed by SIGSEGV without a result",
    "C::test_hangs": "did not end within 7 s",
}
RATCHET = Ratchet(run=0, unsupported=9, timeout_s=7.0, slow={"*cdist*": 200.0})


class StubPool:
    """Answers for workers; ``calls`` are the tests in their order with their limits. Ctrl-C comes
    with the test ``interrupted``."""

    def __init__(self, interrupted: str = "") -> None:
        self.calls: list[tuple[str, float]] = []
        self.interrupted, self.closed = interrupted, False

    def run(self, job: RunTest, log: Path, timeout_s: float) -> Ended:
        self.calls.append((job.name, timeout_s))
        if job.name == self.interrupted:
            raise KeyboardInterrupt
        assert job.directory == log.parent
        assert log.name == "log.txt"  # which the report links
        log.write_text("QNN's words", encoding="utf-8")
        if failure := FAILURES.get(job.name):
            return Ended(None, failure, "the last words")
        refusal = "upstream expects it to be refused: x" if "refused" in job.name else ""
        entry = Entry(test=job.name, ran=Ran.PASSED, test_s=0.5, comparisons=1, refusal=refusal)
        return Ended(entry, "", "chatter")

    def close(self) -> None:
        self.closed = True


def run(
    place: Path,
    *,
    resume: bool = False,
    repeat: int = 1,
    tests: tuple[str, ...] = TESTS,
    interrupted: str = "",
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[dict[tuple[str, int], Entry], StubPool]:
    pool: Any = StubPool(interrupted)
    header = Header(
        suite="upstream", soc="SM8650", identity="1", suite_tests=TESTS, tests=tests, repeat=repeat
    )
    suite_run = SuiteRun(
        directory=place, header=header, ratchet=RATCHET, timeout_s=7.0, resume=resume, jobs=jobs
    )
    entries = suite_run.run(pool, progress or Progress())
    return {(entry.test, entry.repeat): entry for entry in entries}, pool


def test_slow_tests_start_first_and_have_a_longer_limit(tmp_path: Path) -> None:
    _, pool = run(tmp_path)
    assert pool.calls[0] == ("C::test_cdist", 407.0)
    assert {limit for name, limit in pool.calls[1:]} == {7.0}


def test_a_test_that_dies_or_hangs_is_distinguished_from_a_failing_one(tmp_path: Path) -> None:
    entries, _ = run(tmp_path)
    assert entries["C::test_dies", 0].ran is Ran.DIED
    assert "SIGSEGV" in entries["C::test_dies", 0].message
    assert entries["C::test_hangs", 0].ran is Ran.LATE
    assert entries["C::test_hangs", 0].log_tail == "the last words"
    passed = entries["C::test_a", 0]
    assert (passed.ran, passed.test_s, passed.comparisons) == (Ran.PASSED, 0.5, 1)
    assert passed.log_tail == ""
    assert entries["C::test_refused", 0].refusal


def test_kept_files_of_an_earlier_run_stay_when_it_is_resumed(tmp_path: Path) -> None:
    run(tmp_path, tests=TESTS[:2])
    comparison = kept_directory(tmp_path, "C::test_a") / "comparison"
    comparison.touch()
    run(tmp_path, tests=TESTS[:2], resume=True)
    assert comparison.is_file()


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
    of_user = old.parents[1] / "notes" / "why.md"
    of_user.parent.mkdir()
    of_user.touch()
    run(tmp_path)
    assert not old.exists()
    assert of_user.exists()
    assert kept_directory(tmp_path, "C::test_a").is_dir()


def test_resume_runs_only_the_repeats_that_are_missing(tmp_path: Path) -> None:
    tests = ("C::test_a", "C::test_refused")
    run(tmp_path, repeat=2, tests=tests)
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"repeat":1' not in line))
    entries, pool = run(tmp_path, repeat=2, tests=tests, resume=True)
    assert sorted(name for name, _ in pool.calls) == ["C::test_a", "C::test_refused"]
    assert set(entries) == {(test, turn) for test in tests for turn in range(2)}


def test_resume_with_other_tests_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(UsageError, match="another run"):
        run(tmp_path, resume=True, tests=TESTS[:1])


@pytest.mark.parametrize(
    ("ended", "message", "why", "fix"),
    [
        (
            Ended(((), ()), "", ""),
            "pytest cannot collect upstream's tests (errors: 0)",
            "no test was found",
            True,
        ),
        (
            Ended((("a",), ("x.py: No module named 'new'", "y.py: z")), "", ""),
            "pytest cannot collect upstream's tests (errors: 2)",
            "x.py: No module named 'new'",
            True,
        ),
        (
            Ended(None, "it was killed", "last words"),
            "upstream's tests cannot be collected: it was killed",
            "last words",
            False,
        ),
    ],
)
def test_a_suite_that_cannot_be_collected_ends_the_run(
    tmp_path: Path, ended: Ended, message: str, why: str, fix: bool
) -> None:
    pool: Any = StubPool()
    pool.run = lambda *_: ended
    with pytest.raises(FailedError) as caught:
        list_tests(pool, tmp_path)
    error = caught.value
    assert (error.what, error.why, "ci/upstream/suites.py" in error.fix) == (message, why, fix)


def test_an_interrupted_run_keeps_what_ended_and_its_workers_end(tmp_path: Path) -> None:
    entries, pool = run(tmp_path, interrupted="C::test_refused")  # the last one
    assert pool.closed
    assert {("C::test_cdist", 0)} <= entries.keys() < {(test, 0) for test in TESTS}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "other", tests=TESTS[:1], interrupted=TESTS[0])
