"""Map an archive's members to paths in a tree, refuse unsafe members, and hash files while writing
them.

Each member is checked before it is written. Members are only written into a fresh directory:
regular files with O_EXCL and without following links, and symbolic links after all files.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import IntegrityError
from provisioning.store.tree import (
    DIRECTORY_MODE,
    FILE_TIME_S,
    TreeEntry,
    add_parents,
    find_parents,
)

# As in Linux, which follows at most 40 links (path_resolution(7)).
MAX_LINK_HOPS = 40
MAX_DEPTH = 100
MAX_LINK_BYTES = 4095  # the longest target that Linux allows
MAX_RATIO = 1100  # the highest ratio that deflate can reach is 1032:1
# So that a short member of zeros, which compresses well, is no bomb.
MIN_BOMB_BYTES = 1 << 20
# More than any SDK or compiler has. Beyond this, even the list of members takes too much memory and
# time.
MAX_MEMBERS = 120_000
MAX_DIRECTORIES = 40_000
MAX_NAMES = 32 << 20  # characters of all names and links together
RESERVED_BYTES = 1 << 20
_ODD = re.compile(r"[\x00-\x1f\x7f\\]")
# What surrogateescape makes of bytes that are not UTF-8.
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive, as the archive describes it.

    ``link`` is the target of a link. It is empty for a link in a ZIP, which stores the target as
    the member's content. make_links checks that target.
    """

    name: str
    size: int
    mode: int = 0o644
    kind: str = "file"  # file, dir, symlink, hardlink
    link: str = ""
    offset: int = 0
    compressed: int = 0
    crc: int = 0
    method: int = 0

    @property
    def stored_mode(self) -> int:
        """The mode of the published file: readable by all, writable by none."""
        return (self.mode & 0o555) | 0o444


@dataclass(frozen=True)
class Limits:
    """Limits for an archive's content.

    If ``unpacked_bytes`` is 0, only MAX_RATIO limits the unpacked size. If ``case_collisions`` is
    false, an archive with two names that differ only in case is refused.
    """

    unpacked_bytes: int = 0
    case_collisions: bool = False


CASE = "case_collisions"


def unsafe(archive: str, why: str, *, member: str | None = None, key: str = "") -> IntegrityError:
    """Return the error for an archive that is refused: because of ``member``, if it is given, or
    because of a ``key`` in its artifact's manifest that may be wrong."""
    manifest = f"if it is the right one, correct `{key}` in its artifact's manifest, else "
    return IntegrityError(
        f"{archive} is refused",
        why=why if member is None else f"member {member!r} {why}",
        fix="nothing from it was published; "
        f"{manifest * bool(key)}download the archive from its vendor again",
    )


@contextmanager
def explain_clashes(archive: str) -> Iterator[None]:
    """Turn an error in the block, in which files are written into a fresh directory, into an
    IntegrityError if two of them have the same path, or one is below the other.
    """
    try:
        yield
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        name = Path(error.filename or "").name
        why = f"the manifest puts more than one file at {name!r}, or a file below a file"
        raise unsafe(archive, why) from error


class Layout:
    """Decides where each member is written, according to a release's rules (see Rule in
    manifest/releases.py).

    Without rules, every member keeps its path. ``components`` are globs that select paths in the
    tree; without components, all paths are selected.
    """

    def __init__(
        self, rules: Sequence[tuple[str, str]] = (), components: Sequence[str] = ()
    ) -> None:
        self.rules = [(_glob(take), _fixed_part(take), put) for take, put in rules]
        self.components = [_glob(pattern) for pattern in components]
        self.takes = [take for take, _ in rules]

    def place(self, name: str) -> str:
        """Return the path in the tree for the member ``name``, or '' if no rule takes the member or
        no component contains the path.
        """
        path = "" if self.rules else name
        for pattern, fixed, put in self.rules:
            if pattern.fullmatch(name):
                keeps_name = not put or put.endswith("/")
                path = put + name[len(fixed) :] if keeps_name else put
                break
        return path if path and self.wants(path) else ""

    def wants(self, path: str) -> bool:
        """Return whether the tree's ``path`` belongs to a selected component. Without components,
        every path does.
        """
        return not self.components or any(pattern.fullmatch(path) for pattern in self.components)

    @property
    def takes_all(self) -> bool:
        """Whether every rule takes a whole directory and no components are selected."""
        return not self.components and all(take.endswith("**") for take in self.takes)

    def literal_paths(self) -> set[str]:
        """Return the new paths of all wanted files if every rule takes a single file, else an empty
        set.
        """
        if any(mark in take for take in self.takes for mark in "*?"):
            return set()
        return set(filter(None, map(self.place, self.takes)))


