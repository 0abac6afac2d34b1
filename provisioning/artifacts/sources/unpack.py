"""An archive file -> the tree that the manifest describes: layout, links, written files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from provisioning.archives.layout import (
    FileWriter,
    Member,
    check_members,
    find_dangling,
    make_links,
    make_parents,
    place_members,
    unsafe,
)
from provisioning.archives.tarballs import extract_tar, is_tarball
from provisioning.archives.zip_directory import ByteSource, FileSource, read_directory
from provisioning.archives.zipfiles import extract_members
from provisioning.artifacts.sources import FillJob
from provisioning.store.store import explain_errors
from provisioning.store.tree import TreeEntry


def unpack_file(path: Path, job: FillJob) -> tuple[TreeEntry, ...]:
    """Extract a downloaded archive and complete the tree. Raises IntegrityError, StoreError."""
    if is_tarball(path.name):
        return _unpack_tar(path, job)
    with explain_errors(job.store.home), closing(FileSource(path)) as source:
        return unpack_members(source, select_members(source, job), job)


def select_members(source: ByteSource, job: FillJob) -> list[tuple[str, Member]]:
    """The wanted members of a ZIP with their new paths, after all of it was judged."""
    members = read_directory(source)
    check_members(source.name, members, job.request.limits())
    placed = place_members(members, job.request.layout())
    return [pair for pair in placed if job.wants(pair[0])]


def unpack_members(
    source: ByteSource, placed: list[tuple[str, Member]], job: FillJob
) -> tuple[TreeEntry, ...]:
    """Extract these members of a ZIP and complete the tree."""
    request = job.request
    total = sum(member.size for _, member in placed)
    job.store.check_space(total, f"{request.label} unpacked")
    with explain_errors(job.store.home):
        with job.progress.bar(f"{request.label}: unpacking", total) as bar:
            entries, links = extract_members(source, job.root, placed, bar.advance)
        return complete_tree(job, entries, links, source.name)


def _unpack_tar(path: Path, job: FillJob) -> tuple[TreeEntry, ...]:
    request = job.request
    job.progress.step(f"{request.label}: unpacking {path.name}")
    with explain_errors(job.store.home):
        limits, whole = request.limits(), not request.release.pin
        entries, links = extract_tar(path, job.root, request.layout(), limits, whole=whole)
        return complete_tree(job, entries, links, path.name)


def complete_tree(
    job: FillJob, entries: list[TreeEntry], links: dict[str, str], archive: str
) -> tuple[TreeEntry, ...]:
    """Add the archive's links, and the links and small files that the manifest describes.

    Where only a part is wanted, a link to another part is left out.
    """
    layout, release = job.request.layout(), job.request.release
    if not entries and not links and job.only is None:
        raise unsafe(archive, "it has nothing of what the manifest wants")
    for path, text in release.write.items():
        if layout.wants(path) and job.wants(path):
            entries.append(_write_text(job.root, path, text))
    own = {path: end for path, end in release.links.items() if layout.wants(path)}
    wanted = {**links, **{path: end for path, end in own.items() if job.wants(path)}}
    lock = job.request.lock.files if job.request.lock and job.only is not None else ()
    present = [*(entry.path for entry in entries), *(entry.path for entry in lock)]
    if not layout.takes_all:
        left_out = find_dangling(wanted, present)
        if left_out:
            job.progress.step(
                f"{job.request.label}: left out, since they lead to what is not wanted: "
                + ", ".join(left_out)
            )
        wanted = {path: end for path, end in wanted.items() if path not in left_out}
    entries += make_links(job.root, wanted, archive, present)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _write_text(root: Path, path: str, text: str) -> TreeEntry:
    data = text.lstrip("\n").encode()
    make_parents(root, [path])
    writer = FileWriter(root, path, path, len(data))
    try:
        writer.write(data)
        return writer.finish(0o444)
    finally:
        writer.close()
