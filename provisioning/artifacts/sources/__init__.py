"""Where an artifact's bytes come from: one Protocol, one module a kind of source.

A source fills a fresh directory and says what it wrote. It never publishes: the store does.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from provisioning.archives.layout import Layout, Limits
from provisioning.artifacts.lockfile import Lock
from provisioning.console.progress import Progress
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import Release, Toolchain
from provisioning.store.store import Key, Store
from provisioning.store.tree import TreeEntry

SOURCES: dict[str, str] = {
    "aar": "provisioning.artifacts.sources.aar",
    "archive": "provisioning.artifacts.sources.archive",
    "git": "provisioning.artifacts.sources.git",
    "local": "provisioning.artifacts.sources.local",
    "wheel": "provisioning.artifacts.sources.wheel",
}


@dataclass(frozen=True)
class Options:
    """How the user wants a fetch done."""

    offline: bool = False
    trust_first_use: bool = False
    accept_licence: bool = False


@dataclass(frozen=True)
class ArtifactRequest:
    """What is wanted: a release of an artifact, and which of its components (none: all).

    An adopted installation must be of version ``minimum`` or later.
    """

    toolchain: Toolchain
    release: Release
    components: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    minimum: str = ""
    minimum_reason: str = ""
    lock: Lock | None = None

    @property
    def name(self) -> str:
        return self.toolchain.name

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.release.version}"

    @property
    def installation(self) -> str:
        """The directory that an artifact of source ``local`` is copied from; else empty."""
        adoption = self.toolchain.adoption if self.toolchain.source == "local" else None
        return os.environ.get(adoption.variable, "") if adoption else ""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs of the wanted components. Raises UsageError for an unknown component."""
        known = self.toolchain.components
        for component in self.components:
            if component not in known:
                raise UsageError(
                    f"{self.name} has no component {component!r}",
                    fix="one of: " + ", ".join(known),
                )
        return tuple(pattern for component in self.components for pattern in known[component])

    def key(self) -> Key:
        """The identity of the published directory: pins, layout and components."""
        release = self.release
        recipe = {
            "source": release.sha256 or release.commit or self.installation or release.url,
            "layout": [[rule.take, rule.put] for rule in release.layout],
            "links": release.links,
            "write": release.write,
            "components": sorted(self.patterns),
        }
        return Key(self.name, release.version, recipe)

    def layout(self) -> Layout:
        """The layout of its release, for the wanted components."""
        rules = [(rule.take, rule.put) for rule in self.release.layout]
        return Layout(rules, self.patterns)

    def limits(self) -> Limits:
        """What its archive may unpack to."""
        return Limits(self.release.unpacked_bytes, self.release.case_collisions)


@dataclass(frozen=True)
class FillJob:
    """One filling of a fresh directory ``root``; ``only`` limits it to some paths."""

    request: ArtifactRequest
    root: Path
    store: Store
    progress: Progress
    only: frozenset[str] | None = None

    def wants(self, path: str) -> bool:
        """Whether a path of the tree is to be written."""
        return self.only is None or path in self.only


@dataclass(frozen=True)
class Filled:
    """What a source wrote: the SHA-256 of what it came from (or a commit), and every entry."""

    source_sha256: str
    entries: tuple[TreeEntry, ...]


class Source(Protocol):
    """A kind of source."""

    def fill(self, job: FillJob) -> Filled:
        """Write the artifact, or the paths of it that are wanted, below the job's root.

        Raises DownloadError, IntegrityError, StoreError, ToolError.
        """
        ...


def load_source(kind: str) -> Source:
    """The implementation of a kind of source, imported when it is needed only.

    Raises ManifestError for a kind that there is not.
    """
    if kind not in SOURCES:
        raise ManifestError(f"no kind of source {kind!r}", fix="one of: " + ", ".join(SOURCES))
    return cast("Source", importlib.import_module(SOURCES[kind]).SOURCE)