def _fixed_part(take: str) -> str:
    head = re.split(r"[*?\[]", take, maxsplit=1)[0]
    return head[: head.rfind("/") + 1]


def _glob(pattern: str) -> re.Pattern[str]:
    """Return a glob as a regular expression; ``**`` matches ``/``, ``*`` and ``?`` do not.

    After each wildcard, only the first match of the text that follows it is tried. Another one
    could not succeed where the first fails, and trying all of them can take hours.
    """
    numbers = itertools.count()

    def try_once(text: str) -> str:  # (?>...), which needs Python 3.11
        group = f"try{next(numbers)}"
        return f"(?=(?P<{group}>{text}))(?P={group})"

    wild = re.escape(pattern).replace(r"\*", "*").replace(r"\?", "[^/]") + r"\Z"
    regex = ""
    for number, part in enumerate(wild.split("**")):
        first, *later_literals = part.split("*")
        text = first + "".join(try_once(f"[^/]*?{literal}") for literal in later_literals)
        regex += try_once(f".*?{text}") if number else text
    return re.compile(regex, re.DOTALL)


def check_members(archive: str, members: Sequence[Member], limits: Limits) -> None:
    """Check an archive's members together. Raises IntegrityError if one of them could be written
    outside the tree, if two of them clash, or if they exceed a limit.
    """
    kinds: dict[str, str] = {}
    folded: dict[str, str] = {}
    census = Census(archive, limits)
    for member in members:
        census.add(member)
        path = member.name.rstrip("/")
        # A directory may be listed twice; two files with one name would depend on the order of
        # extraction.
        if path in kinds and not (member.kind == "dir" and kinds[path] == "dir"):
            raise unsafe(archive, f"two members are named {path!r}")
        kinds[path] = member.kind
        # On a file system that ignores case, one of the two would replace the other.
        clash = folded.setdefault(path.casefold(), path)
        if clash != path and not limits.case_collisions:
            raise unsafe(archive, f"{clash!r} and {path!r} differ only in case", key=CASE)
    for parent in census.directories:
        name = parent.rstrip("/")
        if (kind := kinds.get(name, "dir")) != "dir":
            inner_path = next(path for path in kinds if path.startswith(parent))
            raise unsafe(archive, f"{name!r} is a {kind} but contains {inner_path!r}")
        clash = folded.get(name.casefold(), name)
        if clash != name and kinds[clash] != "dir" and not limits.case_collisions:
            why = f"{clash!r} and the directory {name!r} differ only in case"
            raise unsafe(archive, why, key=CASE)
    links = {item.name: item.link for item in members if item.kind == "symlink" and item.link}
    files = {member.name: member.size for member in members if member.kind == "file"}
    resolver = LinkResolver(links)
    for member in members:
        if member.name in links:
            resolver.check(archive, member.name)
        if member.kind == "hardlink" and member.link not in files:
            raise unsafe(
                archive,
                f"hard link {member.name!r} points to {member.link!r}, which is not a file in it",
            )
        # Each hard link is hashed again when the tree is verified, and may have to be copied.
        census.count_bytes(files.get(member.link, 0) if member.kind == "hardlink" else 0)


