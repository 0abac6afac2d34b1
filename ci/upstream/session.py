"""Runs the tests of a suite in workers, the longest tests first. The result of each test is
appended to the journal immediately."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.pool import LATE, Pool
from ci.facts.finding import shorten
from ci.upstream.expectations import Ratchet
from ci.upstream.journal import KEPT, LOG, Entry, Header, Ran, TestEnd, kept_directory, open_journal
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.documents import DocumentError, read_json
from provisioning.errors import FailedError
from provisioning.files import write_whole

COLLECT_S, USUAL_S = 900.0, 5.0
DURATIONS = "durations.json"
WORK = "work"  # a test's working directory, removed after the test


@dataclass(frozen=True)
class ListTests:
    """A job that lists the suite's tests."""

    def __call__(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the suite's tests, and the errors that pytest reported during
        collection."""
        from ci.upstream.worker import collected

        return tuple(collected.items), collected.errors


@dataclass(frozen=True)
class RunTest:
    """A job that runs one test, and writes its comparisons to ``directory``."""

    name: str
    directory: Path

    def __call__(self) -> TestEnd:
        """Return the test's result. Raises FailedError if the test's process crashes."""
        from ci.upstream.worker import run_test

        return run_test(self.name, self.directory)


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A run of a suite: the tests that ``header`` selects, with the journal and the comparisons in
    ``directory``. ``jobs`` tests run at a time. Each has ``timeout_s`` seconds, plus twice its
    expected duration if ``ratchet`` lists it as slow. With ``resume``, tests in the journal are not
    run again."""

    directory: Path
    header: Header
    ratchet: Ratchet
    timeout_s: float
    jobs: int = 1
    resume: bool = False

    def run(self, pool: Pool, progress: Progress) -> list[Entry]:
        """Run all tests that are not in the journal yet. Return all entries of the journal. After
        an interrupt, return the entries so far, or raise KeyboardInterrupt if there are none."""
        durations = read_durations(self.directory)
        with open_journal(self.directory, self.header, resume=self.resume) as (journal, entries):
            if not self.resume:
                shutil.rmtree(self.directory / KEPT, ignore_errors=True)
            done = {(one.test, one.repeat) for one in entries}
            wanted = [
                (test, turn) for test in self.header.tests for turn in range(self.header.repeat)
            ]
            left = [one for one in wanted if one not in done]
            if entries:
                progress.step(f"resumed: {len(entries)} of {len(wanted)} runs are in the journal")
            left.sort(key=lambda one: -self.expect_s(one[0], durations))
            tasks = [partial(self.run_test, *one, pool) for one in left]
            with progress.bar("tests", len(left), "") as bar:

                def show(entry: Entry) -> None:
                    journal.add(entry)
                    entries.append(entry)
                    durations[entry.test] = entry.wall_s
                    bar.advance(1)
                    progress.step(describe(entry, len(entries), len(wanted)))

                try:
                    run_tasks(tasks, self.jobs, on_done=show, abort=pool.close)
                except KeyboardInterrupt:
                    progress.step(f"interrupted: {len(entries)} of {len(wanted)} runs are done")
                    if not entries:
                        raise
        write_whole(self.directory / DURATIONS, msgspec.json.encode(durations))
        return entries

    def expect_s(self, test: str, durations: Mapping[str, float]) -> float:
        """Return how long a test is expected to take, in seconds: its duration in an earlier run,
        or else the policy's duration for a slow test, or else USUAL_S."""
        return durations.get(test) or self.ratchet.expect_s(test) or USUAL_S

    def run_test(self, test: str, turn: int, pool: Pool) -> Entry:
        """Run a test once, and return its entry for the journal. ``turn`` is the number of the run.
        If the test crashes its process or exceeds its time limit, the entry's ``ran`` is DIED or
        LATE."""
        began = time.monotonic()
        place = kept_directory(self.directory, test, turn)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        limit_s = self.timeout_s + 2 * self.ratchet.expect_s(test)
        ended = pool.run(RunTest(test, place), place / LOG, limit_s)
        shutil.rmtree(place / WORK, ignore_errors=True)
        wall_s = round(time.monotonic() - began, 3)
        if ended.result is None:
            ran = Ran.LATE if LATE in ended.failure else Ran.DIED
            return Entry(
                test=test,
                repeat=turn,
                ran=ran,
                message=ended.failure,
                wall_s=wall_s,
                log_tail=ended.log_tail,
            )
        found = ended.result
        return Entry(
            test=test,
            repeat=turn,
            ran=found.ran,
            message=found.message,
            test_s=found.test_s,
            wall_s=wall_s,
            comparisons=found.comparisons,
            refusal=found.refusal,
            log_tail="" if found.ran is Ran.PASSED else ended.log_tail,
        )


def list_tests(pool: Pool, scratch: Path) -> tuple[str, ...]:
    """Return the names of the suite's tests. Raises FailedError if a file cannot be collected, or
    if no test is found."""
    log = scratch / "collect.log"
    ended = pool.run(ListTests(), log, COLLECT_S)
    if ended.result is None:
        raise FailedError(
            f"upstream's tests cannot be collected: {ended.failure}", why=ended.log_tail
        )
    tests, errors = ended.result
    if errors or not tests:
        first = errors[0] if errors else "no test was found"
        raise FailedError(
            f"pytest cannot collect upstream's tests (errors: {len(errors)})",
            why=first,
            fix="if a package is missing, add it to PACKAGES in ci/upstream/stubs.py",
        )
    return tuple(tests)


def read_durations(directory: Path) -> dict[str, float]:
    """Return the duration of each test in earlier runs, in seconds. The result is empty if the file
    is missing or damaged."""
    try:
        return read_json(directory / DURATIONS, dict[str, float])
    except DocumentError:
        return {}


def describe(entry: Entry, number: int, total: int) -> str:
    """Return the line that is printed after a test: its number, name, result and duration. If the
    test did not pass, the first line of its message follows."""
    first = f"  {shorten(entry.message, 120)}".rstrip()
    return f"  [{number}/{total}] {entry.test}  {entry.ran.value}  {entry.wall_s:.1f} s{first}"
