"""The content-addressed store: lock artifacts, and publish their directories with one rename.

``store/<artifact>-<version>-<digest>/`` contains ``tree.json`` and, in a directory named after the
artifact, the tree. Readers ignore a directory until it has its final name and a tree.json. A
published directory is never changed: a repair replaces it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.console.process import is_ending
from provisioning.console.progress import Progress
from provisioning.documents import read_user_file
from provisioning.errors import IntegrityError, StoreError, UsageError
from provisioning.files import (
    SPARE_BYTES,
    clear_staging,
    free_bytes,
    is_stream,
    mib,
    publish_directory,
    scratch_directory,
    write_whole,
)
from provisioning.store.home import (
    HOME_VARIABLE,
    OTHERS_WRITE,
    explain_errors,
    make_directories,
    store_home,
)
from provisioning.store.lock import HeldLock, find_callers, is_alive
from provisioning.store.tree import DIRECTORY_MODE, Difference, Tree, encode_record, parse_tree

TREE_FILE = "tree.json"
LOCK_POLL_S = 0.05
_announced_homes: set[Path] = set()


@dataclass(frozen=True)
class Key:
    """The identity of a published directory; ``recipe`` determines its content."""

    artifact: str
    version: str
    recipe: Any

    @property
    def directory(self) -> str:
        """The directory's name: ``<artifact>-<version>-<short digest>``."""
        canonical = json.dumps(self.recipe, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:12]
        return f"{self.artifact}-{self.version}-{digest}"


@dataclass(frozen=True)
class Published:
    """An artifact that was published in the directory ``path`` of the store."""

    path: Path
    artifact: str

    @property
    def root(self) -> Path:
        """The root of the artifact's tree."""
        return self.path / self.artifact

    @property
    def owners(self) -> frozenset[int]:
        """The IDs of the users who may own its files: this user, root, the owner of the store and,
        if others may write to the store, the user who published it.
        """
        home = self.path.parents[1].stat()
        publishers = {self.path.lstat().st_uid} if home.st_mode & OTHERS_WRITE else set[int]()
        return frozenset({0, os.geteuid(), home.st_uid} | publishers)

    def find_exposed(self, owners: frozenset[int]) -> Iterator[Difference]:
        """Yield a Difference for each place that users other than ``owners`` can change: the tree's
        root, the published directory, its tree.json, and ``store/``. Write access to ``store/`` is
        accepted if others may also write to the store's home.
        """
        home = self.path.parents[1].stat().st_mode
        places = (("./", self.root), ("../", self.path), ("../tree.json", self.path / TREE_FILE))
        for label, path in (*places, ("../../", self.path.parent)):
            is_outside = path == self.path.parent
            state = path.stat() if is_outside else path.lstat()  # may be a link to a larger disk
            if state.st_mode & OTHERS_WRITE & ~(home if is_outside else 0):
                yield Difference(label, "wrong mode", f"{stat.S_IMODE(state.st_mode):o}")
            elif state.st_uid not in owners and not (is_outside and home & OTHERS_WRITE):
                yield Difference(label, "belongs to another user", str(state.st_uid))

    def read_tree(self) -> Tree | None:
        """Return the published directory's tree.json, or None if it is missing, invalid, empty or
        of another artifact.
        """
        try:
            tree = parse_tree(read_user_file(self.path / TREE_FILE, "the list of files"))
        except (UsageError, ValueError):
            return None
        is_own = self.path.name.startswith(f"{tree.artifact}-{tree.version}-")
        return tree if is_own and tree.artifact == self.artifact and tree.files else None


def find_published(path: Path) -> tuple[Published, Tree] | None:
    """Return the artifact published in the directory ``path``, with its tree; None if ``path`` does
    not contain an artifact with a valid tree.json.
    """
    with suppress(OSError):  # removed meanwhile, or it cannot be read
        for child in path.iterdir() if path.is_dir() else ():
            published = Published(path, child.name)
            if child.is_dir() and (tree := published.read_tree()):
                return published, tree
    return None


