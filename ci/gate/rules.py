"""Read manifests/policies/gate.toml: how CI runs each session, and dependencies that cannot be
derived from the tree."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from ci.parity.policy import matches
from provisioning.manifest.reader import read_policy, read_toml

ALL = "*"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that a change to ``files`` requires ``sessions``, because of ``reason``. ``files`` are
    globs of paths, or of parts of files such as ``FILE#KEY``. With ``alone``, derived dependencies
    on these files are ignored."""

    files: tuple[str, ...]
    sessions: tuple[str, ...]
    reason: str
    alone: bool = False


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What the recorded run of a session opened: the dependency ``groups`` of its environments, and
    ``files`` of the tree as paths and globs."""

    groups: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @cached_property
    def _split(self) -> tuple[frozenset[str], tuple[str, ...]]:
        globs = tuple(file for file in self.files if "*" in file)
        return frozenset(self.files) - {*globs}, globs

    def joined(self, run: Recorded) -> Recorded:
        """Return what either of two runs opened."""
        groups, files = ({*a, *b} for a, b in ((self.groups, run.groups), (self.files, run.files)))
        return Recorded(tuple(sorted(groups)), tuple(sorted(files)))

    def covers(self, path: str) -> bool:
        """Return whether the run opened the file, according to the paths and globs."""
        paths, globs = self._split
        return path in paths or matches(path, globs)


class SessionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How CI runs a session. ``by_hand`` is the reason if CI cannot run it.

    ``always``: every change needs the session. ``whole``: every change does that is not in a rule
    with ``alone``. ``roots``: globs of files that the session runs first, if nothing is recorded of
    it. ``record``: the arguments of its recorded run, by default ``--help`` if CI cannot run it, or
    false if it cannot be recorded. ``pythons``: versions of Python, with one job
    for each. ``report``: the file in reports/SESSION/ that shows how many cases ran. ``policy``:
    the name of the file in manifests/policies/ with the suite that the session judges.
    """

    by_hand: str = ""
    always: bool = False
    whole: bool = False
    record: tuple[str, ...] | Literal[False] | None = None
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
    """The contents of gate.toml. ``branch``: the branch to compare with by default. ``package``:
    the prefix that imports put before the tree's paths. ``command`` runs a session, whose name and
    arguments are appended. ``recorded`` is the content of ``record``, a file next to the rules.
    ``every_nth``, ``workflows``, ``jobs``, ``words`` and ``unread`` no longer have an effect.
    """

    branch: str
    sessions: dict[str, SessionRule]
    rule: tuple[Rule, ...] = ()
    cases: CaseRule | None = None
    python: str = "3.11"
    package: str = ""
    workflows: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    record: str = ""
    recorded: dict[str, Recorded] = {}
    every_nth: int = 0
    words: bool = True
    unread: tuple[dict[str, Any], ...] = ()

    @property
    def planned(self) -> str:
        """The session for which single cases are planned, or an empty string if there is none."""
        return self.cases.session if self.cases else ""

    @property
    def split(self) -> tuple[str, ...]:
        """The files whose changed keys are planned one by one, because a rule names one of them."""
        return tuple(
            file.partition("#")[0] for rule in self.rule for file in rule.files if "#" in file
        )

    def session_rule(self, name: str) -> SessionRule:
        """Return how CI runs a session, or the defaults if the rules do not name it."""
        return self.sessions.get(name, SessionRule())


def read_rules(path: Path | None = None) -> GateRules:
    """Return the rules in manifests/policies/gate.toml, or in the user's file at ``path``, with
    their record. Raises ManifestError if a file is missing or invalid."""
    rules = read_policy("gate", GateRules, path)
    if not rules.record:
        return rules
    place = (rules.record, path.parent) if path else (f"policies/{rules.record}", None)
    recorded = read_toml(place[0], dict[str, Recorded], place[1])
    return msgspec.structs.replace(rules, recorded=recorded)
