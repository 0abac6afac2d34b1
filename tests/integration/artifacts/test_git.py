"""Source trees from git: the pinned commit alone, from a store, a mirror or its host, sealed."""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from provisioning.artifacts.sources import FillJob, Options, git
from provisioning.errors import DownloadError, IntegrityError
from provisioning.files import hash_file
from provisioning.manifest.releases import GitRelease
from provisioning.store.store import Store
from provisioning.store.tree import DIRECTORY_MODE, TreeEntry
from tests.build.artifacts import Workspace, ask, commit, of, show_refusals, tidy, write
from tests.build.artifacts import git as run
from tests.stand_ins import toolchains as made
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
COMPONENTS = '[components]\nall = ["a/b/**"]\nflat = ["a/b"]\nlost = ["y", "z/**"]'


@dataclass
class Code:
    """A repository with submodule a/b, which has submodule n; and jobs that fetch it."""

    sdk: Workspace
    head: str

    @property
    def repository(self) -> Path:
        return self.sdk.root / "code"

    def job(self, *components: str, offline: bool = False, **release: str) -> FillJob:
        request = ask("code", *components, options=Options(offline=offline))
        job = self.sdk.job(of(request, **release))
        shutil.rmtree(job.root)
        job.root.mkdir()
        return job

    def publish(self, *components: str, home: str = "home") -> Path:
        """Fill a tree of the store with a checkout: its directory."""
        store = Store(self.sdk.root / home)
        root = store.trees / self.job(*components).request.key().directory / "code"
        root.mkdir(parents=True)
        git.fill(replace(self.job(*components), root=root, store=store))
        (root.parent / "tree.json").touch()
        return root

    def hide(self) -> None:
        """The hosts are gone."""
        for name in ("code", "b", "n"):
            (self.sdk.root / name).rename(self.sdk.root / f"hidden-{name}")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three repositories whose submodules have relative URLs, so that they can be copied."""
    root = tmp_path_factory.mktemp("repositories")
    for name in "nb":
        commit(root / name, {f"file-{name}": name})
    allow = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    run(root / "b", *allow, "../n", "n")
    commit(root / "b")
    commit(
        root / "code", {"file": "text", "run": "#!/bin/sh\n", ".gitattributes": "* filter=own\n"}
    )
    (root / "code/run").chmod(0o755)
    (root / "code/link").symlink_to("/etc/hostname")
    run(root / "code", *allow, "../b", "a/b")
    commit(root / "code")
    run(root / "code", "tag", "other")
    return root


@pytest.fixture
def code(sdk: Workspace, repositories: Path) -> Code:
    shutil.copytree(repositories, sdk.root, dirs_exist_ok=True, symlinks=True)
    head = run(sdk.root / "code", "rev-parse", "HEAD")
    release = f'source = "git"\nurl = "file://{sdk.root}/code"\ncommit = "{head}"\n'
    made.describe(sdk.manifests, "code", release, tables=COMPONENTS)
    return Code(sdk, head)


def test_checkout_has_the_commit_alone_and_only_the_wanted_submodules(code: Code) -> None:
    """File times are fixed, and modes are those of the commit whatever the umask is."""
    (code.repository / "private").touch(0o600)
    head = commit(code.repository)
    job = code.job(commit=head, url=f"file://{code.sdk.root}/code?token=secret")
    before = os.umask(0o077)
    try:
        entries = {entry.path: entry for entry in git.fill(job)}
    finally:
        os.umask(before)
    assert list(entries) == sorted(entries)
    assert {path: entry for path, entry in entries.items() if not path.startswith(".git")} == {
        "a/b/": TreeEntry("a/b/", mode=DIRECTORY_MODE),
        "file": TreeEntry("file", 4, 0o644, hash_file(code.repository / "file")),
        "link": TreeEntry("link", link="/etc/hostname"),  # what it names is left alone
        "private": TreeEntry("private", 0, 0o644, hash_file(code.repository / "private")),
        "run": TreeEntry("run", 10, 0o755, hash_file(code.repository / "run")),
    }
    assert ".git/config" in entries
    files = [job.root / name for name in ("file", "private", "run")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o644, 0o644, 0o755]
    assert len({file.stat().st_mtime_ns for file in files}) == 1
    assert [run(job.root, *words) for words in (
        ("rev-parse", "HEAD"), ("rev-list", "--count", "HEAD"), ("tag",), ("status", "--porcelain"),
        ("config", "remote.origin.url"),
    )] == [head, "1", "", "", f"file://{code.sdk.root}/code"]  # fmt: skip
    assert f"fetching {head} of file://{code.sdk.root}/code\n" in code.sdk.printed()
    paths = {entry.path for entry in git.fill(code.job("flat"))}
    assert {"a/b/file-b", "a/b/n/"} <= paths
    assert "code 1: submodule a/b\n" in code.sdk.printed()


def test_configuration_of_the_user_changes_no_file_and_runs_nothing(
    code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = code.sdk.root
    hook = write(root / "hooks/post-checkout", f"#!/bin/sh\ntouch {root}/ran\n")
    hook.chmod(0o755)
    template = write(root / "template/hooks/post-checkout", hook.read_bytes())
    template.chmod(0o755)
    for name in ("mine", "description", "info/exclude", "branches/x"):
        write(root / "template" / name, "")
    attributes = write(root / "attributes", "* text eol=crlf\n")
    settings = (
        f"[core]\nhooksPath = {root}/hooks\nautocrlf = true\nfsmonitor = touch {root}/ran\n"
        f"attributesFile = {attributes}\n[init]\ntemplateDir = {root}/template\n"
        '[safe]\ndirectory = *\n[filter "own"]\nrequired = true\n'
        "smudge = echo changed\nclean = echo changed\n"
    )
    head = commit(code.repository, {"lines": "one\ntwo\n"})
    config = write(root / "gitconfig", settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    job = code.job("all", commit=head)
    git.fill(job)
    assert (job.root / "lines").read_bytes() == b"one\ntwo\n"
    assert not (root / "ran").exists()
    assert not (job.root / ".git/mine").exists()
    directories = [job.root / ".git", *git._list_modules(job.root / ".git")]
    assert len(directories) == 3
    for name in ("hooks", "info", "branches", "description"):
        assert not any((directory / name).exists() for directory in directories)


# -- other checkouts, mirrors, hosts --------------------------------------------------------------


@pytest.mark.parametrize("home", ["home", "h=%41"])
def test_commit_and_submodules_are_copied_from_a_store_at_an_unusual_path(
    code: Code, home: str
) -> None:
    code.publish("all", home=home)
    code.hide()
    job = replace(code.job("all"), store=Store(code.sdk.root / home))
    paths = {entry.path for entry in git.fill(job)}
    assert {"file", "a/b/file-b", "a/b/n/file-n"} <= paths


@pytest.mark.parametrize(
    "kind",
    ["damaged", "damaged submodule", "a link", "a file"],
)
def test_commit_that_damaged_checkout_lacks_is_fetched_from_its_host(code: Code, kind: str) -> None:
    """Links and files could lead anywhere."""
    components = ("flat",) if kind == "damaged submodule" else ()
    source = code.publish(*components) / ".git"
    if kind.startswith("damaged"):
        place = "modules/a/b/objects" if components else "objects"
        for path in (source / place).rglob("*"):
            if path.is_file():
                write(path, b"")
    else:
        real = source.rename(code.sdk.root / "real")
        if kind == "a link":
            source.symlink_to(real)
        else:
            source.write_text(f"gitdir: {real}\n")
    code.sdk.printed()
    paths = {entry.path for entry in git.fill(code.job(*components))}
    assert {"file", "a/b/file-b" if components else "a/b/"} <= paths
    assert ("fetching" in code.sdk.printed()) is not bool(components)


def test_mirror_serves_the_commit_of_a_tag_and_each_submodule(
    code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = code.sdk.root / "mirror"
    run(code.repository, "tag", "v1")
    copies = git.mirror(code.job("all", tag="v1"), mirror)
    below = mirror / f"git{code.sdk.root}"
    assert sorted(copies) == sorted(below / name for name in ("b", "code", "n"))
    shown = ("rev-parse", "HEAD"), ("rev-list", "--count", "--all"), ("symbolic-ref", "HEAD")
    assert [run(below / "code", *words) for words in shown] == [
        *(code.head, "1", f"refs/heads/{code.head}")
    ]
    assert run(below / "code", "config", "uploadpack.allowAnySHA1InWant") == "true"
    assert git.mirror(code.job(), mirror) == [below / "code"]  # again is no error
    code.hide()
    monkeypatch.setenv("QNN_CI_MIRROR", mirror.as_uri())
    paths = {entry.path for entry in git.fill(code.job("all", tag="v1"))}
    assert {"file", "a/b/file-b", "a/b/n/file-n"} <= paths


def test_repository_is_put_at_the_place_of_its_url_in_a_mirror(sdk: Workspace) -> None:
    repository = sdk.root / "a=b%41 #?"
    head = commit(repository, {"one": "1"}, "--object-format=sha256")
    mirror = sdk.root / "mirror/inner"
    for url in (
        *("https://u:p@host/a/x.git?t", "git+ssh://u@host/a/x.git", "file:///host/a/x.git"),
        "/host/a/x.git",
    ):
        copy = git._copy_bare(repository, url, mirror)
        assert copy == mirror / "git/host/a/x.git"
    assert run(copy, "rev-parse", "HEAD") == head
    for url in ("https://h/../../x", "file:///../x", "https://h/a/.."):
        with pytest.raises(IntegrityError, match="cannot be put into a mirror"):
            git._copy_bare(repository, url, mirror)
    assert [path.name for path in (sdk.root / "mirror").rglob("git*/*")] == ["host"]


def test_each_source_is_asked_three_times(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = f"code 1: git fetch from file://{code.sdk.root}/code failed\n"
    code.hide()
    monkeypatch.setenv("QNN_CI_MIRROR", f"file://{code.sdk.root}/gone")
    code.sdk.printed()
    with pytest.raises(DownloadError) as caught:
        git.fill(code.job())
    of_mirror = failed.replace("/code failed", "/gone/git/ failed")
    lines = [f"{line}\n" for line in code.sdk.printed().splitlines() if "failed" in line]
    assert lines == [of_mirror] * 3 + [failed] * 3
    assert caught.value.why.count("does not appear to be a git repository") == 2


ROUTES = (
    *(("https://h/x.git", ""), ("https://h/x.git?token=1", ""), ("/srv/x", "file:///m/git/")),
    *(("https://u:p%40w@h:8443/x.git", ""), ("http://u%40v@h/x.git?token=1", "")),
    ("https://h/x.git", "https://m:q@r@mirror:1/git/"),
    ("https://u:p@h/x.git", "https://m:q@mirror/git/"),
    ("http://u:p@h/x.git", "file:///m/git/"),  # mirrors are for https alone
    ("ssh://git@h/x.git", "file:///m/git/"),
    ("https://h/x.git?token=1", "file:///m/git/"),
    ("https://h/x.git", "https://m/a=b/git/?sig=1"),
    ("https://h/x.git", "ssh://git@m/git/"),  # over ssh, the user is part of the address
    ("ssh://git@h:22/a/x.git", ""),
)


def test_arguments_of_git_lead_to_the_host_or_its_mirror_and_hold_no_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every user of the machine can read arguments; git's credential helper reads the login from
    variables."""
    monkeypatch.setenv("QNN_CI_TIMEOUT_S", "7.5")
    shown = ""
    for url, mirror in ROUTES:
        words, variables = git._find_access(url, [mirror] if mirror else [])
        assert set(words[::2]) == {"-c"}
        assert not re.search(r"u:|p@w|m:q|q@r|username|secret", " ".join(words))
        rows = [*words[1::2], *(f"{name}: {value!r}" for name, value in variables.items())]
        shown += "".join([f"{url} {mirror}\n", *(f"  {row}\n" for row in rows)])
    check_snapshot(SNAPSHOTS / "git_routes.txt", shown)


