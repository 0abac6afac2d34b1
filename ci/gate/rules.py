"""Read manifests/policies/gate.toml: how CI runs each session, and which paths need which
sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from provisioning.manifest.reader import read_policy

ALL = "*"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that a change to ``files`` requires ``sessions``, because of ``reason``. ``files`` are
    globs of paths, or of parts of files such as ``FILE#KEY``. With ``alone``, sessions with
    ``whole`` do not need these files."""

    files: tuple[str, ...]
    sessions: tuple[str, ...]
    reason: str
    alone: bool = False


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says which modules read ``files``, which are globs. A change to the files requires each
    session that imports a module in ``readers``."""

    files: tuple[str, ...]
    readers: tuple[str, ...]


class SessionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How CI runs a session. ``by_hand`` is the reason if CI cannot run it.

    ``always``: every change needs the session. ``whole``: every change does that is not in a rule
    with ``alone``. ``pythons``: versions of Python, with one job for each. ``report``: the file in
    reports/SESSION/ that shows how many cases ran. ``policy``: the name of the file in
    manifests/policies/ with the suite that the session judges. ``shards``: the number of jobs among
    which the cases of this suite are divided. ``runs``: the sessions whose verbs it starts as
    processes, so that it needs what they import. ``roots`` is a rule of earlier releases, see
    read_rules, and ``record`` no longer has an effect.
    """

    by_hand: str = ""
    always: bool = False
    whole: bool = False
    pythons: tuple[str, ...] = ()
    timeout_minutes: int = 30
    report: str = ""
    policy: str = ""
    shards: Annotated[int, msgspec.Meta(ge=1)] = 1
    runs: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    record: Any = None


class ImportRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of gate-imports.toml, which ``python -m tests.static.test_gate_imports`` writes:
    the files that sessions import, and the data that these read."""

    rule: tuple[Rule, ...] = ()


class GateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of gate.toml. ``branch``: the branch to compare with by default. The fields in
    ``OUTDATED`` no longer have an effect."""

    branch: str
    sessions: dict[str, SessionRule]
    rule: tuple[Rule, ...] = ()
    data: tuple[Data, ...] = ()
    python: str = "3.11"
    cases: Any = None
    command: Any = None
    every_nth: Any = None
    jobs: Any = None
    package: Any = None
    record: Any = None
    unread: Any = None
    words: Any = None
    workflows: Any = None

    @property
    def session_names(self) -> tuple[str, ...]:
        """The sessions that the rules describe or name."""
        named = (name for rule in self.rule for name in rule.sessions if name != ALL)
        return tuple(dict.fromkeys((*self.sessions, *named)))

    def session_rule(self, name: str) -> SessionRule:
        """Return how CI runs a session, or the defaults if the rules do not describe it."""
        return self.sessions.get(name, SessionRule())


# Keys of earlier releases, with what to use instead.
OUTDATED = {
    "cases": "set shards = N in [sessions.NAME]",
    "command": "nothing is recorded any more",
    "every_nth": "",
    "jobs": "",
    "package": "list the files that a session imports in [[rule]]",
    "record": "list the files that a session uses in [[rule]]",
    "unread": "",
    "words": "",
    "workflows": "",
}


def list_outdated(rules: GateRules) -> Iterator[str]:
    """Yield a warning for each key that an earlier release used."""
    for name, instead in OUTDATED.items():
        if getattr(rules, name) is not None:
            yield f"{name} in the rules no longer has an effect{instead and f'; {instead}'}"
    for session, rule in rules.sessions.items():
        if rule.record is not None:
            instead = "nothing is recorded any more"
            yield f"record in [sessions.{session}] no longer has an effect; {instead}"
        if rule.roots:
            instead = "imports are no longer followed: list files in [[rule]]"
            yield f"roots in [sessions.{session}]: {instead}"


def read_rules(path: Path | None = None) -> GateRules:
    """Return the rules in manifests/policies/gate.toml and gate-imports.toml, or only those in the
    user's file at ``path``. The ``roots`` of a session become a rule. Raises ManifestError if a
    file is missing or invalid."""
    rules = read_policy("gate", GateRules, path)
    imports = () if path else read_policy("gate-imports", ImportRules).rule
    roots = [
        Rule(session.roots, (name,), "the session uses it")
        for name, session in rules.sessions.items()
        if session.roots
    ]
    return msgspec.structs.replace(rules, rule=(*rules.rule, *imports, *roots))
