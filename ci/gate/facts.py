"""What a plan is made of: two trees, and how they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ci.gate.changes import Change
from ci.gate.dependencies.reach import Reach
from ci.gate.dependencies.sessions import SessionInputs


@dataclass(frozen=True)
class TreeFacts:
    """One tree: the inputs of its sessions, the suite's schemes by model, and what each model's
    module reaches."""

    sessions: Mapping[str, SessionInputs] = field(default_factory=dict)
    suite: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    models: Mapping[str, Reach] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """What differs between two trees; ``keys`` are the changed keys of each changed TOML file."""

    base: TreeFacts
    head: TreeFacts
    changes: tuple[Change, ...]
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def trees(self) -> tuple[TreeFacts, TreeFacts]:
        return self.base, self.head