# -- tags -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with releases, one of them annotated, and other tags."""
    repository = tmp_path_factory.mktemp("tagged") / "code"
    for tag in ("v1.0", "v1.9", "v1.10", "v2.0-rc1", "viable", "v1.10.1-x"):
        commit(repository, {"tag": tag})
        run(repository, "tag", *(["-a", "-m", "annotated"] if tag == "v1.9" else []), tag)
    return repository


NEWEST = {  # the version that is pinned, the requested one: the tag
    ("1.0", ""): "v1.10",
    ("1.0", "1.9"): "v1.9",
    ("1.0", "2.0-rc1"): "v2.0-rc1",
    ("1.10", ""): "v1.10",
    ("1.11", ""): "",  # the mirror lags behind
}


def test_newest_release_is_the_highest_version_and_a_named_one_may_be_any(
    code: Code, tagged: Path
) -> None:
    for (now, requested), tag in NEWEST.items():
        job = code.job(url=f"file://{tagged}", version=now)
        old = job.request.release_as(GitRelease)
        head = run(tagged, "rev-parse", f"{tag}^{{commit}}") if tag else ""
        changed = {"version": tag[1:], "tag": tag, "commit": head} if tag else {}
        assert git.find_release(job, requested) == msgspec.structs.replace(old, **changed)


