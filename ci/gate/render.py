"""Make documents from plans and verdicts."""

from __future__ import annotations

from collections import Counter

from ci.gate.schema import Plan
from ci.gate.verdict import GateVerdict, JobVerdict
from ci.report.document import Card, Document, Row, Table
from ci.report.text import count, name_some

SHOWN_FILES = 20


def make_plan_document(plan: Plan) -> Document:
    """Return a table of the sessions, whether they run, and why. Only Markdown lists more than a
    few of the changed files."""
    rows = []
    jobs = Counter(job.session for job in plan.jobs)
    ordered = sorted(plan.sessions, key=lambda session: (not session.run, bool(session.by_hand)))
    for session in ordered:
        fate = "run" if jobs[session.name] == 1 else f"run, {jobs[session.name]} jobs"
        file_names = name_some(session.files, 3)
        why = f"{file_names}: {session.reason}" if file_names and session.reason else session.reason
        if not session.run:
            fate = "-"
        elif session.by_hand:
            fate, why = "by hand", f"{why} ({session.by_hand})"
        rows.append(Row((session.name, fate, why, name_some(session.files, SHOWN_FILES))))
    head = ("session", "runs", "why", "files")
    table = Table("Sessions", "", head, tuple(rows), wide=frozenset({3}))
    span = f"{plan.base[:12]} to {plan.head[:12]}" if plan.base else plan.head[:12]
    text = f"{span}: {count(len(plan.changes), 'file')} changed, {count(len(plan.jobs), 'job')}"
    if plan.everything:
        text += f"; everything runs: {plan.everything}"
    return Document("Plan", text, (table,))


AGAIN = "Only the infrastructure failed: run the failed jobs again."


def make_document(verdict: GateVerdict) -> Document:
    """Return a table of the jobs, and cards with the notes."""
    rows = tuple(
        Row((job.job, job.verdict.value, job.why), job.verdict.value) for job in verdict.jobs
    )
    table = Table("Jobs", "The jobs of the plan", ("job", "verdict", "why"), rows, verdict=1)
    notes = tuple(Card("note", note) for note in verdict.notes)
    text = f"green: {count(len(verdict.jobs), 'job')} of the plan passed"
    if not verdict.is_green:
        bad = [job.job for job in verdict.jobs if job.verdict is not JobVerdict.PASSED]
        repeat_text = f" {AGAIN}" if verdict.is_infrastructure else ""
        text = f"red: {', '.join(bad) or 'see above'}.{repeat_text}"
    return Document("Gate", text, (table, *notes))
