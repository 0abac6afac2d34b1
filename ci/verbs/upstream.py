"""``test-upstream``: run ExecuTorch's own QNN tests with pytest on the emulator, and judge what
they compare by this project's gate, too."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from ci.cases.policy import EMULATOR, read_emulator_policy
from ci.cases.session import Phases, read_host, read_source, started_now
from ci.executorch.toolchain import describe_toolchain
from ci.models.schemes import Scheme
from ci.models.suite import DEFAULT_SOC
from ci.report import publishing
from ci.report.claim import claim_reports
from ci.report.document import Card, Document, show_document
from ci.report.schema import Report, Status, summarize
from ci.report.text import count
from ci.report.write import report_data
from ci.upstream.judged import Result
from ci.upstream.suites import SUITE, SUITES, Suite, find_executorch
from ci.verbs.built import require_executorch
from ci.verbs.options import add_option, add_options, name_path, repeat_command
from ci.verbs.requests import check_arguments
from ci.verbs.steps import require_packages, take_steps
from provisioning.artifacts.choice import read_choice
from provisioning.artifacts.environment import Environment
from provisioning.console.command import DIR, FLAG, HOW, MANY, WHAT, Outcome
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.documents import decode_json, read_bytes
from provisioning.errors import ToolError, UsageError
from provisioning.manifest.targets import find_soc

PLUGIN = "ci.upstream.plugin"
ROOT = Path(__file__).resolve().parents[2]
SHOWN = 40
ENDED = {0, 1}  # pytest's exit codes of a run in which tests passed or failed
NO_TESTS = 5
# Options of earlier releases, with what to use instead.
OUTDATED = {
    "resume": "--resume has no effect any more: use --last-failed, or choose tests with -k",
    "repeat": "--repeat has no effect any more: run the tests again with --last-failed",
    "judge_again": "--judge-again has no effect any more: each run judges zeros, too",
    "policy": "--policy has no effect any more: deselect tests with -k or --deselect",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser)
    gaps = {"--suite": "another test suite; default: upstream", "--filter": "tests"}
    add_options(parser, "--suite", choices=[*SUITES], default="upstream", always=True, gaps=gaps)
    add_options(parser, "--filter", gaps=gaps)
    add(WHAT, "-k EXPRESSION", "pytest's expression for names of tests", default="")
    add(WHAT, "--deselect TEST", "leave out a test, by pytest's name; repeatable", **MANY)
    add(WHAT, "--last-failed", "run only the tests that failed in the last run", **FLAG)
    soc = f"the SoC, for the suite upstream; the other suites set theirs; default: {DEFAULT_SOC}"
    add(WHAT, "--soc", soc, default="", type=str.upper, again=str)
    source = "run the tests of this ExecuTorch checkout instead of the wheel's"
    add(WHAT, "--source", source, **DIR, again=name_path, digest=True)
    add_options(parser, "--timeout-s", text="time limit for each test, in seconds")
    add_options(parser, "--jobs", "--offline", gaps={"--jobs": "tests"})
    add(HOW, "--resume", "no longer has an effect", **FLAG)
    add(HOW, "--repeat N", "no longer has an effect", default=None)
    add(HOW, "--judge-again", "no longer has an effect", nargs="?", const=True)
    add(HOW, "--policy FILE", "no longer has an effect", default=None)
    add_options(parser, "--reports", gaps={"--reports": "SUITE/"})
    add_options(parser, "--base", "--sarif", "--executorch", "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run a suite. Raises UsageError, and the same errors as ``take_steps``."""
    suite = SUITES[args.suite]
    directory = args.reports / suite.name
    for name, warning in OUTDATED.items():
        if getattr(args, name):
            progress.step(f"warning: {warning}")
    require_executorch(args.executorch)
    check_arguments(args, suite.name)
    check_suite(args, suite)
    require_packages(("torch", "executorch", "pytest"), "lowering")
    phases = Phases(progress)
    claim_reports(directory)
    chosen = read_choice(args.sdk, args.adaptor)
    report = take_steps(
        chosen.profile,
        f"run the tests of {suite.name}, {args.jobs} at a time",
        lambda environment, scratch: run_tests(
            suite, environment, scratch.scratch, args=args, phases=phases
        ),
        phases,
        offline=args.offline,
        imports=(),
        choice=chosen,
    )
    return publish_suite(report, directory, args, progress)


def check_suite(args: argparse.Namespace, suite: Suite) -> None:
    """Raise UsageError for values of --soc or --source that the suite cannot use."""
    if suite.fixed_soc and args.soc:
        raise UsageError(
            f"--soc cannot be used with --suite {suite.name}",
            why="the tests of this suite set the SoC themselves",
        )
    if args.soc:
        find_soc(args.soc)
    places = [args.source / place for place in suite.places] if args.source else []
    if missing := [place for place in places if not place.exists()]:
        raise UsageError(f"--source {args.source} has no {missing[0]}")


