"""A directory that serves a machine without a network: files by name, git by bare repository."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provisioning.artifacts.licence import require_acceptance
from provisioning.artifacts.provision import provision_artifact, require_pinned
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.artifacts.sources.aar import locate_aar
from provisioning.artifacts.sources.archive import obtain_archive
from provisioning.artifacts.sources.git import mirror_repositories
from provisioning.artifacts.sources.wheel import obtain_wheel
from provisioning.console.progress import Progress
from provisioning.errors import StoreError
from provisioning.files import write_whole
from provisioning.store.store import Store, link_or_copy

SUMS_FILE = "SHA256SUMS"


def fill_mirror(
    requests: Sequence[ArtifactRequest], directory: Path, store: Store, progress: Progress
) -> list[Path]:
    """Put what ``requests`` need below ``directory``, and sums beside it.

    QNN_CI_MIRROR names the directory, or the URL that serves it, on the other machine.
    Raises as provision_artifact does; StoreError when ``directory`` cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for request in requests:
            if request.toolchain.source == "git":
                root = provision_artifact(request, store, progress).root
                written += mirror_repositories(root, request.release.url, directory)
            elif request.toolchain.source != "local":
                written.append(_copy_file(request, directory, store, progress))
        _write_sums(directory)
    except OSError as error:
        raise StoreError(
            f"the mirror {directory} cannot be written", why=f"{error.filename}: {error.strerror}"
        ) from error
    return written


def _copy_file(request: ArtifactRequest, directory: Path, store: Store, progress: Progress) -> Path:
    with store.lock(request.name, progress):
        require_acceptance(request, store, progress)
        pinned = require_pinned(request, store, progress)
        if request.toolchain.source == "aar":
            pinned = replace(pinned, release=locate_aar(pinned.release))
        obtain = obtain_wheel if request.toolchain.source == "wheel" else obtain_archive
        source = obtain(pinned, store, progress)
    target = directory / source.name
    fresh = target.with_name(f".{target.name}")
    fresh.unlink(missing_ok=True)
    link_or_copy(source, fresh)
    fresh.chmod(0o644)
    fresh.replace(target)
    line = f"{pinned.release.sha256}  {target.name}\n"
    sums = directory / SUMS_FILE
    old = sums.read_text(encoding="utf-8") if sums.is_file() else ""
    kept = "".join(row + "\n" for row in old.splitlines() if not row.endswith(f"  {target.name}"))
    write_whole(sums, kept + line)
    lock = store.home / "pins" / f"{request.name}-{request.release.version}.json"
    if lock.is_file():
        shutil.copyfile(lock, directory / lock.name)
    return target


def _write_sums(directory: Path) -> None:
    sums = directory / SUMS_FILE
    if sums.is_file():
        rows = sorted(sums.read_text(encoding="utf-8").splitlines(), key=lambda row: row[66:])
        write_whole(sums, "".join(row + "\n" for row in rows))
