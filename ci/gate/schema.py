"""The differences between two trees, parsed from ``git diff --name-status``, and the contents of
plan.json, as frozen values. docs/reference/gate.md describes every field of plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ci.gate.dependencies import Reach, SessionInputs
from ci.gate.rules import Recorded
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
class TreeFacts:
    """Facts of one tree. ``sessions`` maps each session to its inputs. ``suite`` maps the models of
    the emulator policy to their schemes, and ``suites`` does the same for each session with a
    policy. ``models`` maps each model to the files on which its module depends."""

    sessions: Mapping[str, SessionInputs] = field(default_factory=dict)
    suite: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    suites: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    models: Mapping[str, Reach] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The differences between two trees. ``keys`` maps each changed TOML file or Markdown page to
    its changed parts."""

    base: TreeFacts
    head: TreeFacts
    changes: tuple[Change, ...]
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def trees(self) -> tuple[TreeFacts, TreeFacts]:
        """Both trees: a deleted file has dependents only in the old one."""
        return self.base, self.head


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
