"""Proposed changes to main, compared with it: each has its findings, and no other one.

changes.json has groups of changes that touch no file or target of each other, so that one
comparison judges all of a group.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from ci.parity.run import ParityRequest, compare_source
from tests.integration.parity.upstream import MAIN, POLICY, WALKS, git_dir, read_artifact

AUTHOR = {
    f"GIT_{who}_{field}": "a@b" for who in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
}
pytestmark = WALKS


class Change(msgspec.Struct, frozen=True):
    """Edits of files, each a path, a text and what replaces it (an empty one: a new file, or the
    end of one that exists), files to move or delete, and what must be found: kind and path, and a
    detail where that matters."""

    name: str
    edits: tuple[tuple[str, str, str], ...] = ()
    moves: dict[str, str] = {}
    deleted: tuple[str, ...] = ()
    findings: tuple[tuple[str, ...], ...] = ()


GROUPS = msgspec.convert(read_artifact("changes.json"), dict[str, tuple[Change, ...]])


class Proposal:
    """A commit on top of main, written without a work tree."""

    def __init__(self, folder: Path) -> None:
        self.git_dir = folder / "clone.git"
        # The clone may belong to another user, and the tests read no settings of git.
        settings = folder / "gitconfig"
        settings.write_text(f"[safe]\n\tdirectory = {git_dir()}\n")
        words = ["git", "clone", "-q", "--bare", "--shared", str(git_dir()), str(self.git_dir)]
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": str(settings)}
        subprocess.run(words, check=True, env=environment)
        self.run("read-tree", MAIN)

    def run(self, *words: str, text: str = "") -> str:
        environment = {**os.environ, **AUTHOR, "GIT_INDEX_FILE": str(self.git_dir / "proposal")}
        done = subprocess.run(
            ["git", "--git-dir", str(self.git_dir), *words],
            input=text, text=True, check=True, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        return done.stdout

    def read(self, path: str) -> str:
        return self.run("show", f":{path}") if self.run("ls-files", path) else ""

    def write(self, path: str, text: str) -> None:
        blob = self.run("hash-object", "-w", "--stdin", text=text).strip()
        self.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")

    def apply(self, change: Change) -> None:
        for path, old, new in change.edits:
            text = self.read(path)
            assert old in text, (change.name, path, old)
            self.write(path, text.replace(old, new, 1) if old else text + new)
        for old, new in change.moves.items():
            self.write(new, self.read(old))
        for path in (*change.moves, *change.deleted):
            self.run("update-index", "--index-info", text=f"0 {'0' * 40}\t{path}\n")

    def commit(self) -> str:
        tree = self.run("write-tree").strip()
        return self.run("commit-tree", tree, "-p", MAIN, "-m", "proposal").strip()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@pytest.mark.parametrize("group", GROUPS)
def test_planted_changes_have_exactly_their_findings(
    group: str, tmp_path: Path, cache: Path
) -> None:
    proposal = Proposal(tmp_path)
    for change in GROUPS[group]:
        proposal.apply(change)
    request = ParityRequest(proposal.git_dir, proposal.commit(), base=MAIN, cache=cache)

    report = compare_source(request, POLICY)
    findings = {(f.kind.value, f.path, f.detail) for f in report.failing}
    expected = {row for change in GROUPS[group] for row in change.findings}
    for row in expected:
        assert any(finding[: len(row)] == row for finding in findings), row
    for finding in findings:
        assert any(finding[: len(row)] == row for row in expected), finding


def test_there_are_at_least_40_planted_changes() -> None:
    assert sum(map(len, GROUPS.values())) >= 40
