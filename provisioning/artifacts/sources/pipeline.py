"""A ZIP unpacked while it is still coming: its directory first, then each member as it lands.

What was unpacked counts only after the whole file has the pinned hash and its directory is
the one that was read ahead; anything else, and it is done again from the finished file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from threading import Lock

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
from provisioning.archives.tarballs import extract_tar, is_tarball, read_members
from provisioning.archives.zipfiles import (
    TAIL_BYTES,
    ByteSource,
    FileSource,
    check_placed,
    extract_member,
    extract_members,
    finish_members,
    read_directory,
)
from provisioning.artifacts.sources import ArtifactRequest, FillJob
from provisioning.errors import IntegrityError, StoreError
from provisioning.fetch.ranges import open_remote
from provisioning.fetch.transfer import PermanentError
from provisioning.files import remove_tree
from provisioning.manifest.releases import FileRelease
from provisioning.store.tree import TreeEntry

LEAST_SHARE = 10_000  # an archive has at least this part of the bytes that it may have


def read_ahead(url: str, job: FillJob) -> Pipeline | None:
    """A pipeline for a remote ZIP, or None when its members cannot be known before the file."""
    release = job.request.release_as(FileRelease)
    scratch = job.store.downloads / f".{release.filename}.parts"
    try:
        with open_remote(url, scratch, job.progress) as remote:
            remote.open(TAIL_BYTES, release.size_bytes)
            members = read_directory(remote)
            check_members(remote.name, members, job.request.limits())
        if not members:
            return None
        pipeline = Pipeline(job, members)
        try:
            pipeline.prepare()
            return pipeline
        except BaseException:
            pipeline.close()
            raise
    except (PermanentError, IntegrityError, StoreError, OSError):
        return None  # the finished file will tell what is wrong, if anything is


class Pipeline:
    """Unpacks members of a growing file on all cores, into a directory beside the job's root that
    takes its place at the end: nothing that an unproven directory lists is ever in the tree."""

    def __init__(self, job: FillJob, members: Sequence[Member]) -> None:
        self.root, self.members = job.root, list(members)
        self.job = replace(job, root=job.root.with_name(f".ahead-{job.root.name}"))
        filename = job.request.release_as(FileRelease).filename
        placed = place_members(members, job.request.layout())
        self.placed = [pair for pair in placed if job.wants(pair[0])]
        check_placed(filename, [path for path, _ in self.placed])
        files = [pair for pair in self.placed if pair[1].kind == "file"]
        self.waiting = sorted(files, key=lambda pair: -pair[1].offset)
        self.landed: list[tuple[int, str, Member]] = []
        # Where each member's bytes surely end: where the next one begins. The last one is followed
        # by the directory, so that it waits for the whole file.
        offsets = sorted(member.offset for member in members)
        self.ends = dict(zip(offsets, [*offsets[1:], 1 << 62], strict=True))
        self.threads = max(2, os.cpu_count() or 1)
        self.pool = ThreadPoolExecutor(self.threads)
        self.busy, self.guard = 0, Lock()
        self.entries: list[TreeEntry] = []
        self.failure: Exception | None = None
        self.source: FileSource | None = None
        self.path: Path | None = None
        self.size = 0
        self.spoilt = False

    def prepare(self) -> None:
        """Make the directories. Raises OSError, StoreError when there is no room."""
        total = sum(member.size for _, member in self.placed)
        self.job.store.check_space(total, f"{self.job.request.label} unpacked")
        self.job.root.mkdir()
        make_parents(self.job.root, (path for path, _ in self.placed))

    def watch(self, path: Path, size: int) -> None:
        """Learn that the part file ``path`` has ``size`` good bytes; fewer means it began anew."""
        if self.path is None:
            self.path, self.source = path, FileSource(path)
        if path != self.path or size < self.size:
            self.spoilt = True
        self.size = size
        while not self.spoilt and self.waiting:
            place, member = self.waiting[-1]
            if self.ends[member.offset] > self.size:
                break
            self.waiting.pop()
            with self.guard:
                heappush(self.landed, (-member.size, place, member))
                if self.busy < self.threads:
                    self.busy += 1
                    self.pool.submit(self._extract_landed)

    def _extract_landed(self) -> None:
        """Unpack what has landed, the largest first: what is left for the end is small."""
        while True:
            with self.guard:
                if not self.landed or self.spoilt or self.failure or self.source is None:
                    self.busy -= 1
                    return
                _, place, member = heappop(self.landed)
            try:
                self.entries.append(extract_member(self.source, self.job.root, place, member))
            except Exception as error:  # noqa: BLE001 - raised by finish, if the archive is this one
                self.failure = error

    def finish(self, archive: Path) -> tuple[TreeEntry, ...] | None:
        """The tree's entries, or None when what was unpacked does not belong to ``archive``."""
        if self.path is not None and not self.spoilt:
            self.watch(self.path, 1 << 62)
        with closing(FileSource(archive)) as source:
            if self.spoilt or self.waiting or read_directory(source) != self.members:
                return None
            self.pool.shutdown(wait=True)
            if self.failure:
                raise self.failure
            empty, links = finish_members(source, self.job.root, self.placed)
        found = complete_tree(self.job, [*self.entries, *empty], links, archive.name)
        self.root.rmdir()
        self.job.root.rename(self.root)
        return found

    def close(self) -> None:
        """Wait for the threads, and remove what was not proven."""
        self.spoilt = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        if self.source:
            self.source.close()
        if self.job.root.exists():
            remove_tree(self.job.root)


