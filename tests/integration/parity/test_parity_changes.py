"""Proposed changes to main, compared with it: each has its findings, and no other one.

EXECUTORCH_ROOT names a clone of pytorch/executorch.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.parity.policy import ParityPolicy
from ci.parity.run import ParityRequest, compare_source
from ci.parity.trees import find_git_dir
from provisioning.manifest.reader import read_policy
from tests.integration.parity.changes import GROUPS, NEW, Change

ROOT = os.environ.get("EXECUTORCH_ROOT", "")
MAIN = "cff6f4dd32e630945b7188512c1f2b4f102b05ad"
AUTHOR = {
    f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="EXECUTORCH_ROOT names no clone of pytorch/executorch"),
]


class Proposal:
    """A commit on top of main, written without a work tree."""

    def __init__(self, folder: Path) -> None:
        self.git_dir = folder / "clone.git"
        git_dir = find_git_dir(Path(ROOT))
        subprocess.run(
            ["git", "clone", "-q", "--bare", "--shared", str(git_dir), str(self.git_dir)],
            check=True,
        )
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
        for path, edits in change.edits.items():
            text = self.read(path)
            for old, new in edits:
                assert old in text, (change.name, path, old)
                text = text.replace(old, new, 1) if old != NEW else text + new
            self.write(path, text)
        for old, new in change.moves.items():
            self.write(new, self.read(old))
        for path in (*change.moves, *change.deleted):
            self.run("update-index", "--index-info", text=f"0 {'0' * 40}\t{path}\n")

    def commit(self) -> str:
        tree = self.run("write-tree").strip()
        return self.run("commit-tree", tree, "-p", MAIN, "-m", "proposal").strip()


@pytest.fixture
def proposal(tmp_path: Path) -> Proposal:
    return Proposal(tmp_path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


def expectations(group: str) -> Iterator[tuple[str, ...]]:
    for change in GROUPS[group]:
        yield from change.found


@pytest.mark.parametrize("group", GROUPS)
def test_changes_have_their_findings_and_no_other(
    group: str, proposal: Proposal, cache: Path
) -> None:
    for change in GROUPS[group]:
        proposal.apply(change)
    request = ParityRequest(proposal.git_dir, proposal.commit(), base=MAIN, cache=cache)

    report = compare_source(request, read_policy("parity", ParityPolicy))
    found = {(f.kind.value, f.path, f.detail) for f in report.findings if f.level.value != "note"}
    expected = set(expectations(group))
    assert {row for row in expected if not any(f[: len(row)] == row for f in found)} == set()
    assert {f for f in found if not any(f[: len(row)] == row for row in expected)} == set()


def test_changes_are_enough() -> None:
    assert sum(map(len, GROUPS.values())) >= 40
