"""Runs upstream's tests. The fork server imports this module and calls ``before_forks``, which
collects a suite once for all workers.

Each test runs in a fork of a worker of ci.cases.pool, so it cannot affect other tests.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.config import _prepareconfig
from _pytest.raises import RaisesExc

from ci.cases.forked import note_step, run_forked
from ci.executorch.patches import warm_up
from ci.upstream.capture import capture, watch_backend_suite, watch_delegate, watch_rework
from ci.upstream.emulator import serve_programs, write_client
from ci.upstream.journal import TestEnd
from ci.upstream.record import write_seen
from ci.upstream.stubs import install_stubs
from ci.upstream.suites import SOURCE, SUITE, SUITES, find_executorch

SEED = 1126  # the seed that upstream uses in tests/rework
# The path where tests/rework expects the runner. The other suites use QNN_EXECUTOR_RUNNER.
RUNNER = "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
WATCHES = {
    "upstream": watch_delegate,
    "upstream-rework": watch_rework,
    "backend-suite": watch_backend_suite,
}
MAX_MESSAGE = 2000


@dataclass
class Collected:
    """The tests that the fork server collected, with pytest's configuration and the errors of the
    collection. ``items`` maps the tests' names to pytest's items."""

    config: Any = None
    items: dict[str, Any] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


collected = Collected()


class Listener:
    """A pytest plugin that records the reports of a test, and the errors of the collection."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.errors: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {str(report.longrepr)[-MAX_MESSAGE:]}")


listener = Listener()


def before_forks() -> None:
    """Collect the suite that the environment variable SUITE specifies, and wrap its functions so
    that comparisons are recorded."""
    suite = SUITES[os.environ[SUITE]]
    root = Path(os.environ.get(SOURCE) or find_executorch())
    os.dup2(2, 1)  # stdout is for the verb's output; a worker logs both
    install_stubs()
    config = _prepareconfig(
        [
            *(str(root / place) for place in suite.places),
            *("-c", os.devnull, "--rootdir", str(root), "--import-mode=importlib", "-v"),
            *("-o", "python_files=test_*.py test.py"),
            *("-p", "no:cacheprovider", "--assert=plain", "-p", "no:capture"),
            *("-p", "no:faulthandler", "-p", "no:warnings", "-p", "no:timeout"),
        ],
        [listener],
    )
    config._do_configure()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    session.perform_collect()
    warm_up(plain=False)
    collected.config = config
    collected.items = {
        one.nodeid.rpartition("/")[2].partition("::")[2]
        if len(suite.places) == 1 and suite.places[0].endswith(".py")
        else one.nodeid: one
        for one in session.items
    }
    collected.errors = tuple(listener.errors)
    if os.environ[SUITE] in WATCHES:
        WATCHES[os.environ[SUITE]]()


def run_test(name: str, directory: Path) -> TestEnd:
    """Run a test in a fork of this process, and return its result. Raises FailedError if the fork
    dies."""
    return run_forked(lambda: run_here(name, directory), name)


def run_here(name: str, directory: Path) -> TestEnd:
    """Run a test in this process, write its comparisons to ``directory``, and return its result."""
    work = directory / "work"
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    write_client(work / RUNNER)
    os.environ["QNN_EXECUTOR_RUNNER"] = str(work / RUNNER)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(SEED)
    item = collected.items[name]
    refusal = find_refusal(item)  # before the test removes it from its parameters
    with serve_programs(directory):
        began = time.monotonic()
        note_step("running the test")
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        test_s = time.monotonic() - began
        note_step("predicting the noise of the test's outputs")
        write_seen(directory, capture.seen)
    verdict, message = summarize(listener.reports)
    count = len(capture.seen)
    is_refused = verdict == "passed" and not count
    return TestEnd(verdict, message, round(test_s, 3), count, refusal if is_refused else "")


def find_refusal(item: Any) -> str:
    """Return the error that a test of tests/rework expects, or "" if it expects none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    expected = params.get("kwargs", {})
    expected = expected.get("expected") if isinstance(expected, dict) else None
    if not isinstance(expected, RaisesExc):
        return ""
    pattern = getattr(expected.match, "pattern", expected.match) or ""
    named = pattern or " ".join(map(str, getattr(expected.check, "args", ())))
    return f"upstream expects the model to be refused: {named}"


def summarize(reports: Sequence[Any]) -> tuple[str, str]:
    """Return ``failed``, ``skipped`` or ``passed`` according to the reports of a test and its
    subtests. Also return the end of the first failed report, otherwise of the first skipped one.
    It is empty if the test passed."""
    failed = [one for one in reports if one.failed]
    if failed:
        return "failed", str(failed[0].longrepr)[-MAX_MESSAGE:]
    skipped = [one for one in reports if one.skipped]
    if skipped:
        return "skipped", str(skipped[0].longrepr)[-MAX_MESSAGE:]
    return "passed", ""
