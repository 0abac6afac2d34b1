"""A pytest plugin that judges what upstream's tests compare: ``pytest -p ci.upstream.plugin``.

A test that passes upstream fails here if this project's gate rejects the outputs that it compared,
if the gate would accept zeros instead of them, or if the test compared nothing. What pytest can do
is left to it: to select (-k, --deselect), to repeat what failed (--last-failed), to run in several
processes, and to go on after a crash (pytest-xdist).

The process that judges a test attaches the report's case to pytest's report of the test. The
process that started the workers writes the cases to the file RESULTS, one per line.
"""

from __future__ import annotations

import importlib
import os
import random
import tempfile
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from _pytest.raises import RaisesExc
from msgspec.structs import replace

from ci.cases.policy import EMULATOR, read_emulator_policy
from ci.executorch.patches import warm_up
from ci.models.numerics import fix_numerics
from ci.report.schema import Status
from ci.report.text import count
from ci.upstream import programs
from ci.upstream.capture import capture, watch_backend_suite, watch_delegate, watch_rework
from ci.upstream.judged import Result, judge_comparison, make_result
from ci.upstream.record import work_out
from ci.upstream.suites import (
    SUITE,
    SUITES,
    MissingPackageError,
    count_file,
    find_named_scheme,
    install_stubs,
    step_file,
)
from provisioning.errors import describe_exception
from provisioning.files import write_whole

FILTERS, RESULTS = "QNN_CI_SUITE_FILTERS", "QNN_CI_SUITE_RESULTS"
SOC = "QNN_SOC_MODEL"  # upstream's conftest.py reads it, too
SEED = 1126  # the seed that upstream uses in tests/rework
ATTRIBUTE = "qnn_ci_result"
MAX_MESSAGE = 2000
WATCHES = {
    "upstream": watch_delegate,
    "upstream-rework": watch_rework,
    "backend-suite": watch_backend_suite,
}
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


@pytest.hookimpl(tryfirst=True)  # before the conftest.py of upstream, which imports what is missing
def pytest_configure(config: pytest.Config) -> None:
    """Register the judge, unless other processes run the tests."""
    install_stubs()
    # Before the tests create tensors: a program that runs in a fork would wait for the threads of
    # OpenMP, which do not survive one.
    fix_numerics()
    is_worker = hasattr(config, "workerinput")
    tell_step("imports ExecuTorch and its tests")
    if is_worker or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Judge())
    if not is_worker:
        config.pluginmanager.register(Writer(Path(os.environ[RESULTS])))


def tell_step(step: str) -> None:
    """Tell the process that started pytest what pytest does now. Of several workers, the last one
    to tell is shown."""
    write_whole(step_file(Path(os.environ[RESULTS])), step)


class Writer:
    """Writes the result of each test to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the result of a test, also of one whose worker crashed."""
        result = getattr(report, ATTRIBUTE, "")
        crashed = report.when not in {"setup", "call", "teardown"}
        if not result and crashed:
            message = str(report.longrepr)[-MAX_MESSAGE:]
            soc = os.environ[SOC]
            result = encode(make_result(name_test(report.nodeid), soc, "failed", message, ()))
        if result:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{result}\n")


def encode(result: Result) -> str:
    """Return a result as one line of JSON."""
    return msgspec.json.encode(result).decode()


def name_test(nodeid: str) -> str:
    """Return the name of a test: without its file, if the suite is a single file."""
    is_file = SUITES[os.environ[SUITE]].places[0].endswith(".py")
    return nodeid.rpartition("/")[2].partition("::")[2] if is_file else nodeid