class Census:
    """Checks and counts the members of an archive as they are read."""

    def __init__(self, archive: str, limits: Limits) -> None:
        self.archive, self.limits = archive, limits
        self.members = self.names = self.size = 0
        self.directories: set[str] = set()

    def add(self, member: Member) -> None:
        """Check and count one more member. Raises IntegrityError if it is unsafe or exceeds a
        limit.
        """
        check_name(self.archive, member)
        self.members += 1
        self.names += len(member.name) + len(member.link)
        add_parents(member.name, self.directories)
        for counted, count, limit in (
            ("members", self.members, MAX_MEMBERS),
            ("directories", len(self.directories), MAX_DIRECTORIES),
            ("characters in names", self.names, MAX_NAMES),
        ):
            if count > limit:
                raise unsafe(self.archive, f"it has more than {limit} {counted}")
        self.count_bytes(member.size)
        if member.compressed and member.size > MAX_RATIO * member.compressed + MIN_BOMB_BYTES:
            why = f"has a compression ratio above {MAX_RATIO}:1"
            raise unsafe(self.archive, why, member=member.name)

    def count_bytes(self, count: int) -> None:
        """Add ``count`` to the unpacked size. Raises IntegrityError if it exceeds the limit."""
        self.size += count
        limit = self.limits.unpacked_bytes
        if self.size > limit > 0:
            why = f"it unpacks to more than {limit} bytes"
            raise unsafe(self.archive, why, key="unpacked_bytes")


def check_name(archive: str, member: Member) -> None:
    """Raise IntegrityError if a member's name is unsafe or too long, or if its kind is not
    supported.
    """
    name = member.name
    parts = name.rstrip("/").split("/")
    problems = {
        "has no name": not name.strip("/"),
        # C:/ is absolute on Windows.
        "is an absolute path": name.startswith("/") or bool(re.match(r"[A-Za-z]:", name)),
        "is outside the tree": ".." in parts,
        "has a control character or a backslash in its name": bool(_ODD.search(name)),
        "has an empty or '.' part in its path": not {"", "."}.isdisjoint(parts),
        "has a name that is not UTF-8": bool(_SURROGATE.search(name + member.link)),
        f"is more than {MAX_DEPTH} directories deep": len(parts) > MAX_DEPTH,
        f"is a {member.kind}": member.kind not in {"file", "dir", "symlink", "hardlink"},
    }
    for problem, is_so in problems.items():
        if is_so:
            raise unsafe(archive, problem, member=name[:200])
    # Linux allows names of 255 bytes and paths of 4095; the rest is for the path of the store.
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 2000:
        raise unsafe(archive, "has a name that is too long", member=name[:200])
    if len(member.link.encode()) > MAX_LINK_BYTES:
        why = f"has a target of more than {MAX_LINK_BYTES} bytes"
        raise unsafe(archive, why, member=name[:200])


