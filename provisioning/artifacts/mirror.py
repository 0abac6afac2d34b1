"""A directory that serves a machine without a network: files by name, git by bare repository."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from provisioning.artifacts.licence import require_acceptance
from provisioning.artifacts.lockfile import machine_lock_path
from provisioning.artifacts.provision import require_pinned
from provisioning.artifacts.sources import ArtifactRequest, FillJob, load_source
from provisioning.console.progress import Progress
from provisioning.files import explain_writes, hash_file, write_whole
from provisioning.store.store import Key, Store

SUMS_FILE = "SHA256SUMS"


def fill_mirror(
    requests: Sequence[ArtifactRequest], directory: Path, store: Store, progress: Progress
) -> list[Path]:
    """Put what ``requests`` need below ``directory``, and sums beside it.

    QNN_CI_MIRROR names the directory, or the URL that serves it, on the other machine.
    Raises as provision_artifact does; StoreError when ``directory`` cannot be written.
    """
    with explain_writes(directory):
        directory.mkdir(parents=True, exist_ok=True)
        written = [
            path for request in requests for path in _mirror(request, directory, store, progress)
        ]
        _write_sums(directory, [path for path in written if path.is_file()])
    return written


def _mirror(
    request: ArtifactRequest, directory: Path, store: Store, progress: Progress
) -> list[Path]:
    with store.lock(request.name, progress, request.download):
        require_acceptance(request, store, progress)
        pinned = require_pinned(request, store, progress)
        key = Key(request.name, request.release.version, "mirror")
        with store.stage(key) as staged, explain_writes(directory):
            job = FillJob(pinned, staged / request.name, store, progress)
            written = load_source(request.release.source).mirror(job, directory)
    lock = machine_lock_path(store, request.name, request.release.version)
    if lock.is_file():
        shutil.copyfile(lock, directory / lock.name)
    return written


def _write_sums(directory: Path, files: Sequence[Path]) -> None:
    """SHA256SUMS with ``files`` in it, sorted by name."""
    path = directory / SUMS_FILE
    rows = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    sums = {row[66:]: row[:64] for row in rows} | {file.name: hash_file(file) for file in files}
    if sums:
        write_whole(path, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
