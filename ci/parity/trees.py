"""The files of a source tree: of a directory, or of a revision in a git directory.

Also the files of each Buck package in it, and Buck's glob() of them: ``*`` does not match ``/``,
``**`` does, and files of sub-packages are excluded. Also the line of a build file that mentions a
recorded name: Starlark passes values to a rule without their positions, so a name is looked up as a
string literal. The build file is searched first, if possible from the line of the target on. Then
the files that the build file loads are searched.

A revision is read with ``git ls-tree`` and ``git cat-file --batch``, without a checkout.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ci.parity.facts import Place
from ci.parity.policy import Layout, compile_pattern
from provisioning.console.git import ask_git, is_git_directory, parse_submodules, read_commit
from provisioning.documents import read_text
from provisioning.errors import MissingToolError, ToolError, UsageError

NO_LAYOUT = Layout()
LEFT_OUT = frozenset({".git", "buck-out", "cmake-out", "node_modules", "__pycache__", ".venv"})
# Such folders are left out: with the environments in its .nox, parity of this project took 1.6 s of
# CPU instead of 0.4 s.
MARKS = frozenset({"CMakeCache.txt", "pyvenv.cfg"})  # of a build tree and a Python environment
SUBMODULE_MODE = "160000"
LINK_MODE = "120000"


class SourceTree:
    """The files of one state of a source tree, and the names of its project.

    ``name`` is the name of the tree in reports.
    """

    layout: Layout
    name: str

    @cached_property
    def files(self) -> frozenset[str]:
        """The paths of all files."""
        raise NotImplementedError

    @cached_property
    def links(self) -> Mapping[str, str]:
        """The targets of symbolic links. The keys are paths. It is empty if ``read`` follows
        links."""
        return {}

    @cached_property
    def submodules(self) -> tuple[str, ...]:
        """The paths in .gitmodules, whether the submodules are checked out or not."""
        return parse_submodules(self.read(".gitmodules") or "")

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it does not exist or cannot be read."""
        raise NotImplementedError

    def read_all(self, paths: Iterable[str]) -> None:
        """Prepare to read many files at once."""

    def digest(self, path: str) -> str:
        """Return a hash of the content of a file, or "" if there is no such file."""
        text = self.read(path)
        return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:20]


class DirectoryTree(SourceTree):
    """A checkout or any other directory with its current content, including untracked files."""

    def __init__(self, root: Path, layout: Layout = NO_LAYOUT) -> None:
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory", fix="pass a checkout with --source")
        self.root = root
        self.source = (root, "")  # a directory and a commit, for a worker
        self.layout = layout
        self.name = show_path(str(root))
        self._texts: dict[str, str | None] = {}

    @cached_property
    def files(self) -> frozenset[str]:
        """The paths of all files except version control, build output, Python environments and
        caches.
        """
        paths: list[str] = []
        for folder, names, files in os.walk(self.root):
            relative = os.path.relpath(folder, self.root).replace(os.sep, "/")
            if relative != "." and not MARKS.isdisjoint(files):
                names.clear()
                continue
            names[:] = [name for name in names if name not in LEFT_OUT]
            prefix = "" if relative == "." else relative + "/"
            paths.extend(prefix + name for name in files)
        return frozenset(map(show_path, paths))

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it cannot be read."""
        if path not in self._texts:
            self._texts[path] = None
            with suppress(OSError, ValueError):  # a name with a NUL
                self._texts[path] = read_text(self.root / path, "replace")
        return self._texts[path]


class RevisionTree(SourceTree):
    """A revision of a git directory, read without a work tree."""

    def __init__(self, git_dir: Path, revision: str, layout: Layout = NO_LAYOUT) -> None:
        self.git_dir = git_dir
        self.layout = layout
        self.commit = resolve_revision(git_dir, revision)
        self.name = self.commit
        self.source = (git_dir, self.commit)
        self._texts: dict[str, str | None] = {}

    @cached_property
    def _listing(self) -> dict[str, tuple[str, str]]:
        raw = ask_git(self.git_dir, "ls-tree", "-r", "-z", "--full-tree", self.commit)
        listing = {}
        for row in raw.decode("utf-8", "surrogateescape").split("\0"):
            if row:
                meta, path = row.split("\t", 1)
                mode, _, blob = meta.split(" ")
                listing[show_path(path)] = (mode, blob)
        return listing

    @cached_property
    def files(self) -> frozenset[str]:
        """The paths of all files in the revision, without the files of submodules."""
        return frozenset(p for p, (mode, _) in self._listing.items() if mode != SUBMODULE_MODE)

    @cached_property
    def submodules(self) -> tuple[str, ...]:
        """The paths of submodules in the revision and in .gitmodules."""
        links = {p for p, (mode, _) in self._listing.items() if mode == SUBMODULE_MODE}
        return tuple(sorted(links | set(parse_submodules(self.read(".gitmodules") or ""))))

    @cached_property
    def links(self) -> Mapping[str, str]:
        """The targets of symbolic links. The keys are the paths of the links."""
        rows = [path for path, (mode, _) in self._listing.items() if mode == LINK_MODE]
        self.read_all(rows)
        return {path: self._texts.get(path) or "" for path in rows}

    def read(self, path: str) -> str | None:
        """Return the text of a file in the revision, or None if there is none."""
        self.read_all([path])
        return self._texts[path]

    def read_all(self, paths: Iterable[str]) -> None:
        """Read many files with one git process."""
        unread = [path for path in paths if path not in self._texts]
        listed = [path for path in unread if path in self._listing]
        self._texts.update(dict.fromkeys(unread))
        if not listed:
            return
        request = "".join(f"{self._listing[path][1]}\n" for path in listed)
        raw = ask_git(self.git_dir, "cat-file", "--batch", data=request.encode())
        for path, content in zip(listed, split_batch(raw), strict=True):
            self._texts[path] = None if content is None else content.decode("utf-8", "replace")

    def digest(self, path: str) -> str:
        """Return git's object name for the content of a file, or "" if there is no such file."""
        return self._listing.get(path, ("", ""))[1]


