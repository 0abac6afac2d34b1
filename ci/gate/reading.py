"""Read the two trees that a plan compares: revisions of a repository, or its work tree."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ci.gate.parts import list_changed_parts
from ci.gate.rules import GateRules
from ci.gate.schema import Change, Difference, Kind, parse_name_status
from ci.parity.trees import (
    DirectoryTree,
    RevisionTree,
    SourceTree,
    find_git_dir,
    resolve_revision,
    show_path,
)
from provisioning.console.git import ask_git
from provisioning.documents import DocumentError, decoding
from provisioning.errors import MissingToolError, ToolError, UsageError

POLICIES = "manifests/policies/{}.toml"
# A plan depends only on the names of changed paths: renames, copies and modes need no kinds.
DIFF = ("--name-status", "-z", "--no-renames", "--no-relative")
FETCH = "fetch all commits: set fetch-depth: 0 in actions/checkout, or run git fetch --unshallow"


@dataclass(frozen=True)
class Repository:
    """A checkout or git directory, and the rules for it."""

    source: Path
    rules: GateRules

    @property
    def git_dir(self) -> Path:
        """The repository's git directory. Raises UsageError if there is none."""
        git_dir = find_git_dir(self.source)
        if git_dir is None:
            raise UsageError(
                f"{self.source} is not a git repository",
                fix="run the command in a checkout, or pass one with --source",
            )
        return git_dir

    @property
    def is_bare(self) -> bool:
        """Whether ``source`` is a git directory, so that there is no work tree to read."""
        return self.git_dir == self.source

    def require_history(self, base: str = "", head: str = "") -> None:
        """Raise UsageError for a shallow clone, in which merge bases may be wrong. A ``base`` from
        which ``head`` descends is its own merge base, so it is accepted."""
        if self.ask("rev-parse", "--is-shallow-repository").strip() != "true":
            return
        with suppress(UsageError):  # a commit is missing
            commits = (self.resolve(base), f"^{self.resolve(head or 'HEAD')}") if base else ()
            if commits and not self.ask("rev-list", "--max-count=1", *commits):
                return
        raise UsageError(
            f"{self.source} is a shallow clone",
            why="the commit to compare with may be missing",
            fix=FETCH,
        )

    def ask(self, *arguments: str) -> str:
        """Return git's output."""
        return _decode(ask_git(self.git_dir, *arguments))

    def resolve(self, revision: str) -> str:
        """Return the id of the commit that a revision refers to. Raises UsageError if there is
        none."""
        return resolve_revision(self.git_dir, revision)

    def find_base(self, base: str, head: str) -> str:
        """Return the merge base of ``base`` (by default, the branch in the rules) and ``head`` (by
        default, HEAD). Raises UsageError if a revision does not exist or there is no merge base."""
        head_commit = self.resolve(head or "HEAD")
        base_commit = self.resolve(base) if base else self.find_branch() or head_commit
        try:
            return self.ask("merge-base", base_commit, head_commit).strip()
        except MissingToolError:
            raise
        except ToolError as error:
            raise UsageError(
                f"{base or self.rules.branch} and {head or 'HEAD'} have no commit in common",
                why=error.why if error.why.startswith(("error:", "fatal:")) else "",
                fix="pass --base a revision that shares history with the head",
            ) from error

    def find_branch(self) -> str:
        """Return the commit of the branch in the rules: origin's branch if there is one, otherwise
        the local branch. Return an empty string if neither exists."""
        names = (f"refs/remotes/origin/{self.rules.branch}", f"refs/heads/{self.rules.branch}")
        refs = self.ask("for-each-ref", "--format=%(refname) %(objectname)", *names)
        commits = dict(row.split(" ") for row in refs.splitlines())
        return next((commits[name] for name in names if name in commits), "")

    def compare(self, base: str, head: str) -> Difference:
        """Return the differences from ``base`` to ``head``, or to the work tree if ``head`` is
        empty."""
        changes = self.list_changes(base, head)
        new = self.read_tree(head)
        keys = compare_keys(self.read_tree(base), new, changes) if changes else {}
        suites = {
            name: read_suite(new, POLICIES.format(rule.policy))
            for name, rule in self.rules.sessions.items()
            if rule.policy
        }
        return Difference(changes, keys, suites)

    def list_changes(self, base: str, head: str) -> tuple[Change, ...]:
        """Return the changes from ``base`` to ``head``, or to the work tree if ``head`` is
        empty."""
        if head:
            return parse_name_status(show_path(self.ask("diff-tree", "-r", *DIFF, base, head)))
        root = self.source
        text = _decode(ask_git(root, "diff", *DIFF, "--ignore-submodules=none", base))
        untracked = _decode(ask_git(root, "ls-files", "-z", "--others", "--exclude-standard"))
        added = {Change(show_path(name), Kind.ADDED) for name in untracked.split("\0") if name}
        return tuple(sorted({*parse_name_status(show_path(text)), *added}))

    def read_tree(self, commit: str) -> SourceTree:
        """Return the tree of a commit, or the work tree if ``commit`` is empty."""
        return RevisionTree(self.git_dir, commit) if commit else DirectoryTree(self.source)


class PolicySuite(msgspec.Struct, frozen=True):
    """The part of a policy that a plan reads: the schemes of each model of its suite."""

    suite: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


def read_suite(tree: SourceTree, path: str) -> dict[str, tuple[str, ...]]:
    """Return the schemes of each model in the policy at ``path``, or an empty mapping if the file
    is missing or invalid, which the session itself reports."""
    try:
        with decoding():
            return msgspec.toml.decode(tree.read(path) or "", type=PolicySuite).suite
    except DocumentError:
        return {}


def compare_keys(
    old: SourceTree, new: SourceTree, changes: Iterable[Change]
) -> dict[str, frozenset[str]]:
    """Return the changed parts of each changed TOML file and Markdown page. A missing file counts
    as an empty one."""
    paths = sorted({change.path for change in changes if change.path.endswith((".toml", ".md"))})
    for tree in (old, new):
        tree.read_all(paths)
    parts_by_path = {
        path: list_changed_parts(path, old.read(path) or "", new.read(path) or "") for path in paths
    }
    return {path: parts for path, parts in parts_by_path.items() if parts is not None}


def _decode(raw: bytes) -> str:
    # Names of files need not be UTF-8.
    return raw.decode("utf-8", "surrogateescape")
