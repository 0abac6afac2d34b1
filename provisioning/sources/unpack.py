"""An archive file -> the tree that the manifest describes: layout, links, written files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from provisioning.archive import (
    FileWriter,
    check_members,
    make_links,
    make_parents,
    place_members,
)
from provisioning.sources import Job
from provisioning.store import explain_errors
from provisioning.tree import Entry
from provisioning.zipfiles import ByteSource, FileSource, extract_members, read_directory


def unpack_file(path: Path, job: Job) -> tuple[Entry, ...]:
    """Extract a downloaded ZIP and complete the tree. Raises IntegrityError, StoreError."""
    with closing(FileSource(path)) as source:
        return unpack_zip(source, job)


def unpack_zip(source: ByteSource, job: Job) -> tuple[Entry, ...]:
    """Extract the wanted members of a ZIP that is here or behind ranges."""
    request, store = job.request, job.store
    members = read_directory(source)
    check_members(source.name, members, request.limits())
    placed = [pair for pair in place_members(members, request.layout()) if job.wants(pair[0])]
    total = sum(member.size for _, member in placed)
    store.check_space(total, f"{request.label} unpacked")
    with explain_errors(store.home):
        with job.progress.bar(f"{request.label}: unpacking", total) as bar:
            entries = extract_members(source, job.root, placed, bar.advance)
        entries += complete_tree(job, {entry.path for entry in entries})
    return tuple(sorted(entries, key=lambda entry: entry.path))


def complete_tree(job: Job, present: set[str]) -> list[Entry]:
    """Add the links and the small files that the manifest itself describes.

    A link goes in when its target is ``present``; a repair restores links by themselves.
    """
    layout, release = job.request.layout(), job.request.release
    texts = {path: text for path, text in release.write.items() if layout.wants(path)}
    links = {path: end for path, end in release.links.items() if layout.wants(path)}
    added = [_write_text(job.root, path, text) for path, text in texts.items() if job.wants(path)]
    wanted = {path: end for path, end in links.items() if job.wants(path)}
    return added + make_links(
        job.root, wanted, job.request.label, lambda end: end in present or job.only is not None
    )


def _write_text(root: Path, path: str, text: str) -> Entry:
    data = text.lstrip("\n").encode()
    make_parents(root, [path])
    writer = FileWriter(root, path, path, len(data))
    try:
        writer.write(data)
        return writer.finish(0o444)
    finally:
        writer.close()
