"""Read manifests/policies/gate.toml: how CI runs each session, and dependencies that cannot be
derived from the tree."""

from __future__ import annotations

from pathlib import Path

import msgspec

from provisioning.manifest.reader import read_policy

ALL = "*"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that a change to ``files`` requires ``sessions``, because of ``reason``. ``files`` are
    globs of paths, or of parts of files such as ``FILE#KEY``. With ``alone``, derived dependencies
    on these files are ignored."""

    files: tuple[str, ...]
    sessions: tuple[str, ...]
    reason: str
    alone: bool = False


class Unread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that ``reader``, a glob, names ``files`` but does not depend on them, because of
    ``reason``."""

    reader: str
    files: tuple[str, ...]
    reason: str


class SessionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How CI runs a session. ``by_hand`` is the reason if CI cannot run it.

    ``always``: every change needs the session. ``roots``: globs of files that the session runs
    first, if they cannot be derived from the noxfile. ``pythons``: versions of Python, with one job
    for each. ``report``: the file in reports/SESSION/ that shows how many cases ran. ``policy``:
    the name of the file in manifests/policies/ with the suite that the session judges.
    """

    by_hand: str = ""
    always: bool = False
    roots: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    timeout_minutes: int = 30
    report: str = ""
    policy: str = ""


class CaseRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``session`` for which single cases are planned, the seconds that a shard may take, and
    the maximum number of shards.

    ``probe`` is the model to run on an SoC if the SoC's row in manifests/socs.toml has changed.
    """

    session: str
    probe: str
    shard_s: float
    max_shards: int


class GateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of gate.toml. ``package``: the prefix that imports and includes put before the
    tree's paths. ``words``: whether a Python file depends on the files that its strings name. One
    of every ``every_nth`` commits of ``branch`` runs everything.
    """

    branch: str
    every_nth: int
    sessions: dict[str, SessionRule]
    rule: tuple[Rule, ...] = ()
    unread: tuple[Unread, ...] = ()
    cases: CaseRule | None = None
    python: str = "3.11"
    package: str = ""
    words: bool = True

    @property
    def planned(self) -> str:
        """The session for which single cases are planned, or an empty string if there is none."""
        return self.cases.session if self.cases else ""

    def session_rule(self, name: str) -> SessionRule:
        """Return how CI runs a session, or the defaults if the rules do not name it."""
        return self.sessions.get(name, SessionRule())


def read_rules(path: Path | None = None) -> GateRules:
    """Return the rules in manifests/policies/gate.toml, or in the user's file at ``path``. Raises
    ManifestError if the file is missing or invalid."""
    return read_policy("gate", GateRules, path)
