"""A source tree at a pinned commit, shallow, with the wanted submodules and no others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from provisioning.archives.layout import seal_file
from provisioning.artifacts.sources import FillJob
from provisioning.console.git import ask_git, list_submodules, read_commit, run_git
from provisioning.console.process import Completed
from provisioning.errors import DownloadError, IntegrityError, ToolError
from provisioning.fetch.download import mirror_urls
from provisioning.files import hash_file
from provisioning.manifest.releases import GitRelease
from provisioning.store.store import HOME_VARIABLE, explain_errors
from provisioning.store.tree import TreeEntry, walk_tree

TIMEOUT_S = 3600
ATTEMPTS = 3
BY_FILE = ("-c", "protocol.file.allow=always")
FIXED = ("-c", "advice.detachedHead=false", "-c", "core.autocrlf=false")
FIXED_LOCAL = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "submodule.recurse=false")


def mirror_repositories(root: Path, url: str, directory: Path) -> list[Path]:
    """Bare copies of a checkout's repository and of its submodules, below ``directory``/git."""
    copies = [(root, url)]
    modules = root / ".git" / "modules"
    for config in sorted(modules.rglob("config")) if modules.is_dir() else []:
        found = ask_git(root, "config", f"--file={config}", "remote.origin.url")
        copies.append((config.parent, found.decode().strip()))
    return [_copy_bare(source, where, directory) for source, where in copies]


def _copy_bare(source: Path, url: str, directory: Path) -> Path:
    target = directory / "git" / _repository_path(url)
    target.mkdir(parents=True, exist_ok=True)
    commit = read_commit(source)
    what = [f"file://{source.resolve()}", f"+HEAD:refs/heads/{commit}"]
    for words in (
        ["init", "--quiet", "--bare"],
        [*BY_FILE, "fetch", "--quiet", "--depth=1", "--update-shallow", *what],
        ["config", "uploadpack.allowAnySHA1InWant", "true"],
        ["symbolic-ref", "HEAD", f"refs/heads/{commit}"],
    ):
        run_git(target, *words)
    return target


def _repository_path(url: str) -> str:
    """Where a mirror has the repository of a URL: host and path, without the scheme."""
    return re.sub(r"^[a-z+]+://", "", url).lstrip("/")


def _mirror_words() -> tuple[str, ...]:
    """git's own rewriting of URLs, when QNN_CI_MIRROR names a mirror."""
    return tuple(
        word
        for base in mirror_urls("git/")
        for scheme in ("https://", "file:///")
        for word in ("-c", f"url.{base}.insteadOf={scheme}")
    )


class GitSource:
    """``.git`` stays, shallow; it is not part of tree.json."""

    can_lock = False

    def fill(self, job: FillJob) -> tuple[TreeEntry, ...]:
        with explain_errors(job.store.home):
            work = _Checkout(job)
            if not work.copy_sibling():
                work.fetch()
            work.update_submodules()
            work.seal()
            return tuple(sorted(_entries(job.root), key=lambda entry: entry.path))

    def mirror(self, job: FillJob, directory: Path) -> list[Path]:
        self.fill(job)
        return mirror_repositories(job.root, job.request.release.place, directory)


SOURCE = GitSource()


