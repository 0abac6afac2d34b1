"""The contents of plan.json as frozen values. docs/reference/gate.md describes every field."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from ci.gate.changes import Change
from ci.gate.rules import Recorded
from ci.report.schema import CaseName

SCHEMA_VERSION: Final = 1
WORK_TREE: Final = "work tree"


class PlannedSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session, whether it has to run, and why. ``files`` are the changed files that need it.
    ``by_hand`` is the reason if CI cannot run it."""

    name: str
    run: bool
    reason: str
    files: tuple[str, ...] = ()
    by_hand: str = ""


class PlannedJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job of the matrix, whose result the gate requires. ``report`` is the file in
    reports/SESSION/ that must have at least one case, or empty if none is required. ``cases`` are
    the cases that a report.json must have. ``policy`` is the file in manifests/policies/ by which
    they are judged."""

    id: str
    session: str
    python: str
    words: tuple[str, ...] = ()
    shard: str = ""
    timeout_minutes: int = 30
    report: str = ""
    policy: str = ""
    cases: tuple[CaseName, ...] = ()


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sessions, cases and jobs that the changes between two trees need. ``base`` and ``head``
    are commits, or the work tree. ``everything`` is the reason if all sessions run."""

    base: str
    head: str
    event: str = ""
    everything: str = ""
    changes: tuple[Change, ...] = ()
    sessions: tuple[PlannedSession, ...] = ()
    cases: tuple[CaseName, ...] = ()
    jobs: tuple[PlannedJob, ...] = ()
    schema_version: Literal[1] = SCHEMA_VERSION


class RecordedRun(Struct, frozen=True, kw_only=True):
    """A recorded run of a session: what it opened, the number of these files, and those whose
    change would not plan the session. It ``failed`` if a session that CI runs did not end with exit
    code 0."""

    name: str
    code: int
    count: int
    opened: Recorded
    unplanned: tuple[str, ...] = ()
    failed: bool = False