def show_path(path: str) -> str:
    """Return a path as text that can be printed. A byte that is not UTF-8 becomes text such as
    ``\\udcff``.
    """
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


def open_tree(source: Path, revision: str | None, layout: Layout = NO_LAYOUT) -> SourceTree:
    """Return the tree of a directory. If ``revision`` is given, or ``source`` is a bare git
    directory, return the tree of the revision, by default HEAD.

    Raises UsageError if ``source`` is not a directory, has no git directory for the revision, or
    lacks files that git leaves out of it.
    """
    git_dir = find_git_dir(source)
    if revision is None and git_dir != source:
        if git_dir and (missing := list_left_out(source)):
            others = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise UsageError(
                f"{source} lacks {show_path(missing[0])}{others}",
                why="the index marks this as left out of the work tree, as in a sparse checkout",
                fix="pass --rev HEAD, or run `git sparse-checkout disable`",
            )
        return DirectoryTree(source, layout)
    if git_dir is None:
        raise UsageError(f"{source} is not a git directory", fix="omit --rev")
    return RevisionTree(git_dir, "HEAD" if revision is None else revision, layout)


def list_left_out(checkout: Path) -> list[str]:
    """Return the files of the index that git does not write to the checkout, and that are missing.

    Git marks files so in a sparse checkout, and users mark files that they change. These exist. A
    missing file without the mark is one that the user has deleted.
    """
    listed = b""
    with suppress(ToolError):  # git is not installed, or cannot read the checkout
        listed = ask_git(checkout, "ls-files", "-t", "-z")
    marked = [os.fsdecode(line[2:]) for line in listed.split(b"\0") if line.startswith(b"S ")]
    return [path for path in marked if not os.path.lexists(checkout / path)]


def find_git_dir(source: Path) -> Path | None:
    """Return the git directory of a checkout, ``source`` itself if it is bare, or None."""
    if is_git_directory(source):
        return source
    return source / ".git" if (source / ".git").exists() else None


def resolve_revision(git_dir: Path, revision: str) -> str:
    """Return the commit of a revision. Raises UsageError if there is no such revision."""
    if not revision or revision.startswith("-") or "\0" in revision:
        raise UsageError(
            f"{revision!r} is not a revision",
            fix="if the revision comes from a variable, check that the variable is set",
        )
    try:
        return read_commit(git_dir, revision)
    except MissingToolError:
        raise
    except ToolError as error:
        if error.why.startswith("fatal:"):  # git prints nothing for an unknown revision
            raise UsageError(f"git cannot read {git_dir}", why=error.why) from error
        fault, fix = (
            f"{git_dir} has no revision {revision!r}",
            "fetch the revision, or correct its name",
        )
        if revision == "HEAD":
            fault, fix = f"{git_dir} has no commit yet", "commit your files first"
        raise UsageError(fault, fix=fix) from error


