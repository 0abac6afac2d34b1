"""The files of a source tree: of a directory, or of a revision in a git directory.

A revision is read with ``git ls-tree`` and ``git cat-file --batch``, without a checkout.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ci.parity.policy import Layout
from provisioning.console.git import ask_git, is_git_directory, parse_submodules, read_commit
from provisioning.documents import read_text
from provisioning.errors import MissingToolError, ToolError, UsageError

NO_LAYOUT = Layout()
LEFT_OUT = frozenset({".git", "buck-out", "cmake-out", "node_modules", "__pycache__", ".venv"})
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
        found: list[str] = []
        for folder, names, files in os.walk(self.root):
            relative = os.path.relpath(folder, self.root).replace(os.sep, "/")
            if relative != "." and not MARKS.isdisjoint(files):
                names.clear()
                continue
            names[:] = [name for name in names if name not in LEFT_OUT]
            prefix = "" if relative == "." else relative + "/"
            found.extend(prefix + name for name in files)
        return frozenset(map(show_path, found))

    def read(self, path: str) -> str | None:
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
        self.read_all([path])
        return self._texts[path]

    def read_all(self, paths: Iterable[str]) -> None:
        """Read many files with one git process."""
        wanted = [path for path in paths if path not in self._texts]
        known = [path for path in wanted if path in self._listing]
        self._texts.update(dict.fromkeys(wanted))
        if not known:
            return
        asked = "".join(f"{self._listing[path][1]}\n" for path in known)
        raw = ask_git(self.git_dir, "cat-file", "--batch", data=asked.encode())
        for path, content in zip(known, split_batch(raw), strict=True):
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

    Raises UsageError if ``source`` is not a directory, or has no git directory for the revision.
    """
    git_dir = find_git_dir(source)
    if revision is None and git_dir != source:
        return DirectoryTree(source, layout)
    if git_dir is None:
        raise UsageError(f"{source} is not a git directory", fix="omit --rev")
    return RevisionTree(git_dir, "HEAD" if revision is None else revision, layout)


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
        raise UsageError(
            f"{git_dir} has no revision {revision!r}", fix="fetch the revision, or correct its name"
        ) from error


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
            stream.readline()
    return contents
