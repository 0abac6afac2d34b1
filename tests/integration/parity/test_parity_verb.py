"""``python -m ci parity`` on git repositories of our own, with its workers and its cache."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.parity import reading
from ci.verbs.registry import VERBS
from provisioning.console.command import run_command
from provisioning.console.process import run_process
from provisioning.errors import ExitCode
from tests.stand_ins.forks import Forks

LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
FIRST = {
    "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp", "old.cpp"])\n',
    "p/a.cpp": "int a;\n",
    "p/old.cpp": "int o;\n",
    "CMakeLists.txt": "project(executorch)\nadd_library(lib p/a.cpp)\n",
}
SECOND = {
    "p/b.cpp": "int b;\n",
    "CMakeLists.txt": "project(executorch)\nadd_library(lib p/a.cpp\n  p/b.cpp)\n",
}
POLICY = 'android_only = ["*_android_build"]\n'
ROOT = Path(__file__).parents[3]
LAYOUT = (
    '[layout]\nproject = "executorch"\ncells = ["fbsource"]\nroots = ["xplat/executorch"]\n'
    'stubbed = ["runtime_wrapper.bzl"]\n'
)

Ended = subprocess.CompletedProcess[str]
Parity = Callable[..., Ended]


def git(folder: Path, *words: str) -> None:
    """Run git with an identity of its own."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    run_process(["git", "-C", folder, *who, *words])


def plant(folder: Path, files: dict[str, str]) -> None:
    """Write files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout with two commits: the second adds a drift to an old one."""
    folder = tmp_path / "source"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number, files in enumerate((FIRST, SECOND)):
        plant(folder, files)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"commit {number}")
    return folder