class Judge:
    """Runs tests with their comparisons recorded, and judges these."""

    def __init__(self) -> None:
        self.suite = SUITES[os.environ[SUITE]]
        # Every error above the predicted noise counts, because each test is a search for faults.
        policy = replace(read_emulator_policy(None, EMULATOR), strict_noise=True)
        self.limits = partial(policy.limits_of, "")
        self.ends: list[tuple[str, str]] = []
        self.refusal = ""
        self.collected = 0

    def pytest_itemcollected(self) -> None:
        """Count a test that was found."""
        self.collected += 1

    def pytest_collectreport(self) -> None:
        """Tell how many tests were found, after each file and each class."""
        if self.collected:
            tell_step(f"found {count(self.collected, 'test')}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Deselect tests that are not in the suite, or that no --filter matches."""
        globs = os.environ.get(FILTERS, "").split("\n") if os.environ.get(FILTERS) else []
        selected, deselected = list[Any](), list[Any]()
        for item in items:
            name = name_test(item.nodeid)
            short = name.rpartition("::")[2]
            fits = not globs or any(
                glob in {name, short} or fnmatchcase(name, glob) or fnmatchcase(short, glob)
                for glob in globs
            )
            (selected if fits and self.suite.includes(name) else deselected).append(item)
        if deselected:
            config.hook.pytest_deselected(items=deselected)
            items[:] = selected

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Prepare for tests: record comparisons, and start what runs programs, before anything
        loads QNN's compiler."""
        count_file(Path(os.environ[RESULTS])).write_text(f"{len(session.items)}", encoding="ascii")
        if session.items and not session.config.option.collectonly:
            tell_step("imports what lowers and runs programs")
            warm_up(plain=False)
            WATCHES[self.suite.name]()
            programs.serve_programs(getattr(session.config.option, "timeout", None) or 0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        """Run a test in a separate directory, with upstream's seed."""
        tell_step(name_test(item.nodeid).rpartition("::")[2])
        capture.checks.clear()
        capture.now = None
        capture.sources.clear()
        self.ends.clear()
        self.refusal = find_refusal(item)  # before the test removes it from its parameters
        before = Path.cwd()
        with tempfile.TemporaryDirectory(prefix="qnn-ci-", ignore_cleanup_errors=True) as folder:
            os.chdir(folder)
            programs.make_runner(Path(folder))
            for seed in (torch.manual_seed, np.random.seed, random.seed):
                seed(SEED)
            try:
                return (yield)
            finally:
                os.chdir(before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        """Judge a test, after it ran or could not be set up, and attach the result to pytest's
        report. A subtest only counts for its test."""
        report = yield
        if not report.passed:
            self.ends.append(describe_end(item, report, call.excinfo))
        is_subtest = type(report) is not pytest.TestReport
        is_end = call.when == "call" or (call.when == "setup" and not report.passed)
        if is_subtest or not is_end:
            return report
        ran, message = choose_end(self.ends)
        printed = "\n".join(text for _, text in report.sections)
        result = self.judge(name_test(item.nodeid), ran, message, printed)
        setattr(report, ATTRIBUTE, encode(result))
        if result.case.judgement.status is Status.FAILED and report.passed:
            report.outcome, report.longrepr = "failed", f"failed by ours: {result.case.headline}"
        elif ran == "lacking":
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: {message}")
        return report

    def judge(self, name: str, ran: str, message: str, printed: str) -> Result:
        """Return the result of a test from upstream's and from what it compared. ``printed`` is
        what the test and the packages that it uses printed."""
        comparisons = []
        if ran in {"passed", "failed"}:
            named = find_named_scheme(name)
            comparisons = [work_out(check, named) for check in capture.checks]
        if not comparisons and ran == "passed" and self.refusal:
            ran, message = "skipped", self.refusal
        with np.errstate(all="ignore"):
            ours = [judge_comparison(*comparison, self.limits) for comparison in comparisons]
        return make_result(name, os.environ[SOC], ran, message, ours, printed=printed)


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


def choose_end(ends: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the end of a test: the first of ``ends`` that is not skipped, or else the first. A
    test with no such end passed."""
    failed = (end for end in ends if end[0] != "skipped")
    return next(failed, ends[0] if ends else ("passed", ""))


def describe_end(item: Any, report: Any, raised: Any) -> tuple[str, str]:
    """Return how a test ended that did not pass (``failed``, ``skipped``, or ``lacking`` a package
    or a flag of the runner), and why. ``raised`` is pytest's information on its exception, or
    None."""
    error: BaseException | None = raised.value if raised else None
    ran = "failed" if report.failed else "skipped"
    chain = [error] if error else []
    while chain and (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    lacking = [str(exception) for exception in chain if isinstance(exception, MissingPackageError)]
    output = "\n".join([*map(str, chain), *(text for _, text in report.sections)])
    lacking += [line for line in output.splitlines() if programs.LACKING in line]
    if report.failed and lacking:
        return "lacking", lacking[0].strip()
    summaries = getattr((getattr(item, "funcargs", {}) or {}).get("test_runner"), "_results", ())
    if summaries and not summaries[-1].result.is_success():
        return ran, describe_summary(summaries[-1])
    if error is None:
        return ran, str(report.longrepr)[-MAX_MESSAGE:]
    if hasattr(report, "wasxfail"):
        reason = report.wasxfail.removeprefix("reason: ")
        return ran, ": ".join(filter(None, ("upstream expects it to fail", reason)))
    if report.skipped:
        return ran, f"skipped by upstream: {error}"
    at = "" if str(error) else f": {raised.traceback[-1].statement}"  # a bare assertion
    return ran, f"{describe_exception(error)}{at}"[:MAX_MESSAGE]


def describe_summary(summary: Any) -> str:
    """Return the step at which a test of backends/test/suite failed or was skipped, and its error.
    The suite itself raises only ``Test failure.``"""
    if summary.error is None:
        runner = importlib.import_module("executorch.backends.test.suite.runner")
        left = sorted(runner.UNSUPPORTED_PORTABLE_OPS & {*summary.undelegated_op_counts})
        on_cpu = f"{' or '.join(left)} on the CPU" if left else "3-D convolution"
        return f"its suite runs no {on_cpu}"
    return f"{STEPS[summary.result.name]}: {describe_exception(summary.error)}"
