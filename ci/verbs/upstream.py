"""``test-upstream``: run ExecuTorch's own QNN tests on the emulator, and judge each by its own
assertions and by this project's gate."""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.policy import EMULATOR, EmulatorPolicy, read_emulator_policy
from ci.cases.pool import ScratchPool
from ci.cases.session import Phases, read_host, read_source, started_now
from ci.executorch.toolchain import LIBRARY, describe_toolchain, name_toolchain
from ci.facts.finding import Certainty, Proof, advise
from ci.facts.kinds import UNRECORDED
from ci.judging.controls import CONTROL_SEED, draw_noise
from ci.judging.verdict import CaseFigures
from ci.models.schemes import Scheme
from ci.models.suite import DEFAULT_SOC
from ci.report import publishing
from ci.report.claim import claim_reports
from ci.report.document import Card, Document, show_document
from ci.report.schema import Case, Control, ControlKind, Report, Status, summarize
from ci.report.text import count
from ci.report.write import report_data
from ci.upstream.expectations import Checked, Expectations, UpstreamPolicy, read_expectations
from ci.upstream.journal import Entry, Header, kept_directory, read_comparisons, read_journal
from ci.upstream.judged import Ending, Judged, Wrong, judge_test, merge_repeats
from ci.upstream.session import SuiteRun, list_tests
from ci.upstream.suites import SOURCE, SUITE, SUITES, Suite, choose_tests
from ci.verbs.built import require_executorch
from ci.verbs.options import (
    add_option,
    add_options,
    least,
    list_digested,
    name_path,
    repeat_command,
    require_effect,
)
from ci.verbs.requests import check_arguments
from ci.verbs.steps import require_packages, take_steps
from provisioning.artifacts.choice import read_choice
from provisioning.artifacts.environment import Environment
from provisioning.console.command import DIR, FLAG, HOW, RESULTS, WHAT, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import find_soc

SUITE_ROW = "(whole suite)"
BRIEF = {
    Ending.PASSED: "both",
    Ending.ONE_SIDED: "theirs only",
    Ending.FAILED: "failed",
    Ending.UNSUPPORTED: "unsupported",
    Ending.LATE: "timed out",
}


def make_case(checked: Checked, soc: str) -> Case:
    """Return the report's case for a test. The status is ``failed`` if the result is not the
    expected one, and ``passed`` if the test passed both verdicts. Otherwise it is ``unsupported``,
    because the result is known; JUnit shows this status as skipped."""
    judged = checked.judged
    entry = judged.entry
    passed = judged.outcome is Ending.PASSED
    status = Status.PASSED if passed else Status.UNSUPPORTED
    if checked.fault:
        status = Status.FAILED
    result = checked.fault if passed else f"{judged.outcome.value}: {judged.reason}"
    findings = [*judged.findings]
    if not result:  # passed, as expected
        findings = []
    elif not findings:
        findings = [UNRECORDED.find(result)]
    if findings and not passed:
        mine = (judged.outcome.value, judged.reason) if judged.findings else ()
        details = (*findings[0].details, *filter(None, (*mine, checked.fault)))
        findings[0] = structs.replace(findings[0], details=details)
    if findings and checked.expectation:
        cause = checked.expectation.cause
        why = f"{cause.name} ({cause.fault}): {cause.about}; until: {cause.until}"
        findings[0] = findings[0].explained(advise(why, certainty=Certainty.KNOWN))
    lacks = tuple(dict.fromkeys(lack for verdict in judged.ours for lack in verdict.lacks))
    return Case(
        model=judged.test,
        scheme=judged.scheme,
        soc=soc,
        status=status,
        outcome=BRIEF[judged.outcome],
        findings=tuple(findings),
        **worst_figures(judged),
        warnings=lacks if judged.outcome is Ending.PASSED else (),
        run_s=entry.wall_s if entry else None,
        log_tail=entry.log_tail if entry and status is Status.FAILED else "",
        inputs=len(judged.ours),
    )


def worst_figures(judged: Judged) -> dict[str, Any]:
    """Return the figures of the comparison whose error exceeds its prediction by the most. If there
    is no prediction, return those with the lowest SQNR; if there is no comparison, return an empty
    dict."""
    if not judged.ours:
        return {}

    def rank(figures: CaseFigures) -> tuple[float, float]:
        excess_db = -math.inf if figures.above_noise_db is None else figures.above_noise_db

        loss_db = math.inf if figures.sqnr_db is None else -figures.sqnr_db
        return excess_db, loss_db

    return vars(max((verdict.figures for verdict in judged.ours), key=rank))