def list_words(suite: Suite, args: argparse.Namespace, results: Path) -> Iterator[str]:
    """Yield the arguments of pytest for a run."""
    root = args.source or find_executorch()
    yield from (str(root / place) for place in suite.places)
    yield from ("-p", PLUGIN, "-c", os.devnull, "--rootdir", str(root))
    yield from ("--import-mode=importlib", "-o", "python_files=test_*.py test.py", "-q")
    yield from ("-o", f"cache_dir={results / 'pytest_cache'}", "--assert=plain", "--tb=line")
    yield from ("-p", "no:faulthandler", "-p", "no:warnings")
    if importlib.util.find_spec("xdist"):  # after a crash of a worker, the others go on
        yield from ("-n", str(args.jobs), "--dist", "worksteal")
    if importlib.util.find_spec("pytest_timeout"):
        yield f"--timeout={args.timeout_s:g}"
    yield from ("-k", args.k) if args.k else ()
    yield from (f"--deselect={test}" for test in args.deselect)
    if args.last_failed:  # without a failed one, all would run
        yield from ("--last-failed", "--last-failed-no-failures=none")


def run_tests(
    suite: Suite,
    environment: Environment,
    scratch: Path,
    *,
    args: argparse.Namespace,
    phases: Phases,
) -> Report:
    """Run the chosen tests of a suite with pytest, and return the report of their results. Raises
    UsageError if no test was chosen, and ToolError if pytest could not run them."""
    results = scratch / "results.jsonl"
    soc = args.soc or suite.soc
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    variables = environment.apply(
        {
            **os.environ,
            "PYTHONPATH": path,
            "QNN_ARTIFACT_DIR": str(scratch),
            "QNN_CI_SUITE_FILTERS": "\n".join(args.filter),
            "QNN_CI_SUITE_RESULTS": str(results),
            "QNN_DELEGATE_TEST": "1",
            "QNN_SOC_MODEL": soc,
            SUITE: suite.name,
        }
    )
    words = [*list_words(suite, args, args.reports.absolute() / suite.name)]
    with phases.measure("tests"):
        done = run_process(
            [sys.executable, "-m", "pytest", *words],
            cwd=scratch,
            env=variables,
            check=False,
            on_line=phases.progress.step,
        )
    rows = read_bytes(results).splitlines() if results.is_file() else []
    # A test with subtests has a row after each of them; the last one has all its comparisons.
    results_by_test = {}
    for row in rows:
        result = decode_json(row, Result)
        results_by_test[result.case.model] = result
    judged = [*results_by_test.values()]
    if done.returncode == NO_TESTS or (not judged and done.returncode in ENDED):
        raise UsageError(
            f"no test of suite {suite.name} was chosen",
            fix="check --filter, -k and --deselect; names are such as"
            " TestQNNQuantizedOperator::test_qnn_backend_relu",
        )
    if done.returncode not in ENDED:
        raise ToolError(f"pytest ended with exit code {done.returncode}", why=done.tail)
    return make_report(suite, soc, judged, environment, args=args, phases=phases)


def make_report(
    suite: Suite,
    soc: str,
    judged: Sequence[Result],
    environment: Environment,
    *,
    args: argparse.Namespace,
    phases: Phases,
) -> Report:
    """Return the report of the results of tests."""
    ordered = sorted(judged, key=lambda result: result.case.model)
    cases = tuple(result.case for result in ordered)
    controls = tuple(result.control for result in ordered if result.control)
    schemes = {case.scheme for case in cases} & {scheme.value for scheme in Scheme}
    policy = structs.replace(read_emulator_policy(None, EMULATOR), strict_noise=True)
    counts = Counter(case.judgement.outcome for case in cases)
    outcomes = "; ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    # The command that repeats a test names the SoC only if it is not the suite's. What was chosen
    # by variables becomes an option.
    choice = read_choice(args.sdk, args.adaptor)
    repeated = {"soc": soc if soc != suite.soc else "", "policy": None, **choice.options}
    return Report(
        session=suite.name,
        started=started_now(),
        host=read_host(),
        source=read_source(),
        toolchain=tuple(describe_toolchain(environment)),
        thresholds=tuple(policy.limits_of("", Scheme(scheme)) for scheme in sorted(schemes)),
        cases=cases,
        controls=controls,
        summary=summarize(cases, controls, phases.wall_s(), phases.rows),
        command=repeat_command(args, **repeated),
        remarks=(f"{count(len(cases), 'test')}: {outcomes}",),
    )


def publish_suite(
    report: Report, directory: Path, args: argparse.Namespace, progress: Progress
) -> Outcome:
    """Write the report, and return its verdict with up to SHOWN of the cases that failed."""
    report = publishing.publish_run(report, directory, progress, base=args.base, sarif=args.sarif)
    failed = [case for case in report.cases if case.judgement.status is Status.FAILED]
    lines = [("", f"{case.model}: {case.headline}") for case in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(("", f"and {len(failed) - SHOWN} more, see the report"))
    cards = [Card(Status.FAILED.value, count(len(failed), "test"), tuple(lines))] if lines else []
    document = Document(report.title, report.verdict, (*cards,), report.notes)
    return Outcome(show_document(document), report_data(report), report.exit_code, exact=True)
