"""The differences between two trees: the changes, parsed from ``git diff --name-status``, and the
facts of both trees from which a plan is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from ci.gate.dependencies.sessions import SessionInputs
from ci.gate.dependencies.tree import Reach


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
        return self.base, self.head