def make_controls(tests: Sequence[Judged], soc: str) -> list[Control]:
    """Return a control for each test that passed both verdicts. It states whether the gate rejects
    zeros instead of the test's outputs."""
    controls = []
    for judged in tests:
        if judged.outcome is not Ending.PASSED:
            continue
        # Zeros, because upstream's tolerance in quantized tests (atol 0.1, rtol 1) accepts them.
        control = Control(
            model=judged.test,
            scheme=judged.scheme,
            soc=soc,
            kind=ControlKind.ZEROS,
            rejected=not any(verdict.accepts_zeros for verdict in judged.ours),
        )
        controls.append(control)
    return controls


def make_suite_case(faults: Sequence[str], soc: str) -> list[Case]:
    """Return a list with one failed case, which has all faults of the run as a whole. Return an
    empty list if there are no faults."""
    fix = "find the cause, or change policies/upstream.toml and mention it in docs/changes"
    advice = advise(fix=fix, proof=Proof.PROVEN)
    findings = tuple(UNRECORDED.find(fault, advice=advice) for fault in faults)
    failed = Case(model=SUITE_ROW, scheme="-", soc=soc, status=Status.FAILED, findings=findings)
    return [failed] if faults else []


def count_causes(results: Sequence[Checked]) -> list[str]:
    """Return one line per cause, with the number of tests whose result it explains. The most
    frequent cause is first. The last line counts the tests that failed one of the verdicts without
    a known cause."""
    causes: Counter[str] = Counter()
    for checked in results:
        if checked.expectation and not checked.fault:
            causes[checked.expectation.cause.name] += 1
    failing = {Ending.ONE_SIDED, Ending.FAILED}
    bad = [checked for checked in results if checked.judged.outcome in failing]
    bare = sum(bool(checked.fault) for checked in bad)
    lines = [f"cause {name}: {number}" for name, number in causes.most_common()]
    return [*lines, f"failures without a known cause: {bare} of {len(bad)}"]


def check_all(
    results: Sequence[Judged],
    expectations: Expectations,
    tests: Sequence[str],
    *,
    is_complete: bool,
) -> tuple[list[Checked], list[str]]:
    """Compare the result of each test with the expected one. For a complete run, also return the
    faults of the suite: too few tests ran, too many are unsupported, or a row matches no test."""
    checked = [expectations.check(judged) for judged in results]
    if not is_complete:
        return checked, []
    stale = [f"a row matches no test: {row}" for row in expectations.find_stale(tests)]
    return checked, [*expectations.find_losses(results), *stale]


IMPORTS = ("ci.upstream.worker",)
ROOMS = ("analysis", "graphs", "models", "cases", "executorch", "upstream")
SHOWN = 40
OUTPUTS = "outputs"
# What can be judged again: the kept outputs, or wrong ones instead of them.
WRONG: dict[str, Wrong | None] = {
    OUTPUTS: None,
    "zeros": np.zeros_like,
    "noise": lambda output: draw_noise(output, np.random.default_rng(CONTROL_SEED)),
}