# -- messages -------------------------------------------------------------------------------------


def test_messages_about_git_say_what_why_and_what_to_do(code: Code) -> None:
    """No message contains the login of a URL."""
    url = f"file://{code.repository}?token=secret"
    run(code.repository, "tag", "v1")
    commit(code.repository, {"more": ""})
    moved = code.job(tag="v1", url=url, commit="1" * 40)
    damaged = commit(code.repository, {".gitmodules": '[submodule "x\n'})
    empty = commit(code.repository, {".gitmodules": ""})
    adopted = code.job(offline=True, url=f"file://{code.sdk.root}/gone?token=secret")
    run(code.repository, "tag", "--delete", "other", "v1")
    untagged = code.job(url=url)
    checkout = git._Checkout(code.job(url=url))
    run(checkout.root, "init", "--quiet")
    tables = COMPONENTS + '\n[adoption]\nvariable = "CODE_ROOT"\nmarkers = []'
    release = code.sdk.manifest.with_name("code.toml").read_text().partition("[[releases]]")[2]
    made.describe(code.sdk.manifests, "code", release.replace('version = "1"\n', ""), tables=tables)
    calls = {
        "a submodule that the commit lacks": lambda: git.fill(code.job("lost")),
        "no submodule": lambda: git.fill(code.job("lost", commit=empty, url=url)),
        "a damaged .gitmodules": lambda: git.fill(code.job("all", commit=damaged)),
        "offline": lambda: git.fill(adopted),
        "offline, with an adoption": lambda: git.fill(code.job(offline=True)),
        "a tag that is none": lambda: git.fill(code.job(tag="a:b")),
        "a failure of git": lambda: checkout.git("checkout", "gone"),
        "no tag": lambda: git.find_release(untagged, "3.0"),
        "no tag at all": lambda: git.find_release(untagged, ""),
    }
    shown = show_refusals(calls)
    run(code.repository, "tag", "v1")
    shown += show_refusals({"a moved tag": lambda: git.fill(moved)})
    for number in range(6, 13):
        run(code.repository, "tag", f"v1.{number}")
    shown += show_refusals({"not that tag": lambda: git.find_release(untagged, "3.0")})
    check_snapshot(SNAPSHOTS / "git_messages.txt", tidy(shown, code.sdk.root))
