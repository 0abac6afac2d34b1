"""The differences between two trees, parsed from ``git diff --name-status``, and the contents of
plan.json, as frozen values. docs/reference/gate.md describes every field of plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ci.report.schema import CaseName


class Kind(str, Enum):
    """The kind of change to a path. A changed file mode or submodule commit counts as a
    modification."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    TYPE = "type"


class Change(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A changed path. A rename is two changes: the old path is deleted and the new path is
    added."""

    path: str
    kind: Kind = msgspec.field(name="change")


LETTERS = {"A": Kind.ADDED, "D": Kind.DELETED, "T": Kind.TYPE}


def parse_name_status(text: str) -> tuple[Change, ...]:
    """Parse the output of ``git diff --name-status -z --no-renames`` into changes, sorted by path
    and without duplicates. See https://git-scm.com/docs/git-diff for the format."""
    fields = text.split("\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)  # the last field is empty
    # M, U (an unmerged path) and X count as modifications.
    return tuple(sorted({Change(path, LETTERS.get(word, Kind.MODIFIED)) for word, path in pairs}))


@dataclass(frozen=True)
class Difference:
    """The differences between two trees. ``keys`` maps each changed TOML file or Markdown page to
    its changed parts. ``suites`` maps each session with a policy to its suite in the new tree: the
    schemes of each model."""

    changes: tuple[Change, ...]
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    suites: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


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
    """The sessions and jobs that the changes between two trees need. ``base`` and ``head`` are
    commits, or the work tree. ``everything`` is the reason if all sessions run. ``cases`` are those
    of the sessions with shards."""

    base: str
    head: str
    event: str = ""
    everything: str = ""
    changes: tuple[Change, ...] = ()
    sessions: tuple[PlannedSession, ...] = ()
    cases: tuple[CaseName, ...] = ()
    jobs: tuple[PlannedJob, ...] = ()
    schema_version: Literal[1] = SCHEMA_VERSION
