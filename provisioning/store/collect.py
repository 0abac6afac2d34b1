"""Find and remove what can be recreated: unused published trees, builds and packages, leftovers of
killed processes, and parts of the cache.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from provisioning.documents import read_bytes, read_text
from provisioning.files import remove_tree, scratch_directory, walk
from provisioning.store.store import Store, find_published

PART_NAME = re.compile(r"\..+\.([0-9a-f]{8}\.(part|json)|parts|[0-9]+)")
STAGING_NAME = re.compile(r"\..+\.staging-.+")  # see scratch_directory and publish_directory
# A younger one may belong to a process that still runs.
LEFTOVER_AGE_S = 24 * 3600
PROC = Path("/proc")
BUILDS, ORIGIN, FETCHED = "builds", "origin.txt", "packages"
FETCHED_NAME = re.compile(r"[\w.-]+-\d[\w.]*-cpython-\d+")  # NAME-VERSION-PYTHON
Verdict = tuple[bool, str]  # whether a file or directory can be removed, and why
FOREIGN: Verdict = (False, "qnn-ci did not create it")
LEFT = "left by a killed process"


@dataclass(frozen=True)
class Garbage:
    """A file or directory that can be removed, with the number of bytes that this frees."""

    path: Path
    size_bytes: int
    why: str


@dataclass(frozen=True)
class Kept:
    """A file or directory that is kept, and why."""

    path: Path
    why: str


def find_garbage(
    store: Store, needed_names: set[str], filenames: set[str], *, downloads: bool
) -> tuple[list[Garbage], list[Kept]]:
    """Find what can be removed and what is kept. Files that this project did not make are kept.

    ``needed_names`` contains the names of the published directories that profiles need,
    ``filenames`` the names of the files that releases in manifests download. In ``downloads/``,
    leftovers older than a day are garbage. If ``downloads`` is true, files with a name in
    ``filenames`` are, too.
    """
    judged = {path: _judge_tree(path, needed_names) for path in _list(store.trees)}
    judged |= {path: _judge_build(path) for path in sorted((store.home / BUILDS).glob("*"))}
    packages = sorted((store.home / FETCHED).glob("[!.]*"))
    judged |= {path: _judge_package(path) for path in packages}
    noted_users = {}
    for path in judged:
        if user := store.find_user(path):
            noted_users[path] = user
    garbage, kept_paths = _spare_used(judged, noted_users)
    for path in _list(store.downloads):
        if why := _judge_download(path, filenames if downloads else set()):
            garbage.append(Garbage(path, measure(path), why))
    return garbage, kept_paths


def _list(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _spare_used(
    judged: Mapping[Path, Verdict], noted_users: Mapping[Path, int]
) -> tuple[list[Garbage], list[Kept]]:
    """Return what can be removed and what is kept: what was judged so, and what a process uses.
    ``noted_users`` are the IDs of running shells that the store has a record of (see find_user).
    """
    garbage_paths = [path for path, (is_garbage, _) in judged.items() if is_garbage]
    # The notes also find a shell that has only exported the path, and runs nothing from it now.
    users = {**find_users(garbage_paths), **noted_users}
    garbage: list[Garbage] = []
    kept_paths: list[Kept] = []
    for path, (is_garbage, why) in judged.items():
        if is_garbage and path not in users:
            garbage.append(Garbage(path, measure(path), why))
        else:
            kept_paths.append(Kept(path, f"process {users[path]} uses it" if is_garbage else why))
    return garbage, kept_paths


def _judge_tree(path: Path, needed_names: set[str]) -> Verdict:
    if path.is_symlink() or not path.is_dir():
        return FOREIGN
    if STAGING_NAME.fullmatch(path.name):
        is_old = _is_old(path)
        return is_old, LEFT if is_old else "a process may still be writing it"
    if path.name in needed_names:
        return False, "a profile needs it"
    return FOREIGN if made_by_us(path) is None else (True, "no profile needs it")


def _judge_build(path: Path) -> Verdict:
    """Return that a build can be removed if its sources, or the executorch package that its overlay
    is based on, are gone.
    """
    try:
        source = Path(read_text(path / ORIGIN))
    except OSError:
        return False, "it has no record of its sources"
    if not source.is_dir():
        return True, f"its sources are gone: {source}"
    links = (path / "overlay" / "executorch").glob("*")
    # An overlay consists of links into the installed package.
    if any(link.is_symlink() and not link.exists() for link in links):
        return True, "the executorch package that its overlay is based on is gone"
    return False, "its sources exist"


def _judge_package(path: Path) -> Verdict:
    """Return that a package that upgrade-report fetched can be removed, since pip can fetch it
    again. Anything else is kept.
    """
    if path.is_symlink() or not path.is_dir() or not FETCHED_NAME.fullmatch(path.name):
        return FOREIGN
    return True, "a package that upgrade-report fetched"


def made_by_us(path: Path) -> str | None:
    """Return the artifact that this project published in the directory ``path``, or None for any
    other directory.
    """
    published = find_published(path)
    if published is None:
        return None
    _, tree = published
    # A directory of the user's may contain a copy of a tree, so its name has to agree, too.
    prefix = re.escape(f"{tree.artifact}-{tree.version}-")
    return tree.artifact if re.fullmatch(prefix + "[0-9a-f]{12}", path.name) else None


def _judge_download(path: Path, filenames: set[str]) -> str:
    """Return why a file in downloads/ can be removed, or ''."""
    if path.is_dir():
        is_ours, why = path.name.startswith((".pip-", ".update-")), LEFT
    elif path.name in filenames:
        return "a finished download"
    else:
        is_ours, why = bool(PART_NAME.fullmatch(path.name)), "an abandoned download"
    return why if is_ours and _is_old(path) else ""


def _is_old(path: Path) -> bool:
    """Return whether a leftover can be removed; False if it has been removed meanwhile."""
    with suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime > LEFTOVER_AGE_S
    return False


def remove_garbage(store: Store, items: Iterable[Garbage]) -> int:
    """Remove garbage and return the number of freed bytes. A published directory is renamed before
    its files are removed, so that readers never see part of it.
    """
    freed = 0
    for item in items:
        path = item.path
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            with ExitStack() as stack:
                if artifact := made_by_us(path):
                    scratch = scratch_directory(store.trees, artifact, 0o700)
                    path = path.rename(stack.enter_context(scratch) / path.name)
                remove_tree(path)
        freed += item.size_bytes
    return freed


def find_users(directories: Iterable[Path]) -> dict[Path, int]:
    """Map each directory that another process uses to the ID of that process.

    A process uses a directory if it has a file in it open or mapped, runs a program in it, has its
    working directory there, or was started with the directory's path in an environment variable.
    Processes that this user may not inspect are not considered.
    """
    needles = {path: os.fsencode(str(path.resolve())) for path in directories}
    users: dict[Path, int] = {}
    for entry in PROC.iterdir() if needles and PROC.is_dir() else []:
        # This process has the path among its arguments or variables itself.
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        texts, links = _look_into(entry)
        for path, needle in needles.items():
            is_linked = any(end.startswith(needle) for end in links)
            if is_linked or any(needle in text for text in texts):
                users[path] = int(entry.name)
    return users


def _look_into(process: Path) -> tuple[list[bytes], list[bytes]]:
    """Return a process's memory map and environment, and the targets of its links in /proc to its
    working directory, program and open files.
    """
    texts: list[bytes] = []
    for name in ("maps", "environ"):
        with suppress(OSError):
            texts.append(read_bytes(process / name))
    links = [process / "cwd", process / "exe"]
    with suppress(OSError):
        links += (process / "fd").iterdir()
    ends: list[bytes] = []
    for link in links:
        with suppress(OSError):
            ends.append(os.fsencode(str(link.readlink())))
    return texts, ends


def measure(path: Path) -> int:
    """Return the size in bytes of a file, or of all files below a directory. What another process
    removes meanwhile counts as nothing.
    """
    files = (f"{directory}/{name}" for directory, _, names in walk(path) for name in names)
    size_bytes = 0
    for file in [path] if path.is_symlink() or not path.is_dir() else files:
        with suppress(OSError):
            size_bytes += os.lstat(file).st_size
    return size_bytes


CHECKOUT = Path(__file__).resolve().parents[2]
HOME_PARTS = {
    "store": "verified toolchains",
    "downloads": "archives and wheels that toolchains were unpacked from",
    "lowered": "lowered programs",
    "answers": "results of experiments that showed causes",
    "decoders": "published decoders",
    "builds": "build trees and build results",
    FETCHED: "packages that upgrade-report tried",
    "parity": "build files that parity has read",
    "doctor": "results of creating devices",
    "tmp": "inputs of image builds",
}
# The names of what this project writes into each part, except downloads and decoders, which have
# the names of other people's files.
ENTRY_NAMES = {
    "lowered": re.compile(r"[0-9a-f]{2}"),
    "answers": re.compile(r"[0-9a-f]{64}\.json"),
    BUILDS: re.compile(r"[a-z]+-[0-9a-f]{10}"),
    FETCHED: FETCHED_NAME,
    "parity": re.compile(r"found-[0-9a-f]{32}-[0-9a-f]{16}\.json"),
    "doctor": re.compile(r"device-[0-9a-f]{32}\.txt"),
    "tmp": re.compile(r"image-[a-z0-9_]{8}"),
}
# The names in the folders among these.
INNER_NAMES = {"lowered": re.compile(r"[0-9a-f]{64}"), "wheels": re.compile(r"python-3\.\d+")}
# What else this project writes there, or did, and what the file system of a mounted volume has.
HOME_NAMES = frozenset(
    {*HOME_PARTS, "locks", "pins", "uses", "licences.json", "lost+found", "tools", "bench"}
)
ENVIRONMENTS, ABOUT_ENVIRONMENTS = "environments", "Python environments of nox sessions (.nox)"


@dataclass(frozen=True)
class CachePart:
    """A directory with content that can be recreated."""

    name: str
    path: Path
    about: str

    def entries(self) -> Iterator[Path]:
        """Yield its entries, sorted; nothing if the directory is missing or a symbolic link."""
        yield from () if self.path.is_symlink() else _list(self.path)

    def size_bytes(self) -> int:
        """Return the size in bytes of all files below it."""
        return sum(map(measure, self.entries()))


def list_parts(store: Store) -> list[CachePart]:
    """Return every part of the cache, even if it does not exist. The environments of nox are only
    included if this runs from a checkout.
    """
    parts = [CachePart(name, store.home / name, about) for name, about in HOME_PARTS.items()]
    if (CHECKOUT / "noxfile.py").is_file():
        parts.append(CachePart(ENVIRONMENTS, CHECKOUT / ".nox", ABOUT_ENVIRONMENTS))
    return parts


def find_removable(
    store: Store, parts: Iterable[CachePart], decoders: Collection[str] = ()
) -> tuple[list[Garbage], list[Kept]]:
    """Find what can be removed from ``parts`` of the cache, and what is kept because a process uses
    it or this project did not make it. ``decoders`` are the names of the published decoders.
    """
    strangers = find_strangers(store.home)
    judged: dict[Path, Verdict] = {}
    for part in parts:
        for path in part.entries():
            if part.name in HOME_PARTS and not _is_own_entry(store, part, path, decoders):
                judged[path] = FOREIGN
            else:
                judged[path] = _judge(part, path, strangers)
    return _spare_used(judged, {})


def _is_own_entry(store: Store, part: CachePart, path: Path, decoders: Collection[str]) -> bool:
    """Return whether an entry of a part is what this project writes there. ``QNN_CI_HOME`` may be a
    folder that had a ``downloads`` or a ``builds`` of the user's before."""
    if STAGING_NAME.fullmatch(path.name) or PART_NAME.fullmatch(path.name):
        return True
    if part.name == "store":
        return path.is_dir() and made_by_us(path) is not None
    if part.name == "decoders":
        return path.name in decoders
    if part.name == "downloads":
        is_temporary = path.name.startswith((".pip-", ".update-"))
        is_noted = path.is_file() and store.fetched_note(path.name).is_file()
        return is_temporary or is_noted or (path.name == "wheels" and _holds_only(path, path.name))
    if not ENTRY_NAMES[part.name].fullmatch(path.name):
        return False
    return part.name not in INNER_NAMES or _holds_only(path, part.name)


