"""Read the exit codes and reports that a plan's jobs wrote to disk, without trusting them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from ci.cases.baselines import read_baselines
from ci.cases.policy import read_emulator_policy
from ci.gate.evidence import Evidence, parse_junit, weigh_junit, weigh_report
from ci.gate.schema import Plan, PlannedJob
from ci.gate.verdict import JobResult
from ci.report.write import read_json, read_unchecked
from provisioning.console.caller import shown_path
from provisioning.documents import read_user_file
from provisioning.errors import ManifestError, UsageError
from provisioning.quoting import show_command

Needs = dict[str, dict[str, object]]
PREFIX = "result-"
CODE = "exit-code.txt"
LIMIT_BYTES = 64 << 20


def read_plan(path: Path) -> Plan:
    """Return the plan in plan.json. Raises UsageError if the file is missing or is not a plan."""
    command = show_command("plan", "--out", shown_path(path))
    return read_json(path, Plan, "plan", f"create it with {command}")


def read_needs(path: Path) -> dict[str, str]:
    """Return the result of each job from a file with GitHub's ``toJSON(needs)``. Raises UsageError
    if the file is missing or has different contents."""
    needs = read_json(path, Needs, "results of jobs", "write GitHub's toJSON(needs) into it")
    return {name: str(row.get("result", "missing")) for name, row in needs.items()}


def read_results(directory: Path, plan: Plan) -> Mapping[str, JobResult]:
    """Return the results in ``directory``, by job id. Each job has a folder result-JOB."""
    jobs = {job.id: job for job in plan.jobs}
    folders = sorted(directory.glob(f"{PREFIX}*")) if directory.is_dir() else []
    results = {}
    for folder in folders:
        if name := folder.name.removeprefix(PREFIX):
            results[name] = read_result(folder, jobs.get(name))
    return results


def read_result(folder: Path, job: PlannedJob | None) -> JobResult:
    """Return the result that one job left. If ``job`` is None, the plan has no such job, and only
    the exit code is read."""
    try:
        # A job that runs a pull request's code can leave anything here, such as a link or a pipe.
        content = read_user_file(folder / CODE, "the exit code", LIMIT_BYTES)
    except UsageError:
        return JobResult()
    code = content[:100].decode("ascii", "replace")
    report = folder / "reports" / job.session / job.report if job and job.report else None
    if job is None or report is None or not report.is_file():
        return JobResult(code)
    try:
        evidence = read_evidence(report, job, int(code) if code.strip().isdigit() else -1)
    except (UsageError, ManifestError) as error:
        return JobResult(code, fault=error.what)
    return JobResult(code, evidence.ran, "; ".join(evidence.faults), evidence.failed)


def read_evidence(report: Path, job: PlannedJob, exit_code: int) -> Evidence:
    """Judge the report.json or junit.xml of a job. Raises UsageError, and ManifestError for an
    invalid policy or invalid baselines."""
    if report.suffix != ".json":
        return weigh_junit(read_junit(report))
    junit = report.with_name("junit.xml")
    policy = read_emulator_policy(lane=job.policy) if job.policy else None
    root = read_junit(junit) if junit.is_file() else None
    parsed_report = read_unchecked(report)
    recorded = read_baselines(parsed_report.toolchain)
    return weigh_report(parsed_report, root, job, policy, exit_code, recorded=recorded)


def read_junit(path: Path) -> ET.Element:
    """Return the root element of a junit.xml. Raises UsageError if the file is unreadable or not a
    junit.xml."""
    try:
        return parse_junit(read_user_file(path, "the report", LIMIT_BYTES))
    except ValueError as error:
        raise UsageError(f"{path} is not a report: {error}") from error