@pytest.fixture
def parity(tmp_path: Path, verbs: Forks) -> Parity:
    """Run the verb."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY + LAYOUT, encoding="utf-8")
    env = {**os.environ, "QNN_CI_HOME": str(tmp_path / "home")}

    def run(*words: object) -> Ended:
        head = ("parity", "--policy", str(policy))
        return verbs.run_module("ci", *head, *map(str, words), cwd=ROOT, env=env)

    return run


def document(ended: Ended) -> dict[str, Any]:
    """The JSON that the verb printed."""
    value: dict[str, Any] = json.loads(ended.stdout)
    return value


def paths(ended: Ended) -> set[str]:
    """The paths of the findings."""
    return paths_of(document(ended))


def paths_of(report: dict[str, Any]) -> set[str]:
    return {finding["path"] for finding in report["findings"]}


def test_parity_reads_a_checkout_a_revision_and_a_bare_directory(
    source: Path, parity: Parity
) -> None:
    checkout = parity("--source", source, "--scope", "./p/", "--json")
    revision = parity("--source", source, "--rev", "main~1", "--scope", ".", "--json")
    bare = parity("--source", source / ".git", "--rev", "main", "--json")

    assert checkout.returncode == revision.returncode == 1
    assert paths(checkout) == paths(bare) == {"p/old.cpp", "p/b.cpp"}
    assert paths(revision) == {"p/old.cpp"}


def test_parity_with_a_base_reports_only_new_findings(source: Path, parity: Parity) -> None:
    ended = parity("--source", source, "--base", "main~1", "--json")

    assert paths(ended) == {"p/b.cpp"}
    assert document(ended)["counts"]["old"] == 1
    assert parity("--source", source, "--base", "main").returncode == 0
    plant(source, {"p/BUCK": FIRST["p/BUCK"].replace("old", "b")})
    git(source, "commit", "-qam", "a fix that the revision before it does not have")
    ended = parity("--source", source, "--rev", "main~1", "--base", "main", "--json")
    assert paths(ended) == set()


def test_annotations_are_on_the_file_that_changed(source: Path, parity: Parity) -> None:
    ended = parity("--source", source, "--base", "main~1", "--annotate")

    *annotations, counts = ended.stdout.splitlines()
    assert any(line.startswith("CMakeLists.txt:3: error: p/b.cpp: ") for line in annotations)
    assert counts.startswith("1 new finding, ")


def test_parity_from_the_cache_gives_the_same_report(
    source: Path, parity: Parity, tmp_path: Path
) -> None:
    first = document(parity("--source", source, "--json"))
    cached_files = sorted((tmp_path / "home" / "parity").glob("*.json"))
    second = document(parity("--source", source, "--json"))

    assert [path.name.partition("-")[0] for path in cached_files] == ["found"]
    assert second == first
    plant(source, {"p/new.cpp": ""})
    assert paths(parity("--source", source, "--json")) == paths_of(first) | {"p/new.cpp"}
    (source / "p/new.cpp").unlink()
    plant(source, {"p/BUCK": FIRST["p/BUCK"].replace('"old.cpp"', '"old.cpp", "b.cpp"')})
    assert paths(parity("--source", source, "--json")) == {"p/old.cpp"}
    for path in (tmp_path / "home" / "parity").glob("*.json"):
        path.write_text("torn")
    assert parity("--source", source, "--json").returncode == 1


def test_a_build_file_that_exhausts_memory_is_reported_as_not_evaluated(
    source: Path, parity: Parity
) -> None:
    bomb = "x = [0] * 1000\n" + "x = x + x + x + x + x + x + x + x\n" * 12
    plant(
        source, {"q/BUCK": f"def f():\n  {bomb.strip().replace(chr(10), chr(10) + '  ')}\n\nf()\n"}
    )

    ended = parity("--source", source, "--json")

    reasons = " ".join(row["reason"] for row in document(ended)["not_evaluated"])
    assert "q/BUCK" in reasons or "the process that reads this side" in reasons


@pytest.mark.parametrize("scope", [[], ["--scope", "p"]], ids=["whole", "scope"])
def test_parity_fails_if_a_side_could_not_be_read(
    source: Path, scope: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WORKER_LIMIT_S", 0.01)
    (tmp_path / "own.toml").write_text(POLICY)  # nothing allowed, hence nothing that is stale
    words = ["parity", "--source", str(source), "--no-cache", *scope]
    words += ["--policy", str(tmp_path / "own.toml")]

    code, text = run_command("ci", VERBS, words)
    assert (code, "the buck side was NOT READ" in text) == (ExitCode.FAILED, True)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    code, text = run_command("ci", VERBS, [*words, "--annotate"])
    assert (code, "::error title=parity::the buck side" in text) == (ExitCode.FAILED, True)
    code, text = run_command("ci", VERBS, [*words, "--json"])
    assert (code, [row["path"] for row in json.loads(text)["findings"]]) == (ExitCode.FAILED, [])
    why = "the process that reads this side of the tree failed: did not end within"
    assert {row["reason"][: len(why)] for row in json.loads(text)["not_evaluated"]} == {why}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rev", "nowhere"], "no revision 'nowhere'"),
        (["--scope", "no/such"], "no folder no/such"),
        (["--base", "nowhere"], "no revision 'nowhere'"),
    ],
    ids=["revision", "scope", "base"],
)
def test_a_wrong_argument_of_parity_is_a_usage_error(
    words: list[str], message: str, source: Path, parity: Parity
) -> None:
    ended = parity("--source", source, *words)

    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_tree_without_build_files_is_a_usage_error(parity: Parity, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    ended = parity("--source", tmp_path / "empty")

    assert ended.returncode == 2
    assert "is not a tree of executorch" in ended.stderr


def test_sarif_is_written_beside_the_table(source: Path, parity: Parity, tmp_path: Path) -> None:
    target = tmp_path / "out" / "parity.sarif"

    ended = parity("--source", source, "--sarif", target)

    assert "buck-only-source  p/" in ended.stdout
    assert len(json.loads(target.read_text("utf-8"))["runs"][0]["results"]) == 2