def _holds_only(directory: Path, kind: str) -> bool:
    """Return whether all entries of a directory have names of this kind."""
    if directory.is_symlink() or not directory.is_dir():
        return False
    return all(INNER_NAMES[kind].fullmatch(path.name) for path in directory.iterdir())


def find_strangers(home: Path) -> list[str]:
    """Return the names in the store's directory that this project does not write. If there are any,
    QNN_CI_HOME names a directory with files of the user's, such as the home directory, and
    ``downloads`` or ``tmp`` in it may be the user's, too."""
    return [
        path.name
        for path in _list(home)
        if path.name not in HOME_NAMES
        and not STAGING_NAME.fullmatch(path.name)
        and not PART_NAME.fullmatch(path.name)
    ]


def _judge(part: CachePart, path: Path, strangers: Sequence[str]) -> Verdict:
    if part.name == "store":
        return True, part.about
    # With QNN_CI_HOME=~, `cache clean all` removed the user's own ~/tmp, ~/downloads and ~/builds.
    if strangers and part.name != ENVIRONMENTS:
        return False, f"it may not be of qnn-ci, which did not create {strangers[0]} there either"
    # An environment that contains the Python that runs this, or the nox that started it.
    is_own = path.name.startswith("bootstrap") or Path(sys.prefix).is_relative_to(path)
    if part.name == ENVIRONMENTS and is_own:
        return False, "this command runs from it"
    return True, part.about
