"""One artifact put in place: found, verified, repaired, or fetched and published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from provisioning.artifacts.licence import require_acceptance
from provisioning.artifacts.lockfile import apply_lock
from provisioning.artifacts.sources import ArtifactRequest, FillJob, load_source
from provisioning.console.progress import Progress
from provisioning.errors import IntegrityError, UnfitError
from provisioning.files import remove_tree
from provisioning.manifest.releases import Origin
from provisioning.store.store import Key, Published, Store, explain_errors, replace_file
from provisioning.store.tree import Difference, Tree, TreeEntry, compare_tree

SHOWN_DIFFERENCES = 10


@dataclass(frozen=True)
class Provisioned:
    """An artifact in place. ``origin`` is what its bytes were checked against.

    ``repaired`` lists the paths that this call restored; ``fetched`` says whether this call
    published it; ``adopted`` that it is the user's own installation, used in place.
    """

    name: str
    version: str
    root: Path
    origin: Origin = field(default_factory=Origin)
    repaired: tuple[str, ...] = ()
    fetched: bool = False
    adopted: bool = False


def provision_artifact(
    request: ArtifactRequest, store: Store, progress: Progress, *, verify: bool = False
) -> Provisioned:
    """The artifact of ``request``: adopted where a variable names it, else from the store,
    fetched when it is not there.

    With ``verify`` every byte is hashed again and what differs is restored.
    Raises UnfitError, DownloadError, IntegrityError, StoreError, ToolError.
    """
    if adopted := adopt_artifact(request, store, progress):
        if verify:
            check_adopted(with_lock(request, store), adopted)
        return adopted
    request = with_lock(request, store)
    key = request.key()
    published = store.find(key)
    if published:
        store.sweep(request.name)
    if published and not verify:
        return _describe(request, published)
    if published:
        return verify_published(request, key, published, store, progress)
    with store.lock(request.name, progress):
        if published := store.find(key):
            return _describe(request, published)
        require_acceptance(request, store, progress)
        request = require_pinned(request, store, progress)
        return _fetch(request, request.key(), store, progress)


def locate_artifact(
    request: ArtifactRequest, store: Store, progress: Progress
) -> Provisioned | None:
    """The artifact of ``request`` where it is in place already; nothing is fetched."""
    if adopted := adopt_artifact(request, store, progress):
        return adopted
    request = with_lock(request, store)
    published = store.find(request.key())
    return _describe(request, published) if published else None


def require_pinned(request: ArtifactRequest, store: Store, progress: Progress) -> ArtifactRequest:
    """The request with a hash to check against. Raises IntegrityError. See trust.require_pin."""
    request = with_lock(request, store)  # another process may have trusted it meanwhile
    if request.release.pin:
        return request
    from provisioning.artifacts.trust import require_pin

    return require_pin(request, store, progress)


def adopt_artifact(
    request: ArtifactRequest, store: Store, progress: Progress
) -> Provisioned | None:
    """The user's own installation, when the variable that names one is set.

    One that points into the store is what `env` gave for some profile, not an installation.
    A release that is copied is not adopted. Raises UnfitError.
    """
    adoption = None if request.release.is_copied else request.toolchain.adoption
    named = os.environ.get(adoption.variable) if adoption else None
    if not named or Path(named).resolve().is_relative_to(store.trees.resolve()):
        return None
    from provisioning.artifacts.sources.local import find_installation

    found = find_installation(request, os.environ)
    if found is None:
        return None
    pinned = request.release.version
    note = "" if found.version == pinned else f" (the pin is {pinned})"
    where = f"{found.variable}={found.root}"
    progress.step(f"{request.name}: using {where}, version {found.version}{note}")
    return Provisioned(request.name, found.version, found.root, adopted=True)


def check_adopted(request: ArtifactRequest, adopted: Provisioned) -> None:
    """Hash an installation against the lock of its version, where there is one.

    Modes may differ and more files may be there. Raises UnfitError, naming what differs.
    """
    if not adopted.version.startswith(request.release.version):
        return
    wanted = [msgspec.structs.replace(entry, mode=-1) for entry in locked_entries(request)]
    paths = {entry.path for entry in wanted}
    found = [item for item in compare_tree(adopted.root, wanted) if item.path in paths]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UnfitError(
            f"{adopted.root} is not {request.label} as it is locked",
            why=f"{found[0]}{more}",
            fix="install it anew, or unset the variable that names it and fetch it",
        )


def with_lock(request: ArtifactRequest, store: Store) -> ArtifactRequest:
    """The request with what its lock file adds. Raises IntegrityError, ManifestError."""
    release, lock = apply_lock(request.name, request.release, store)
    return replace(request, release=release, lock=lock)


def _describe(
    request: ArtifactRequest,
    published: Published,
    repaired: tuple[str, ...] = (),
    fetched: bool = False,
) -> Provisioned:
    release, root = request.release, published.root
    return Provisioned(request.name, release.version, root, release.origin, repaired, fetched)


def _fetch(request: ArtifactRequest, key: Key, store: Store, progress: Progress) -> Provisioned:
    with store.stage(key) as staged:
        source = load_source(request.release.source)
        entries = source.fill(FillJob(request, staged / key.artifact, store, progress))
        check_lock(request, entries)
        pin = request.release.pin
        tree = Tree(key.artifact, key.version, pin, request.components, entries)
        published = store.publish(key, staged, tree)
    size_mib = tree.size_bytes / (1 << 20)
    progress.step(f"{request.label}: ready, {len(tree.files)} files, {size_mib:.0f} MiB")
    return _describe(request, published, fetched=True)


def locked_entries(request: ArtifactRequest) -> tuple[TreeEntry, ...]:
    """What the lock says this request's tree holds; nothing when no files are locked."""
    layout = request.layout()
    files = request.lock.files if request.lock else ()
    return tuple(entry for entry in files if layout.wants(entry.path))


