"""Make documents from plans and verdicts, and render recorded runs as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ci.gate.schema import Plan, PlannedSession, RecordedRun
from ci.gate.verdict import GateVerdict, JobVerdict
from ci.report.document import Card, Document, Row, Table
from ci.report.schema import CaseName
from ci.report.text import count, name_some

SHOWN_FILES = 20


def make_plan_document(plan: Plan) -> Document:
    """Return a table of the sessions, whether they run, and why. Only Markdown lists more than a
    few of the changed files."""
    rows = []
    for planned_session in order(plan.sessions):
        files = name_some(planned_session.files, SHOWN_FILES)
        rows.append(
            Row(
                (
                    planned_session.name,
                    show_fate(planned_session, plan),
                    show_reason(planned_session),
                    files,
                )
            )
        )
    head = ("session", "runs", "why", "files")
    notes = (describe_cases(plan.cases),) if plan.cases else ()
    table = Table("Sessions", "", head, tuple(rows), wide=frozenset({3}))
    return Document("Plan", describe(plan), (table,), notes)


def order(sessions: Sequence[PlannedSession]) -> list[PlannedSession]:
    """Return the sessions, starting with those that run."""
    return sorted(sessions, key=lambda one: (not one.run, bool(one.by_hand)))


def describe(plan: Plan) -> str:
    """Return one line with the two trees, the numbers of changed files and of jobs and, if
    everything runs, the reason."""
    span = f"{plan.base[:12]} to {plan.head[:12]}" if plan.base else plan.head[:12]
    changes = count(len(plan.changes), "file changed", "files changed")
    jobs = count(len(plan.jobs), "job", "jobs")
    whole = f"; everything runs: {plan.everything}" if plan.everything else ""
    return f"{span}: {changes}, {jobs}{whole}"


def show_fate(session: PlannedSession, plan: Plan) -> str:
    """Return ``run``, ``run, 3 jobs``, ``by hand`` or ``-``."""
    if not session.run:
        return "-"
    if session.by_hand:
        return "by hand"
    jobs = sum(job.session == session.name for job in plan.jobs)
    return "run" if jobs == 1 else f"run, {jobs} jobs"


def show_reason(session: PlannedSession) -> str:
    """Return the first changed files that need the session, then the reason why they need it. If
    the session has to be run by hand, the reason for that follows."""
    named = name_some(session.files, 3)
    text = f"{named}: {session.reason}" if named and session.reason else session.reason
    return f"{text} ({session.by_hand})" if session.run and session.by_hand else text


def describe_cases(cases: Sequence[CaseName]) -> str:
    """Return the number of cases, their models and SoCs."""
    models = Counter(case.model for case in cases)
    socs = dict.fromkeys(case.soc for case in cases)
    named = ", ".join(f"{model} {number}" for model, number in models.items())
    return f"cases: {len(cases)} ({named}) on {', '.join(socs)}"


def render_runs(runs: Sequence[RecordedRun]) -> str:
    """Return one line per recorded run, each followed by the files that it opened although a change
    to them would not plan the session."""
    rows = []
    for run in runs:
        ended = f" (exit code {run.code})" if run.code else ""
        rows.append(f"{run.name}: opened {count(run.count, 'file', 'files')}{ended}")
        rows += [f"  not planned: {path}" for path in run.unplanned]
        if run.failed:
            rows.append("  it failed, so it may use more; fix it, and record it again")
    if any(run.unplanned for run in runs):
        rows.append("fix: write the record anew with --out, and replace the record of the rules")
    return "\n".join([*rows, ""])


AGAIN = "Only the infrastructure failed: run the failed jobs again."


def make_document(verdict: GateVerdict) -> Document:
    """Return a table of the jobs, and cards with the notes."""
    rows = tuple(
        Row((job.job, job.verdict.value, job.why), job.verdict.value) for job in verdict.jobs
    )
    table = Table("Jobs", "The jobs of the plan", ("job", "verdict", "why"), rows, verdict=1)
    notes = tuple(Card("note", note) for note in verdict.notes)
    return Document("Gate", conclude(verdict), (table, *notes))


def conclude(verdict: GateVerdict) -> str:
    if verdict.is_green:
        return f"green: {count(len(verdict.jobs), 'job', 'jobs')} of the plan passed"
    bad = [job.job for job in verdict.jobs if job.verdict is not JobVerdict.PASSED]
    again = f" {AGAIN}" if verdict.is_infrastructure else ""
    return f"red: {', '.join(bad) or 'see above'}.{again}"
