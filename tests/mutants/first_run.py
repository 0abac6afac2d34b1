"""All tests once without a mutant: how long each takes, which functions it reaches, which fail."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

# How long a test may take with a mutant: this, and so many times what it takes without.
LEAST_CPU_S, LEAST_WALL_S, FACTOR = 5.0, 30.0, 10
SLOW_CPU_S = 1.0  # every mutant that survives would wait for all tests that are slower


@dataclass
class FirstRun:
    """By test: seconds of CPU and of wall time, and the report if it failed; tests by function."""

    took: dict[str, tuple[float, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    reached: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, file: Path) -> FirstRun:
        """What run_first wrote."""
        return cls(**json.loads(file.read_text("utf-8")))

    def tests_of(self, function: str) -> list[str]:
        """The tests that judge a function, the quickest first; slow ones if no others reach it."""
        names = sorted(self.reached.get(function, ()), key=lambda name: self.took[name])
        return [name for name in names if self.took[name][0] <= SLOW_CPU_S] or names

    def cost_s(self, function: str) -> float:
        """CPU seconds of the tests that judge a function."""
        return sum(self.took[name][0] for name in self.tests_of(function))

    def limit(self, test: str) -> None:
        """Have a signal end this process if the test that now begins takes too long."""
        cpu_s, wall_s = self.took[test]
        signal.setitimer(signal.ITIMER_PROF, LEAST_CPU_S + FACTOR * cpu_s)
        signal.setitimer(signal.ITIMER_REAL, LEAST_WALL_S + FACTOR * wall_s)


class Reports:
    """A pytest plugin that keeps the reports of failures."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(report.longreprtext)


class Reached(set[str]):
    """The functions that a test has reached, in this process or in forks of it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def add(self, name: str) -> None:
        if name not in self:
            super().add(name)
            os.write(self.descriptor, f"{name}\n".encode())

    def restart(self) -> None:
        self.clear()
        os.ftruncate(self.descriptor, 0)

    def list_all(self) -> set[str]:
        size = os.fstat(self.descriptor).st_size
        return set(os.pread(self.descriptor, size, 0).decode().splitlines())


def run_test(item: pytest.Item, following: pytest.Item | None) -> str:
    """Run one test: its report if it fails, else nothing."""
    reports, plugins = Reports(), item.config.pluginmanager
    plugins.register(reports)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    plugins.unregister(reports)
    return "\n".join(reports.failures)


def follow(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each item with the next, whose fixtures pytest keeps."""
    return zip(items, [*items[1:], None], strict=True)


def run_first(items: Sequence[pytest.Item], file: Path) -> int:
    """Run all tests, and write what a FirstRun holds."""
    run, reached = FirstRun(), Reached(file.with_suffix(".txt"))
    state()._stats = reached
    set_mutant_under_test("stats")
    del os.environ["MUTANT_UNDER_TEST"]  # which programs that tests start would read
    for item, following in follow(items):
        reached.restart()
        cpu_s, wall_s = time.process_time(), time.monotonic()
        failure = run_test(item, following)
        run.took[item.nodeid] = (time.process_time() - cpu_s, time.monotonic() - wall_s)
        if failure:
            run.failures[item.nodeid] = failure
        for function in reached.list_all():
            run.reached[function].append(item.nodeid)
    file.write_text(json.dumps(vars(run)), "utf-8")
    return 0
