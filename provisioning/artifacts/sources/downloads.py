"""The one file that an artifact comes as: kept in downloads/, or fetched and checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError
from provisioning.fetch.download import Pin, check_pin
from provisioning.fetch.transfer import MismatchError
from provisioning.files import hash_file, mib
from provisioning.manifest.releases import FileRelease
from provisioning.store.store import HOME_VARIABLE, Store, explain_errors


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
        if target.is_file() and _is_pinned(request, target, progress):
            return target
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
    return Pin(release.size_bytes, release.sha256)


def find_mismatch(path: Path, pin: Pin) -> str:
    """Why a file is not the pinned one; empty when it is. Raises OSError."""
    size_bytes = path.stat().st_size
    is_hashed = pin.sha256 and pin.size_bytes in {0, size_bytes}
    try:
        check_pin(size_bytes, hash_file(path) if is_hashed else "", pin)
    except MismatchError as error:
        return str(error)
    return ""


def _is_pinned(request: ArtifactRequest, target: Path, progress: Progress) -> bool:
    problem = find_mismatch(target, pin_of(request.release_as(FileRelease)))
    if problem:
        progress.step(f"{request.label}: the kept {target.name} is not the pinned one: {problem}")
        if not request.options.offline:
            target.unlink()
    return not problem


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
