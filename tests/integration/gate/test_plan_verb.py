"""``qnn-ci plan``, ``matrix`` and ``gate`` on repositories that git has made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ci.verbs.registry import VERBS
from provisioning.console.command import run_command
from tests.stand_ins.repository import Checkout, make_checkout
from tests.stand_ins.small_project import FILES


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project in a repository."""
    return make_checkout(tmp_path_factory.mktemp("gate") / "small", FILES).root


@pytest.fixture
def checkout(template: Path, tmp_path: Path) -> Checkout:
    shutil.copytree(template, tmp_path / "small", symlinks=True)
    return Checkout(tmp_path / "small")


def run(*words: str) -> tuple[int, Any]:
    code, text = run_command("qnn-ci", VERBS, [*words, "--json"])
    return code, json.loads(text)


def plan(checkout: Checkout, *words: str) -> dict[str, Any]:
    code, data = run("plan", "--source", str(checkout.root), *words)
    assert code == 0, data
    assert isinstance(data, dict)
    return data


def running(data: dict[str, Any]) -> set[str]:
    return {session["name"] for session in data["sessions"] if session["run"]}


def changes(data: dict[str, Any]) -> set[tuple[str, str]]:
    return {(change["path"], change["change"]) for change in data["changes"]}


def refuse(checkout: Checkout, *words: str, code: int = 2) -> dict[str, Any]:
    ended, data = run("plan", "--source", str(checkout.root), *words)
    assert ended == code
    assert isinstance(data, dict)
    return data


def test_a_clean_checkout_plans_no_session(checkout: Checkout) -> None:
    data = plan(checkout)
    assert (running(data), data["changes"], data["jobs"]) == (set(), [], [])
    assert data["head"] == "work tree"


def test_untracked_files_count_as_changes_and_ignored_ones_do_not(checkout: Checkout) -> None:
    checkout.write({"README.md": "new\n", "docs/untracked.md": "new\n", ".gitignore": "*.tmp\n"})
    checkout.write({"ci/ignored.tmp": "x"})
    data = plan(checkout)
    assert changes(data) == {
        ("README.md", "modified"),
        ("docs/untracked.md", "added"),
        (".gitignore", "added"),
    }
    assert run("plan", "--source", str(checkout.root / "ci" / "models")) == (0, data)


def test_a_renamed_file_counts_as_one_deleted_and_one_added(checkout: Checkout) -> None:
    checkout.git("mv", "ci/cases/policy.py", "ci/cases/limits.py")
    checkout.commit()
    data = plan(checkout, "--base", "HEAD~1", "--head", "HEAD")
    assert changes(data) == {
        ("ci/cases/policy.py", "deleted"),
        ("ci/cases/limits.py", "added"),
    }
    assert len(data["cases"]) == 3  # of the suite, which the shards of test_emulator divide


def test_a_file_deleted_in_the_work_tree_plans_its_sessions(checkout: Checkout) -> None:
    checkout.write({"docker/Dockerfile": None})
    data = plan(checkout)
    assert changes(data) == {("docker/Dockerfile", "deleted")}
    assert "docker_build" in running(data)


def test_changes_of_mode_type_and_link_target_are_changes(checkout: Checkout) -> None:
    (checkout.root / "docker/Dockerfile").chmod(0o755)
    (checkout.root / "docker/packages/link.txt").symlink_to("../../provisioning/files.py")
    (checkout.root / "LICENSE").unlink()
    (checkout.root / "LICENSE").symlink_to("README.md")
    checkout.commit()
    data = plan(checkout, "--base", "HEAD~1", "--head", "HEAD")
    assert changes(data) == {
        ("docker/Dockerfile", "modified"),
        ("docker/packages/link.txt", "added"),
        ("LICENSE", "type"),
    }


def test_a_changed_submodule_is_a_change(checkout: Checkout, tmp_path: Path) -> None:
    make_checkout(tmp_path / "other", {"a": "a\n"})
    checkout.git("submodule", "--quiet", "add", str(tmp_path / "other"), "third-party/other")
    checkout.commit()
    data = plan(checkout, "--base", "HEAD~1", "--head", "HEAD")
    assert ("third-party/other", "added") in changes(data)
    assert data["everything"]
    Checkout(checkout.root / "third-party/other").commit({"b": "b\n"})
    assert changes(plan(checkout)) == {("third-party/other", "modified")}


def test_unusual_file_names_are_planned_and_escaped_in_the_output(checkout: Checkout) -> None:
    odd = {"docs/a b\n::error::c.md": "x", "docs/ü\u202e.md": "x", "docs/|<b>`.md": "x"}
    checkout.commit({**odd})
    raw = bytes(checkout.root) + b"/docs/\xff.md"
    Path(raw.decode("utf-8", "surrogateescape")).write_text("x")
    data = plan(checkout, "--base", "HEAD~1")
    assert {path for path, _ in changes(data)} == {*odd, "docs/\\udcff.md"}
    assert running(data) == {"lint"}
    words = ["plan", "--source", str(checkout.root), "--base", "HEAD~1", "--markdown"]
    text = run_command("qnn-ci", VERBS, words)[1]
    assert not any(line.startswith("::") for line in text.splitlines())
    assert "<b>" not in text


def test_a_shallow_clone_is_refused_with_the_fix(checkout: Checkout, tmp_path: Path) -> None:
    checkout.commit({"README.md": "more\n"})
    checkout.git("clone", "-q", "--depth=1", f"file://{checkout.root}", str(tmp_path / "shallow"))
    shallow = Checkout(tmp_path / "shallow")
    assert "fetch-depth: 0" in refuse(shallow)["fix"]
    assert "fetch-depth: 0" in refuse(shallow, "--base", "HEAD~1")["fix"]
    assert running(plan(shallow, "--base", "HEAD")) == set()
    assert plan(shallow, "--everything")["everything"] == "--everything"


@pytest.mark.parametrize("word", ["nowhere", "", "-x", "HEAD:README.md", "0" * 40])
def test_an_unknown_revision_is_refused(checkout: Checkout, word: str) -> None:
    assert "revision" in refuse(checkout, f"--head={word}" if word else "--base=nowhere")["what"]


def test_rules_option_replaces_the_built_in_gate_rules(checkout: Checkout, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'branch = "main"\n[sessions.qnn]\n'
        '[[rule]]\nfiles = ["ci/**"]\nsessions = ["qnn"]\nreason = "it is built"\n'
        '[[rule]]\nfiles = ["**.md"]\nsessions = []\nreason = "prose"\n'
    )
    checkout.commit({"ci/report/write.py": "x = 1\n", "README.md": "x\n"})
    checkout.commit({"README.md": "y\n"})
    words = ["--rules", str(rules), "--head", "HEAD~1", "--base"]
    assert running(plan(checkout, *words, "HEAD~2")) == {"qnn"}
    assert running(plan(checkout, "--rules", str(rules), "--base", "HEAD~1")) == set()
    rules.write_text(rules.read_text().replace('"main"', '"gone"'))
    assert "no branch gone" in plan(checkout, "--rules", str(rules))["everything"]
    rules.write_text("branch = 1\n")
    assert "does not match its schema" in refuse(checkout, "--rules", str(rules))["what"]
