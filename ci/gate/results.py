"""What the jobs of a plan left on disk: exit codes and reports, read with suspicion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import msgspec

from ci.gate.schema import Plan, PlannedJob
from ci.gate.verdict import JobResult
from ci.report.schema import Report
from ci.report.write import read_report
from provisioning.console.user_files import read_user_file
from provisioning.errors import UsageError

Outcomes = dict[str, dict[str, Literal["passed", "failed"]]]
PREFIX = "result-"
CODE = "exit-code.txt"
LIMIT_BYTES = 64 << 20


def read_plan(path: Path) -> Plan:
    """plan.json. Raises UsageError."""
    data = read_user_file(path, "the plan", LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a plan of this version", why=str(error), fix="make it anew: qnn-ci plan"
        ) from error


def read_needs(path: Path) -> dict[str, str]:
    """GitHub's ``toJSON(needs)``: the result of each job. Raises UsageError."""
    data = read_user_file(path, "the results of jobs", LIMIT_BYTES)
    try:
        needs = msgspec.json.decode(data, type=dict[str, dict[str, object]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not what toJSON(needs) is", why=str(error)) from error
    return {name: str(row.get("result", "nothing")) for name, row in needs.items()}


def read_outcomes(path: Path | None) -> Outcomes:
    """How past runs ended: a file of ``{COMMIT: {SESSION: "passed" or "failed"}}``.

    Raises UsageError.
    """
    if path is None:
        return {}
    data = read_user_file(path, "the outcomes", LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=Outcomes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        fix = 'write {"COMMIT": {"SESSION": "passed"}}'
        raise UsageError(f"{path} does not say how runs ended", why=str(error), fix=fix) from error


def read_results(directory: Path, plan: Plan) -> Mapping[str, JobResult]:
    """The results below ``directory``, one folder result-JOB each, by job."""
    jobs = {job.id: job for job in plan.jobs}
    folders = sorted(directory.glob(f"{PREFIX}*")) if directory.is_dir() else []
    return {
        name: read_result(folder, jobs.get(name))
        for folder in folders
        if (name := folder.name.removeprefix(PREFIX))
    }


def read_result(folder: Path, job: PlannedJob | None) -> JobResult:
    """What one job left; ``job`` says which report to look for."""
    try:
        code = (folder / CODE).read_bytes()[:100].decode("ascii", "replace")
    except OSError:
        return JobResult()
    if job is None or not job.report:
        return JobResult(code)
    report = folder / "reports" / job.session / job.report
    if not report.is_file():
        return JobResult(code)
    try:
        return JobResult(code, count_cases(report))
    except UsageError as error:
        return JobResult(code, fault=error.what)


def count_cases(report: Path) -> int:
    """The cases of a report.json or junit.xml that ran. Raises UsageError."""
    if report.suffix == ".json":
        summary = read_report(report).summary
        return summary.passed + summary.failed
    data = read_user_file(report, "the report", LIMIT_BYTES)
    try:
        if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
            raise UsageError(f"{report} has a document type, which no report has")
        cases = ET.fromstring(data).iter("testcase")  # noqa: S314 - without entities
    except ET.ParseError as error:
        raise UsageError(f"{report} is not a report", why=str(error)) from error
    return sum(case.find("skipped") is None for case in cases)


def read_shards(directory: Path, plan: Plan) -> list[Report]:
    """The reports of all shards of the plan that left one."""
    found = []
    for job in plan.jobs:
        path = directory / f"{PREFIX}{job.id}" / "reports" / job.session / job.report
        if job.shard and job.report and path.is_file():
            found.append(read_report(path))
    return found