def unpack_file(path: Path, job: FillJob) -> tuple[TreeEntry, ...]:
    """Extract a downloaded archive and complete the tree. Raises IntegrityError, OSError."""
    request = job.request
    if is_tarball(path.name):
        job.progress.step(f"{request.label}: unpacking {path.name}")
        limits, whole = request.limits(), not request.release.pin
        entries, links = extract_tar(path, job.root, request.layout(), limits, whole=whole)
        return complete_tree(job, entries, links, path.name)
    with closing(FileSource(path)) as source:
        return unpack_members(source, select_members(source, job), job)


def judge_archive(path: Path, request: ArtifactRequest) -> None:
    """Raise IntegrityError unless a file of which no hash is known can be the archive: it is whole,
    within its limits, no stub, and holds something that the manifest wants."""
    name, limits = request.release_as(FileRelease).filename, request.limits()
    if is_tarball(name):
        members = read_members(path, name, limits)
    else:
        with closing(FileSource(path)) as source:
            members = read_directory(source)
    check_members(name, members, limits)
    total = sum(member.size for member in members)
    if not any(place_members(members, request.layout())):
        raise unsafe(name, "it contains nothing that the manifest wants")
    if total < limits.unpacked_bytes // LEAST_SHARE:
        raise unsafe(name, f"it unpacks to {total} bytes, a stub of what the manifest expects")


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
    with job.progress.bar(f"{request.label}: unpacking", total) as bar:
        entries, links = extract_members(source, job.root, placed, bar.advance)
    return complete_tree(job, entries, links, source.name)


def complete_tree(
    job: FillJob, entries: list[TreeEntry], links: dict[str, str], archive: str
) -> tuple[TreeEntry, ...]:
    """Add the archive's links, and the links and small files that the manifest describes.

    Where only a part is wanted, a link to another part is left out.
    """
    layout, release = job.request.layout(), job.request.release
    if not entries and not links and job.only is None:
        raise unsafe(archive, "it contains nothing that the manifest wants")
    for path, text in release.write.items():
        if layout.wants(path) and job.wants(path):
            data = text.lstrip("\n").encode()
            make_parents(job.root, [path])
            with closing(FileWriter(job.root, path, path, len(data))) as writer:
                writer.write(data)
                entries.append(writer.finish(0o444))
    own = {path: end for path, end in release.links.items() if layout.wants(path)}
    wanted = {**links, **{path: end for path, end in own.items() if job.wants(path)}}
    lock = job.request.lock.files if job.request.lock and job.only is not None else ()
    present = [*(entry.path for entry in entries), *(entry.path for entry in lock)]
    if not layout.takes_all:
        left_out = find_dangling(wanted, present)
        if left_out:
            job.progress.step(
                f"{job.request.label}: left out, since they lead to files that are not wanted: "
                + ", ".join(left_out)
            )
        wanted = {path: end for path, end in wanted.items() if path not in left_out}
    entries += make_links(job.root, wanted, archive, present)
    return tuple(sorted(entries, key=lambda entry: entry.path))
