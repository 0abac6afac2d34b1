"""A checkout from another one in the store: from its own .git alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from provisioning.artifacts.provision import describe_fetch
from provisioning.artifacts.sources import ArtifactRequest, FillJob
from provisioning.artifacts.sources.git import _Checkout
from provisioning.console.progress import Progress
from provisioning.errors import ToolError
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Published, Store
from tests.stand_ins.toolchains import describe


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    ended = subprocess.run(["git", *who, *words], cwd=root, capture_output=True, check=True)
    return ended.stdout.decode().strip()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FillJob:
    """A job for the one commit of a repository that is beside the store."""
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "file").write_text("text")
    git(repository, "init", "--quiet")
    git(repository, "add", "file")
    git(repository, "commit", "--quiet", "-m", "one")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    monkeypatch.delenv("QNN_CI_MIRROR", raising=False)
    (tmp_path / "manifests/toolchains").mkdir(parents=True)
    release = f"""
source = "git"
url = "https://vendor.invalid/code"
commit = "{git(repository, "rev-parse", "HEAD")}"
"""
    describe(tmp_path / "manifests", "code", release)
    toolchain = read_toolchain("code")
    request = ArtifactRequest(toolchain, toolchain.release())
    root = tmp_path / "root"
    root.mkdir()
    return FillJob(request, root, Store(tmp_path / "home"), Progress())


@pytest.mark.parametrize("kind", ["directory", "damaged", "link", "file"])
def test_a_commit_comes_from_a_git_directory_and_from_no_link_to_one(
    job: FillJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    published = Published(tmp_path / "published", "code")
    published.root.mkdir(parents=True)
    source, target = tmp_path / "repository/.git", published.root / ".git"
    if kind in {"directory", "damaged"}:
        shutil.copytree(source, target)
    elif kind == "link":
        target.symlink_to(source)
    else:
        target.write_text(f"gitdir: {source}\n")
    if kind == "damaged":
        for path in (target / "objects").rglob("*"):
            if path.is_file():
                path.chmod(0o644)
                path.write_bytes(b"")
    if kind == "directory":
        shutil.copytree(source, target / "modules/sub")
        git(target / "modules/sub", "config", "remote.origin.url", "https://vendor.invalid/sub")
    monkeypatch.setattr(job.store, "editions", lambda key: [published])
    checkout = _Checkout(job)
    assert checkout.fetch_from_store() == (kind == "directory")
    place = f"url.{(target / 'modules/sub').as_uri()}.insteadOf=https://vendor.invalid/sub"
    assert checkout.near == (["-c", place] if kind == "directory" else [])
    assert (job.root / "file").is_file() == (kind == "directory")
    assert bool(list(job.root.iterdir())) == (kind == "directory")  # what is left may not count


def test_a_git_that_fails_is_shown_with_its_words(job: FillJob) -> None:
    with pytest.raises(ToolError, match=r"git exited with .*no-such-verb"):
        _Checkout(job).git("no-such-verb")
    (head, size, *_) = describe_fetch([job.request], job.store)
    assert re.match(r"artifacts to fetch: 1; [\d.,]+ \w+ are free in ", head)
    assert size.endswith(": a git checkout from vendor.invalid")
    release = msgspec.structs.replace(
        job.request.release, url="https://user:secret@vendor.invalid:80/code"
    )
    lines = describe_fetch([replace(job.request, release=release)], job.store)
    assert lines[1] == size
