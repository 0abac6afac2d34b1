"""manifests/policies/gate.toml as values: what cannot be derived from the tree."""

from __future__ import annotations

from pathlib import Path

import msgspec

from provisioning.manifest.reader import read_policy

ALL = "*"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``files`` (globs; ``FILE#KEY`` is a key of a TOML file) need ``sessions``, for ``reason``.

    ``alone``: what is derived from the tree does not count for these files.
    """

    files: tuple[str, ...]
    sessions: tuple[str, ...]
    reason: str
    alone: bool = False


class Unread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``reader`` (a glob) names ``files`` and yet does not depend on them, for ``reason``."""

    reader: str
    files: tuple[str, ...]
    reason: str


class SessionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How CI runs a session; ``by_hand`` says why it cannot.

    ``roots``: globs of what it starts from, where that is not derived. ``report``: the file of
    reports/SESSION/ that tells how many cases it ran. ``policy``: the file of manifests/policies/
    whose suite it judges. ``always``: any change at all needs it.
    """

    by_hand: str = ""
    always: bool = False
    roots: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    timeout_minutes: int = 30
    report: str = ""
    policy: str = ""


class CaseRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which session cases are planned, how long a shard may take, and how many there may be.

    ``probe`` is the model that is run on a SoC whose row in manifests/socs.toml changed.
    """

    session: str
    probe: str
    shard_s: float
    max_shards: int


class GateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file.

    ``package``: what imports and includes put before a path of the tree. ``words``: whether
    strings that name files make a dependency. Every ``every_nth`` commit of ``branch`` runs all.
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
        """The session of which cases are planned; empty without one."""
        return self.cases.session if self.cases else ""

    def session_rule(self, name: str) -> SessionRule:
        """How CI runs a session; one that the rules do not name runs as any other."""
        return self.sessions.get(name, SessionRule())


def read_rules(path: Path | None = None) -> GateRules:
    """The rules of manifests/, or a file of the user's. Raises ManifestError."""
    return read_policy("gate", GateRules, path)