JUDGING = ("--suite", "--reports", "--policy", "--base", "--sarif")  # used by --judge-again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser)
    gaps = {"--suite": "another test suite; default: upstream", "--filter": "tests"}
    add_options(parser, "--suite", choices=[*SUITES], default="upstream", always=True, gaps=gaps)
    add_options(parser, "--filter", gaps=gaps)
    soc = f"the SoC, for the suite upstream; the other suites set theirs; default: {DEFAULT_SOC}"
    add(WHAT, "--soc", soc, default="", type=str.upper, again=str)
    source = "run the tests of this ExecuTorch checkout instead of the wheel's"
    add(WHAT, "--source", source, **DIR, again=name_path, digest=True)
    failures = "the known failures; default: manifests/policies/upstream.toml"
    add_options(parser, "--policy", text=failures, type=user_path)
    add_options(parser, "--timeout-s", text="time limit for each test, in seconds")
    add_options(parser, "--jobs", "--offline", gaps={"--jobs": "tests"})
    add(HOW, "--resume", "continue an interrupted run", **FLAG)
    repeat = "run each test N times, to find flaky tests"
    add(HOW, "--repeat N", repeat, type=int, default=1, check=least(1))
    text = "run nothing; judge the kept outputs again, or zeros or noise instead of them"
    add(RESULTS, "--judge-again", text, nargs="?", const=OUTPUTS, choices=[*WRONG])
    add_options(parser, "--reports", gaps={"--reports": "SUITE/"})
    add_options(parser, "--base", "--sarif", "--executorch", "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run a suite, or judge its kept outputs again. Raises UsageError, and the same errors as
    ``take_steps``."""
    suite = SUITES[args.suite]
    directory = args.reports / suite.name
    require_executorch(args.executorch)
    check_arguments(args, suite.name)
    check_suite(args, suite)
    policy, phases = read_expectations(args.policy), Phases(progress)
    claim_reports(directory)
    if args.judge_again:
        journal = read_journal(directory)
        if not journal:
            raise UsageError(f"{directory} has no journal", fix="run the suite first")
        header, entries = journal
        uses = JUDGING if args.judge_again == OUTPUTS else JUDGING[:2]
        require_effect(args, f"--judge-again {args.judge_again}", *uses)
        if args.judge_again != OUTPUTS:
            return judge_wrong(directory, entries, args.judge_again)
        report = make_report(directory, header, entries, policy=policy, args=args, phases=phases)
        return publish_suite(report, directory, args, progress)
    require_packages(("torch", "executorch", "pytest"), "lowering")
    soc = args.soc or suite.soc
    # Before the pool starts, because its processes inherit them.
    os.environ.update(name_variables(suite, soc, args.source))
    chosen = read_choice(args.sdk, args.adaptor)
    report = take_steps(
        chosen.profile,
        f"run the tests of {suite.name}, {args.jobs} at a time",
        lambda environment, scratch: run_tests(
            suite, soc, environment, scratch, policy=policy, args=args, phases=phases
        ),
        phases,
        offline=args.offline,
        imports=IMPORTS,
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


def name_variables(suite: Suite, soc: str, source: Path | None) -> dict[str, str]:
    """Return the environment variables that the workers and upstream's conftest.py read."""
    return {
        SUITE: suite.name,
        SOURCE: str(source or ""),
        "QNN_DELEGATE_TEST": "1",
        "QNN_SOC_MODEL": soc,
    }


def run_tests(
    suite: Suite,
    soc: str,
    environment: Environment,
    scratch: ScratchPool,
    *,
    policy: UpstreamPolicy,
    args: argparse.Namespace,
    phases: Phases,
) -> Report:
    """Run the chosen tests of a suite, and judge the outputs that they kept."""
    progress, directory = phases.progress, args.reports / suite.name
    variables = environment.apply({**os.environ, "QNN_ARTIFACT_DIR": str(scratch.scratch)})
    pool = scratch.open(variables)
    tools = tuple(describe_toolchain(environment))
    with phases.measure("collect"):
        collected = list_tests(pool, scratch.scratch)
    suite_tests = choose_tests(suite, collected, ())
    ratchet = policy.suites[suite.name]
    tests = choose_tests(suite, collected, args.filter)
    toolchain = name_toolchain(tools, environment)
    header = Header(
        suite=suite.name,
        soc=soc,
        # A run is resumed only with the same tools, code and options.
        identity=hash_words(*toolchain, digest_rooms(ROOMS), *list_digested(args)),
        suite_tests=tuple(suite_tests),
        tests=tuple(tests),
        repeat=args.repeat,
        tools=tools,
    )
    run = SuiteRun(
        directory=directory,
        header=header,
        ratchet=ratchet,
        # Some tests take minutes on the emulator: 200 s for cdist, 120 s for those of index_put.
        timeout_s=max(args.timeout_s, ratchet.timeout_s),
        jobs=args.jobs,
        resume=args.resume,
    )
    with phases.measure("tests"):
        entries = run.run(pool, progress)
    return make_report(directory, header, entries, policy=policy, args=args, phases=phases)


def read_policy() -> EmulatorPolicy:
    """Return the limits of the suites. Every error above the predicted noise counts, because each
    test is a search for faults."""
    return structs.replace(read_emulator_policy(None, EMULATOR), strict_noise=True)


def judge_entries(
    directory: Path, entries: Sequence[Entry], wrong: Wrong | None = None
) -> Iterator[Judged]:
    """Yield the result of each test, from the files that it kept, in the order of the tests' names.
    ``wrong`` replaces the outputs with wrong ones."""
    limits = partial(read_policy().limits_of, "")
    ordered = sorted(entries, key=lambda entry: (entry.test, entry.repeat))
    for test, turns in groupby(ordered, key=lambda entry: entry.test):
        judged = []
        for turn in turns:
            compared = read_comparisons(kept_directory(directory, test, turn.repeat))
            judged.append(judge_test(turn, compared, limits, wrong))
        yield merge_repeats(judged)


def make_report(
    directory: Path,
    header: Header,
    entries: Sequence[Entry],
    *,
    policy: UpstreamPolicy,
    args: argparse.Namespace,
    phases: Phases,
) -> Report:
    """Judge the outputs that a run kept, and return the report."""
    qnn = next((tool.version for tool in header.tools if tool.name == LIBRARY), "")
    expectations = Expectations(policy, header.suite, header.soc, qnn)
    with phases.measure("judge"):
        judged = list(judge_entries(directory, entries))
    is_complete = header.is_whole and len(judged) == len(header.tests)
    checked, faults = check_all(judged, expectations, header.suite_tests, is_complete=is_complete)
    counts = Counter(test.outcome for test in judged)
    outcomes = "; ".join(f"{counts[ending]} {ending.value}" for ending in Ending)
    rows = [make_case(test, header.soc) for test in checked]
    cases = (*make_suite_case(faults, header.soc), *rows)
    controls = make_controls(judged, header.soc)
    emulator = read_policy()
    schemes = sorted({row.scheme for row in rows} & {scheme.value for scheme in Scheme})
    # The command that repeats a test names the SoC only if it is not the suite's.
    args.soc = header.soc if header.soc != SUITES[header.suite].soc else ""
    # What was chosen by variables becomes an option of the command that repeats a test.
    vars(args).update(read_choice(args.sdk, args.adaptor).options)
    return Report(
        session=header.suite,
        started=started_now(),
        host=read_host(),
        source=read_source(),
        toolchain=header.tools,
        thresholds=tuple(emulator.limits_of("", Scheme(scheme)) for scheme in schemes),
        cases=cases,
        controls=tuple(controls),
        summary=summarize(cases, controls, phases.wall_s(), phases.rows),
        command=repeat_command(args),
        remarks=(
            f"{count(len(judged), 'test')} of {len(header.suite_tests)}: {outcomes}",
            *count_causes(checked),
        ),
        unjudged=len(header.tests) - len(judged),
    )


def judge_wrong(directory: Path, entries: Sequence[Entry], wrong: str) -> Outcome:
    """Judge zeros or noise instead of the outputs that a run kept. The exit code is 1 if this
    project's gate accepts any of them, or if no test compares anything."""
    judged = list(judge_entries(directory, entries, WRONG[wrong]))
    compared = [test for test in judged if test.ours]
    accepted = [test.test for test in compared if test.outcome is Ending.PASSED]
    text = f"with {wrong} instead of the outputs, the gate accepts {len(accepted)} of"
    lines = [f"{text} {count(len(compared), 'test')} that compare something", *accepted]
    data = {"wrong": wrong, "tests": len(compared), "accepted": accepted}
    return Outcome("\n".join(lines) + "\n", data, 1 if accepted or not compared else 0)


def publish_suite(
    report: Report, directory: Path, args: argparse.Namespace, progress: Progress
) -> Outcome:
    """Write the report, and return its verdict with up to SHOWN of the cases that failed."""
    report = publishing.publish_run(report, directory, progress, base=args.base, sarif=args.sarif)
    failed = [case for case in report.cases if case.status is Status.FAILED]
    lines = [("", f"{case.model}: {case.headline}") for case in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(("", f"and {len(failed) - SHOWN} more, see the report"))
    cards = [Card(Status.FAILED.value, count(len(failed), "test"), tuple(lines))] if lines else []
    document = Document(report.title, report.verdict, (*cards,), report.notes)
    return Outcome(show_document(document), report_data(report), report.exit_code, exact=True)
