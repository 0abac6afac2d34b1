"""Fetch a source tree from git: a shallow clone of a pinned commit, with only the wanted
submodules.

``.git`` is kept. Of the files in it, tree.json lists only those that control what git does.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from provisioning.archives.layout import seal_file
from provisioning.artifacts.sources import LEAVE_OFFLINE, FillJob
from provisioning.console.git import (
    ask_git,
    is_git_directory,
    list_submodules,
    read_commit,
    run_git,
)
from provisioning.console.process import Completed
from provisioning.errors import DownloadError, IntegrityError, ToolError, UsageError
from provisioning.fetch.download import mirror_urls
from provisioning.fetch.transfer import TransferPolicy, redact_url
from provisioning.files import hash_file, leads_out, remove_tree, walk
from provisioning.manifest.releases import GitRelease
from provisioning.store.home import explain_errors
from provisioning.store.tree import DIRECTORY_MODE, GIT, TreeEntry, find_parents, scan_tree
from provisioning.versions import is_older, parse_version

# A whole clone over a slow line takes long. silence_s ends one that hangs.
TIMEOUT_S = 3600
NETWORK = (
    "check the network and git's proxy, or set url.<base>.insteadOf in git's configuration to a"
    " mirror"
)
RELEASE_TAG = re.compile(r"v\d+(\.\d+)+")
ATTEMPTS = 3
# Since 2.38.1, git refuses to fetch submodules from file:// otherwise (CVE-2022-39253).
BY_FILE = ("-c", "protocol.file.allow=always")
# The user's configuration must not change the files or run programs, and nothing may change .git
# in the background, since tree.json lists some of its files.
FIXED = (
    *("-c", "advice.detachedHead=false", "-c", "core.autocrlf=false", "-c", "gc.auto=0"),
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false", "-c", "core.attributesFile=/dev/null"),
)


def _copy_bare(source: Path, url: str, directory: Path) -> Path:
    """Write a bare clone of the checkout or repository ``source`` to the place below ``directory``
    where git looks for ``url``. Raises IntegrityError for a URL that leads out of ``directory``.
    """
    place = re.sub(r"^[a-z+]+://", "", redact_url(url)).lstrip("/")
    if leads_out(place):
        raise IntegrityError(
            f"{redact_url(url)} cannot be put into a mirror",
            why="its path contains '..', which leads out of the mirror's directory",
            fix="leave out the component with this submodule",
        )
    target = directory / "git" / place
    target.mkdir(parents=True, exist_ok=True)
    commit = read_commit(source)
    source_and_refspec = [source.resolve().as_uri(), f"+HEAD:refs/heads/{commit}"]
    for arguments in (
        ["init", "--quiet", "--bare", _object_format(commit)],
        [*BY_FILE, "fetch", "--quiet", "--depth=1", "--update-shallow", *source_and_refspec],
        # A server may otherwise refuse a commit that is not the tip of a branch.
        ["config", "uploadpack.allowAnySHA1InWant", "true"],
        ["symbolic-ref", "HEAD", f"refs/heads/{commit}"],
    ):
        run_git(target, *arguments)
    return target


def _object_format(commit: str) -> str:
    """Return the argument of `git init` for a repository with commits such as ``commit``."""
    return f"--object-format={'sha256' if len(commit) == 64 else 'sha1'}"


def _list_access(url: str) -> Iterator[tuple[list[str], tuple[str, ...], dict[str, Any]]]:
    """Yield the lists of mirrors to try, in order: the mirrors in QNN_CI_MIRROR if it is set, then
    an empty list, which stands for the repository's own URL. With each list, yield the arguments
    with which git reaches the repository, and the options of run_git.
    """
    user_mirrors, silence_s = mirror_urls("git/"), TransferPolicy.from_environment().read_timeout_s
    for mirrors in [user_mirrors, []] if user_mirrors else [[]]:
        arguments, variables = _find_access(url, mirrors)
        yield mirrors, arguments, {"variables": variables, "silence_s": silence_s}


def _find_access(url: str, mirrors: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the arguments and environment variables with which git reaches a repository, possibly
    through mirrors.

    The arguments make git give up on a host that sends almost nothing for QNN_CI_TIMEOUT_S seconds.
    They contain no credentials for http and https, since every user of the machine can read them;
    a credential helper reads these from the environment variables. A URL's query is left out: git
    cannot add a path to it.
    """
    url, mirrors = _without_query(url), [_without_query(mirror) for mirror in mirrors]
    arguments, variables = _log_in(url, "QNN_CI_GIT_LOGIN")
    bare, shown = _without_login(url) if arguments else url, redact_url(url)
    policy = TransferPolicy.from_environment()
    limits = {"Limit": policy.slowest_bytes_s, "Time": policy.read_timeout_s}
    for name, value in limits.items():
        # git accepts only whole numbers here.
        arguments += ("-c", f"http.lowSpeed{name}={math.ceil(value)}")
    scheme = urlsplit(url).scheme
    if scheme and bare != shown and not (mirrors and scheme == "https"):  # else it skips mirrors
        base, clean = (f"{part.scheme}://{part.netloc}/" for part in map(urlsplit, (bare, shown)))
        arguments += (*_replace_url(clean, base), *_replace_url(shown, bare))
    for mirror in mirrors:
        login_arguments, login_variables = _log_in(mirror, "QNN_CI_GIT_MIRROR_LOGIN")
        base = _without_login(mirror) if login_arguments else mirror
        arguments += login_arguments
        for scheme in ("https://", "file:///"):
            arguments += _replace_url(scheme, base)
        variables = {**variables, **login_variables}
    return arguments, variables