class _Checkout:
    def __init__(self, job: FillJob) -> None:
        self.job, self.root = job, job.root
        self.release = job.request.release_as(GitRelease)
        self.wanted = list(job.request.patterns)

    def git(self, *words: str, network: bool = False) -> Completed:
        """Run git in the tree; what fails on the network is tried again."""
        if network and self.job.request.options.offline:
            raise self._cannot_fetch("--offline was given")
        by_file = _is_local(self.release.url) or bool(mirror_urls(""))
        local = BY_FILE if by_file else ()
        fixed = (*FIXED, *FIXED_LOCAL, *local, *(_mirror_words() if network else ()))
        for attempt in range(1, ATTEMPTS + 1):
            ended = run_git(self.root, *fixed, *words, timeout_s=TIMEOUT_S, check=False)
            if ended.returncode == 0:
                return ended
            if not network or attempt == ATTEMPTS:
                break
            self.job.progress.step(f"{self.job.request.label}: git {words[0]} failed; again")
        raise self._cannot_fetch(_last_words(ended)) if network else _failed(ended)

    def _cannot_fetch(self, why: str) -> DownloadError:
        request = self.job.request
        adoption = request.toolchain.adoption
        variable = adoption.variable if adoption else "a variable"
        return DownloadError(
            f"{request.label} could not be fetched: {self.release.url}",
            why=why,
            fix=f"check the network and git's proxy, set url.<base>.insteadOf in git's "
            f"configuration to a mirror, or set {variable} to a checkout ({HOME_VARIABLE} "
            "moves the store)",
        )

    def copy_sibling(self) -> bool:
        """Begin with a copy of the same commit, when one is published; git restores its files.

        For a repair that is the damaged tree itself, whose objects are used again.
        """
        store, key = self.job.store, self.job.request.key()
        own = store.find(key)
        for published in [*([own] if own else []), *store.siblings(key)]:
            tree = published.read_tree()
            if tree and tree.source_sha256 == self.release.commit:
                shutil.rmtree(self.root)
                shutil.copytree(published.root, self.root, symlinks=True)
                head = read_commit(self.root)
                self.git("reset", "--quiet", "--hard", self.release.commit)
                self.git("clean", "--quiet", "-ffdx")
                return head == self.release.commit
        return False

    def fetch(self) -> None:
        """The one commit, and the proof that it is the pinned one."""
        release = self.release
        by_tag = release.tag and not mirror_urls("")
        name = f"refs/tags/{release.tag}" if by_tag else release.commit
        self.job.progress.step(f"{self.job.request.label}: fetching {name} of {release.url}")
        self.git("init", "--quiet")
        self.git("remote", "add", "origin", release.url)
        self.git("fetch", "--quiet", "--depth=1", "--no-tags", "origin", name, network=True)
        found = read_commit(self.root, "FETCH_HEAD")
        if found != release.commit:
            raise IntegrityError(
                f"{self.job.request.label} is not the pinned commit",
                why=f"{name} at {release.url} is {found}, the pin is {release.commit}",
                fix="a tag was moved: find out why before changing the pin",
            )
        self.git("checkout", "--quiet", "--detach", found)

    def update_submodules(self) -> None:
        """Bring the wanted submodules, take others away. ``path/**`` brings nested ones too."""
        known = list_submodules(self.root)
        plain = [path.removesuffix("/**") for path in self.wanted]
        for path in known:
            is_there = (self.root / path / ".git").exists()
            if is_there and path not in plain:
                self.git("submodule", "--quiet", "deinit", "--force", "--", path)
        missing = [path for path in plain if path not in known]
        if missing:
            raise IntegrityError(
                f"{self.job.request.label} has no submodule {', '.join(missing)}",
                why="its .gitmodules names: " + ", ".join(known),
                fix="correct the components in manifests/toolchains/",
            )
        for path, wanted in zip(plain, self.wanted, strict=True):
            self.job.progress.step(f"{self.job.request.label}: submodule {path}")
            nested = ("--recursive",) if wanted.endswith("/**") else ()
            words = ("submodule", "--quiet", "update", "--init", "--force", "--depth=1", *nested)
            self.git(*words, "--", path, network=not (self.root / path / ".git").exists())

    def seal(self) -> None:
        """Fixed times for every file, known to git's index as well."""
        for path in walk_tree(self.root):
            file = self.root / path
            if not file.is_symlink():
                seal_file(file, file.stat().st_mode & 0o755 | 0o644)
        self.git("update-index", "-q", "--refresh")


def _entries(root: Path) -> list[TreeEntry]:
    entries = []
    for path in walk_tree(root):
        file = root / path
        if file.is_symlink():
            entries.append(TreeEntry(path, link=str(file.readlink())))
        else:
            state = file.stat()
            entries.append(TreeEntry(path, state.st_size, state.st_mode & 0o777, hash_file(file)))
    return entries


def _is_local(url: str) -> bool:
    return url.startswith(("file://", "/"))


def _last_words(ended: Completed) -> str:
    lines = [line for line in ended.output.splitlines() if line.startswith(("fatal:", "error:"))]
    return "; ".join(lines[-3:]) or ended.tail or ended.describe()


def _failed(ended: Completed) -> ToolError:
    return ToolError(f"git {ended.describe()}: {' '.join(ended.argv)}", why=_last_words(ended))
