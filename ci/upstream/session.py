"""Runs a suite with pytest, and makes the report of its tests. What lowers, runs and compares
models is the tests themselves, and which tests there are is known when pytest has collected them:
so pytest runs them, and its plugin of this project returns a case of the report for each."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs

from ci.cases.facts import CaseResult, Options
from ci.cases.pool import ScratchPool
from ci.cases.request import Request
from ci.cases.session import Phases, make_report
from ci.executorch.toolchain import describe_toolchain
from ci.models.numerics import VARIABLES
from ci.models.schemes import Scheme
from ci.report.schema import Report, Status
from ci.report.text import count
from ci.upstream.judged import Result
from ci.upstream.suites import (
    SUITE,
    SUITES,
    Suite,
    count_file,
    find_executorch,
    find_named_scheme,
    step_file,
)
from provisioning.artifacts.environment import Environment
from provisioning.console.process import run_process
from provisioning.console.streams import package_log
from provisioning.documents import decode_json, read_bytes, read_text
from provisioning.errors import ToolError, UsageError

PLUGIN = "ci.upstream.plugin"
ROOT = Path(__file__).resolve().parents[2]
ENDED = {0, 1}  # pytest's exit codes of a run in which tests passed or failed
NO_TESTS = 5


@dataclass(frozen=True, kw_only=True)
class UpstreamRequest(Request):
    """A request with the options of test-upstream, most of which pytest takes."""

    suite: Suite = SUITES["upstream"]
    filters: tuple[str, ...] = ()  # globs for names of tests
    expression: str = ""  # pytest's -k
    deselect: tuple[str, ...] = ()
    last_failed: bool = False
    source: Path | None = None  # an ExecuTorch checkout with the tests; None for the wheel's

    @property
    def soc(self) -> str:
        """Return the SoC for which the tests lower."""
        return self.socs[0] if self.socs else self.suite.soc


def run_suite(
    request: UpstreamRequest,
    options: Options,
    environment: Environment,
    scratch: ScratchPool,
    phases: Phases,
) -> Report:
    """Run the chosen tests of a suite with pytest, and return the report of their results. Raises
    UsageError if no test was chosen, and ToolError if pytest could not run them."""
    if request.last_failed and not has_failed_tests(request):
        raise UsageError(
            "no test is to be run: in the last run, none failed",
            why=f"{find_cache(request)} names no failed test",
            fix="leave out --last-failed to run all tests again",
        )
    results_file = scratch.scratch / "results.jsonl"
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    variables = {
        **VARIABLES,
        "PYTHONPATH": search_path,
        "QNN_ARTIFACT_DIR": str(scratch.scratch),
        "QNN_CI_SUITE_FILTERS": "\n".join(request.filters),
        "QNN_CI_SUITE_RESULTS": str(results_file),
        "QNN_DELEGATE_TEST": "1",
        "QNN_SOC_MODEL": request.soc,
        SUITE: request.suite.name,
    }
    with (
        phases.measure("tests"),
        phases.progress.bar("tests", unit="") as bar,
        bar.busy(partial(describe_progress, results_file)),
    ):
        done = run_process(
            [sys.executable, "-m", "pytest", *list_words(request)],
            cwd=scratch.scratch,
            env=environment.apply({**os.environ, **variables}),
            check=False,
            on_line=log_line,
        )
    results = read_results(results_file)
    if done.returncode == NO_TESTS or (not results and done.returncode in ENDED):
        raise UsageError(
            f"no test of suite {request.suite.name} was chosen",
            fix="check --filter, -k and --deselect; names are such as"
            " TestQNNQuantizedOperator::test_qnn_backend_relu",
        )
    if done.returncode not in ENDED:
        raise ToolError(f"pytest ended with exit code {done.returncode}", why=done.tail)
    outcomes = Counter(result.case.judgement.outcome for result in results)
    remark = "; ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    report = make_report(
        options,
        tuple(describe_toolchain(environment)),
        results,
        phases,
        (f"{count(len(results), 'test')}: {remark}", *describe_misnamed(results)),
    )
    # The cases, and with them their schemes, were not known before.
    schemes = {case.scheme for case in report.cases} & {scheme.value for scheme in Scheme}
    limits = tuple(options.policy.limits_of("", Scheme(scheme)) for scheme in sorted(schemes))
    return structs.replace(report, thresholds=limits, unjudged=0)


def describe_misnamed(results: Sequence[CaseResult]) -> Iterator[str]:
    """Yield a line for each scheme that tests have in their names, but not in their graphs."""
    misnamed = Counter[tuple[str, str]]()
    for result in results:
        named = find_named_scheme(result.case.model)
        if named and result.case.scheme not in {named.value, "-"}:
            misnamed[named.value, result.case.scheme] += 1
    for (named_scheme, scheme), number in sorted(misnamed.items()):
        tests = "1 test is" if number == 1 else f"{number} tests are"
        yield f"{tests} named {named_scheme}, quantized as {scheme} by upstream, and judged as that"


def log_line(line: str) -> None:
    """Write a line of pytest to the log of the run."""
    if log := package_log():
        log.write(line)


def describe_progress(results: Path) -> str:
    """Return how many of the chosen tests have ended, how many of these failed, and what pytest
    does now. Before it knows the tests, return only the latter."""
    step = read_text(step_file(results)) if step_file(results).is_file() else "starts"
    if not count_file(results).is_file():
        return f"pytest {step}"
    ended = {result.case.model: result.case for result in read_rows(results)}
    failed = [case for case in ended.values() if case.judgement.status is Status.FAILED]
    words = [f"{len(ended)} of {read_text(count_file(results))}"]
    words += [f"{len(failed)} failed"] if failed else []
    return ", ".join([*words, step])


def list_words(request: UpstreamRequest) -> Iterator[str]:
    """Yield the arguments of pytest for a run."""
    root = request.source or find_executorch()
    yield from (str(root / place) for place in request.suite.places)
    yield from ("-p", PLUGIN, "-c", os.devnull, "--rootdir", str(root))
    yield from ("--import-mode=importlib", "-o", "python_files=test_*.py test.py", "-q")
    yield from ("-o", f"cache_dir={find_cache(request)}", "--assert=plain", "--tb=line")
    yield from ("-p", "no:faulthandler", "-p", "no:warnings")
    if importlib.util.find_spec("xdist"):  # after a crash of a worker, the others go on
        yield from ("-n", str(request.jobs), "--dist", "worksteal")
    if importlib.util.find_spec("pytest_timeout"):
        yield f"--timeout={request.timeout_s:g}"
    yield from ("-k", request.expression) if request.expression else ()
    yield from (f"--deselect={test}" for test in request.deselect)
    if request.last_failed:  # without a failed one, all would run
        yield from ("--last-failed", "--last-failed-no-failures=none")


def find_cache(request: UpstreamRequest) -> Path:
    """Return pytest's cache, in which it keeps the names of failed tests."""
    return request.directory.absolute() / "pytest_cache"


def has_failed_tests(request: UpstreamRequest) -> bool:
    """Return whether pytest knows tests that failed in their last run."""
    record = find_cache(request) / "v/cache/lastfailed"  # of _pytest/cacheprovider.py
    return record.is_file() and read_bytes(record).strip() not in (b"", b"{}")


def read_rows(file: Path) -> list[Result]:
    """Return the rows that the plugin has written, without one that it is writing."""
    text = read_bytes(file) if file.is_file() else b""
    return [
        decode_json(line, Result) for line in text.splitlines(keepends=True) if line[-1:] == b"\n"
    ]


def read_results(file: Path) -> list[CaseResult]:
    """Return the results that the plugin wrote, by the names of the tests."""
    # A test with subtests has a row after each of them; the last one has all its comparisons.
    results_by_test = {result.case.model: result for result in read_rows(file)}
    ordered = [results_by_test[test] for test in sorted(results_by_test)]
    return [CaseResult(row.case, (row.control,) if row.control else ()) for row in ordered]
