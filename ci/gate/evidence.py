"""Check what a job's report and junit.xml prove. A summary or an exit code can be wrong, so the
cases are counted here, and compared with the plan and with this checkout's policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from xml.etree import ElementTree as ET

from ci.cases.baselines import Baseline, find_changes
from ci.cases.policy import EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.gate.schema import PlannedJob
from ci.judging.budget import find_excesses
from ci.report.junit import render_junit
from ci.report.schema import HTP, NO_BUDGET, Case, Report, Status, Summary, Threshold
from ci.report.text import count, name_some, show_counts

SHOWN = 5
BAD_TAGS = ("failure", "error")
NOTHING_RECORDED: Mapping[str, Baseline] = MappingProxyType({})


@dataclass(frozen=True)
class Evidence:
    """How many cases ``ran``, how many of them ``failed``, and the ``faults`` that keep the job
    from passing."""

    ran: int
    failed: int
    faults: tuple[str, ...] = ()


def parse_junit(data: bytes) -> ET.Element:
    """Return the root element of a junit.xml. Raises ValueError if ``data`` is not a junit.xml, or
    declares a document type or an entity."""
    # Before parsing, because the parser would expand entities.
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ValueError("it contains a document type or entity declaration, which no report has")
    try:
        root = ET.fromstring(data)  # noqa: S314 - without entities
    except ET.ParseError as error:
        raise ValueError(str(error)) from error
    if root.tag not in {"testsuites", "testsuite"}:
        raise ValueError(f"its root element is {root.tag[:40]}")
    return root


def count_junit(root: ET.Element) -> tuple[int, int, int]:
    """Return the number of test cases below an element, how many of them failed, and how many were
    skipped."""
    cases = [*root.iter("testcase")]
    failed = skipped = 0
    for case in cases:
        tags = {result.tag for result in case}
        failed += not tags.isdisjoint(BAD_TAGS)
        skipped += "skipped" in tags
    return len(cases), failed, skipped


def weigh_junit(root: ET.Element) -> Evidence:
    """Judge a junit.xml by its test cases. It is a fault if one failed, or if the counts that a
    suite states contradict its test cases."""
    tests, failed, skipped = count_junit(root)
    faults = [f"{failed} of {tests} tests failed"] if failed else []
    for suite in root.iter():
        if suite.tag not in {"testsuites", "testsuite"}:
            continue
        suite_tests, suite_failed, _ = count_junit(suite)
        if (stated := suite.get("tests")) not in {None, str(suite_tests)}:
            faults.append(f"a suite states {stated} tests, but contains {suite_tests}")
        failures, errors = (suite.get(name, "0") for name in ("failures", "errors"))
        if not suite_failed and {failures, errors} != {"0"}:
            stated_counts = f"failures={failures} and errors={errors}"
            faults.append(f"a suite states {stated_counts}, but none of its tests failed")
    return Evidence(tests - skipped, failed, tuple(dict.fromkeys(faults)))


def weigh_report(
    report: Report,
    junit: ET.Element | None,
    job: PlannedJob,
    policy: EmulatorPolicy | None,
    exit_code: int,
    *,
    recorded: Mapping[str, Baseline] = NOTHING_RECORDED,
) -> Evidence:
    """Judge a report by its cases and controls, and check the summary that the file contains.

    ``junit`` is the root of the junit.xml next to the report, or None if that is missing.
    ``policy`` is the policy by which the cases must have been judged. ``recorded`` maps cases, as
    text, to the figures that this checkout recorded for the report's toolchain.
    """
    recounted = report.recounted
    counts, true_counts = recounted.summary, describe_counts(recounted.summary)
    faults = []
    if counts.failed or counts.controls_passed:
        faults.append(true_counts)
    if counts != report.summary:
        stated_counts = describe_counts(report.summary)
        faults.append(
            f"the report's summary says {stated_counts}, but its cases add up to {true_counts}"
        )
    if recounted.exit_code.value != exit_code:
        code = recounted.exit_code.value
        faults.append(
            f"the job's exit code is {exit_code}, but its cases require {code}: {true_counts}"
        )
    faults += [
        *_compare_junit(recounted, junit),
        *_compare_plan(recounted, job),
        *_doubt_cases(recounted),
    ]
    if policy:
        faults += [*_compare_policy(recounted, policy), *_compare_recorded(recounted, recorded)]
    return Evidence(counts.passed + counts.failed, counts.failed, tuple(faults))


def describe_counts(counts: Summary) -> str:
    """Return text such as ``30 passed, 2 failed, 0 unsupported, 8 cached; 128 of 128 controls
    rejected``."""
    rejected = counts.controls - counts.controls_passed
    return f"{show_counts(counts)}; {rejected} of {counts.controls} controls rejected"


def _compare_junit(report: Report, junit: ET.Element | None) -> Iterator[str]:
    """Yield a fault unless a report and its junit.xml have the same tests and results."""
    if junit is None:
        yield "the job left no junit.xml"
        return
    rendered = parse_junit(render_junit(report))
    if list_tests(rendered) != list_tests(junit):
        (junit_count, junit_failed, _), (report_count, report_failed, _) = (
            count_junit(junit),
            count_junit(rendered),
        )
        yield (
            "junit.xml and the report have different tests or results: "
            f"{junit_failed} of {junit_count} failed in junit.xml, "
            f"{report_failed} of {report_count} in the report"
        )


def list_tests(root: ET.Element) -> list[tuple[str | None, str | None, tuple[str, ...]]]:
    """Return the class and name of each test case, with the tags of the elements that show its
    result."""
    result_tags = {*BAD_TAGS, "skipped"}
    tests = []
    for case in root.iter("testcase"):
        tags = tuple(child.tag for child in case if child.tag in result_tags)
        tests.append((case.get("classname"), case.get("name"), tags))
    return tests


def _compare_plan(report: Report, job: PlannedJob) -> Iterator[str]:
    """Yield a fault if the report has a backend other than HTP, if its session, shard or set of
    cases differs from the plan's, or if it lists a case twice."""
    if (report.session, report.backend) != (job.session, HTP):
        yield f"the report is from {report.title}, not from {job.session}"
    shard = f"{report.shard.index}/{report.shard.count}" if report.shard else ""
    if shard != job.shard:
        report_part = f"shard {shard}" if shard else "the whole run"
        job_part = f"shard {job.shard}" if job.shard else "the whole run"
        yield f"the report is for {report_part}, but the job is for {job_part}"
    names = [case.name for case in report.cases]
    planned = set(job.cases)
    if len(set(names)) < len(names):
        repeated_count = sum(number > 1 for number in Counter(names).values())
        yield f"the report lists {count(repeated_count, 'case')} more than once"
    if planned and planned != set(names):
        planned_count, unplanned_count = len(planned & set(names)), len(set(names) - planned)
        unplanned = f", and {count(unplanned_count, 'unplanned case')}" if unplanned_count else ""
        yield f"the report has {planned_count} of {len(planned)} planned cases{unplanned}"


