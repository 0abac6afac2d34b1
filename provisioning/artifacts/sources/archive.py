"""Fetch a ZIP or tarball from a URL, either whole or only the wanted parts.

Locked files that another published tree already contains are not fetched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from provisioning.archives.layout import Member, make_directories, make_links, make_parents
from provisioning.archives.tarballs import is_tarball
from provisioning.archives.zipfiles import LOCAL_BYTES, TAIL_BYTES
from provisioning.artifacts.sources import (
    FillJob,
    copy_to_mirror,
    require_version,
    substitute,
)
from provisioning.artifacts.sources.downloads import obtain_file, pin_of
from provisioning.artifacts.sources.unpacking import (
    judge_archive,
    select_members,
    unpack_file,
    unpack_members,
)
from provisioning.errors import IntegrityError, UsageError
from provisioning.fetch.download import accept_any, fetch_file, mirror_urls
from provisioning.fetch.ranges import CostlyError, Span, open_remote
from provisioning.fetch.transfer import MismatchError, PermanentError, redact_url
from provisioning.manifest.releases import ArchiveRelease, FileRelease
from provisioning.store.store import link_or_copy
from provisioning.store.tree import TreeEntry, compare_tree, list_files, remove_others

F = TypeVar("F", bound=FileRelease)
EXTRA_BYTES = 64  # reserved for a local header's extra field, which may be shorter


def fill(job: FillJob) -> tuple[TreeEntry, ...]:
    """Write the archive's files: those that a published tree already has are linked, the others
    fetched in parts or with the whole archive. Return every entry, sorted by path.
    """
    reused = reuse_published(job)
    if reused and len(reused) == len(job.locked):
        return tuple(reused)
    left = job
    if reused:
        paths = {entry.path for entry in job.locked} - {entry.path for entry in reused}
        left = replace(job, only=frozenset(paths))
    entries = _fetch_parts(left)
    if not entries:
        # After the download, when its hash is known: unpacking a ZIP while it arrives saved no
        # measurable time.
        entries = unpack_file(obtain_archive(job), left)
    return tuple(sorted([*reused, *entries], key=lambda entry: entry.path))


def mirror(job: FillJob, directory: Path) -> list[Path]:
    """Copy the whole archive to ``directory``, and return its path there."""
    return [copy_to_mirror(obtain_archive(job), directory)]


def _fetch_parts(job: FillJob) -> tuple[TreeEntry, ...]:
    """Fetch only the wanted members, with HTTP range requests. Return an empty tuple if this is not
    possible, or if the members do not match the lock.
    """
    request, release = job.request, job.request.release_as(ArchiveRelease)
    # Without the hashes of files, only the whole archive can be checked.
    locked = request.lock is not None and request.lock.files
    is_part = bool(request.components) or job.only is not None
    download = job.store.downloads / release.filename
    if not (locked and is_part) or request.options.offline or download.is_file():
        return ()
    earlier_files = set(list_files(job.root))
    for url in archive_urls(release):
        # A compressed tarball can only be read from its start, and a local file needs no ranges.
        if is_tarball(release.filename) or not url.startswith("http"):
            continue
        try:
            return _unpack_remote(url, job)
        except (PermanentError, IntegrityError) as error:
            shown = error.why if isinstance(error, IntegrityError) else error
            job.progress.step(
                f"{request.label}: cannot be fetched in parts from {redact_url(url)}: {shown}"
            )
            remove_others(job.root, earlier_files)
            # Another URL would have the same number of parts.
            if isinstance(error, CostlyError):
                break
    return ()


def find_release(job: FillJob, version: str) -> ArchiveRelease:
    """Return the pinned release with another version, and without a hash. Raises UsageError if
    ``version`` is empty, or if the URL does not contain the pinned version.
    """
    old = job.request.release_as(ArchiveRelease)
    new = rename_release(old, require_version(job, version))
    if new.url == old.url != "" and new != old:
        raise UsageError(
            f"the URL of {job.request.name} {version} is unknown",
            why=f"it cannot be derived from {redact_url(old.url)}, which does not contain "
            f"{old.version}",
            fix=f"change the manifest by hand, then run `qnn-ci lock {job.request.name} --write`",
        )
    return new


def rename_release(old: F, version: str) -> F:
    """Return ``old`` with another version in its URLs, names and layout, and without a hash."""
    if version == old.version:
        return old
    text = substitute(msgspec.json.encode(old).decode(), {old.version: version})
    new = msgspec.json.decode(text, type=type(old))
    return msgspec.structs.replace(new, sha256="", size_bytes=0)


def reuse_published(job: FillJob) -> list[TreeEntry]:
    """Link or copy locked files from other published trees of the same archive into the job's tree,
    and return their entries.

    Only files with the locked hashes are used. If they are all the files that the job needs, the
    locked links and empty directories are created, too. If some files of a tarball are not found,
    none are used, since the tarball has to be read from its start anyway.
    """
    locked = job.locked
    needed = {entry.path: entry for entry in locked if entry.sha256}
    reusable: dict[str, Path] = {}
    for published in job.store.editions(job.request.key()) if needed else ():
        tree = published.read_tree()
        if tree and tree.source_sha256 == job.request.release.pin:
            # Hashed, since somebody may have changed the other tree.
            differing = {item.path for item in compare_tree(published.root, needed.values())}
            equal_paths = needed.keys() - reusable.keys() - differing
            reusable |= {path: published.root / path for path in equal_paths}
    if not reusable or (reusable.keys() < needed.keys() and is_tarball(job.request.download)):
        return []
    make_parents(job.root, reusable)
    for path, source in reusable.items():
        link_or_copy(source, job.root / path)
    entries = [needed[path] for path in reusable]
    if reusable.keys() == needed.keys():
        paths = [entry.path for entry in locked]
        entries += make_directories(job.root, [path for path in paths if path.endswith("/")])
        links = {entry.path: entry.link for entry in locked if entry.link}
        entries += make_links(job.root, links, job.request.label, paths)
    return entries


def _unpack_remote(url: str, job: FillJob) -> tuple[TreeEntry, ...]:
    release = job.request.release_as(ArchiveRelease)
    scratch = job.store.downloads / f".{release.filename}.parts"
    with open_remote(url, scratch, job.progress) as remote:
        # The tail has the directory of nearly every ZIP, so one request finds all members.
        remote.open(TAIL_BYTES, release.size_bytes)
        placed = select_members(remote, job)
        # Before anything is written: what a mirror lists need not be the pinned archive.
        _compare_listing(placed, job)
        remote.fetch(member_spans((member for _, member in placed), remote.size))
        entries = unpack_members(remote, placed, job)
    # The hash of the whole archive cannot be checked, so every file is compared instead.
    if bad := set(entries) ^ set(job.locked):
        first = min(entry.path for entry in bad)
        raise MismatchError(f"{first!r} does not match the lock")
    return entries


def _compare_listing(placed: Sequence[tuple[str, Member]], job: FillJob) -> None:
    """Raise MismatchError if a member's size in the archive's listing differs from the lock."""
    sizes = {entry.path: entry.size for entry in job.locked if not entry.link}
    for path, member in placed:
        if member.kind != "symlink" and sizes.get(path) != member.size:
            raise MismatchError(f"the archive's entry for {path!r} does not match the lock")


def member_spans(members: Iterable[Member], size_bytes: int) -> list[Span]:
    """Return the spans of these members, headers included, in an archive of ``size_bytes``.

    The length of a header is not known until it is read, so each span includes EXTRA_BYTES more.
    """
    spans = []
    for member in members:
        header_bytes = LOCAL_BYTES + len(member.name.encode()) + EXTRA_BYTES
        end = member.offset + header_bytes + member.compressed
        spans.append((member.offset, min(end, size_bytes)))
    return spans


def archive_urls(release: ArchiveRelease) -> list[str]:
    """Return the URLs of an archive in QNN_CI_MIRROR, at its vendor, and at the vendor's mirrors,
    in this order.
    """
    vendor_urls = [release.url] if release.url else []
    return [*mirror_urls(release.filename, release.sha256), *vendor_urls, *release.mirrors]


def obtain_archive(job: FillJob) -> Path:
    """Return the verified archive in downloads/. Raises the errors of obtain_file."""
    release = job.request.release_as(ArchiveRelease)
    urls, pin = archive_urls(release), pin_of(release)

    def fetch(target: Path) -> None:
        # A hash proves more than the checks of a file without one.
        judge = accept_any if pin.sha256 else partial(judge_archive, request=job.request)
        fetch_file(urls, target, pin, job.progress, judge=judge)

    return obtain_file(job, fetch)
