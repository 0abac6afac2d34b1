"""``gate``: judge the results that a plan's jobs left, for the one required check."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from ci.gate.render import make_document
from ci.gate.results import PREFIX, read_needs, read_plan, read_results
from ci.gate.schema import Plan
from ci.gate.verdict import GateVerdict, judge
from ci.report.document import render_markdown, show_document
from ci.report.merge import find_faults
from ci.report.write import read_report
from provisioning.console.command import DIR, FILE, FLAG, Outcome, group_options, user_path
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser)
    add("plan", "plan.json, as `plan --out` writes it", type=user_path)
    add("--needs", "a file with toJSON(needs)", required=True, **FILE)
    add("--results", "the directory that contains result-JOB/ for each job", required=True, **DIR)
    add("--markdown", "print Markdown for a job's summary", **FLAG)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    """Judge the results of a plan's jobs. The exit code is 4 if only infrastructure failed, and 1
    for any other failure."""
    verdict = reach_verdict(args.plan, args.needs, args.results)
    document = make_document(verdict)
    text = render_markdown(document) if args.markdown else show_document(document)
    jobs = [asdict(job) for job in verdict.jobs]
    data = {"green": verdict.is_green, "jobs": jobs, "notes": list(verdict.notes)}
    # DOWNLOAD asks for another run, if only infrastructure failed; FAILED asks for a fix.
    bad = ExitCode.DOWNLOAD if verdict.is_infrastructure else ExitCode.FAILED
    return Outcome(text, data, ExitCode.OK if verdict.is_green else bad, exact=True)


def reach_verdict(plan_file: Path, needs_file: Path, directory: Path) -> GateVerdict:
    """Read and judge the results of a plan's jobs. If the plan or GitHub's results cannot be read,
    the verdict is red."""
    try:
        plan = read_plan(plan_file)
        needs = read_needs(needs_file)
    except UsageError as error:
        return GateVerdict((), (f"{error.what}: {error.why}",))
    return judge(plan, needs, read_results(directory, plan), judge_shards(directory, plan))


def judge_shards(directory: Path, plan: Plan) -> list[str]:
    """Return the faults that concern the shards of a session together, such as a case in two
    shards. If the report of a shard is missing or unreadable, those of its session are left out,
    because the verdict of that shard's job reports it."""
    faults = []
    sharded = [job for job in plan.jobs if job.shard and job.report]
    for session in dict.fromkeys(job.session for job in sharded):
        jobs = [job for job in sharded if job.session == session]
        files = [directory / f"{PREFIX}{job.id}/reports/{session}/{job.report}" for job in jobs]
        try:
            reports = [read_report(file) for file in files]
        except UsageError:
            continue
        faults += find_faults(reports, [case for job in jobs for case in job.cases])
    return faults