def _compare_policy(report: Report, policy: EmulatorPolicy) -> Iterator[str]:
    """Yield a fault if the cases were not judged by the policy's limits, if the policy does not
    expect an unsupported case, or if a scheme is unknown."""
    try:
        specs = [
            CaseSpec(case.model, policy.find_scheme(case.model, case.scheme), case.soc)
            for case in report.cases
        ]
    except ValueError as error:
        yield str(error)
        return
    stated_limits = {(rule.scheme, rule.model): rule for rule in report.thresholds}
    policy_limits = {(rule.scheme, rule.model): rule for rule in policy.describe_limits(specs)}
    if stated_limits != policy_limits or len(stated_limits) < len(report.thresholds):
        yield "the report's cases were not judged by the limits of the policy"
    refused = []
    for case, spec in zip(report.cases, specs, strict=True):
        if case.judgement.status is not Status.UNSUPPORTED or case.run.lacks:
            continue
        is_expected = policy.expects_refusal(
            case.model, spec.scheme, case.soc, case.judgement.findings, choices=case.asked.choices
        )
        if not is_expected:
            refused.append(str(case))
    if refused:
        names = name_some(refused, SHOWN)
        yield f"the policy does not expect these cases to be unsupported: {names}"


def _compare_recorded(report: Report, recorded: Mapping[str, Baseline]) -> Iterator[str]:
    """Yield a fault for each passed case whose SQNR differs too much from the one recorded for its
    toolchain."""
    for case in (case for case in report.cases if case.judgement.status is Status.PASSED):
        baseline = recorded.get(str(case))
        for change in find_changes(case.judgement, baseline) if baseline else ():
            yield f"{case} passed, but its {change}"


def _doubt_cases(report: Report) -> Iterator[str]:
    """Yield a fault for each passed case whose details contradict a pass."""
    tried = {control.name for control in report.controls}
    for case in (case for case in report.cases if case.judgement.status is Status.PASSED):
        rule = report.threshold_for(case)
        doubts = [*_doubt_case(case, rule)]
        budget = rule.budget if rule else NO_BUDGET
        doubts += [
            excess.headline for excess in find_excesses(case.program.footprint, budget, NO_BUDGET)
        ]
        if case.name not in tried:
            doubts.append("no control")
        if doubts:
            yield f"{case} passed with {', '.join(doubts)}"


def _doubt_case(case: Case, rule: Threshold | None) -> Iterator[str]:
    """Yield details of a case that contradict a pass. No limits are checked if ``rule`` is None or
    has limits for single outputs."""
    if case.run.lacks:
        yield "a missing library"
    if case.judgement.findings:
        yield "a reason to fail"
    if not case.asked.inputs or (case.judgement.max_abs, case.judgement.equal) == (None, None):
        yield "no outputs"
    if rule is None or rule.outputs:
        return
    scheme = (
        case.judgement.sqnr_db
        if case.judgement.sqnr_db_scheme is None
        else case.judgement.sqnr_db_scheme
    )
    # If there is a quantized model, this limit is for that model, not for the program.
    cosine = case.judgement.cosine if case.judgement.cosine_quantized is None else None
    for name, figure, minimum in (
        ("SQNR", scheme, rule.min_sqnr_db),
        ("SQNR", case.judgement.sqnr_db_quantized, rule.min_sqnr_db_quantized),
        ("cosine", cosine, rule.min_cosine),
        ("cosine", case.judgement.cosine_quantized, rule.min_cosine_quantized),
        ("equal", case.judgement.equal, rule.min_equal),
        ("equal", case.judgement.equal_quantized, rule.min_equal_quantized),
        ("the metric", case.judgement.metric, rule.min_metric),
    ):
        if figure is not None and minimum is not None and figure < minimum:
            yield f"{name} {figure:.4g} (below {minimum:g})"
    had, has = case.judgement.metric_float, case.judgement.metric
    drop = None if had is None or has is None else had - has
    for name, figure, maximum in (
        ("a difference of", case.judgement.max_abs, rule.max_abs),
        ("a metric that dropped by", drop, rule.max_metric_drop),
    ):
        if figure is not None and maximum is not None and figure > maximum:
            yield f"{name} {figure:.3g} (above {maximum:g})"
    if case.program.fallback_nodes and rule.full_delegation and not case.asked.choices:
        yield f"{count(case.program.fallback_nodes, 'node')} on the CPU"
