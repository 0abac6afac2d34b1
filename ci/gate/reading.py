"""Read the two trees that a plan compares: revisions of a repository, or its work tree.

Run sessions with strace, and record the files of the tree that they and their children open.

strace sees what no reader of source text can: files that are named by computed paths, and those
that other programs open. See https://man7.org/linux/man-pages/man1/strace.1.html.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

from ci.gate.dependencies import (
    READ,
    Graph,
    TreeFiles,
    describe_sessions,
    list_changed_parts,
    load,
    parse_python,
)
from ci.gate.plan import MODELS, POLICY, make_plan
from ci.gate.rules import GateRules, Recorded
from ci.gate.schema import Change, Difference, Kind, RecordedRun, TreeFacts, parse_name_status
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from ci.parity.trees import (
    DirectoryTree,
    RevisionTree,
    SourceTree,
    find_git_dir,
    resolve_revision,
    show_path,
)
from provisioning.console.git import ask_git
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.documents import open_regular, read_bytes
from provisioning.errors import MissingToolError, ToolError, UsageError

# A plan depends only on the names of changed paths: renames, copies and modes need no kinds.
DIFF = ("--name-status", "-z", "--no-renames", "--no-relative")
FETCH = "fetch all commits: set fetch-depth: 0 in actions/checkout, or run git fetch --unshallow"


class WorkTree(DirectoryTree):
    """A checkout as git sees it: tracked files that exist, and untracked files that are not
    ignored."""

    @property
    def files(self) -> frozenset[str]:
        """The paths of all files, relative to the root."""
        raw = ask_git(self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        paths = {name: self.root / name for name in _decode(raw).split("\0") if name}
        return frozenset(
            show_path(name) for name, path in paths.items() if path.is_symlink() or path.is_file()
        )

    def digest(self, path: str) -> str:
        """Return git's hash of a file, or "" if it is missing. A commit's file with the same
        content has the same hash, so that the cache of parsed files serves both."""
        text = self.read(path)
        # git's own name for the content: what was parsed of the base is then known for the work
        # tree, so that a plan takes 4.0 s of CPU instead of 6.2 s.
        data = (text or "").encode()
        digest = hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False)
        return "" if text is None else digest.hexdigest()

    @property
    def links(self) -> Mapping[str, str]:
        """The target of each symbolic link."""
        places = {name: self.root / name for name in self.files}
        return {name: str(path.readlink()) for name, path in places.items() if path.is_symlink()}


@dataclass
class Repository:
    """A checkout or git directory, with a cache of parsed files."""

    source: Path
    rules: GateRules
    parsed: dict[str, set[str]] = field(default_factory=dict)
    trees: dict[str, tuple[SourceTree, TreeFacts]] = field(default_factory=dict)

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
        new, after = self.read_tree(head)
        if not changes:
            return Difference(after, after, changes)
        old, before = self.read_tree(base)
        keys = compare_keys(old, new, changes)
        return Difference(before, after, changes, keys)

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

    def read_tree(self, commit: str) -> tuple[SourceTree, TreeFacts]:
        """Return the tree of a commit, or the work tree if ``commit`` is empty, and its facts."""
        if commit in self.trees:
            return self.trees[commit]
        tree: SourceTree = RevisionTree(self.git_dir, commit) if commit else WorkTree(self.source)
        tree_and_facts = tree, read_facts(tree, self.rules, self.parsed)
        # A commit does not change, a work tree may.
        if commit:
            self.trees[commit] = tree_and_facts
        return tree_and_facts


def read_facts(tree: SourceTree, rules: GateRules, parsed: dict[str, set[str]]) -> TreeFacts:
    """Return the facts of a tree that a plan needs. ``parsed`` caches the imports of files; its
    keys are paths with the digest of the content."""
    files = TreeFiles(tree.files, tree.links, rules)

    def read(path: str) -> str:
        return tree.read(path) or ""

    def read_many(paths: Iterable[str]) -> Mapping[str, set[str]]:
        keys = {path: f"{path} {tree.digest(path)}" for path in paths if path.endswith(READ)}
        new = [path for path, key in keys.items() if key not in parsed]
        if new:  # all at once: of a revision, each reading starts a git process
            tree.read_all(path for path in files.files if path.endswith(READ))
        parsed.update({keys[path]: parse_python(read(path)) for path in new})
        return {path: parsed[key] for path, key in keys.items()}

    def read_suite(path: str) -> dict[str, tuple[str, ...]]:
        table = load(read, path, files.files).get("suite", {})
        return {model: tuple(schemes) for model, schemes in table.items()}

    suite = read_suite(POLICY) if rules.cases else {}
    graph = Graph(files, read_many)
    return TreeFacts(
        sessions=describe_sessions(graph, read, rules),
        suite=suite,
        suites={
            name: read_suite(f"manifests/policies/{rule.policy}.toml")
            for name, rule in rules.sessions.items()
            if rule.policy
        },
        models={model: graph.follow([MODELS.format(model)]) for model in suite},
    )


def compare_keys(
    old: SourceTree, new: SourceTree, changes: Iterable[Change]
) -> dict[str, frozenset[str]]:
    """Return the changed parts of each changed TOML file and Markdown page. A missing file counts
    as an empty one."""
    paths = sorted({change.path for change in changes if change.path.endswith((".toml", ".md"))})
    for tree in (old, new):
        tree.read_all([path for path in paths if path in tree.files])
    parts_by_path = {
        path: list_changed_parts(path, _read_known(old, path), _read_known(new, path))
        for path in paths
    }
    return {path: parts for path, parts in parts_by_path.items() if parts is not None}


def _read_known(tree: SourceTree, path: str) -> str:
    return (tree.read(path) or "") if path in tree.files else ""


def _decode(raw: bytes) -> str:
    # Names of files need not be UTF-8.
    return raw.decode("utf-8", "surrogateescape")


# -y shows the path of each opened file, also if it was opened relative to a directory.
# -D makes strace the child, so that processes that a session leaves behind do not keep it.
STRACE = ("strace", "-D", "-f", "-y", "-qq", "-z", "--seccomp-bpf", "-e", "trace=open,openat", "-o")
OPENED = re.compile(r"= \d+<(/[^>]*)>$")
COMPILED = re.compile(r"(?:__pycache__/)([^/]+)\.cpython-[^/]*\.pyc$")
FIX = "install strace, for example with apt-get install strace"


def record_sessions(
    repository: Repository, names: Sequence[str], progress: Progress
) -> Iterator[RecordedRun]:
    """Run sessions, by default every one that can be recorded, and yield what each opened. Raises
    UsageError if the rules do not say how to run a session, or for an unknown one."""
    rules = repository.rules
    if not rules.command:
        raise UsageError(
            "the rules do not say how to run a session",
            fix='set command in the rules, for example command = ["make"]',
        )
    tree, facts = repository.read_tree("")
    recordable = [
        name
        for name in facts.sessions
        if rules.session_rule(name).record is not False and not rules.session_rule(name).whole
    ]
    if unknown := [name for name in names if name not in recordable]:
        raise UsageError(f"{unknown[0]} cannot be recorded", fix=f"use {', '.join(recordable)}")
    for name in names or recordable:
        rule = rules.session_rule(name)
        arguments = rule.record or (("--help",) if rule.by_hand and rule.record is None else ())
        progress.step(f"recording {name}")
        with tempfile.TemporaryDirectory(prefix="qnn-ci-") as folder:
            log = Path(folder) / "strace"
            argv = [
                *STRACE,
                str(log),
                *rules.command,
                name,
                *(["--", *arguments] if arguments else ()),
            ]
            code = run_process(argv, cwd=repository.source, check=False, fix=FIX).returncode
            paths = set(list_opened(log, repository.source)) if log.exists() else set()
        # Keys of split files are planned one by one, so that the whole file does not count as
        # opened.
        files = {path for path in paths & tree.files if not matches(path, rules.split)}
        groups = set()
        for path in paths:
            if environment := re.match(r"\.nox/([\w-]+)/", path):
                groups.add(environment[1])
        yield RecordedRun(
            name=name,
            code=code,
            count=len(files),
            opened=Recorded(tuple(sorted(groups)), compress(files, tree.files)),
            unplanned=tuple(sorted(find_unplanned(repository, name, files))),
            failed=bool(code) and not rule.by_hand,
        )


def list_opened(log: Path, root: Path) -> Iterator[str]:
    """Yield the files below ``root`` that strace logged as opened, relative to ``root``. A compiled
    Python file stands for its source."""
    places = {str(root.resolve()): "", str((root / ".nox").resolve()): ".nox/"}
    with TextIOWrapper(open_regular(log), "utf-8", "surrogateescape") as lines:
        openings = (OPENED.search(line.rstrip()) for line in lines)
        for path in {match[1] for match in openings if match}:
            for place, prefix in places.items():
                if path.startswith(f"{place}/"):
                    yield COMPILED.sub(r"\1.py", prefix + path[len(place) + 1 :])


def find_unplanned(repository: Repository, name: str, files: Iterable[str]) -> Iterator[str]:
    """Yield the files whose change alone would not plan a session."""
    _, facts = repository.read_tree("")
    for path in files:
        difference = Difference(facts, facts, (Change(path, Kind.MODIFIED),))
        plan = make_plan(difference, repository.rules)
        alone = any(rule.alone and matches(path, rule.files) for rule in repository.rules.rule)
        if not alone and not any(session.run for session in plan.sessions if session.name == name):
            yield path


def compress(files: set[str], tree: Iterable[str]) -> tuple[str, ...]:
    """Return files as sorted globs: ``FOLDER/**`` if all files of the tree below it are among them,
    ``FOLDER/*.SUFFIX`` if at least half of those with this suffix directly in it are, otherwise
    their paths. So the record is short, and plans a little more than was opened."""
    below: dict[str, set[str]] = {}
    for path in tree:
        folder = directory_of(path)
        below.setdefault(f"{folder}/*{Path(path).suffix}" if folder else path, set()).add(path)
        while folder:
            below.setdefault(f"{folder}/**", set()).add(path)
            folder = directory_of(folder)
    patterns, uncovered = [], set(files)

    def order(pattern: str) -> tuple[bool, int, str]:
        return not pattern.endswith("/**"), pattern.count("/"), pattern

    for pattern in sorted(below, key=order):  # the largest folders first
        opened = below[pattern] & files
        share = 1.0 if pattern.endswith("/**") else 0.5
        if len(opened) > 1 and len(opened) >= share * len(below[pattern]) and opened & uncovered:
            patterns.append(pattern)
            uncovered -= opened
    return tuple(sorted([*patterns, *uncovered]))


RECORD_HEAD = "# What a recorded run of each session opened: qnn-ci plan --record --out FILE\n"


def is_record(path: Path) -> bool:
    """Return whether a file is a record, as render_record writes it."""
    try:
        return read_bytes(path).startswith(RECORD_HEAD.encode())
    except OSError:
        return False


def render_record(recorded: Mapping[str, Recorded]) -> str:
    """Return a record as TOML, sorted by session."""
    parts = [RECORD_HEAD]
    for name, record in sorted(recorded.items()):
        rows = "".join(f'    "{path}",\n' for path in record.files)
        groups = ", ".join(f'"{group}"' for group in record.groups)
        parts.append(f'\n["{name}"]\ngroups = [{groups}]\nfiles = [\n{rows}]\n')
    return "".join(parts)
