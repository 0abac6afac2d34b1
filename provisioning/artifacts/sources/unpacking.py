"""Check and unpack a downloaded archive, and add the manifest's links and small files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from provisioning.archives.layout import (
    Member,
    check_members,
    explain_clashes,
    find_dangling,
    make_links,
    make_parents,
    place_members,
    unsafe,
    write_file,
)
from provisioning.archives.tarballs import extract_tar, is_tarball, read_members
from provisioning.archives.zipfiles import ByteSource, FileSource, extract_members, read_directory
from provisioning.artifacts.sources import ArtifactRequest, FillJob
from provisioning.documents import open_regular
from provisioning.files import READ_BYTES
from provisioning.manifest.releases import FileRelease
from provisioning.store.tree import TreeEntry

NOTHING = "it contains nothing that the manifest selects"
LEAST_SHARE = 10_000  # an archive unpacks to at least 1/LEAST_SHARE of its limit


def unpack_file(path: Path, job: FillJob) -> tuple[TreeEntry, ...]:
    """Extract a downloaded archive, and add the manifest's links and files. Raises IntegrityError
    or OSError.
    """
    request = job.request
    if is_tarball(path.name):
        job.progress.step(f"{request.label}: unpacking {path.name}")
        # A file with a known hash is complete, so the rest need not be read.
        limits, read_all = request.limits(), not request.release.pin
        with explain_clashes(path.name):
            entries, links = extract_tar(
                path, job.root, request.layout(), limits, read_all=read_all
            )
            return complete_tree(job, entries, links, path.name)
    with closing(FileSource(path)) as source:
        return unpack_members(source, select_members(source, job), job)


def judge_archive(path: Path, request: ArtifactRequest) -> None:
    """Raise IntegrityError if ``path``, a file without a known hash, cannot be the requested
    archive.

    The archive must be complete and within its limits, contain files that the manifest selects, and
    unpack to at least 1/LEAST_SHARE of the limit ``unpacked_bytes``.
    """
    name, limits = request.release_as(FileRelease).filename, request.limits()
    if is_tarball(name):
        members = read_members(path, name, limits)
    else:
        with closing(FileSource(path)) as source:
            members = read_directory(source)
    check_members(name, members, limits)
    total = sum(member.size for member in members)
    # An archive of another release, or an archived error page, has none of the files.
    if not any(place_members(members, request.layout())):
        raise unsafe(name, NOTHING, key="layout")
    if total < limits.unpacked_bytes // LEAST_SHARE:
        raise unsafe(name, f"it unpacks to only {total} bytes, which is too few for this archive")


def select_members(source: ByteSource, job: FillJob) -> list[tuple[str, Member]]:
    """Check all members of a ZIP and return the wanted ones with their new paths."""
    members = read_directory(source)
    check_members(source.name, members, job.request.limits())
    placed = place_members(members, job.request.layout())
    return [pair for pair in placed if job.wants(pair[0])]


def unpack_members(
    source: ByteSource, placed: list[tuple[str, Member]], job: FillJob
) -> tuple[TreeEntry, ...]:
    """Extract these members of a ZIP, and add the links and small files that the manifest lists."""
    request = job.request
    total = sum(member.size for _, member in placed)
    job.store.check_space(total, f"{request.label} unpacked")
    with explain_clashes(source.name):
        with job.progress.bar(f"{request.label}: unpacking", total) as bar:
            entries, links = extract_members(source, job.root, placed, bar.advance)
        return complete_tree(job, entries, links, source.name)


def complete_tree(
    job: FillJob, entries: list[TreeEntry], links: dict[str, str], archive: str
) -> tuple[TreeEntry, ...]:
    """Add the archive's links, and the links and small files that the manifest lists.

    Links to parts that are not wanted are left out. Returns all entries, sorted by path.
    """
    layout, release = job.request.layout(), job.request.release
    if not entries and not links and job.only is None:
        raise unsafe(archive, NOTHING, key="layout")
    for path, text in release.write.items():
        if layout.wants(path) and job.wants(path):
            data = text.lstrip("\n").encode()
            make_parents(job.root, [path])
            entries.append(write_file(job.root, path, path, len(data), [data], mode=0o444))
    manifest_links = {path: end for path, end in release.links.items() if layout.wants(path)}
    wanted_links = {
        **links,
        **{path: end for path, end in manifest_links.items() if job.wants(path)},
    }
    lock = job.request.lock.files if job.request.lock and job.only is not None else ()
    present = [entry.path for entry in (*entries, *lock)]
    # If everything is taken, a dangling link is the archive's fault and an error, see make_links.
    if not layout.takes_all and (left_out := find_dangling(wanted_links, present)):
        names = ", ".join(left_out)
        message = f"{job.request.label}: skipped links to files that are not wanted: {names}"
        job.progress.step(message)
        wanted_links = {path: end for path, end in wanted_links.items() if path not in left_out}
    entries += make_links(job.root, wanted_links, archive, present)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def copy_file(source: Path, root: Path, target: str, mode: int = 0) -> TreeEntry:
    """Copy ``source`` to ``target`` below ``root``, and return its tree entry. If ``mode`` is 0,
    the copy is a read-only file that is executable if ``source`` is. Raises OSError.
    """
    make_parents(root, [target])
    state = source.stat()
    mode = mode or (state.st_mode & 0o555) | 0o444
    with open_regular(source) as file:
        pieces = iter(lambda: file.read(READ_BYTES), b"")
        return write_file(root, target, str(source), state.st_size, pieces, mode=mode)
