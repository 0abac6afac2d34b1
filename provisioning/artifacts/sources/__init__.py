"""Where an artifact's bytes come from: one Protocol, one module per kind of source.

The module is named as the kind is in a manifest, its release is a struct of manifest.releases.

A source fills a fresh directory and says what it wrote. It never publishes: the store does. The one
file that many artifacts come as is kept in downloads/, or fetched and checked.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec

from provisioning.archives.layout import Layout, Limits, find_dangling
from provisioning.artifacts.lockfile import Lock, find_lock
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError, UsageError
from provisioning.fetch.download import Pin, check_pin
from provisioning.fetch.transfer import MismatchError
from provisioning.files import hash_file, mib
from provisioning.manifest.reader import Toolchain
from provisioning.manifest.releases import FileRelease, Release
from provisioning.store.store import HOME_VARIABLE, Key, Store, explain_errors, link_or_copy
from provisioning.store.tree import TreeEntry

R = TypeVar("R", bound=Release)


@dataclass(frozen=True)
class Options:
    """How the user wants a fetch done."""

    offline: bool = False
    trust_first_use: bool = False
    accept_licence: bool = False
    cooldown_days: int = 0  # an update takes no version that is younger


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
        """The directory that a release is copied from, where it is; else empty."""
        adoption = self.toolchain.adoption if self.release.is_copied else None
        return os.environ.get(adoption.variable, "") if adoption else ""

    def release_as(self, kind: type[R]) -> R:
        """Its release, as the source of that kind knows it. Raises TypeError for another."""
        if not isinstance(self.release, kind):
            raise TypeError(f"{self.label} is no {kind.__name__}")
        return self.release

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

    @property
    def download(self) -> str:
        """The file in downloads/ that it comes from; empty when it comes from none."""
        return self.release.filename if isinstance(self.release, FileRelease) else ""

    def key(self) -> Key:
        """The identity of the published directory: pins, layout and components."""
        release = self.release
        recipe = {
            "source": release.pin or self.installation or release.place,
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

    @property
    def locked(self) -> tuple[TreeEntry, ...]:
        """What the lock says that its tree holds; nothing when no files are locked.

        A link that leads out of the wanted components is not in it.
        """
        layout = self.layout()
        files = self.lock.files if self.lock else ()
        wanted = [entry for entry in files if layout.wants(entry.path)]
        links = {entry.path: entry.link for entry in wanted if entry.link}
        left_out = set(find_dangling(links, [entry.path for entry in wanted])) if links else ()
        return tuple(entry for entry in wanted if entry.path not in left_out)

    def pinned(self, store: Store) -> ArtifactRequest:
        """The request with the hash, size and files of its lock, if there is one.

        Requests are pinned where they enter: nothing below reads a lock again, except under the
        artifact's lock when there was none. Raises IntegrityError, ManifestError.
        """
        lock = find_lock(self.name, self.release, store)
        return self.locked_by(lock) if lock else self

    def locked_by(self, lock: Lock) -> ArtifactRequest:
        """The request with what ``lock`` adds to it."""
        pin = {"sha256": lock.sha256, "size_bytes": lock.size_bytes}
        return replace(self, release=msgspec.structs.replace(self.release, **pin), lock=lock)

    def limits(self) -> Limits:
        """What its archive may unpack to."""
        release = self.release_as(FileRelease)
        return Limits(release.unpacked_bytes, release.case_collisions)


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

    @property
    def locked(self) -> tuple[TreeEntry, ...]:
        """The locked entries that are to be written."""
        return tuple(entry for entry in self.request.locked if self.wants(entry.path))


class Source(Protocol):
    """What the module of a kind of source offers."""

    def fill(self, job: FillJob) -> tuple[TreeEntry, ...]:
        """Write the artifact, or the paths of it that are wanted, below the job's root.

        Gives every entry, sorted by path. Called in a stage of the store, which explains what the
        disk refuses. Raises DownloadError, IntegrityError, StoreError, ToolError, OSError.
        """
        ...

    def mirror(self, job: FillJob, directory: Path) -> list[Path]:
        """Put what another machine needs for ``fill`` below ``directory``: files, repositories.

        The job's root is for the work. Raises as ``fill`` does, and OSError.
        """
        ...

    def find_release(self, job: FillJob, version: str) -> Release:
        """Return the release of another version, '' the newest, instead of the job's.

        The job's root is for the work. What is not known before a first use stays empty.
        Raises UsageError where a version must be named, DownloadError.
        """
        ...


def substitute(text: str, words: Mapping[str, str]) -> str:
    """``text`` with each word of ``words`` replaced, unless it is part of a longer number."""
    if not words:
        return text
    longest = sorted(map(re.escape, words), key=len, reverse=True)
    pattern = rf"(?<![\d.])(?:{'|'.join(longest)})(?!\.?\d)"
    return re.sub(pattern, lambda found: words[found[0]], text)


def require_version(job: FillJob, version: str) -> str:
    """``version``, for a source that does not tell which one is the newest. Raises UsageError."""
    if version:
        return version
    request = job.request
    raise UsageError(
        f"which version of {request.name}?",
        why=f"its source, {request.release.source}, does not tell which one is the newest",
        fix=f"name it: {request.name}@VERSION (now {request.release.version})",
    )


def copy_to_mirror(source: Path, directory: Path) -> Path:
    """``source`` in ``directory``, readable for all, in one step. Raises OSError."""
    target = directory / source.name
    fresh = target.with_name(f".{target.name}")
    fresh.unlink(missing_ok=True)
    link_or_copy(source, fresh)
    fresh.chmod(0o644)
    return fresh.replace(target)


def load_source(kind: str) -> Source:
    """Return the module of a kind of source, imported only when it is needed."""
    return cast("Source", importlib.import_module(f"{__name__}.{kind}"))


def obtain_file(
    request: ArtifactRequest,
    store: Store,
    progress: Progress,
    fetch: Callable[[Path], object],
    advice: str = "try again (what came is kept)",
) -> Path:
    """The verified file in downloads/, fetched when it is missing or not the pinned one.

    ``fetch`` puts the pinned bytes at a path; ``advice`` is what helps when it cannot.
    Raises DownloadError, IntegrityError, StoreError.
    """
    release = request.release_as(FileRelease)
    target = store.downloads / release.filename
    with explain_errors(store.home):
        if target.is_file():
            problem = find_mismatch(target, pin_of(release))
            if not problem:
                return target
            progress.step(
                f"{request.label}: the kept {target.name} is not the pinned one: {problem}"
            )
            if not request.options.offline:
                target.unlink()
        if request.options.offline:
            why = "it is not in downloads/, and --offline was given"
            raise cannot_fetch(request, store, why, advice)
        store.check_space(release.size_bytes, release.filename)
        try:
            fetch(target)
        except IntegrityError:
            raise
        except DownloadError as error:
            raise cannot_fetch(request, store, error.why, advice) from error
    return target


def pin_of(release: FileRelease) -> Pin:
    """What the file must be."""
    return Pin(release.size_bytes, release.sha256, release.unpacked_bytes)


def find_mismatch(path: Path, pin: Pin) -> str:
    """Why a file is not the pinned one; empty when it is. Raises OSError."""
    size_bytes = path.stat().st_size
    is_hashed = pin.sha256 and pin.size_bytes in {0, size_bytes}
    try:
        check_pin(size_bytes, hash_file(path) if is_hashed else "", pin)
    except MismatchError as error:
        return str(error)
    return ""


def cannot_fetch(request: ArtifactRequest, store: Store, why: str, advice: str) -> DownloadError:
    """The error for a file that did not come, with the ways to supply it."""
    release = request.release_as(FileRelease)
    size = f" ({mib(release.size_bytes)})" if release.size_bytes else ""
    pin = f"; its SHA-256 must be {release.sha256}" if release.sha256 else ""
    return DownloadError(
        f"{request.label} could not be fetched: {release.filename}{size}",
        why=why,
        fix=(
            f"{advice}, put that file by hand into {store.downloads} ({HOME_VARIABLE} moves it)"
            f"{pin}, or set QNN_CI_MIRROR to a directory or URL that `fetch --to` made"
        ),
    )
