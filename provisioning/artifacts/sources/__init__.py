"""The sources that artifacts are fetched from: a Protocol, and one module for each kind of source.

A module is named after its kind of source in manifests. The struct for the releases of each kind is
defined in manifest/releases.py.

A source fills a fresh directory and returns what it wrote; the store publishes the directory. The
downloaded file of an artifact, if it has one, is kept in downloads/.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec

from provisioning.archives.layout import Layout, Limits, find_dangling
from provisioning.artifacts.lockfile import Lock, find_lock
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.reader import Toolchain
from provisioning.manifest.releases import FileRelease, Release
from provisioning.store.store import Key, Store, link_or_copy
from provisioning.store.tree import TreeEntry

R = TypeVar("R", bound=Release)
LEAVE_OFFLINE = "leave out --offline"


@dataclass(frozen=True)
class Options:
    """The user's options for fetching."""

    offline: bool = False
    trust_first_use: bool = False
    accept_licence: bool = False
    cooldown_days: int = 0  # an update ignores versions that are younger than this


@dataclass(frozen=True)
class ArtifactRequest:
    """A request for a release of an artifact, or only for some of its components (an empty tuple
    means all).

    The user's own installation, if it is used instead, must have version ``minimum`` or later.
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
        """The artifact's name."""
        return self.toolchain.name

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.release.version}"

    def release_as(self, kind: type[R]) -> R:
        """Return the release as ``kind``. Raises TypeError for a release of another kind."""
        if not isinstance(self.release, kind):
            raise TypeError(f"{self.label} is not a {kind.__name__}")
        return self.release

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs of the wanted components. Raises UsageError for an unknown component."""
        patterns_by_component = self.toolchain.components
        for component in self.components:
            if component not in patterns_by_component:
                raise UsageError(
                    f"{self.name} has no component {component!r}",
                    fix="use one of: " + ", ".join(patterns_by_component),
                )
        return tuple(
            pattern for component in self.components for pattern in patterns_by_component[component]
        )

    @property
    def download(self) -> str:
        """The name of the artifact's file in downloads/, '' if it has no file there."""
        return self.release.filename if isinstance(self.release, FileRelease) else ""

    def key(self) -> Key:
        """Return the key of the published directory. It depends on the pin, the layout, the links
        and files to add, and the components.
        """
        release = self.release
        recipe = {
            "source": release.pin or release.place,
            "layout": [[rule.take, rule.put] for rule in release.layout],
            "links": release.links,
            "write": release.write,
            # The patterns and not the names, so that a changed definition of a component is another
            # directory.
            "components": sorted(self.patterns),
        }
        return Key(self.name, release.version, recipe)

    def layout(self) -> Layout:
        """Return the layout of the release, limited to the wanted components."""
        rules = [(rule.take, rule.put) for rule in self.release.layout]
        return Layout(rules, self.patterns)

    @property
    def locked(self) -> tuple[TreeEntry, ...]:
        """The tree entries of the lock; empty if no files are locked.

        Links to paths outside the wanted components are left out.
        """
        layout = self.layout()
        files = self.lock.files if self.lock else ()
        entries = [entry for entry in files if layout.wants(entry.path)]
        links = {entry.path: entry.link for entry in entries if entry.link}
        left_out = set(find_dangling(links, [entry.path for entry in entries])) if links else ()
        return tuple(entry for entry in entries if entry.path not in left_out)

    def pinned(self, store: Store) -> ArtifactRequest:
        """Return the request with the hash, size and files of its lock, if there is one.

        Call this once per request, at the start. If there was no lock, a process that holds the
        artifact's lock file in the store may call it again. Raises IntegrityError or ManifestError.
        """
        lock = find_lock(self.name, self.release, store)
        return self.locked_by(lock) if lock else self

    def locked_by(self, lock: Lock) -> ArtifactRequest:
        """Return the request with the hash, size and files of ``lock``."""
        pin = {"sha256": lock.sha256, "size_bytes": lock.size_bytes}
        return replace(self, release=msgspec.structs.replace(self.release, **pin), lock=lock)

    def limits(self) -> Limits:
        """Return the limits that apply when the release's archive is unpacked."""
        release = self.release_as(FileRelease)
        return Limits(release.unpacked_bytes, release.case_collisions)


@dataclass(frozen=True)
class FillJob:
    """A job for Source.fill: write an artifact into the fresh directory ``root``. If ``only`` is
    not None, only these paths are written.
    """

    request: ArtifactRequest
    root: Path
    store: Store
    progress: Progress
    only: frozenset[str] | None = None

    def wants(self, path: str) -> bool:
        """Return whether a path of the tree is to be written."""
        return self.only is None or path in self.only

    @property
    def locked(self) -> tuple[TreeEntry, ...]:
        """The locked entries that are to be written."""
        return tuple(entry for entry in self.request.locked if self.wants(entry.path))


class Source(Protocol):
    """The interface that each module of this package, such as ``wheel``, implements."""

    def fill(self, job: FillJob) -> tuple[TreeEntry, ...]:
        """Write the artifact, or only the wanted paths, below the job's root.

        Returns every entry, sorted by path. Raises DownloadError, IntegrityError, StoreError,
        ToolError, and OSError, which the store turns into a StoreError.
        """
        ...

    def mirror(self, job: FillJob, directory: Path) -> list[Path]:
        """Write to ``directory`` the files or repositories that another machine needs for ``fill``,
        and return their paths.

        The job's root is a scratch directory. Raises the errors of ``fill``, and OSError.
        """
        ...

    def find_release(self, job: FillJob, version: str) -> Release:
        """Return the release of the job's artifact with this version; '' means the newest.

        The job's root is a scratch directory. Fields that are unknown before the first download,
        such as the hash, stay empty. Raises UsageError if the source needs a version, and
        DownloadError.
        """
        ...


def substitute(text: str, replacements: Mapping[str, str]) -> str:
    """Return ``text`` with each key of ``replacements`` replaced by its value, except where the key
    is part of a longer version.
    """
    if not replacements:
        return text
    # The longest first: an alternation takes the first that matches, and 2.37 is a part of 2.37.0.
    longest = sorted(map(re.escape, replacements), key=len, reverse=True)
    pattern = rf"(?<![\d.])(?:{'|'.join(longest)})(?!\.?\d)"
    return re.sub(pattern, lambda match: replacements[match[0]], text)


def require_version(job: FillJob, version: str) -> str:
    """Return ``version``. Raises UsageError if it is empty, since the job's source cannot find out
    which version is the newest.
    """
    if version:
        return version
    request = job.request
    raise UsageError(
        f"the version of {request.name} is missing",
        why=f"a source of kind {request.release.source} cannot find out the newest version",
        fix=f"specify it: {request.name}@VERSION (the pin is {request.release.version})",
    )


def copy_to_mirror(source: Path, directory: Path) -> Path:
    """Link or copy ``source`` into ``directory`` in one step, readable by all users, and return its
    new path. Raises OSError.
    """
    target = directory / source.name
    fresh = target.with_name(f".{target.name}")
    fresh.unlink(missing_ok=True)
    if source.is_symlink():  # to a file of the user, which keeps its mode
        shutil.copyfile(source, fresh)
    else:
        link_or_copy(source, fresh)
    fresh.chmod(0o644)
    fresh.replace(target)
    fresh.unlink(missing_ok=True)  # it remains if both names are links to one file
    return target


def load_source(kind: str) -> Source:
    """Import and return the module of the source ``kind``, such as ``wheel``."""
    return cast("Source", importlib.import_module(f"{__name__}.{kind}"))
