"""The policy of a comparison, as manifests/policies/parity.toml states it."""

from __future__ import annotations

from datetime import date
from functools import cached_property, lru_cache

import msgspec
from packaging.version import InvalidVersion, Version

from ci.parity.buck.globs import compile_pattern
from ci.parity.layout import Layout


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files that are not compared at all, and why."""

    files: tuple[str, ...]
    reason: str


class Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One library outside of the tree under the names that the two sides use."""

    name: str
    buck: tuple[str, ...] = ()
    cmake: tuple[str, ...] = ()


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A difference that is right, for as long as its condition holds.

    ``files`` are the owners: patterns of paths that the finding may be about. ``until`` is the
    first day on which the entry counts no more; ``exists`` and ``absent`` are paths that must, or
    must not, be in the tree. One of the three is required.
    """

    kinds: tuple[str, ...]
    files: tuple[str, ...]
    reason: str
    details: tuple[str, ...] = ()
    until: date | None = None
    exists: str = ""
    absent: str = ""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("an allowance needs a reason")
        if self.until is None and not self.exists and not self.absent:
            raise ValueError("an allowance needs one of until, exists, absent")


class ParityPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """How the two sides are compared, in trees from the version ``written_for`` on."""

    layout: Layout = Layout()
    written_for: str = ""
    tests: tuple[str, ...] = ()
    host_only: tuple[str, ...] = ()
    android_only: tuple[str, ...] = ()
    ignored_defines: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    without_buck: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    library: tuple[Library, ...] = ()
    allow: tuple[Allowance, ...] = ()

    @cached_property
    def _excluded(self) -> tuple[str, ...]:
        return tuple(pattern for entry in self.exclude for pattern in entry.files)

    def is_for(self, version: str) -> bool:
        """Whether a tree of that version is as new as the policy; "" is a tree without one."""
        try:
            return not self.written_for or Version(version) >= Version(self.written_for)
        except InvalidVersion:
            return False

    def is_excluded(self, path: str) -> bool:
        """Whether a path is not compared."""
        return matches(path, self._excluded)

    def is_twin(self, target: str) -> bool:
        """Whether a Buck target repeats another one for a build that CMake does not have."""
        return matches(target, self.twins)

    def is_test(self, path: str) -> bool:
        """Whether a file belongs to a test: findings about it are notes."""
        return matches(path, self.tests)


@lru_cache(maxsize=65536)
def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path or name fits one of some glob patterns."""
    return any(compile_pattern(pattern).fullmatch(path) for pattern in patterns)