def check_lock(request: ArtifactRequest, entries: Sequence[TreeEntry]) -> None:
    """Compare what was written with the lock. Raises IntegrityError, showing both."""
    wanted = {entry.path: entry for entry in locked_entries(request)}
    if not wanted:
        return
    found = {entry.path: entry for entry in entries}
    for path in sorted(wanted.keys() | found.keys()):
        if found.get(path) != wanted.get(path):
            raise IntegrityError(
                f"{request.label} is not what is locked: {path}",
                why=f"it is {_show(found.get(path))}, the lock has {_show(wanted.get(path))}",
                fix=f"compare with `qnn-ci lock {request.name}`",
            )


def _show(entry: TreeEntry | None) -> str:
    if entry is None:
        return "not there"
    return f"SHA-256 {entry.sha256}, {entry.size} bytes, mode {entry.mode:o}{entry.link}"


def verify_published(
    request: ArtifactRequest, key: Key, published: Published, store: Store, progress: Progress
) -> Provisioned:
    """Hash everything; restore what differs and say so."""
    tree = trusted_tree(request, published)
    if tree and not compare_tree(published.root, tree.files):
        return _describe(request, published)
    with store.lock(request.name, progress):
        tree = trusted_tree(request, published)
        if tree is None:
            progress.step(f"{request.label}: its tree.json is damaged; fetching it again")
            return _fetch(request, key, store, progress)
        differences = compare_tree(published.root, tree.files)
        if not differences:
            return _describe(request, published)
        report_differences(request, differences, progress)
        with store.stage(key) as staged, explain_errors(store.home):
            job = FillJob(request, staged / key.artifact, store, progress)
            repaired = repair(job, published, tree, differences)
    return _describe(request, published, repaired)


def trusted_tree(request: ArtifactRequest, published: Published) -> Tree | None:
    """The tree.json of a published directory, its entries from the lock where there is one.

    None when tree.json is missing or damaged.
    """
    tree = published.read_tree()
    locked = locked_entries(request)
    return msgspec.structs.replace(tree, files=locked) if tree and locked else tree


def report_differences(
    request: ArtifactRequest, differences: Sequence[Difference], progress: Progress
) -> None:
    """Name what differs, on the terminal."""
    for difference in differences[:SHOWN_DIFFERENCES]:
        progress.step(f"{request.label}: {difference}")
    if (more := len(differences) - SHOWN_DIFFERENCES) > 0:
        progress.step(f"{request.label}: and {more} more")


def repair(
    job: FillJob, published: Published, tree: Tree, differences: Sequence[Difference]
) -> tuple[str, ...]:
    """Restore the paths that differ, each by one rename; what is not of the artifact goes.

    Call it under the artifact's lock. Raises IntegrityError when the source gives other
    bytes than tree.json names.
    """
    label = job.request.label
    entries = {entry.path: entry for entry in tree.files}
    wanted = frozenset(item.path for item in differences) & entries.keys()
    foreign = [item.path for item in differences if item.path not in entries]
    if wanted:
        load_source(job.request.release.source).fill(replace(job, only=wanted))
    bad = [item for item in compare_tree(job.root, tree.files) if item.path in wanted]
    if bad:
        raise IntegrityError(
            f"{label} cannot be repaired",
            why=str(bad[0]),
            fix=f"remove {published.path} and fetch it again",
        )
    for path in wanted:
        replace_file(job.root / path, published.root / path)
    for path in foreign:
        _remove(published.root / path)
    repaired = tuple(sorted([*wanted, *foreign]))
    job.progress.step(f"{label}: repaired {', '.join(repaired[:SHOWN_DIFFERENCES])}")
    return repaired


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