class LinkResolver:
    """Follows symbolic links, ``links`` (path -> target), in a tree. Each link is followed once."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self.links = links
        self.known: dict[str, tuple[str | None, int]] = {}

    def resolve(self, name: str) -> str | None:
        """Return the final path of ``name``; '' is the tree's root.

        Returns None if the path leaves the tree, if a link is empty, or if there are more than
        MAX_LINK_HOPS links, as in a loop.
        """
        return self._walk(name, MAX_LINK_HOPS)[0]

    def check(self, archive: str, link: str) -> None:
        """Raise IntegrityError if ``link`` leaves the tree or is part of a loop."""
        if self.resolve(link) is None:
            target = self.links[link]
            why = f"link {link!r} points outside the tree or into a loop: {target!r}"
            raise unsafe(archive, why)

    def _walk(self, name: str, max_hops: int) -> tuple[str | None, int]:
        """Return the final path (None as in resolve, or if there are more than ``max_hops`` links),
        and the number of links.
        """
        at: list[str] = []
        hops = 0
        for part in name.split("/"):
            if part == "..":
                if not at:
                    return None, hops
                at.pop()
            elif part not in {"", "."}:
                at.append(part)
                if (path := "/".join(at)) in self.links:
                    end, count = self._follow(path, max_hops - hops)
                    hops += count
                    if end is None or hops > max_hops:
                        return None, hops
                    at = end.split("/") if end else []
        return "/".join(at), hops

    def _follow(self, link: str, max_hops: int) -> tuple[str | None, int]:
        if resolved := self.known.get(link):
            return resolved
        target = self.links[link]
        if max_hops < 1 or not target or target.startswith("/"):
            return None, 1
        end, hops = self._walk(f"{posixpath.dirname(link)}/{target}", max_hops - 1)
        if end is not None:
            # Otherwise, links that point to each other twice would be followed exponentially often.
            self.known[link] = end, hops + 1
        return end, hops + 1


def write_file(
    root: Path, path: str, archive: str, size: int, pieces: Iterable[bytes], *, mode: int
) -> TreeEntry:
    """Write and hash the new regular file ``path`` below ``root``, give it its published mode and
    time, and return its tree entry. Raises OSError, and IntegrityError if ``pieces`` are more or
    fewer than ``size`` bytes.
    """
    count, digest = 0, hashlib.sha256()
    # O_EXCL: a member must not write through a file or a link that an earlier one created.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Private until it is complete. seal_file gives it the published mode.
    fd = os.open(root / path, flags, 0o600)
    try:
        if size > RESERVED_BYTES:  # fails early if the disk is full; keeps blocks contiguous
            os.posix_fallocate(fd, 0, size)
        for data in pieces:
            count += len(data)
            if count > size:
                raise unsafe(archive, f"{path!r} is longer than the declared {size} bytes")
            digest.update(data)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        if count != size:
            raise unsafe(archive, f"{path!r} is {count} bytes long, not the declared {size}")
        seal_file(fd, mode)
    finally:
        os.close(fd)
    return TreeEntry(path, size, mode, digest.hexdigest())


def seal_file(target: int | Path, mode: int) -> None:
    """Give a file its published mode and time. ``target`` is a path or a descriptor."""
    os.utime(target, (FILE_TIME_S, FILE_TIME_S))
    os.chmod(target, mode)  # noqa: PTH101 - target may be a descriptor


def make_parents(root: Path, paths: Iterable[str]) -> None:
    """Create the parent directories of ``paths``, which are relative to ``root``."""
    for parent in sorted({posixpath.dirname(path) for path in paths}):
        (root / parent).mkdir(parents=True, exist_ok=True)


def make_directories(root: Path, paths: Sequence[str]) -> list[TreeEntry]:
    """Create the directories ``paths``, each of which ends with ``/``, and return their tree
    entries."""
    make_parents(root, paths)
    return [TreeEntry(path, mode=DIRECTORY_MODE) for path in paths]


def place_members(members: Sequence[Member], layout: Layout) -> Iterator[tuple[str, Member]]:
    """Yield each wanted member with its path in the tree, except directories that are not empty.
    A directory that is listed more than once is yielded once.
    """
    parents = find_parents(member.name for member in members)
    for member in members:
        if member.kind == "dir":
            name = member.name.rstrip("/")
            path = layout.place(name)
            if path and f"{name}/" not in parents:
                parents.add(f"{name}/")
                yield f"{path.rstrip('/')}/", member
        elif path := layout.place(member.name):
            yield path, member


def make_links(
    root: Path, links: Mapping[str, str], archive: str, present: Iterable[str]
) -> list[TreeEntry]:
    """Create symbolic links (path -> target); call it after all files are written.

    ``present`` are all other paths of the tree. Raises IntegrityError if a link points outside the
    tree, if links form a loop, or if a link's target, resolved through the tree's links, is
    missing.
    """
    resolver = LinkResolver(links)
    for path in links:
        resolver.check(archive, path)
    if dangling := find_dangling(links, present):
        path = dangling[0]
        raise unsafe(archive, f"link {path!r} points to {links[path]!r}, which is not in the tree")
    make_parents(root, links)
    # Last, so that no file can be written through a link.
    for path, target in links.items():
        (root / path).symlink_to(target)
    return [TreeEntry(path, link=target) for path, target in sorted(links.items())]


def find_dangling(links: Mapping[str, str], present: Iterable[str]) -> list[str]:
    """Return the sorted paths of links with a target that is not in the tree."""
    existing = {path.rstrip("/") for path in present if path not in links}
    existing |= {path.rstrip("/") for path in find_parents([*existing, *links])} | {""}
    resolver = LinkResolver(links)
    return sorted(path for path in links if resolver.resolve(path) not in existing)
