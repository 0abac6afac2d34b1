"""How git is asked for a repository, what it leaves in the tree, and what its failures become."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.artifacts.sources import FillJob, Options
from provisioning.artifacts.sources import git as source
from provisioning.artifacts.sources.git import (
    _Checkout,
    _copy_bare,
    _find_access,
    _last_words,
    _list_modules,
    _list_near,
    _list_tags,
)
from provisioning.console.process import Completed
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError, QnnCiError, ToolError
from provisioning.files import hash_file
from provisioning.manifest.reader import Adoption
from provisioning.manifest.releases import GitRelease
from provisioning.store.store import Store
from provisioning.store.tree import DIRECTORY_MODE, TreeEntry
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.provisioning.artifacts.test_checkout import git, job

__all__ = ["job"]

SNAPSHOTS = Path(__file__).with_name("snapshots")
LIMITS = ("-c", "http.lowSpeedLimit=1024", "-c", "http.lowSpeedTime=8")
EVERY_HOST = ("https://", "file:///")


def replaced(base: str, *shown: str) -> tuple[str, ...]:
    return tuple(word for one in shown for word in ("-c", f"url.{base}.insteadOf={one}"))


def helper(host: str, variable: str) -> tuple[str, ...]:
    """Only the helper that is given last counts, and it reads its variable."""
    key = f"credential.{host}.helper"
    return ("-c", f"{key}=", "-c", f"{key}=!f() {{ printf '%s\\n' \"${variable}\"; }}; f")


@pytest.mark.parametrize(
    ("url", "mirrors", "words", "variables"),
    [
        ("https://h/x.git", (), LIMITS, {}),
        ("/srv/x", ("file:///m/git/",), (*LIMITS, *replaced("file:///m/git/", *EVERY_HOST)), {}),
        (
            "https://u:p%40w@h:8443/x.git",
            (),
            (*helper("https://h:8443", "QNN_CI_GIT_LOGIN"), *LIMITS),
            {"QNN_CI_GIT_LOGIN": "username=u\npassword=p@w"},
        ),
        (
            "http://u%40v@h/x.git?token=1",
            (),
            (
                *helper("http://h", "QNN_CI_GIT_LOGIN"),
                *LIMITS,
            ),
            {"QNN_CI_GIT_LOGIN": "username=u@v\npassword="},
        ),
        (
            "https://h/x.git",
            ("https://m:q@r@mirror:1/git/",),
            (
                *LIMITS,
                *helper("https://mirror:1", "QNN_CI_GIT_MIRROR_LOGIN"),
                *replaced("https://mirror:1/git/", *EVERY_HOST),
            ),
            {"QNN_CI_GIT_MIRROR_LOGIN": "username=m\npassword=q@r"},
        ),
        (
            "https://u:p@h/x.git",
            ("https://m:q@mirror/git/",),
            (
                *helper("https://h", "QNN_CI_GIT_LOGIN"),
                *LIMITS,
                *helper("https://mirror", "QNN_CI_GIT_MIRROR_LOGIN"),
                *replaced("https://mirror/git/", *EVERY_HOST),
            ),
            {
                "QNN_CI_GIT_LOGIN": "username=u\npassword=p",
                "QNN_CI_GIT_MIRROR_LOGIN": "username=m\npassword=q",
            },
        ),
        (
            "http://u:p@h/x.git",  # mirrors are for https alone
            ("file:///m/git/",),
            (
                *helper("http://h", "QNN_CI_GIT_LOGIN"),
                *LIMITS,
                *replaced("file:///m/git/", *EVERY_HOST),
            ),
            {"QNN_CI_GIT_LOGIN": "username=u\npassword=p"},
        ),
        (
            "ssh://git@h/x.git",
            ("file:///m/git/",),
            (
                *LIMITS,
                *replaced("ssh://git@h/", "ssh://h/"),
                *replaced("ssh://git@h/x.git", "ssh://h/x.git"),
                *replaced("file:///m/git/", *EVERY_HOST),
            ),
            {},
        ),
        (
            "https://h/x.git?token=1",
            ("file:///m/git/",),
            (*LIMITS, *replaced("file:///m/git/", *EVERY_HOST)),
            {},
        ),
        ("https://h/x.git?token=1", (), LIMITS, {}),
        (
            "https://h/x.git",
            ("https://m/a=b/git/?sig=1",),
            (*LIMITS, *replaced("https://m/a%3Db/git/", *EVERY_HOST)),
            {},
        ),
        (
            "https://h/x.git",  # over ssh, the user is part of the address
            ("ssh://git@m/git/",),
            (*LIMITS, *replaced("ssh://git@m/git/", *EVERY_HOST)),
            {},
        ),
        (
            "ssh://git@h:22/a/x.git",
            (),
            (
                *LIMITS,
                *replaced("ssh://git@h:22/", "ssh://h:22/"),
                *replaced("ssh://git@h:22/a/x.git", "ssh://h:22/a/x.git"),
            ),
            {},
        ),
    ],
)
def test_git_s_arguments_lead_to_the_host_or_the_mirror_and_hold_no_login(
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    mirrors: Sequence[str],
    words: tuple[str, ...],
    variables: Mapping[str, str],
) -> None:
    monkeypatch.setenv("QNN_CI_TIMEOUT_S", "7.5")
    assert _find_access(url, mirrors) == (words, variables)


def ended(output: str, code: int = 1, *, timed_out: bool = False) -> Completed:
    return Completed(("git", "x"), code, output, 3.0, "did not end within 3 s" * timed_out)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (ended("fatal: a\nb\nerror: c"), "fatal: a; error: c"),
        (ended("fatal: a\nerror: b\nfatal: c\nfatal: d\nhint"), "error: b; fatal: c; fatal: d"),
        (ended("a\nb fatal: c"), "a\nb fatal: c"),
        (ended(""), "exited with 1"),
        (ended("", timed_out=True), "did not end within 3 s"),
    ],
)
def test_why_git_failed_is_its_last_errors(result: Completed, words: str) -> None:
    assert _last_words(result) == words


# -- tags ---------------------------------------------------------------------------------------


@pytest.fixture
def tags(monkeypatch: pytest.MonkeyPatch) -> dict[bool, str]:
    """What a mirror (True) and the own host (False) answer when they are asked for tags."""
    answers = {True: "", False: "1\trefs/tags/v1"}

    def ask(
        root: Path, *words: str, variables: Mapping[str, str], on_line: Any, **more: object
    ) -> Completed:
        assert words[:2] == ("-c", "protocol.file.allow=always")
        assert words[-3:] == ("ls-remote", "--tags", "https://h/x")
        assert more == {"timeout_s": 3600, "silence_s": 60.0, "check": False}
        assert variables["QNN_CI_GIT_LOGIN"]
        answer = answers[any("mirror" in word for word in words)]
        for line in answer.splitlines():
            on_line(line)
        return Completed(("git",), 128 if "fatal" in answer else 0, answer, 0.0)

    monkeypatch.setattr(source, "run_git", ask)
    monkeypatch.setenv("QNN_CI_MIRROR", "https://mirror/files")
    return answers


def test_tags_come_from_the_first_that_has_any(tags: dict[bool, str], tmp_path: Path) -> None:
    url = "https://u:p@h/x"
    assert _list_tags(tmp_path, url) == ["1\trefs/tags/v1"]
    for answer in ("fatal: no mirror", "warning: a message, but no tag"):
        tags[True] = answer
        assert _list_tags(tmp_path, url) == ["1\trefs/tags/v1"]
    tags[True] = "2\trefs/tags/v2\nwarning: old\n3\trefs/tags/v3\n"
    assert _list_tags(tmp_path, url) == ["2\trefs/tags/v2", "3\trefs/tags/v3"]
    tags |= {True: "fatal: no mirror", False: "fatal: no host"}
    with pytest.raises(DownloadError, match="the tags of https://h/x cannot be read") as caught:
        _list_tags(tmp_path, url)
    assert caught.value.why == "fatal: no mirror; fatal: no host"
    tags[True], tags[False] = "", ""
    assert _list_tags(tmp_path, url) == []


ROWS = """a1\trefs/tags/v1.0
b0\trefs/tags/v1.9
b1\trefs/tags/v1.9^{}
c1\trefs/tags/v1.10
d1\trefs/tags/v2.0-rc1
e1\trefs/tags/viable
f1\trefs/tags/v1.10.1-x"""


@pytest.mark.parametrize(
    ("now", "asked", "tag", "commit"),
    [
        ("1.0", "", "v1.10", "c1"),
        ("1.0", "1.9", "v1.9", "b1"),
        ("1.0", "v1.9", "v1.9", "b1"),
        ("1.0", "2.0-rc1", "v2.0-rc1", "d1"),
        ("1.10", "", "v1.10", "c1"),
        ("1.11", "", "", ""),  # the mirror lags behind
        ("1.11", "1.9", "v1.9", "b1"),
    ],
)
def test_the_newest_release_is_the_highest_version_and_a_named_one_may_be_any(
    job: FillJob, monkeypatch: pytest.MonkeyPatch, now: str, asked: str, tag: str, commit: str
) -> None:
    rows = [row[:2] * 20 + row[2:] for row in ROWS.splitlines()]
    given: list[Any] = []
    monkeypatch.setattr(source, "_list_tags", lambda *words: given.append(words) or rows)
    old = msgspec.structs.replace(job.request.release_as(GitRelease), version=now)
    new = source.find_release(replace(job, request=replace(job.request, release=old)), asked)
    assert given == [(job.root, old.url)]
    changed = {"version": tag[1:], "tag": tag, "commit": commit * 20} if tag else {}
    assert new == msgspec.structs.replace(old, **changed)


# -- a checkout -----------------------------------------------------------------------------------


@pytest.fixture
def near(job: FillJob, tmp_path: Path) -> FillJob:
    """The job, of the repository itself."""
    release = msgspec.structs.replace(job.request.release, url=f"file://{tmp_path}/repository")
    request = replace(job.request, release=release)
    return replace(job, request=request, progress=Progress(io.StringIO()))


def steps_of(job: FillJob) -> str:
    assert isinstance(job.progress.stream, io.StringIO)
    return job.progress.stream.getvalue()


def commit_more(repository: Path, **files: int) -> str:
    """Commit files of these modes: the new commit."""
    for name, mode in files.items():
        (repository / name).write_text(name)
        (repository / name).chmod(mode)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "more")
    return git(repository, "rev-parse", "HEAD")


def pin(job: FillJob, **fields: str) -> FillJob:
    release = msgspec.structs.replace(job.request.release, **fields)
    return replace(job, request=replace(job.request, release=release))


def test_files_are_sealed_with_the_modes_of_their_commit(near: FillJob, tmp_path: Path) -> None:
    (tmp_path / "repository/link").symlink_to("/etc/hostname")  # what it names is left alone
    job = pin(near, commit=commit_more(tmp_path / "repository", run=0o755, private=0o600))
    before = os.umask(0o077)
    try:
        entries = {entry.path: entry for entry in source.fill(job)}
    finally:
        os.umask(before)
    modes = {path: entries[path].mode for path in ("file", "run", "private")}
    assert modes == {"file": 0o644, "run": 0o755, "private": 0o644}
    for path, mode in modes.items():
        assert stat.S_IMODE((job.root / path).stat().st_mode) == mode
    times = {(job.root / path).stat().st_mtime_ns for path in modes}
    assert len(times) == 1
    assert git(job.root, "status", "--porcelain") == ""
    assert list(entries) == sorted(entries)
    assert ".git/config" in entries
    assert entries["link"] == TreeEntry("link", link="/etc/hostname")
    for name in ("hooks", "info", "branches", "description"):
        assert not (job.root / ".git" / name).exists()


@pytest.mark.parametrize("is_near", [False, True])
def test_the_network_is_asked_only_for_what_the_store_lacks(
    job: FillJob, monkeypatch: pytest.MonkeyPatch, is_near: bool
) -> None:
    done: list[str] = []
    for name in ("fetch", "update_submodules", "seal"):
        monkeypatch.setattr(_Checkout, name, lambda _, name=name: done.append(name))
    monkeypatch.setattr(_Checkout, "fetch_from_store", lambda _: is_near)
    entries = (TreeEntry("b"), TreeEntry("a"))
    monkeypatch.setattr(source, "_entries", lambda root: entries if root == job.root else ())
    assert source.fill(job) == entries[::-1]
    assert done == [*([] if is_near else ["fetch"]), "update_submodules", "seal"]


def test_a_commit_comes_alone_and_its_remote_is_kept(near: FillJob, tmp_path: Path) -> None:
    """What the URL has of a login is neither kept nor shown."""
    place = near.request.release.place
    git(tmp_path / "repository", "tag", "other")
    commit = commit_more(tmp_path / "repository", more=0o644)
    job = pin(near, commit=commit, url=f"{place}?token=secret")
    source.fill(job)
    assert git(job.root, "rev-list", "--count", "HEAD") == "1"
    assert git(job.root, "tag") == ""
    assert git(job.root, "config", "remote.origin.url") == place
    assert git(job.root, "rev-parse", "HEAD") == job.request.release.pin
    assert f"fetching {job.request.release.pin} of {place}\n" in steps_of(job)


def test_hooks_of_the_users_git_do_not_run(
    near: FillJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it convert line ends, whatever the user's configuration says."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (hooks / "post-checkout").chmod(0o755)
    (tmp_path / "template/hooks").mkdir(parents=True)
    (tmp_path / "template/mine").touch()
    (tmp_path / "gitconfig").write_text(
        f"[core]\n hooksPath = {hooks}\n autocrlf = true\n fsmonitor = touch {tmp_path}/ran\n"
        f"[init]\n templateDir = {tmp_path}/template\n[safe]\n directory = *\n"
    )
    (tmp_path / "repository/lines").write_text("one\ntwo\n")
    job = pin(near, commit=commit_more(tmp_path / "repository"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    source.fill(job)
    assert (job.root / "lines").read_bytes() == b"one\ntwo\n"
    assert not (tmp_path / "ran").exists()
    assert not (job.root / ".git/mine").exists()


def test_filters_of_the_users_git_do_not_change_files(
    near: FillJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    (repository / ".gitattributes").write_text("* filter=own\n")
    (repository / "text").write_text("kept\n")
    git(repository, "add", "-A")
    git(repository, "commit", "--quiet", "-m", "attributes")
    settings, attributes = tmp_path / "gitconfig", tmp_path / "attributes"
    attributes.write_text("* text eol=crlf\n")
    settings.write_text(
        f'[core]\nattributesFile = {attributes}\n[filter "own"]\nrequired = true\n'
        "smudge = echo changed\nclean = echo changed\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    commit = git(repository, "rev-parse", "HEAD")
    release = msgspec.structs.replace(near.request.release, commit=commit, tag="")
    source.fill(replace(near, request=replace(near.request, release=release)))
    assert (near.root / "text").read_bytes() == b"kept\n"


def test_a_damaged_gitmodules_is_the_repositorys_fault(near: FillJob, tmp_path: Path) -> None:
    (near.root / ".gitmodules").write_text('[submodule "x\n')
    with pytest.raises(IntegrityError, match="bad config line"):
        _Checkout(near).update_submodules()


@pytest.mark.parametrize("name", ["h=%41", "home"])
def test_a_commit_comes_from_a_store_of_any_name(job: FillJob, tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    root = store.trees / f"{job.request.key().directory}/{job.request.name}"
    root.mkdir(parents=True)
    git(tmp_path / "repository", "clone", "--quiet", "--bare", ".", str(root / ".git"))
    (root.parent / "tree.json").touch()
    assert _Checkout(replace(job, store=store)).fetch_from_store()
    git(root, "--git-dir=.git", "config", "remote.origin.url", "https://h/x")
    module = root / ".git/modules/m"
    git(tmp_path / "repository", "clone", "--quiet", "--bare", ".", str(module))
    git(module, "config", "remote.origin.url", "https://h/m")
    words = _list_near(root / ".git")
    assert git(tmp_path, *words, "-c", "protocol.file.allow=always", "ls-remote", "https://h/m")


def test_a_tag_that_was_moved_is_refused(near: FillJob, tmp_path: Path) -> None:
    old = near.request.release.pin
    new = commit_more(tmp_path / "repository", more=0o644)
    git(tmp_path / "repository", "tag", "v1")
    job = pin(near, tag="v1")
    with pytest.raises(
        IntegrityError, match="the commit fetched for code 1 is not the pinned one"
    ) as caught:
        source.fill(job)
    assert f"refs/tags/v1 at {job.request.release.place} is {new}" in caught.value.why
    assert old in caught.value.why
    assert not (job.root / "more").exists()


def test_what_git_s_templates_put_into_submodules_is_removed(job: FillJob) -> None:
    git(job.root, "init", "--quiet")
    modules = [job.root / ".git/modules" / name for name in ("a", "a/modules/b")]
    for module in modules:
        module.mkdir(parents=True)
        git(module, "init", "--quiet", "--bare", "--template=")
        for name in ("hooks", "info", "branches"):
            (module / name).mkdir()
        (module / "description").touch()
    _Checkout(job).seal()
    for module in modules:
        assert {path.name for path in module.iterdir()} - {"modules"} == {
            *("HEAD", "config", "objects", "refs")
        }


def test_a_git_that_was_killed_has_failed(job: FillJob, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = _Checkout(job)
    monkeypatch.setattr(checkout, "attempt", lambda *_: ended("", -9))
    with pytest.raises(ToolError, match="was killed by SIGKILL"):
        checkout.git("checkout", "x")


class Asked(list[tuple[str, ...]]):
    """The arguments of each attempt, of which the last few succeed."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes, self.variables = list(codes), list[Any]()

    def attempt(self, *words: str, variables: Any, silence_s: float) -> Completed:
        self.append(words)
        self.variables.append(variables)
        return ended(f"fatal: {len(self)}", self.codes.pop(0))


