"""Runs upstream's tests. The fork server imports this module and calls ``before_forks``, which
collects a suite once for all workers.

Each test runs in a fork of a worker of ci.cases.pool, so it cannot affect other tests.
"""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.config import _prepareconfig
from _pytest.raises import RaisesExc

from ci.cases.forked import note_step, run_forked
from ci.executorch.lower import list_refusals
from ci.executorch.patches import warm_up
from ci.upstream.emulator import LACKING, serve_programs, write_client
from ci.upstream.journal import LOG, Entry, Ran
from ci.upstream.record import (
    capture,
    watch_backend_suite,
    watch_delegate,
    watch_rework,
    write_seen,
)
from ci.upstream.suites import (
    SOURCE,
    SUITE,
    SUITES,
    MissingPackageError,
    find_executorch,
    install_stubs,
)
from provisioning.documents import read_text
from provisioning.errors import describe_exception

SEED = 1126  # the seed that upstream uses in tests/rework
# The path where tests/rework expects the runner. The other suites use QNN_EXECUTOR_RUNNER.
RUNNER = "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
WATCHES = {
    "upstream": watch_delegate,
    "upstream-rework": watch_rework,
    "backend-suite": watch_backend_suite,
}
MAX_MESSAGE = 2000
# The steps of backends/test/suite, by the names of its results.
STEPS = {
    "SKIPPED": "the model does not run or is not exported",
    "QUANTIZE_FAIL": "quantize",
    "LOWER_FAIL": "lower",
    "PTE_LOAD_FAIL": "load",
    "PTE_RUN_FAIL": "run",
    "OUTPUT_MISMATCH_FAIL": "compare",
    "UNKNOWN_FAIL": "write the program",
}
LOWERING = ("quantize", "lower")


@dataclass
class Collected:
    """The tests that the fork server collected, with pytest's configuration and the errors of the
    collection. ``items`` maps the tests' names to pytest's items."""

    config: Any = None
    items: dict[str, Any] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


collected = Collected()


class Listener:
    """A pytest plugin that records how a test and its subtests ended, and the errors of the
    collection. It leaves out those that passed."""

    def __init__(self) -> None:
        self.ends: list[tuple[Ran, str]] = []
        self.errors: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if not report.passed:
            self.ends.append(describe_end(item, report, call.excinfo))
        return report

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


def run_test(name: str, directory: Path) -> Entry:
    """Run a test in a fork of this process, and return its result. Raises FailedError if the fork
    dies."""
    return run_forked(lambda: run_here(name, directory), name)


def run_here(name: str, directory: Path) -> Entry:
    """Run a test in this process, write its comparisons to ``directory``, and return its result.
    This process writes its log to the file LOG in ``directory``."""
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
    ran, message = choose_end(listener.ends)
    lacking = directory / LACKING
    if ran is Ran.FAILED and lacking.is_file():
        ran, message = Ran.LACKING, read_text(lacking)
    count = len(capture.seen)
    return Entry(
        test=name,
        ran=ran,
        message=message,
        test_s=round(test_s, 3),
        comparisons=count,
        refusal="" if count or ran is not Ran.PASSED else refusal,
    )


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


def choose_end(ends: Sequence[tuple[Ran, str]]) -> tuple[Ran, str]:
    """Return the end of a test: the first of ``ends`` that is not SKIPPED, or else the first. A
    test with no such end passed."""
    failed = (one for one in ends if one[0] is not Ran.SKIPPED)
    return next(failed, ends[0] if ends else (Ran.PASSED, ""))


def describe_end(item: Any, report: Any, raised: Any) -> tuple[Ran, str]:
    """Return how a test of pytest's ended that did not pass, and why. ``raised`` is pytest's
    information on its exception, or None."""
    error: BaseException | None = raised.value if raised else None
    ran = Ran.FAILED if report.failed else Ran.SKIPPED
    chain = [error] if error else []
    while chain and (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    lacking = [str(one) for one in chain if isinstance(one, MissingPackageError)]
    if report.failed and lacking:
        return Ran.LACKING, lacking[0]
    summaries = getattr((getattr(item, "funcargs", {}) or {}).get("test_runner"), "_results", ())
    if summaries and not summaries[-1].result.is_success():
        return ran, describe_summary(summaries[-1])
    if error is None:
        return ran, str(report.longrepr)[-MAX_MESSAGE:]
    if hasattr(report, "wasxfail"):
        reason = report.wasxfail.removeprefix("reason: ")
        return ran, ": ".join(filter(None, ("upstream expects it to fail", reason)))
    if report.skipped:
        return ran, str(error)
    at = "" if str(error) else f": {raised.traceback[-1].statement}"  # a bare assertion
    return ran, f"{describe_exception(error)}{at}"


def describe_summary(summary: Any) -> str:
    """Return the step at which a test of backends/test/suite failed or was skipped, and its error.
    The suite itself raises only ``Test failure.``"""
    if summary.error is None:
        runner = importlib.import_module("executorch.backends.test.suite.runner")
        left = sorted(runner.UNSUPPORTED_PORTABLE_OPS & {*summary.undelegated_op_counts})
        on_cpu = f"{' or '.join(left)} on the CPU" if left else "3-D convolution"
        return f"its suite runs no {on_cpu}"
    step = STEPS[summary.result.name]
    log = Path("..") / LOG  # this process is in WORK
    lines = list_refusals(summary.error, log) if step in LOWERING else []
    return f"{step}: " + "\n".join(lines or [describe_exception(summary.error)])
