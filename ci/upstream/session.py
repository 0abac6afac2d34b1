"""Runs the tests of a suite in workers, the slow tests first. The result of each test is
appended to the journal immediately."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ci.cases.forked import run_forked
from ci.cases.pool import LATE, Pool
from ci.facts.finding import shorten
from ci.upstream.expectations import Ratchet
from ci.upstream.journal import LOG, Entry, Header, Ran, kept_directory, open_journal, remove_kept
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import FailedError

COLLECT_S = 900.0
WORK = "work"  # a test's working directory, removed after the test


def list_collected() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the suite's tests, and the errors that pytest reported during collection.
    This runs in a worker."""
    from ci.upstream.worker import collected, listener

    return tuple(collected), tuple(listener.errors)


@dataclass(frozen=True)
class RunTest:
    """A job that runs one test, and writes its comparisons to ``directory``."""

    name: str
    directory: Path

    def __call__(self) -> Entry:
        """Return the test's result. Raises FailedError if the test's process crashes."""
        from ci.upstream.worker import run_here

        return run_forked(lambda: run_here(self.name, self.directory), self.name)


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
        with open_journal(self.directory, self.header, resume=self.resume) as (add, entries):
            if not self.resume:
                remove_kept(self.directory)
            done = {(entry.test, entry.repeat) for entry in entries}
            runs = [
                (test, turn) for test in self.header.tests for turn in range(self.header.repeat)
            ]
            remaining = [run for run in runs if run not in done]
            if entries:
                progress.step(f"resumed: {len(entries)} of {len(runs)} runs are in the journal")
            remaining.sort(key=lambda run: -self.ratchet.expect_s(run[0]))
            tasks = [partial(self.run_test, *run, pool) for run in remaining]
            with progress.bar("tests", len(remaining), "") as bar:

                def show(entry: Entry) -> None:
                    add(entry)
                    entries.append(entry)
                    bar.advance(1)
                    progress.step(describe(entry, len(entries), len(runs)))

                try:
                    run_tasks(tasks, self.jobs, on_done=show, abort=pool.close)
                except KeyboardInterrupt:
                    progress.step(f"interrupted: {len(entries)} of {len(runs)} runs are done")
                    if not entries:
                        raise
        return entries

    def run_test(self, test: str, turn: int, pool: Pool) -> Entry:
        """Run a test once, and return its entry for the journal. ``turn`` is the number of the run.
        If the test crashes its process or exceeds its time limit, the entry's ``ran`` is DIED or
        LATE."""
        began = time.monotonic()
        place = kept_directory(self.directory, test, turn)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        # On the emulator, cdist takes 200 s, and the tests of index_put take 120 s.
        limit_s = self.timeout_s + 2 * self.ratchet.expect_s(test)
        ended = pool.run(RunTest(test, place), place / LOG, limit_s)
        shutil.rmtree(place / WORK, ignore_errors=True)
        wall_s = round(time.monotonic() - began, 3)
        entry = ended.result or Entry(
            test=test,
            ran=Ran.LATE if LATE in ended.failure else Ran.DIED,
            message=ended.failure,
        )
        log_tail = "" if entry.ran is Ran.PASSED else ended.log_tail
        return replace(entry, repeat=turn, wall_s=wall_s, log_tail=log_tail)


def list_tests(pool: Pool, scratch: Path) -> tuple[str, ...]:
    """Return the names of the suite's tests. Raises FailedError if a file cannot be collected, or
    if no test is found."""
    log = scratch / "collect.log"
    ended = pool.run(list_collected, log, COLLECT_S)
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
            fix="if a package is missing, add it to PACKAGES in ci/upstream/suites.py",
        )
    return tuple(tests)


def describe(entry: Entry, number: int, total: int) -> str:
    """Return the line that is printed after a test: its number, name, result and duration. If the
    test did not pass, the first line of its message follows."""
    first = f"  {shorten(entry.message, 120)}".rstrip()
    return f"  [{number}/{total}] {entry.test}  {entry.ran.value}  {entry.wall_s:.1f} s{first}"