def ask(job: FillJob, *codes: int, from_mirror: Sequence[str] = ()) -> Asked:
    checkout, asked = _Checkout(job), Asked(*codes)
    checkout.attempt = asked.attempt  # type: ignore[method-assign]
    try:
        checkout.git_from_network("fetch", "tag", from_mirror=from_mirror)
    finally:
        assert not asked.codes
    return asked


def test_each_source_is_asked_three_times(job: FillJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror is asked for the commit, since it may not have the tag."""
    job = pin(replace(job, progress=Progress(io.StringIO())), url="https://u:p@vendor.invalid/code")
    assert [words[-2:] for words in ask(job, 1, -9, 0)] == [("fetch", "tag")] * 3
    assert steps_of(job).count("code 1: git fetch from https://vendor.invalid/code failed") == 2
    monkeypatch.setenv("QNN_CI_MIRROR", "https://m:q@mirror/files")
    asked = ask(job, 1, 1, 1, 1, 0, from_mirror=("fetch", "commit"))
    assert [words[-2:] for words in asked] == [("fetch", "commit")] * 3 + [("fetch", "tag")] * 2
    assert steps_of(job).count("git fetch from https://mirror/files/git/ failed") == 3
    assert [words[:2] == source.BY_FILE for words in asked] == [True] * 3 + [False] * 2
    assert all("QNN_CI_GIT_LOGIN" in variables for variables in asked.variables)
    assert ["QNN_CI_GIT_MIRROR_LOGIN" in one for one in asked.variables] == [True] * 3 + [False] * 2
    assert [words[-2:] for words in ask(job, 0)] == [("fetch", "tag")]
    with pytest.raises(DownloadError) as caught:
        ask(job, *[1] * 6)
    assert caught.value.why == "fatal: 3; fatal: 6"
    monkeypatch.delenv("QNN_CI_MIRROR")
    for url in ("/srv/x", "file:///srv/x"):
        assert ask(pin(job, url=url), 0)[0][:2] == source.BY_FILE


@pytest.mark.parametrize("tag", ["v1", ""])
def test_a_tag_is_fetched_by_its_name_and_from_a_mirror_by_its_commit(
    job: FillJob, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    checkout = _Checkout(pin(job, tag=tag))
    commit = checkout.release.commit
    asked: list[Any] = []
    monkeypatch.setattr(
        checkout, "git_from_network", lambda *words, **more: asked.append((words, more))
    )
    monkeypatch.setattr(source, "read_commit", lambda root, revision: commit)
    monkeypatch.setattr(checkout, "git", lambda *words: asked.append(words))
    checkout.fetch()
    words = ("fetch", "--progress", "--depth=1", "--no-tags", "origin")
    name = f"refs/tags/{tag}" if tag else commit
    assert asked[-2:] == [
        ((*words, name), {"from_mirror": [*words, commit]}),
        ("checkout", "--quiet", "--detach", commit),
    ]


def test_git_runs_in_the_tree_with_the_logins_and_time_to_fetch(
    job: FillJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def note(root: Path, *words: str, **more: Any) -> Completed:
        asked.append((root, words, more))
        return ended("", 0)

    monkeypatch.setattr(source, "run_git", note)
    login = {"QNN_CI_GIT_LOGIN": "x"}
    _Checkout(job).attempt("fetch", "y", variables=login)
    limits = {"timeout_s": 3600, "check": False, "variables": login}
    assert asked == [(job.root, (*source.FIXED, "fetch", "y"), limits)]


@pytest.mark.parametrize("near", [(), ("-c", "near"), ("-c", "damaged"), ("-c", "killed")])
def test_submodules_come_from_another_checkout_or_the_network(
    job: FillJob, near: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "list_submodules", lambda root: ("a/b", "c", "d"))
    checkout = _Checkout(replace(job, progress=Progress(io.StringIO())))
    checkout.wanted, checkout.near = ["a/b/**", "c"], [*near]
    asked: list[tuple[str, ...]] = []

    def attempt(*words: str, **_: Any) -> Completed:
        asked.append(words)
        return ended("", {"damaged": 1, "killed": -9}.get("".join(near[1:]), 0))

    monkeypatch.setattr(checkout, "attempt", attempt)
    monkeypatch.setattr(checkout, "git_from_network", lambda *words: asked.append(words))
    checkout.update_submodules()
    update = ("submodule", "update", "--progress", "--init", "--force", "--depth=1")
    plain = [(*update, "--recursive", "--", "a/b"), (*update, "--", "c")]
    local = [(*source.BY_FILE, *near, *words) for words in plain]
    wanted = {
        (): plain,
        ("-c", "near"): local,
        ("-c", "damaged"): [local[0], plain[0], local[1], plain[1]],
        ("-c", "killed"): [local[0], plain[0], local[1], plain[1]],
    }
    assert asked == wanted[near]
    assert steps_of(checkout.job).count("code 1: submodule ") == 2
    assert "submodule a/b\n" in steps_of(checkout.job)


def test_a_tree_lists_files_links_and_empty_directories(tmp_path: Path) -> None:
    for name in ("full/deep", "empty", "other/empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "full/deep/file").write_text("text")
    (tmp_path / "full/deep/file").chmod(0o755)
    (tmp_path / "link").symlink_to("full")
    entries = {entry.path: entry for entry in source._entries(tmp_path)}
    sha256 = hash_file(tmp_path / "full/deep/file")
    empty = {path: TreeEntry(path, mode=DIRECTORY_MODE) for path in ("empty/", "other/empty/")}
    assert entries == {
        "full/deep/file": TreeEntry("full/deep/file", 4, 0o755, sha256),
        "link": TreeEntry("link", link="full"),
        **empty,
    }


# -- bare copies for a mirror ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://u:p@host/a/x.git?t",
        "git+ssh://u@host/a/x.git",
        "file:///host/a/x.git",
        "/host/a/x.git",
    ],
)
def test_a_bare_copy_serves_one_commit_to_whoever_asks_for_it(tmp_path: Path, url: str) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet")
    first = commit_more(repository, one=0o644)
    commit = commit_more(repository, two=0o644)
    made = [_copy_bare(repository, url, tmp_path / "mirror") for _ in range(2)]  # again is no error
    assert made == [tmp_path / "mirror/git/host/a/x.git"] * 2
    assert git(made[0], "rev-parse", "HEAD") == commit
    assert git(made[0], "rev-list", "--count", "--all") == "1"
    assert git(made[0], "config", "core.bare") == "true"
    assert git(made[0], "config", "uploadpack.allowAnySHA1InWant") == "true"
    assert git(made[0], "symbolic-ref", "HEAD") == f"refs/heads/{commit}"
    assert first not in git(made[0], "for-each-ref")


@pytest.mark.parametrize("name", ["a=b", "a%41", "a b", "a#?"])
def test_a_copy_is_made_from_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    repository = tmp_path / name
    repository.mkdir()
    git(repository, "init", "--quiet", "--object-format=sha256")
    commit = commit_more(repository, one=0o644)
    made = _copy_bare(repository, "https://host/x", tmp_path / "mirror")
    assert git(made, "rev-parse", "HEAD") == commit


def test_a_url_that_leads_out_of_the_mirror_is_refused(tmp_path: Path) -> None:
    for url in ("https://h/../../x", "file:///../x", "https://h/a/.."):
        with pytest.raises(IntegrityError):
            _copy_bare(tmp_path, url, tmp_path / "mirror/inner")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("modules", [(), ("a", "a/modules/b")])
def test_a_mirror_gets_the_repository_and_each_submodule(
    job: FillJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...]
) -> None:
    git(job.root, "init", "--quiet")
    for name in modules:
        place = job.root / ".git/modules" / name
        place.mkdir(parents=True)
        git(place, "init", "--quiet", "--bare")
        git(place, "config", "remote.origin.url", f"https://h/{name[-1]}")
    filled: list[FillJob] = []
    monkeypatch.setattr(source, "fill", filled.append)
    monkeypatch.setattr(source, "_copy_bare", lambda *words: words)
    assert source.mirror(job, tmp_path / "mirror") == [  # type: ignore[comparison-overlap]
        (job.root, "https://vendor.invalid/code", tmp_path / "mirror"),
        *(
            (job.root / ".git/modules" / name, f"https://h/{name[-1]}", tmp_path / "mirror")
            for name in modules
        ),
    ]
    assert filled == [job]


def test_submodules_of_another_checkout_are_found(tmp_path: Path) -> None:
    modules = tmp_path / ".git/modules"
    for name in ("a", "a/modules/b", "no-remote", "with"):
        (modules / name).mkdir(parents=True, exist_ok=True)
        git(modules / name, "init", "--quiet", "--bare")
        if name != "no-remote":
            git(modules / name, "config", "remote.origin.url", f"https://h/{name[-1]}")
    (modules / "empty").mkdir()
    (modules / "head-alone").mkdir()
    (modules / "head-alone/HEAD").touch()
    git(tmp_path, "init", "--quiet")
    found = ["a", "a/modules/b", "no-remote", "with"]
    assert _list_modules(tmp_path / ".git") == [modules / name for name in found]
    assert _list_near(tmp_path / ".git") == [
        *("-c", f"url.file://{modules}/a.insteadOf=https://h/a"),
        *("-c", f"url.file://{modules}/a/modules/b.insteadOf=https://h/b"),
        *("-c", f"url.file://{modules}/with.insteadOf=https://h/h"),
    ]


# -- messages -------------------------------------------------------------------------------------


def test_every_message_about_git_says_what_why_and_what_to_do(
    near: FillJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None holds what a URL has of a login."""
    near = pin(near, url=f"{near.request.release.place}?token=secret")
    commit_more(tmp_path / "repository", more=0o644)
    git(tmp_path / "repository", "tag", "v1")
    (tmp_path / "repository/.gitmodules").write_text('[submodule "x"]\n path = x\n url = /x\n')
    commit = commit_more(tmp_path / "repository")
    toolchain = msgspec.structs.replace(near.request.toolchain, components={"a": ["y", "z/**"]})
    apart = replace(near.request, toolchain=toolchain, components=("a",))
    gone = pin(near, url=f"file://{tmp_path}/gone?token=secret")
    monkeypatch.setattr(
        source, "_list_tags", lambda *words: [f"1\trefs/tags/v1.{n}" for n in range(6, 13)]
    )
    offline = replace(gone, request=replace(gone.request, options=Options(offline=True)))
    calls = {
        "a moved tag": lambda: source.fill(pin(near, tag="v1")),
        "no submodule": lambda: source.fill(pin(replace(near, request=apart), commit=commit)),
        "offline": lambda: source.fill(offline),
        "a failure of git": lambda: _Checkout(near).git("checkout", "gone"),
        "no tag": lambda: source.find_release(near, "3.0"),
        "no tag at all": lambda: find_without_tags(near, monkeypatch),
    }
    shown = ""
    for number, (name, call) in enumerate(calls.items()):
        near.root.rename(tmp_path / str(number))
        near.root.mkdir()
        if name == "a failure of git":
            git(near.root, "init", "--quiet")
        with pytest.raises(QnnCiError) as caught:
            call()
        shown += f"{name}\n  {type(caught.value).__name__} {caught.value}\n"
    for old, new in ((str(tmp_path), "TMP"), (commit, "NEWEST"), (near.request.release.pin, "PIN")):
        shown = shown.replace(old, new)
    tagged = git(tmp_path / "repository", "rev-parse", "v1")
    check_snapshot(SNAPSHOTS / "git_messages.txt", shown.replace(tagged, "TAGGED"))


def test_a_repository_that_cannot_be_fetched_may_be_a_checkout_of_the_user(job: FillJob) -> None:
    adoption = Adoption("CODE_ROOT", ())
    toolchain = msgspec.structs.replace(job.request.toolchain, adoption=adoption)
    request = replace(job.request, toolchain=toolchain, options=Options(offline=True))
    with pytest.raises(DownloadError) as caught:
        source.fill(replace(job, request=request))
    assert caught.value.fix.endswith(", or set CODE_ROOT to a checkout")


def find_without_tags(job: FillJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_list_tags", lambda *words: ["1\trefs/tags/viable"])
    source.find_release(job, "")
