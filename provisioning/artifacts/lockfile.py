"""Read and find locks. A lock records the hash, the size and all files of an artifact, and the
evidence on which it was trusted at its first use.

manifests/locks/ contains the project's locks, and ``pins/`` in the store contains the locks made on
this machine. Both have one JSON file per artifact and version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from provisioning.documents import DocumentError, decode_json, read_user_file
from provisioning.errors import IntegrityError, ManifestError, UsageError
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.releases import FileRelease, Release
from provisioning.store.store import Store
from provisioning.store.tree import TreeEntry

SCHEMA_VERSION: Final = 1


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The lock of an artifact. ``files`` lists its whole tree after unpacking; it is empty if the
    files are unknown.
    """

    artifact: str
    version: str
    url: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    recorded: str
    evidence: tuple[str, ...] = ()
    files: tuple[TreeEntry, ...] = ()
    schema_version: Literal[1] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        # Compared with hexdigest, which is in lower case.
        msgspec.structs.force_setattr(self, "sha256", self.sha256.lower())


def lock_name(artifact: str, version: str) -> str:
    """Return the file name of a lock."""
    return f"{artifact}-{version}.json"


def project_lock_path(artifact: str, version: str) -> Path:
    """Return the path of the project's lock of an artifact, whether or not it exists."""
    return manifests_root() / "locks" / lock_name(artifact, version)


def machine_lock_path(store: Store, artifact: str, version: str) -> Path:
    """Return the path of this machine's lock of an artifact, whether or not it exists."""
    return store.pins / lock_name(artifact, version)


def read_lock(path: Path) -> Lock | None:
    """Read a lock file; return None if there is none.

    Raises ManifestError if it cannot be read, or if its file name does not match the artifact and
    the version in it.
    """
    try:
        lock = decode_json(read_user_file(path, "the lock"), Lock)
    except (UsageError, DocumentError) as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        why = error.why if isinstance(error, UsageError) else str(error)
        raise ManifestError(f"cannot read the lock {path}", why=why, fix=_ways_out(path)) from error
    if lock_name(lock.artifact, lock.version) != path.name:
        raise ManifestError(
            f"the lock {path} is for another artifact",
            why=f"it is the lock of {lock.artifact} {lock.version}",
            fix=_ways_out(path),
        )
    return lock


def damaged_locks(store: Store) -> list[ManifestError]:
    """Return an error for each lock that cannot be read, in manifests/locks/ and in the store."""
    errors = []
    for directory in (manifests_root() / "locks", store.pins):
        for path in sorted(directory.glob("*.json")):
            try:
                read_lock(path)
            except ManifestError as error:  # noqa: PERF203 - each may be damaged
                errors.append(error)
    return errors


def _ways_out(path: Path) -> str:
    return (
        f"restore {path.name} from version control or a backup, or remove it and lock the artifact "
        "again"
    )


def find_lock(name: str, release: Release, store: Store) -> Lock | None:
    """Return the project's lock of a release, else this machine's, or None if there is neither.

    Raises ManifestError, and IntegrityError if the lock and the manifest have different hashes.
    """
    # A commit already identifies its content.
    if not isinstance(release, FileRelease):
        return None
    paths = (
        project_lock_path(name, release.version),
        machine_lock_path(store, name, release.version),
    )
    lock = next(filter(None, map(read_lock, paths)), None)
    # Neither wins: one of the two was changed without the other.
    if lock and release.sha256 and lock.sha256 != release.sha256:
        raise IntegrityError(
            f"the lock and the manifest of {name} {release.version} have different hashes",
            why=f"the lock has SHA-256 {lock.sha256}, but the manifest has {release.sha256}",
            fix="find out which of the two hashes the vendor's archive has, and correct the other",
        )
    return lock
