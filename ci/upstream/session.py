"""A run of a suite. Its tests run in workers, the longest first, and each result is written to the
journal immediately."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.pool import LATE, Pool
from ci.upstream.expectations import Ratchet
from ci.upstream.journal import KEPT, Entry, Header, Ran, kept_directory, open_journal
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from provisioning.files import write_whole

COLLECT_S, USUAL_S = 900.0, 5.0
DURATIONS = "durations.json"
WORK = "work"  # a test's working directory, removed after the test


@dataclass(frozen=True)
class TestEnd:
    """Upstream's result of a test. ``verdict`` is ``passed``, ``failed`` or ``skipped``, ``told``
    is the reason. If a test passed because it expects an error, ``refusal`` is that error.
    ``test_s`` is the test's duration in seconds."""

    __test__ = False

    verdict: str
    told: str
    test_s: float
    comparisons: int
    refusal: str = ""


@dataclass(frozen=True)
class ListTests:
    """A job that lists the suite's tests."""

    def __call__(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the tests, and the errors during collection."""
        from ci.upstream.worker import collected

        return tuple(collected.items), collected.errors


@dataclass(frozen=True)
class RunTest:
    """A job that runs one test, and writes its comparisons to ``directory``."""

    name: str
    directory: Path

    def __call__(self) -> TestEnd:
        """Return the test's result. Raises FailedError if its process crashed."""
        from ci.upstream.worker import run_test

        return run_test(self.name, self.directory)


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A run of a suite: the tests in ``header``, with the journal and comparisons in
    ``directory``."""

    directory: Path
    header: Header
    ratchet: Ratchet
    timeout_s: float
    jobs: int = 1
    resume: bool = False

    def run(self, pool: Pool, progress: Progress) -> list[Entry]:
        """Run all tests that are not in the journal yet. Return all entries; after an interrupt,
        those so far."""
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
        """Return a test's duration in the last run, or else its known or usual duration."""
        return durations.get(test) or self.ratchet.expect_s(test) or USUAL_S

    def run_test(self, test: str, turn: int, pool: Pool) -> Entry:
        """Run a test once. The pool replaces a process that crashes or times out."""
        began = time.monotonic()
        place = kept_directory(self.directory, test, turn)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        limit_s = self.timeout_s + 2 * self.ratchet.expect_s(test)
        ended = pool.run(RunTest(test, place), place / "log.txt", limit_s)
        shutil.rmtree(place / WORK, ignore_errors=True)
        wall_s = round(time.monotonic() - began, 3)
        if ended.result is None:
            ran = Ran.LATE if LATE in ended.failure else Ran.DIED
            return Entry(
                test=test,
                repeat=turn,
                ran=ran,
                told=ended.failure,
                wall_s=wall_s,
                log_tail=ended.log_tail,
            )
        found = ended.result
        return Entry(
            test=test,
            repeat=turn,
            ran=Ran(found.verdict),
            told=found.told,
            test_s=found.test_s,
            wall_s=wall_s,
            comparisons=found.comparisons,
            refusal=found.refusal,
            log_tail="" if found.verdict == Ran.PASSED.value else ended.log_tail,
        )


def list_tests(pool: Pool, scratch: Path) -> tuple[str, ...]:
    """Return the names of the suite's tests. Raises FailedError if a file cannot be collected."""
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
            f"{len(errors)} of upstream's files cannot be collected",
            why=first,
            fix="add the missing package to ci/upstream/stubs.py",
        )
    return tuple(tests)


def read_durations(directory: Path) -> dict[str, float]:
    """Return the durations of tests in earlier runs in seconds; empty if there are none."""
    try:
        return msgspec.json.decode((directory / DURATIONS).read_bytes(), type=dict[str, float])
    except (OSError, msgspec.MsgspecError):
        return {}


def describe(entry: Entry, number: int, total: int) -> str:
    """Return one line of text about a finished test."""
    told = entry.told.strip().splitlines()
    last = f"  {told[-1][:120]}" if told and entry.ran is not Ran.PASSED else ""
    return f"  [{number}/{total}] {entry.test}  {entry.ran.value}  {entry.wall_s:.1f} s{last}"
