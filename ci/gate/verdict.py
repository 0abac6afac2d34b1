"""The verdict of the one required check. It compares the jobs' results with the plan, and separates
failures of the infrastructure from failures that the change caused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ci.gate.schema import Plan, PlannedJob
from ci.report.text import count

# From docs/reference/exit-codes.md: the machine failed, or the job was ended from outside
# (128 + SIGKILL or SIGTERM: out of memory, the runner shut down).
MACHINE = {
    3: "the environment is unsuitable",
    4: "a download failed, or the disk is full",
    130: "it was interrupted",
    137: "it was killed",
    143: "it was terminated",
}
AUTHOR = {
    1: "its tests failed",
    2: "an argument or a file is wrong",
    5: "a tool that it ran failed",
    70: "a defect of this project",
}
PLAN_JOB = "plan"


class JobVerdict(str, Enum):
    """The result of a planned job. A failure is either ``failed``, because of the change, or
    ``infrastructure``."""

    PASSED = "passed"
    FAILED = "failed"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class JobResult:
    """What a job left behind. ``exit_code`` is the text of exit-code.txt, or None if that file is
    missing. ``cases`` is the number of cases that ran according to the report, or None without a
    report. ``failed`` is how many of them failed. ``fault`` is the reason why the report does not
    prove a pass."""

    exit_code: str | None = None
    cases: int | None = None
    fault: str = ""
    failed: int = 0


@dataclass(frozen=True)
class JobLine:
    """A job's part of the verdict."""

    job: str
    verdict: JobVerdict
    why: str


@dataclass(frozen=True)
class GateVerdict:
    """The whole verdict. ``notes`` are faults outside the plan's jobs, which the author has to
    fix."""

    jobs: tuple[JobLine, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_green(self) -> bool:
        """Whether all jobs passed and there is nothing to note."""
        return not self.notes and all(job.verdict is JobVerdict.PASSED for job in self.jobs)

    @property
    def is_infrastructure(self) -> bool:
        """Whether the verdict is red only because of failures of the infrastructure."""
        verdicts = {job.verdict for job in self.jobs}
        return not self.notes and not self.is_green and JobVerdict.FAILED not in verdicts


def judge(
    plan: Plan, needs: Mapping[str, str], results: Mapping[str, JobResult], faults: Sequence[str]
) -> GateVerdict:
    """Judge every job of the plan by the result that it left, and compare these verdicts with
    GitHub's results.

    ``needs`` maps each job of the workflow to GitHub's result. ``faults`` are faults that concern
    several shards together.
    """
    how = describe_needs(needs)
    lines = tuple(
        JobLine(job.id, *judge_job(job, results.get(job.id, JobResult()), how)) for job in plan.jobs
    )
    all_passed = GateVerdict(lines).is_green
    notes = [*faults, *judge_needs(needs, all_passed=all_passed)]
    stray = sorted(results.keys() - {job.id for job in plan.jobs})
    if stray:
        notes.append(f"results of jobs that are not in the plan: {', '.join(stray)}")
    return GateVerdict(lines, tuple(notes))


def judge_job(job: PlannedJob, result: JobResult, needs: str) -> tuple[JobVerdict, str]:
    """Judge one job by its exit code, then by its report. Return the verdict and the reason."""
    code = result.exit_code
    if code is None:
        return JobVerdict.INFRASTRUCTURE, f"the job left no result ({needs})"
    if not re.fullmatch(r"\d{1,3}", code.strip(), re.ASCII):
        return JobVerdict.FAILED, f"its exit code {code.strip()[:40]!r} is not valid"
    number, cases = int(code), result.cases
    # With a failed case, the change is to blame, whatever ended the job.
    if number in MACHINE and not result.failed:
        return JobVerdict.INFRASTRUCTURE, f"exit code {number}: {MACHINE[number]}"
    if number:
        why = {**AUTHOR, **MACHINE}.get(number, "the code is not documented")
        report_text = (
            f"; {result.failed} of {count(cases, 'case')} in its report failed" if cases else ""
        )
        return JobVerdict.FAILED, f"exit code {number}: {why}{report_text}"
    if job.report and result.fault:
        return JobVerdict.FAILED, result.fault
    if job.report and not cases:
        why = "the job ran no case" if cases == 0 else f"the job left no {job.report}"
        return JobVerdict.FAILED, why
    return JobVerdict.PASSED, count(cases, "case") if cases else ""


def judge_needs(needs: Mapping[str, str], *, all_passed: bool) -> list[str]:
    """Return faults that only GitHub's results show."""
    notes = []
    if needs.get(PLAN_JOB) != "success":
        notes.append(f"GitHub's result for job {PLAN_JOB!r} is {needs.get(PLAN_JOB, 'missing')}")
    for name, result in needs.items():
        # Good results of the jobs do not override a failure that GitHub reports.
        odd = result not in {"success", "skipped", "failure", "cancelled"}
        if name != PLAN_JOB and (odd or (all_passed and result in {"failure", "cancelled"})):
            notes.append(
                f"GitHub's result for job {name!r} is {result}, which no job of the plan explains"
            )
    return notes


def describe_needs(needs: Mapping[str, str]) -> str:
    """Return why a job may have left no result, according to GitHub's results."""
    results = {result for name, result in needs.items() if name != PLAN_JOB}
    if "cancelled" in results:
        return "it was cancelled, or timed out"
    if results == {"skipped"}:
        return "it was skipped, although it is planned"
    return "the runner was lost, or the job never started"
