"""Fetch an Android archive (AAR) from a Maven repository by its coordinates.

An AAR is a ZIP. If it has no pin, it is compared with the repository's .sha1 file, if there is one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from provisioning.artifacts.sources import FillJob, archive, require_version
from provisioning.documents import open_regular
from provisioning.errors import IntegrityError
from provisioning.fetch.client import Client
from provisioning.fetch.transfer import PermanentError, TransferPolicy, TransientError
from provisioning.files import hash_file, hash_stream
from provisioning.manifest.releases import AarRelease, ArchiveRelease, FileRelease
from provisioning.store.tree import TreeEntry

REPOSITORY_VARIABLE = "QNN_CI_MAVEN"
REPOSITORY = "https://repo1.maven.org/maven2"
SHA1_BYTES = 200


def fill(job: FillJob) -> tuple[TreeEntry, ...]:
    """Write the AAR's files, as archive.fill does. A first use is also compared with the SHA-1 in
    the Maven repository. Raises IntegrityError if that differs.
    """
    located = locate_job(job)
    entries = archive.fill(located)
    if not job.request.release.pin and not job.request.options.offline:
        check_published_sha1(located)
    return entries


def mirror(job: FillJob, directory: Path) -> list[Path]:
    """Copy the AAR to ``directory``, and return its path there."""
    return archive.mirror(locate_job(job), directory)


def find_release(job: FillJob, version: str) -> AarRelease:
    """Return the pinned release with another version, and without a hash. Raises UsageError if
    ``version`` is empty.
    """
    return archive.rename_release(job.request.release_as(AarRelease), require_version(job, version))


def locate_job(job: FillJob) -> FillJob:
    """Return the job with an ArchiveRelease. Its URL is made from the coordinates
    ``group:artifact`` and the version.
    """
    release = job.request.release_as(AarRelease)
    group, _, artifact = release.package.partition(":")
    base = os.environ.get(REPOSITORY_VARIABLE, REPOSITORY).rstrip("/")
    version = release.package_version
    url = f"{base}/{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.aar"
    fields = {name: getattr(release, name) for name in FileRelease.__struct_fields__}
    return replace(job, request=replace(job.request, release=ArchiveRelease(**fields, url=url)))


def read_start(body: Iterator[bytes], most_bytes: int) -> bytes:
    """Return the first ``most_bytes`` bytes of a body, or all if there are fewer."""
    data = b""
    while len(data) < most_bytes and (piece := next(body, b"")):
        data += piece
    return data[:most_bytes]


def check_published_sha1(job: FillJob) -> None:
    """Compare the download with its .sha1 file in the Maven repository. If that file is missing or
    cannot be fetched, only print a message.

    Raises IntegrityError if the hashes differ; the download is removed.
    """
    release = job.request.release_as(ArchiveRelease)
    path = job.store.downloads / release.filename
    try:
        with (
            closing(Client(TransferPolicy.from_environment(), job.progress)) as client,
            client.get(f"{release.url}.sha1", {}) as (_, body),
        ):
            # Only the start, since a wrong URL may send a page of any length.
            text = read_start(body, SHA1_BYTES).decode("ascii", "replace")
    except (PermanentError, TransientError) as error:
        job.progress.step(f"{job.request.label}: the published SHA-1 could not be fetched: {error}")
        return
    published_sha1 = text.split()[0].lower() if text.strip() else ""  # a name may follow
    if not re.fullmatch(r"[0-9a-f]{40}", published_sha1):
        shown = " ".join(text.split())[:40]
        job.progress.step(f"{job.request.label}: no SHA-1 is published: the server sent {shown!r}")
        return
    with open_regular(path) as file:
        # Maven repositories publish a SHA-1 next to a file. It reveals a damaged download, not a
        # forged one.
        sha1 = hash_stream(file, hashlib.sha1(usedforsecurity=False))
    if published_sha1 != sha1:
        path.unlink()
        raise IntegrityError(
            f"{release.filename} does not match its repository's SHA-1",
            why=f"its SHA-1 is {sha1}, but the repository states {published_sha1}",
            fix="try again; if it fails again, a file in the repository is damaged",
        )
    job.progress.step(
        f"{job.request.label}: SHA-1 {sha1} matches the published one; the SHA-256 is "
        f"{hash_file(path)}"
    )