def _replace_url(start: str, base: str) -> tuple[str, str]:
    """Return the arguments with which git uses ``base`` for URLs that begin with ``start``."""
    return "-c", f"url.{base.replace('=', '%3D')}.insteadOf={start}"  # a key ends at the first =


def _without_query(url: str) -> str:
    return urlunsplit(urlsplit(url)._replace(query="", fragment="")) if "://" in url else url


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _log_in(url: str, variable: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return git's arguments for the login in an http or https URL, and the environment variable
    that contains the login; both are empty if the URL has none.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or parts.username is None:
        return (), {}
    key = f"credential.{parts.scheme}://{parts.netloc.rpartition('@')[2]}.helper"
    helper = f"!f() {{ printf '%s\\n' \"${variable}\"; }}; f"
    login = f"username={unquote(parts.username)}\npassword={unquote(parts.password or '')}"
    # The empty value removes the user's helpers, which could answer first.
    return ("-c", f"{key}=", "-c", f"{key}={helper}"), {variable: login}


def fill(job: FillJob) -> tuple[TreeEntry, ...]:
    """Write a checkout of the pinned commit with the wanted submodules, and return every entry,
    sorted by path. Of .git, only the files that control git have entries.
    """
    with explain_errors(job.store.home):
        work = _Checkout(job)
        if not work.fetch_from_store():
            work.fetch()
        work.update_submodules()
        work.seal()
        return tuple(sorted(_entries(job.root), key=lambda entry: entry.path))


def mirror(job: FillJob, directory: Path) -> list[Path]:
    """Write bare clones of the repository and its submodules below ``directory``/git, and return
    their paths.
    """
    fill(job)
    copies = [(job.root, job.request.release.place), *_list_urls(job.root / GIT)]
    return [_copy_bare(source, where, directory) for source, where in copies]


def find_release(job: FillJob, version: str) -> GitRelease:
    """Return the release with the tag of ``version``; '' means the newest tag such as v1.2. Raises
    UsageError if there is no such tag, and DownloadError if the tags cannot be read.
    """
    old = job.request.release_as(GitRelease)
    rows = _list_tags(job.root, old.url)
    # An annotated tag has a second row, NAME^{}, with the commit.
    split = (row.partition("\trefs/tags/") for row in rows)
    tags = {name.removesuffix("^{}"): commit for commit, _, name in split}
    versions = {name: parse_version(name) for name in tags if RELEASE_TAG.fullmatch(name)}
    requested_tag = f"v{version.removeprefix('v')}" if version else ""
    tag = requested_tag or max(versions, key=versions.__getitem__, default="")
    if tag not in tags:
        newest = sorted(versions, key=versions.__getitem__)[-5:]
        fix = (
            f"use one of: {', '.join(newest)}"
            if newest
            else "correct the URL: its repository must have tags such as v1.0"
        )
        raise UsageError(
            f"{redact_url(old.url)} has no {f'tag {tag}' if tag else 'release tag'}", fix=fix
        )
    if not requested_tag and is_older(tag, old.version):
        return old  # the mirror lags behind
    return msgspec.structs.replace(old, version=tag[1:], tag=tag, commit=tags[tag])


def _list_tags(root: Path, url: str) -> list[str]:
    """Return the output lines of ``git ls-remote --tags``: from the mirrors in QNN_CI_MIRROR if
    these have tags, else from the repository's own URL. Raises DownloadError.
    """
    failures = []
    for mirrors, access, options in _list_access(url):
        arguments = (*BY_FILE, *access, "ls-remote", "--tags", redact_url(url))
        options["on_line"] = (rows := list[str]()).append
        ended = run_git(root, *arguments, timeout_s=TIMEOUT_S, check=False, **options)
        if ended.returncode:
            failures.append(_last_words(ended))
        elif (tags := [row for row in rows if "\trefs/tags/" in row]) or not mirrors:
            return tags  # the other rows are messages
    problem = f"the tags of {redact_url(url)} cannot be read"
    raise DownloadError(problem, why="; ".join(failures), fix=NETWORK)


class _Checkout:
    def __init__(self, job: FillJob) -> None:
        self.job, self.root = job, job.root
        self.release = job.request.release_as(GitRelease)
        self.submodule_patterns = list(job.request.patterns)
        self.near: list[str] = []
        self.unfiltered = _list_filters(job.root)

    def git(self, *arguments: str) -> None:
        """Run git in the tree. Raises ToolError."""
        ended = self.attempt(*arguments)
        if ended.returncode:
            why = _last_words(ended)
            raise ToolError(f"git {ended.describe()}: {' '.join(ended.argv)}", why=why)

    def git_from_network(self, *arguments: str, from_mirror: Sequence[str] = ()) -> None:
        """Run git in the tree until it succeeds, up to ATTEMPTS times with each list of mirrors
        from _list_access.

        With mirrors, ``from_mirror`` is used instead of ``arguments``, unless it is empty. Raises
        DownloadError.
        """
        if self.job.request.options.offline:
            raise self._cannot_fetch("--offline was given", LEAVE_OFFLINE)
        url, label, failures = self.release.url, self.job.request.label, list[str]()
        for mirrors, access, options in _list_access(url):
            local = BY_FILE if mirrors or url.startswith(("file://", "/")) else ()
            used_arguments = from_mirror if mirrors and from_mirror else arguments
            # git does not retry a broken transfer itself.
            for _ in range(ATTEMPTS):
                ended = self.attempt(*local, *access, *used_arguments, **options)
                if ended.returncode == 0:
                    return
                source = redact_url(mirrors[0]) if mirrors else redact_url(url)
                self.job.progress.step(f"{label}: git {arguments[0]} from {source} failed")
            failures.append(_last_words(ended))
        raise self._cannot_fetch("; ".join(failures), NETWORK)

    def attempt(self, *arguments: str, **options: Any) -> Completed:
        """Run git in the tree once, without the user's hooks and filters; return its result even if
        it failed. ``options`` are passed to run_git."""
        argv = (*FIXED, *self.unfiltered, *arguments)
        return run_git(self.root, *argv, timeout_s=TIMEOUT_S, check=False, **options)

    def _cannot_fetch(self, why: str, advice: str) -> DownloadError:
        request = self.job.request
        variable = request.toolchain.adoption.variable
        checkout = f", or set {variable} to a checkout" if variable else ""
        return DownloadError(
            f"{request.label} could not be fetched: {redact_url(self.release.url)}",
            why=why,
            fix=f"{advice}{checkout}",
        )

    def fetch_from_store(self) -> bool:
        """Fetch the commit from a published tree that contains it, even if that tree is damaged;
        return whether this worked.

        git transfers and hashes every object. Nothing else in that tree's .git is used, since its
        configuration, hooks and links could lead anywhere.
        """
        for published in self.job.store.editions(self.job.request.key()):
            source = published.root / GIT
            if not is_git_directory(source) or source.is_symlink():
                continue
            self.begin()
            words = ("fetch", "--quiet", "--depth=1", "--no-tags", "--update-shallow")
            ended = self.attempt(*words, source.as_uri(), self.release.commit)
            if ended.returncode == 0:
                self.git("checkout", "--quiet", "--detach", self.release.commit)
                # git fetches submodules from that tree, too
                for module, url in _list_urls(source):
                    self.near += ["-c", f"url.{module.as_uri()}.insteadOf={url}"]
                return True
            remove_tree(self.root)
            self.root.mkdir()
        return False

    def begin(self) -> None:
        """Create an empty repository and set its remote."""
        # Without a template, which may contain hooks of the user.
        self.git("init", "--quiet", "--template=", _object_format(self.release.commit))
        self.git("remote", "add", "origin", redact_url(self.release.url))

    def fetch(self) -> None:
        """Fetch the commit and check that it is the pinned one. Raises IntegrityError,
        DownloadError, and UsageError if the tag is not a valid name.
        """
        release = self.release
        name = f"refs/tags/{release.tag}" if release.tag else release.commit
        place = redact_url(release.url)
        self.job.progress.step(f"{self.job.request.label}: fetching {name} of {place}")
        self.begin()
        # git would read another tag as something else, such as a refspec
        if release.tag and self.attempt("check-ref-format", name).returncode:
            problem = f"the tag of {self.job.request.label} is not a name of a tag: {release.tag}"
            raise UsageError(problem, fix="correct the tag in manifests/toolchains/")
        # With --progress, git prints something all the time: silence_s then finds a transfer that
        # hangs.
        arguments = ("fetch", "--progress", "--depth=1", "--no-tags", "origin")
        self.git_from_network(*arguments, name, from_mirror=[*arguments, release.commit])
        commit = read_commit(self.root, "FETCH_HEAD")
        # A tag can be moved; only the commit identifies the content.
        if commit != release.commit:
            raise IntegrityError(
                f"the commit fetched for {self.job.request.label} is not the pinned one",
                why=f"{name} at {place} is {commit}, the pin is {release.commit}",
                fix="the tag may have been moved: find out why before you change the pin",
            )
        self.git("checkout", "--quiet", "--detach", commit)

    def update_submodules(self) -> None:
        """Fetch the wanted submodules; a pattern ``path/**`` includes nested ones. Raises
        IntegrityError if there is no such submodule, and DownloadError.
        """
        try:
            existing = list_submodules(self.root)
        except UsageError as error:
            raise IntegrityError(
                f"the .gitmodules of {self.job.request.label} is damaged",
                why=error.why,
                fix="pin a commit with a valid .gitmodules",
            ) from error
        plain = [path.removesuffix("/**") for path in self.submodule_patterns]
        missing = [path for path in plain if path not in existing]
        if missing:
            raise IntegrityError(
                f"{self.job.request.label} lacks submodules: {', '.join(missing)}",
                why="its .gitmodules lists " + (", ".join(existing) or "no submodules"),
                fix="correct the components in manifests/toolchains/",
            )
        for path, pattern in zip(plain, self.submodule_patterns, strict=True):
            self.job.progress.step(f"{self.job.request.label}: submodule {path}")
            nested = ("--recursive",) if pattern.endswith("/**") else ()
            arguments = (
                "submodule",
                "update",
                "--progress",
                "--init",
                "--force",
                "--depth=1",
                *nested,
            )
            near = [*BY_FILE, *self.near, *arguments, "--", path]
            # From the published tree first: it has the objects of unchanged submodules.
            if not self.near or self.attempt(*near).returncode != 0:
                self.git_from_network(*arguments, "--", path)

    def seal(self) -> None:
        """Remove files that come from git's template directory, give all files fixed modes and
        times, and refresh git's index.
        """
        for directory in [self.root / GIT, *_list_modules(self.root / GIT)]:
            for name in ("hooks", "info", "branches"):
                if (directory / name).is_dir():
                    remove_tree(directory / name)
            (directory / "description").unlink(missing_ok=True)
        for path, state in scan_tree(self.root, checkout=True).items():
            if stat.S_ISREG(state.st_mode):
                # Only the owner's bit counts: with the umask 077, programs became 0744.
                seal_file(self.root / path, 0o755 if state.st_mode & stat.S_IXUSR else 0o644)
        # seal has changed the times of all files, so git would otherwise read each of them again.
        self.git("update-index", "-q", "--refresh")


def _list_filters(root: Path) -> list[str]:
    """Return arguments that switch off the filters in the user's configuration of git, which would
    change the content of files.
    """
    arguments: list[str] = []
    with suppress(ToolError):  # there are none
        # git lfs, for example, replaces files by pointers or downloads their content.
        names = ask_git(root, "config", "--name-only", "--get-regexp", r"^filter\.").decode()
        for name in names.splitlines():
            arguments += ["-c", f"{name}="]
    return arguments


def _list_modules(git: Path) -> list[Path]:
    """Return the git directories of submodules inside ``git``, including nested ones."""
    return sorted(path for path, _, _ in walk(git / "modules") if is_git_directory(path))


def _list_urls(git: Path) -> Iterator[tuple[Path, str]]:
    """Yield the git directories of submodules inside ``git``, and the URLs that they came from."""
    for module in _list_modules(git):
        with suppress(ToolError):  # a damaged one in another checkout
            url = ask_git(git, "config", f"--file={module / 'config'}", "remote.origin.url")
            yield module, url.decode().strip()


def _entries(root: Path) -> list[TreeEntry]:
    states = scan_tree(root, checkout=True)
    parents = find_parents(states)
    entries = []
    for path, state in states.items():
        file = root / path
        if stat.S_ISLNK(state.st_mode):
            entries.append(TreeEntry(path, link=str(file.readlink())))
        elif not stat.S_ISDIR(state.st_mode):
            size, mode = state.st_size, stat.S_IMODE(state.st_mode)
            entries.append(TreeEntry(path, size, mode, hash_file(file)))
        elif path not in parents:
            entries.append(TreeEntry(path, mode=DIRECTORY_MODE))
    return entries


def _last_words(ended: Completed) -> str:
    lines = [line for line in ended.output.splitlines() if line.startswith(("fatal:", "error:"))]
    return "; ".join(lines[-3:]) or ended.tail or ended.describe()