class Store:
    """The store in the directory ``home``."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or store_home()
        self.trees = self.home / "store"
        self.downloads = self.home / "downloads"
        self.locks = self.home / "locks"
        self.pins = self.home / "pins"
        self.uses = self.home / "uses"

    def find(self, key: Key) -> Published | None:
        """Return the published directory of ``key``, or None if there is none. This reads only
        three inodes.

        A symbolic link is ignored, since it can point outside the store.
        """
        published = Published(self.trees / key.directory, key.artifact)
        return published if _is_published(published) else None

    def editions(self, key: Key) -> Iterator[Published]:
        """Yield all published directories of the key's artifact and version, including those with
        damaged files.
        """
        for path in sorted(self.trees.glob(f"{key.artifact}-{key.version}-*")):
            if _is_published(published := Published(path, key.artifact)):
                yield published

    @contextmanager
    def lock(self, names: Iterable[str], progress: Progress) -> Iterator[None]:
        """Hold the locks ``names`` (artifacts, or files in downloads/) during the block. Empty
        names are ignored.

        If another process holds a lock, prints that process's ID, and waits. Raises StoreError.
        """
        with ExitStack() as stack:
            # In order, so that no two processes wait for each other. Names may be equal.
            for name in sorted({*names} - {""}):
                guard = self._guard(name)
                with explain_errors(self.home):
                    make_directories(self.home)
                    self._wait(guard, name, progress)
                stack.callback(guard.release)
            yield

    def _wait(self, guard: HeldLock, name: str, progress: Progress) -> None:
        is_said = False
        while not guard.take():
            if is_ending():
                problem = f"the wait for {name} was ended"
                raise StoreError(problem, why="the command was interrupted", fix="run it again")
            if not is_said:
                holder = guard.read_holder()
                who = f"another process ({holder})" if holder else "another process"
                progress.step(f"{name}: waiting for {who}, which has locked it")
                is_said = True
            time.sleep(LOCK_POLL_S)

    def say_who_writes(self, progress: Progress) -> None:
        """Warn once if other users can change files in the store, including programs that are run
        from it.
        """
        if self.home in _announced_homes or not self.home.is_dir():
            return
        _announced_homes.add(self.home)
        state = self.home.stat()
        if state.st_uid not in {0, os.geteuid()}:
            who = f"belongs to user {state.st_uid}, who"
        elif state.st_mode & OTHERS_WRITE:
            who = f"has mode {stat.S_IMODE(state.st_mode):o}: other users"
        else:
            return
        progress.step(
            f"the store {self.home} {who} can change what you run from it; "
            f"unless this is intended, set {HOME_VARIABLE} to a directory that you own"
        )

    def _guard(self, name: str) -> HeldLock:
        """Return the lock ``name``. Its file has mode 0644, plus the permissions to read and write
        that ``self.home`` gives to others.
        """
        shared = self.home.stat().st_mode & 0o066 if self.home.is_dir() else 0
        return HeldLock(self.locks / f"{name}.lock", 0o644 | shared)

    @contextmanager
    def stage(self, key: Key) -> Iterator[Path]:
        """Yield a fresh directory in which ``key`` can be built; remove it after the block, unless
        it was published.

        Leftovers of killed processes are removed first.
        """
        with explain_errors(self.home):
            make_directories(self.home)
            # Private until it is published: nobody may change a file between its check and the
            # rename.
            with scratch_directory(self.trees, key.artifact, 0o700) as path:
                (path / key.artifact).mkdir()
                yield path

    def write_record(self, path: Path, data: bytes) -> None:
        """Write ``data`` to the file ``path`` in the store. A link, a pipe or a device at ``path``
        is replaced. Raises StoreError.
        """
        with explain_errors(self.home):
            make_directories(self.home)
            # A write to a pipe would wait for its reader.
            if path.is_symlink() or is_stream(path):
                path.unlink()
            write_whole(path, data)
            path.chmod(0o644)

    def note_use(self, root: Path) -> None:
        """Record for ``gc`` that the calling shell has ``root`` in its environment variables. Does
        nothing if ``root`` is not in the store.
        """
        if not root.is_relative_to(self.trees):
            return
        name = root.relative_to(self.trees).parts[0]
        with suppress(OSError):  # a read-only store
            self.uses.mkdir(exist_ok=True)
            for pid, start in find_callers():
                (self.uses / f"{name}.{pid}.{start}").touch()

    def note_download(self, filename: str) -> None:
        """Record for ``cache clean`` that this project wrote the file ``filename`` in downloads/. A
        user may have put the others there."""
        with suppress(OSError):  # then it is kept
            self.fetched_note(filename).touch()

    def fetched_note(self, filename: str) -> Path:
        """Return the path of the record that this project wrote a file in downloads/."""
        return self.locks / f"{filename}.fetched"

    def find_user(self, path: Path) -> int | None:
        """Return the process ID of a running shell that note_use recorded for the published
        directory ``path``, or None if there is none. Records of shells that have ended are removed.
        """
        for note in self.uses.glob(f"{glob.escape(path.name)}.*.*"):
            pid, start = note.name.rsplit(".", 2)[1:]
            if is_alive(pid, start):
                return int(pid)
            with suppress(OSError):  # removed meanwhile, or not made by note_use
                note.unlink()
        return None

    def sweep(self, artifact: str) -> None:
        """Remove unpublished directories of ``artifact`` that killed processes left."""
        clear_staging(self.trees / artifact)

    def publish(self, key: Key, staged: Path, tree: Tree) -> Published:
        """Publish ``staged`` under the key's name with one rename. All users can read the result.
        Raises StoreError, and IntegrityError for a file name that is not UTF-8.
        """
        try:
            record = encode_record(tree)
        except UnicodeEncodeError as error:
            raise IntegrityError(
                f"{key.artifact} {key.version} has a file name that is not UTF-8",
                why=repr(error.object),
                fix="rename the file where it comes from, or use another release",
            ) from error
        with explain_errors(self.home):
            (staged / TREE_FILE).write_bytes(record)
            (staged / TREE_FILE).chmod(0o644)
            # Until now, its directories have the umask's permissions.
            for directory, _, _ in os.walk(staged):
                Path(directory).chmod(DIRECTORY_MODE)
            target = self.trees / key.directory
            if target.is_symlink():
                target.unlink()
            publish_directory(staged, target)
        return Published(target, key.artifact)

    def check_space(self, needed_bytes: int, purpose: str) -> None:
        """Raise StoreError unless ``needed_bytes`` and SPARE_BYTES are free on the disk of
        ``self.home``. ``purpose`` names in the message what needs the space.
        """
        free = free_bytes(self.home)
        if free < needed_bytes + SPARE_BYTES:
            raise StoreError(
                f"not enough space for {purpose} in {self.home}",
                why=f"it needs {mib(needed_bytes + SPARE_BYTES)}, but only {mib(free)} are free",
                fix=f"free some space, run `qnn-ci cache gc`, or set {HOME_VARIABLE}",
            )


def _is_published(published: Published) -> bool:
    # With its record: what a failed download left must not count as an artifact.
    expected_kinds = [
        (published.path, stat.S_ISDIR),
        (published.path / TREE_FILE, stat.S_ISREG),
        (published.root, stat.S_ISDIR),
    ]
    try:
        return all(is_kind(path.lstat().st_mode) for path, is_kind in expected_kinds)
    except OSError:
        return False


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` a hard link to the published file ``source``, or a copy if ``source`` belongs
    to another user or cannot be linked.
    """
    try:
        # The owner of a hard-linked file could change it later.
        if source.lstat().st_uid != os.geteuid():
            raise PermissionError
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
