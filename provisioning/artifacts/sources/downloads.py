"""The downloaded file of an artifact, in the store's downloads/: find it there, or fetch it, and
check it against its pin.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from provisioning.artifacts.sources import LEAVE_OFFLINE, FillJob
from provisioning.errors import DownloadError, IntegrityError
from provisioning.fetch.download import Pin, check_pin, find_mirror_fault
from provisioning.fetch.transfer import MismatchError
from provisioning.files import hash_file, mib
from provisioning.manifest.releases import FileRelease
from provisioning.quoting import show_command
from provisioning.store.home import HOME_VARIABLE, explain_errors

TRY_AGAIN = "try again (partial downloads are kept)"


def obtain_file(job: FillJob, fetch: Callable[[Path], object], advice: str = TRY_AGAIN) -> Path:
    """Return the verified file in downloads/; fetch it if it is missing or does not match its pin.

    ``fetch`` writes the pinned file to the given path; ``advice`` is shown as the fix if that
    fails. Raises DownloadError, IntegrityError, StoreError.
    """
    request, store = job.request, job.store
    release = request.release_as(FileRelease)
    target = store.downloads / release.filename
    with explain_errors(store.home):
        if target.is_file():
            # Each time: a corrupt ZIP that was kept without a check broke every later run
            # (onnxruntime-qnn#624).
            problem = find_mismatch(target, pin_of(release))
            if not problem:
                return target
            job.progress.step(
                f"{request.label}: the existing {target.name} does not match its pin: {problem}"
            )
            if not request.options.offline:
                # With --offline, it stays: it may be all that the user has.
                target.unlink()
        if request.options.offline:
            why = "it is missing in downloads/ or differs from its pin, and --offline was given"
            raise cannot_fetch(job, why, LEAVE_OFFLINE)
        store.check_space(release.size_bytes, release.filename)
        try:
            fetch(target)
            store.note_download(target.name)
        except IntegrityError:
            raise
        except DownloadError as error:
            raise cannot_fetch(job, error.why, advice) from error
    return target


def pin_of(release: FileRelease) -> Pin:
    """Return the size and hash that the file of a release must have."""
    return Pin(release.size_bytes, release.sha256, release.unpacked_bytes)


def find_mismatch(path: Path, pin: Pin) -> str:
    """Return how a file differs from its pin, or '' if it matches. Raises OSError."""
    size_bytes = path.stat().st_size
    is_hashed = pin.sha256 and pin.size_bytes in {0, size_bytes}
    try:
        check_pin(size_bytes, hash_file(path) if is_hashed else "", pin)
    except MismatchError as error:
        return str(error)
    return ""


def cannot_fetch(job: FillJob, why: str, advice: str) -> DownloadError:
    """Return the error for a file that could not be fetched, with other ways to provide it."""
    request, release = job.request, job.request.release_as(FileRelease)
    size = f" ({mib(release.size_bytes)})" if release.size_bytes else ""
    pin = f"; the file's SHA-256 must be {release.sha256}" if release.sha256 else ""
    # --offline switches mirrors off too.
    mirror = "without a network, also" if request.options.offline else "or"
    fault = "" if request.options.offline else find_mirror_fault()
    fill = show_command("fetch", request.name, "--to", "mirror")
    return DownloadError(
        f"{request.label} could not be fetched: {release.filename}{size}",
        why="; ".join(filter(None, [fault, why])),
        fix=(
            f"{advice}; {mirror} set QNN_CI_MIRROR to a directory that {fill} filled, or to its"
            f" URL; or put that file into {job.store.downloads} ({HOME_VARIABLE} changes this"
            f" directory){pin}"
        ),
    )
