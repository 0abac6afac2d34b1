"""The differences between two trees: the changes, parsed from ``git diff --raw -z``, and the facts
of both trees from which a plan is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from ci.gate.dependencies.reach import Reach
from ci.gate.dependencies.sessions import SessionInputs

SUBMODULE, NONE = "160000", "000000"


class Kind(str, Enum):
    """The kind of a change to a path."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    MODE = "mode"
    TYPE = "type"
    RENAMED_FROM = "renamed from"
    RENAMED_TO = "renamed to"
    COPIED_TO = "copied to"
    SUBMODULE = "submodule"


class Change(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A changed path. A renamed file is two changes, one for each path."""

    path: str
    kind: Kind = msgspec.field(name="change")


LETTERS = {"A": Kind.ADDED, "D": Kind.DELETED, "M": Kind.MODIFIED, "T": Kind.TYPE}
PAIRS = {"R": (Kind.RENAMED_FROM, Kind.RENAMED_TO), "C": (None, Kind.COPIED_TO)}


def parse_raw_diff(text: str) -> tuple[Change, ...]:
    """Parse the output of ``git diff --raw -z --no-abbrev`` into changes, sorted by path, without
    repeats.

    The format: https://git-scm.com/docs/diff-format. Raises ValueError for anything else.
    """
    fields = iter(text.split("\0"))
    found: list[Change] = []
    for head in fields:
        if head:
            found.extend(_read_entry(head, fields))
    return tuple(sorted(set(found)))


def _read_entry(head: str, fields: Iterable[str]) -> Iterator[Change]:
    if not head.startswith(":"):
        raise ValueError(f"not an entry of git diff --raw: {head[:80]!r}")
    old_mode, new_mode, old_blob, new_blob, status = head[1:].split(" ")
    names = iter(fields)
    if status[0] in PAIRS:
        for kind in PAIRS[status[0]]:
            path = next(names)
            if kind:
                yield Change(path, kind)
        return
    path = next(names)
    if SUBMODULE in (old_mode, new_mode):
        yield Change(path, Kind.SUBMODULE)
    elif status[0] == "M" and old_blob == new_blob:
        yield Change(path, Kind.MODE)
    else:  # X and U (an unmerged path) count as modifications
        yield Change(path, LETTERS.get(status[0], Kind.MODIFIED))


@dataclass(frozen=True)
class TreeFacts:
    """Facts of one tree: the inputs of its ``sessions``, the schemes by model of its ``suite`` and
    of the ``suites`` of other sessions that judge models, and the files that each model's module
    reaches."""

    sessions: Mapping[str, SessionInputs] = field(default_factory=dict)
    suite: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    suites: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    models: Mapping[str, Reach] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The differences between two trees. ``keys`` has the changed parts of each changed file."""

    base: TreeFacts
    head: TreeFacts
    changes: tuple[Change, ...]
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def trees(self) -> tuple[TreeFacts, TreeFacts]:
        return self.base, self.head
