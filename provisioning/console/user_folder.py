"""Write into folders that also contain files of the user, without losing any of these.

A folder has a record, RECORD, of the files that this project wrote there, with the SHA-256 of each.
A file that is not in it, or whose content is another one, is the user's: it is refused, or moved
aside. Files are staged as a whole in the folder and then renamed, so that links are replaced and
never written through. The record names the old and the new content before the first file is
renamed, so that a killed command leaves only files that the same command recognises.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioning.console.allowance import PROC
from provisioning.console.caller import shown_path
from provisioning.console.process import is_ending
from provisioning.console.progress import Progress
from provisioning.documents import DocumentError, decode_json, read_bytes, read_text
from provisioning.errors import StoreError, UsageError
from provisioning.files import (
    ELSEWHERE,
    explain_writes,
    hash_file,
    is_stream,
    leads_out,
    publish_directory,
    scratch_directory,
    walk,
    write_named,
    write_whole,
)

RECORD = ".qnn-ci-written.json"
SCRATCH = "qnn-ci"  # of the directory in which files are staged
NOT_OURS, CHANGED = "this command did not write it", "it was changed after this command wrote it"
# Without a record, both are possible.
DIFFERS = "it differs from what this command writes: it was changed since, or comes from elsewhere"
MOVE_ASIDE = "move it away, or pass --force, which renames it"
POLL_S = 0.2
MOST_NAMED = 10
Recognise = Callable[[Path], bool]


@dataclass
class Record:
    """What was written into a folder: the hashes that each file may have (two while it is being
    replaced), and ``about``, what the verb has to know of its earlier runs."""

    files: dict[str, list[str]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)


@dataclass
class UserFolder:
    """A folder of a user's that a verb writes into. ``fix`` says what to do about a file of the
    user's that is in the way. ``recognise`` returns whether a file that is not in the record is of
    a kind that only this project writes. With ``has_record=False``, there is no record, and each
    existing file with another content is the user's."""

    path: Path
    fix: str = MOVE_ASIDE
    recognise: Recognise | None = None
    has_record: bool = True

    @property
    def record(self) -> Record:
        """The record, empty if there is none or if it is not one of ours."""
        with suppress(DocumentError, OSError):
            return decode_json(read_bytes(self.path / RECORD), Record)
        return Record()

    def find_foreign(
        self, names: Iterable[str], fresh: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return why files are the user's, by name. ``fresh`` are the hashes of what will be
        written: a file that has this content already is none of the user's."""
        record = self.record if self.has_record else Record()
        reasons = {}
        for name in names:
            path = self.path / name
            if not os.path.lexists(path):
                continue
            hashes = record.files.get(name, [])
            expected = {*hashes, *([fresh[name]] if fresh and name in fresh else [])}
            # Only a file that may be ours is hashed: one of 40 GB took a minute.
            if expected and hash_entry(path) in expected - {""}:
                continue
            if not hashes and self.recognise and path.is_file() and self.recognise(path):
                continue
            unknown = NOT_OURS if self.has_record else DIFFERS
            reasons[name] = CHANGED if hashes else unknown
        if self.has_record and not record.files and os.path.lexists(self.path / RECORD):
            reasons[RECORD] = NOT_OURS
        return reasons

    def require_ours(self, names: Iterable[str], fresh: Mapping[str, str] | None = None) -> None:
        """Raise UsageError if a file of ``names`` exists and is the user's."""
        refuse(self.path, self.find_foreign(names, fresh), self.fix)

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield a directory in the folder for new files; it is removed after the block. Raises
        StoreError if the folder cannot be written."""
        with explain_writes(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with scratch_directory(self.path, SCRATCH) as scratch:
                yield scratch

    def publish(
        self,
        scratch: Path,
        *,
        force: bool = False,
        about: Mapping[str, Any] | None = None,
        obsolete: Iterable[str] = (),
    ) -> WrittenFiles:
        """Give the files below ``scratch`` their names in the folder, in the order of their names,
        and remove the ``obsolete`` ones that this project wrote.

        With ``force``, files of the user's that are in the way are renamed. Raises UsageError if
        there are any otherwise, and StoreError if a file cannot be written. Call it while the
        folder is locked, see ``lock_folder``.
        """
        fresh = {name: hash_entry(scratch / name) for name in list_entries(scratch)}
        record, foreign = self.record, self.find_foreign(fresh, fresh)
        # Again, since the user may have written a file after the check before the work.
        if foreign and not force:
            refuse(self.path, foreign, self.fix)
        aside = {}
        present = {name: hash_entry(self.path / name) for name in fresh}
        written = [name for name in fresh if name in foreign or present[name] != fresh[name]]
        with explain_writes(self.path):
            if RECORD in foreign:
                aside[RECORD] = move_aside(self.path / RECORD)
                record = Record()
            files = {name: list(hashes) for name, hashes in record.files.items()}
            for name, digest in fresh.items():
                # What the user wrote is not recorded: it will be moved aside.
                previous = [present[name]] if present[name] and name not in foreign else []
                # Both contents, until all files are renamed: a killed command leaves either, and
                # the next one has to recognize both as ours.
                files[name] = list(dict.fromkeys([*previous, digest]))
            if self.has_record:
                self._write_record(Record(files, record.about))
            for name in written:
                path = self.path / name
                if name in foreign:
                    aside[name] = move_aside(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                # A link at this path is replaced. A write would go through it to another file.
                (scratch / name).replace(path)
            for name in obsolete:
                path = self.path / name
                hashes = files.pop(name, [])
                # The record is a file in the user's folder, so what it says is checked.
                if not leads_out(name) and os.path.lexists(path) and hash_entry(path) in hashes:
                    path.unlink()
            if self.has_record:
                final = {**files, **{name: [digest] for name, digest in fresh.items()}}
                self._write_record(Record(final, dict(about or record.about)))
        return WrittenFiles(tuple(fresh), tuple(written), tuple(aside.values()))

    def remove_written(self) -> None:
        """Remove the files that this project wrote and that are unchanged, and the record. Other
        files stay. Raises StoreError."""
        # The record is a file in the user's folder, so what it says is checked.
        files = {name: row for name, row in self.record.files.items() if not leads_out(name)}
        with explain_writes(self.path):
            for name, hashes in files.items():
                path = self.path / name
                if hash_entry(path) in {*hashes} - {""}:
                    path.unlink()
            if files:
                (self.path / RECORD).unlink()
        directories = {self.path / parent for name in files for parent in Path(name).parents}
        for directory in sorted(directories, reverse=True):  # a directory follows those in it
            with suppress(OSError):  # it is not empty
                directory.rmdir()

    def _write_record(self, record: Record) -> None:
        data = {"schema_version": 1, "files": record.files, "about": record.about}
        write_whole(self.path / RECORD, json.dumps(data, indent=1) + "\n")


@dataclass(frozen=True)
class WrittenFiles:
    """The names of all files, of those that were not there before with the same content, and the
    new paths of the user's files that were in the way."""

    names: tuple[str, ...]
    written: tuple[str, ...]
    aside: tuple[Path, ...]

    def say_aside(self, progress: Progress) -> None:
        """Print where the user's files are now."""
        for path in self.aside:
            progress.step(f"an existing file was renamed: it is now {shown_path(path)}")


def refuse(folder: Path, reasons: Mapping[str, str], fix: str) -> None:
    """Raise UsageError if there are ``reasons`` why files in a folder must not be replaced."""
    if reasons:
        shown = [str(folder / name) if name else str(folder) for name in reasons][:MOST_NAMED]
        excess = len(reasons) - len(shown)
        names = ", ".join(shown_path(Path(name)) for name in shown)
        raise UsageError(
            f"{names}{f' and {excess} more' if excess else ''} would be overwritten",
            why="; ".join(dict.fromkeys(reasons.values())),
            fix=fix,
        )


def hash_entry(path: Path) -> str:
    """Return the SHA-256 of a file's content, and a symbolic link's target as text; "" for anything
    else, such as a directory, a pipe, or a file that cannot be read."""
    try:
        # A link is compared by its target's path: its content belongs to somebody else.
        return f"link:{path.readlink()}" if path.is_symlink() else hash_file(path)
    except OSError:
        return ""


def list_entries(directory: Path) -> list[str]:
    """Return the paths of all files and links below a directory, relative to it, sorted."""
    names = []
    for top, folders, files in walk(directory):
        links = [name for name in folders if (top / name).is_symlink()]
        names += [(top / name).relative_to(directory).as_posix() for name in (*files, *links)]
    return sorted(names)


def move_aside(path: Path) -> Path:
    """Rename a file or directory, and return its new path: ``NAME.old``, or ``NAME.old-2`` and so
    on if that exists. Raises OSError."""
    names = (
        f"{path.name}.old{f'-{number}' if number > 1 else ''}" for number in itertools.count(1)
    )
    target = next(path.with_name(name) for name in names if not os.path.lexists(path.parent / name))
    path.rename(target)
    return target


@contextmanager
def lock_folder(directory: Path, progress: Progress) -> Iterator[None]:
    """Lock a directory, which is created if needed, during the block. If another process has locked
    it, say which one, and wait. Raises StoreError.

    The lock is on the directory itself, so that there is no other file in it. File systems that
    cannot lock directories, such as NFS, are not locked.
    """
    with explain_writes(directory):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    is_said = False
    try:
        # Polled, so that an interrupt also ends the wait of another thread.
        while not _take(descriptor):
            if is_ending():
                text = f"the wait for {shown_path(directory)} was ended"
                raise StoreError(text, why="the command was interrupted", fix="run it again")
            if not is_said:
                holder = find_holder(os.fstat(descriptor))
                progress.step(f"{shown_path(directory)}: waiting for {holder}, which writes there")
                is_said = True
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not supported, as on NFS
        return True
    return True


def find_holder(state: os.stat_result) -> str:
    """Return the process that has locked a file, such as ``process 12 (qnn-ci mend)``."""
    # As the kernel writes a file in /proc/locks.
    device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
    with suppress(OSError, DocumentError, ValueError):
        for line in read_text(PROC / "locks").splitlines():
            words = line.split()  # proc(5): number, kind, ADVISORY, WRITE, process, file, ...
            if words[1:2] == ["FLOCK"] and words[5:6] == [device] and int(words[4]) > 0:
                command = read_bytes(PROC / words[4] / "cmdline").split(b"\0")
                shown = " ".join(os.fsdecode(word) for word in command).strip()
                return f"process {words[4]} ({shown[:80]})"
    return "another process"


def edit_file(path: Path, before: bytes, after: bytes, fix: str = ELSEWHERE) -> None:
    """Replace the content of a user's file, which was ``before`` when it was read, by rename. It
    keeps its permissions. Raises UsageError if the file was changed since or is a link, and
    StoreError if it cannot be written, with ``fix``."""
    with explain_writes(path, fix):
        require_no_link(path)
        # An editor may have saved the file while this command ran.
        if read_bytes(path) != before:
            why = "it was changed while this command ran"
            raise UsageError(
                f"{shown_path(path)} was not edited", why=why, fix="run the command again"
            )
        mode = stat.S_IMODE(path.stat().st_mode)
        with scratch_directory(path.parent, SCRATCH) as scratch:
            fresh = scratch / path.name
            fresh.write_bytes(after)
            fresh.chmod(mode)
            fresh.replace(path)


def require_no_link(path: Path) -> None:
    """Raise UsageError if a user's file that will be edited is a symbolic link."""
    if path.is_symlink():
        raise UsageError(
            f"{shown_path(path)} cannot be edited",
            why=f"it is a symbolic link to {path.readlink()}, which others may use",
            fix="pass the path of the file itself",
        )


def write_output(
    path: Path, data: bytes, recognise: Recognise, fix: str, *, force: bool = False
) -> Path | None:
    """Write the single file that an option of the user names. It replaces a file that ``recognise``
    accepts; another one is the user's, and is refused, or renamed with ``force``. Pipes and devices
    are written in place. Return the new path of a renamed file. Raises UsageError and
    StoreError."""
    aside = None
    with explain_writes(path):
        if not is_stream(path):
            require_output(path, recognise, fix, force=force, data=data)
            if force and not _is_free(path, recognise, data):
                aside = move_aside(path)
        write_named(path, data)
    return aside


def require_output(
    path: Path, recognise: Recognise, fix: str, *, force: bool = False, data: bytes = b""
) -> None:
    """Raise UsageError if ``write_output`` would refuse a path."""
    if not force and not is_stream(path) and not _is_free(path, recognise, data):
        refuse(path.parent, {path.name: NOT_OURS}, fix)


def _is_free(path: Path, recognise: Recognise, data: bytes) -> bool:
    """Return whether there is no file of the user's at ``path``. An empty file has no content to
    lose."""
    if not os.path.lexists(path):
        return True
    if not path.is_file():
        return False
    # Only a file of the right size is hashed: one of 40 GB took a minute.
    size = path.lstat().st_size
    contents = [content for content in (b"", data) if len(content) == size]
    hashes = {hashlib.sha256(content).hexdigest() for content in contents}
    return bool(hashes and hash_entry(path) in hashes) or recognise(path)


@contextmanager
def owned_directory(target: Path, fix: str = MOVE_ASIDE, *, force: bool = False) -> Iterator[Path]:
    """Yield a fresh directory that replaces ``target`` as a whole if the block succeeds. It gets a
    record of its files.

    Raises UsageError if ``target`` contains something that is not in its record or was changed
    since, before the block and before it is replaced. With ``force``, ``target`` is renamed then.
    Raises OSError if it cannot be written.
    """
    require_owned(target, fix, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(target.parent, target.name) as staging:
        yield staging
        hashes = {name: [hash_entry(staging / name)] for name in list_entries(staging)}
        UserFolder(staging)._write_record(Record(hashes))
        require_owned(target, fix, force=force)
        if force and find_unowned(target):
            move_aside(target)
        publish_directory(staging, target)


def require_owned(target: Path, fix: str = MOVE_ASIDE, *, force: bool = False) -> None:
    """Raise UsageError if ``owned_directory`` would refuse ``target``."""
    if not force:
        refuse(target, find_unowned(target), fix)


def find_unowned(target: Path) -> dict[str, str]:
    """Return why entries of a directory are the user's, by path. The path is "" if ``target`` is no
    directory."""
    if not os.path.lexists(target) or (target.is_symlink() and target.is_dir()):
        return {}  # a link is replaced; the files stay in the directory that it names
    if not target.is_dir() or target.is_symlink():
        return {"": NOT_OURS}
    entries = [name for name in list_entries(target) if name != RECORD]
    folder = UserFolder(target)
    record = folder.record
    return folder.find_foreign(entries) if entries or record.files else {}
