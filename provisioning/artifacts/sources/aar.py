"""An Android archive in a Maven repository, by its coordinates."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import closing
from dataclasses import replace

import msgspec

from provisioning.artifacts.sources import Filled, FillJob
from provisioning.artifacts.sources.archive import SOURCE as ARCHIVE
from provisioning.errors import IntegrityError
from provisioning.fetch.transfer import Client, PermanentError, TransferPolicy, TransientError
from provisioning.manifest.reader import Release
from provisioning.store.tree import hash_file

REPOSITORY_VARIABLE = "QNN_CI_MAVEN"
REPOSITORY = "https://repo1.maven.org/maven2"


class AarSource:
    """An AAR is a ZIP; the repository's own .sha1 beside it is checked when it is there."""

    def fill(self, job: FillJob) -> Filled:
        release = locate_aar(job.request.release)
        located = replace(job, request=replace(job.request, release=release))
        filled = ARCHIVE.fill(located)
        if not job.request.release.sha256 and not job.request.options.offline:
            check_published_sha1(located)
        return filled


SOURCE = AarSource()


def locate_aar(release: Release) -> Release:
    """The release with the URL that its coordinates ``group:artifact`` have."""
    group, _, artifact = release.package.partition(":")
    base = os.environ.get(REPOSITORY_VARIABLE, REPOSITORY).rstrip("/")
    version = release.package_version
    url = f"{base}/{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.aar"
    return msgspec.structs.replace(release, url=url)


def check_published_sha1(job: FillJob) -> None:
    """Compare with the .sha1 that a Maven repository keeps beside a file.

    Raises IntegrityError when it names another hash.
    """
    release = job.request.release
    path = job.store.downloads / release.filename
    try:
        with (
            closing(Client(TransferPolicy.from_environment())) as client,
            client.get(f"{release.url}.sha1", {}) as (_, body),
        ):
            text = b"".join(body).decode("ascii", "replace")
    except (PermanentError, TransientError) as error:
        job.progress.step(f"{job.request.label}: no published SHA-1 was had: {error}")
        return
    found = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    wanted = re.match(r"[0-9a-f]{40}", text.strip())
    if wanted and wanted.group() != found:
        path.unlink()
        raise IntegrityError(
            f"{release.filename} is not what its repository publishes",
            why=f"its SHA-1 is {found}, the repository says {wanted.group()}",
            fix="try again; if it stays so, the repository is damaged",
        )
    job.progress.step(f"{job.request.label}: SHA-1 {found} as published; {hash_file(path)} kept")