def split_batch(raw: bytes) -> list[bytes | None]:
    """Return the contents in the output of ``git cat-file --batch``, with None for a missing
    object.
    """
    contents: list[bytes | None] = []
    stream = io.BytesIO(raw)
    while words := stream.readline().split():
        if words[-1] == b"missing":
            contents.append(None)
        else:
            contents.append(stream.read(int(words[2])))
            stream.readline()  # git ends each object with a line break that is not a part of it
    return contents


# Older trees of ExecuTorch use TARGETS.
BUILD_NAMES = ("BUCK", "TARGETS", "BUCK.v2", "TARGETS.v2")


@dataclass(frozen=True)
class Matched:
    """A glob() call: its patterns, the matched files relative to the package, and the patterns that
    match no file.
    """

    patterns: tuple[str, ...]
    files: tuple[str, ...]
    empty: tuple[str, ...]


class PackageFiles:
    """The files of each package. A file belongs to the nearest folder above it that has a build
    file, or that is one of ``further_packages``.
    """

    def __init__(self, files: Iterable[str], further_packages: Iterable[str] = ()) -> None:
        ordered = sorted(files)
        self.packages = frozenset(further_packages).union(
            path.rpartition("/")[0] for path in ordered if path.rpartition("/")[2] in BUILD_NAMES
        )
        self.folders = frozenset(path.rpartition("/")[0] for path in ordered)
        self._owner: dict[str, str | None] = {}
        self._files: dict[str, list[str]] = {}
        for path in ordered:
            owner = self.owner_of(path.rpartition("/")[0])
            if owner is not None:
                start = len(owner) + 1 if owner else 0
                self._files.setdefault(owner, []).append(path[start:])

    def owner_of(self, folder: str) -> str | None:
        """Return the package that a folder belongs to, or None if it is outside all packages."""
        if folder not in self._owner:
            if folder in self.packages:
                self._owner[folder] = folder
            else:
                above = folder.rpartition("/")[0]
                self._owner[folder] = self.owner_of(above) if folder else None
        return self._owner[folder]

    def files_of(self, package: str) -> Sequence[str]:
        """Return the files of a package, relative to it, without the files of sub-packages."""
        return self._files.get(package, [])

    def match(self, package: str, include: Sequence[str], exclude: Sequence[str]) -> Matched:
        """Evaluate a glob() call of a package: the matching files, and the patterns that match
        none."""
        files = self.files_of(package)
        included: dict[str, None] = {}
        empty = []
        for pattern in include:
            test = compile_pattern(pattern)
            matching = [path for path in files if test.fullmatch(path)]
            if not matching:
                empty.append(pattern)
            included.update(dict.fromkeys(matching))
        chosen = set(included)
        for pattern in exclude:
            test = compile_pattern(pattern)
            chosen.difference_update([path for path in included if test.fullmatch(path)])
        return Matched(tuple(include), tuple(sorted(chosen)), tuple(empty))


LITERAL = re.compile(r'"[^"\\\n]*"|\'[^\'\\\n]*\'')

BLOCK = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"""', re.DOTALL)


class Literals:
    """The string literals of build files, with their lines. A file is scanned only once."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._lines: dict[str, dict[str, list[int]]] = {}

    def find(
        self, words: Iterable[str], files: Sequence[str], near: Place, default: Place | None = None
    ) -> Place:
        """Return the place of the first of ``words`` that is found, preferably just below ``near``.
        If none is found, return ``default``, or ``near`` without one.
        """
        ordered = sorted(files, key=lambda path: path != near.path)
        for word in words:
            for path in ordered:
                if path not in self._lines:
                    self._lines[path] = self.scan(path)
                if lines := self._lines[path].get(word):
                    after = bisect_left(lines, near.line) if path == near.path else 0
                    return Place(path, lines[after % len(lines)])
        return default or near

    def scan(self, path: str) -> dict[str, list[int]]:
        """Return the string literals of a Starlark file with their lines, without multi-line
        strings.
        """
        lines_of: dict[str, list[int]] = {}
        text = BLOCK.sub(lambda block: "\n" * block.group().count("\n"), self.tree.read(path) or "")
        for number, line in enumerate(text.splitlines(), 1):
            for match in LITERAL.finditer(line):
                before = line[: match.start()]
                if "#" in before and "#" in LITERAL.sub("", before):
                    break
                lines_of.setdefault(match.group()[1:-1], []).append(number)
        return lines_of
