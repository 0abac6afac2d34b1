"""``qnn-ci plan``, ``matrix`` and ``gate`` on repositories that git has made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import VERBS
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.gate.reading import Repository
from ci.gate.rules import read_rules
from ci.models.schemes import Scheme
from ci.report.schema import Report
from ci.report.write import write_report
from provisioning.console.command import run_command
from tests.stand_ins.reports import make_judged
from tests.stand_ins.repository import Checkout, make_checkout
from tests.stand_ins.shards import make_cases, make_shards
from tests.stand_ins.small_project import FILES

MLP = "ci/models/suite/mlp.py"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project in a repository."""
    return make_checkout(tmp_path_factory.mktemp("gate") / "small", FILES).root


@pytest.fixture
def checkout(template: Path, tmp_path: Path) -> Checkout:
    shutil.copytree(template, tmp_path / "small", symlinks=True)
    return Checkout(tmp_path / "small")


@pytest.fixture(scope="module")
def history(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Eleven commits, the last ten of a page."""
    root = tmp_path_factory.mktemp("gate") / "history"
    shutil.copytree(template, root, symlinks=True)
    for number in range(10):
        Checkout(root).commit({"README.md": f"{number}\n"})
    return Checkout(root)


def run(*words: str) -> tuple[int, Any]:
    code, text = run_command("qnn-ci", VERBS, [*words, "--json"])
    return code, json.loads(text)


def plan(checkout: Checkout, *words: str) -> dict[str, Any]:
    code, data = run("plan", "--source", str(checkout.root), *words)
    assert code == 0, data
    assert isinstance(data, dict)
    return data


def running(data: dict[str, Any]) -> set[str]:
    return {one["name"] for one in data["sessions"] if one["run"]}


def changes(data: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["path"], one["change"]) for one in data["changes"]}


def refuse(checkout: Checkout, *words: str, code: int = 2) -> dict[str, Any]:
    ended, data = run("plan", "--source", str(checkout.root), *words)
    assert ended == code
    assert isinstance(data, dict)
    return data


def test_a_clean_checkout_needs_nothing(checkout: Checkout) -> None:
    data = plan(checkout)
    assert (running(data), data["changes"], data["jobs"]) == (set(), [], [])
    assert data["head"] == "work tree"


def test_what_both_trees_hold_is_parsed_once(checkout: Checkout) -> None:
    repository = Repository(checkout.root, read_rules())
    checkout.write({"ci/mine.py": "import ci\n"})
    repository.compare(repository.resolve("HEAD"), "")
    once = len(repository.known)
    assert once == len({key.split(" ")[0] for key in repository.known}) > 10
    checkout.write({MLP: "import torch\n"})
    repository.compare(repository.resolve("HEAD"), "")
    assert len(repository.known) == once + 1


def test_the_work_tree_counts_with_what_is_not_tracked(checkout: Checkout) -> None:
    checkout.write({"README.md": "new\n", "docs/untracked.md": "new\n", ".gitignore": "*.tmp\n"})
    checkout.write({"ci/ignored.tmp": "x"})
    data = plan(checkout)
    assert changes(data) == {
        ("README.md", "modified"),
        ("docs/untracked.md", "added"),
        (".gitignore", "added"),
    }
    assert run("plan", "--source", str(checkout.root / "ci" / "models")) == (0, data)


def test_what_is_staged_counts_too(checkout: Checkout) -> None:
    checkout.write({MLP: "x = 1\n"})
    checkout.git("add", "-A")
    data = plan(checkout)
    assert {case["model"] for case in data["cases"]} == {"mlp"}


def test_a_page_needs_lint_alone_and_the_gate_too(checkout: Checkout, tmp_path: Path) -> None:
    checkout.commit({"docs/emulator.md": "more\n"})
    data = plan(checkout, "--base", "HEAD~1", "--head", "HEAD", "--out", str(tmp_path / "p.json"))
    assert running(data) == {"lint"}
    code, matrix = run("matrix", str(tmp_path / "p.json"))
    assert code == 0
    words = ["--source", str(checkout.root), "--base", "HEAD~1", "--head", "HEAD", "--markdown"]
    assert run_command("qnn-ci", VERBS, ["plan", *words])[1].startswith("## Plan")
    assert [row["job"] for row in matrix["include"]] == ["lint"]
    assert judge(tmp_path, {"lint": "0"}) == (0, True)
    assert judge(tmp_path, {"lint": "1"}) == (1, False)
    assert judge(tmp_path, {"lint": "4"}) == (4, False)
    assert judge(tmp_path, {}) == (4, False)


def judge(tmp_path: Path, codes: dict[str, str]) -> tuple[int, bool]:
    """The gate's exit code, and whether it is green."""
    shutil.rmtree(tmp_path / "results", ignore_errors=True)
    for job, code in codes.items():
        folder = tmp_path / "results" / f"result-{job}"
        folder.mkdir(parents=True)
        (folder / "exit-code.txt").write_text(code)
    session = "success" if set(codes.values()) == {"0"} else "failure"
    needs = {"plan": {"result": "success"}, "session": {"result": session, "outputs": {}}}
    (tmp_path / "needs.json").write_text(json.dumps(needs))
    words = ["--needs", str(tmp_path / "needs.json"), "--results", str(tmp_path / "results")]
    code, data = run("gate", str(tmp_path / "p.json"), *words)
    return code, data["green"]


def test_both_names_of_a_rename_count(checkout: Checkout) -> None:
    checkout.git("mv", "ci/cases/policy.py", "ci/cases/limits.py")
    checkout.commit()
    data = plan(checkout, "--base", "HEAD~1", "--head", "HEAD")
    assert changes(data) == {
        ("ci/cases/policy.py", "deleted"),
        ("ci/cases/limits.py", "added"),
    }
    assert len(data["cases"]) == 3


def test_a_file_deleted_in_the_work_tree_counts(checkout: Checkout) -> None:
    checkout.write({"docker/Dockerfile": None})
    data = plan(checkout)
    assert changes(data) == {("docker/Dockerfile", "deleted")}
    assert "docker_build" in running(data)


def test_a_mode_a_type_and_a_link_count(checkout: Checkout) -> None:
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
    checkout.commit({"provisioning/files.py": "x = 1\n"})
    through = plan(checkout, "--base", "HEAD~1", "--head", "HEAD")
    assert "docker_build" in running(through)


def test_a_submodule_counts(checkout: Checkout, tmp_path: Path) -> None:
    make_checkout(tmp_path / "other", {"a": "a\n"})
    checkout.git("submodule", "--quiet", "add", str(tmp_path / "other"), "third-party/other")
    checkout.commit()
    data = plan(checkout, "--base", "HEAD~1", "--head", "HEAD")
    assert ("third-party/other", "added") in changes(data)
    assert data["everything"]
    Checkout(checkout.root / "third-party/other").commit({"b": "b\n"})
    assert changes(plan(checkout)) == {("third-party/other", "modified")}


def test_names_that_are_hard_to_write(checkout: Checkout) -> None:
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


def test_a_bare_repository_is_planned_by_revisions(checkout: Checkout, tmp_path: Path) -> None:
    checkout.commit({"README.md": "more\n"})
    checkout.git("clone", "-q", "--bare", str(checkout.root), str(tmp_path / "bare"))
    bare = Checkout(tmp_path / "bare")
    assert running(plan(bare, "--base", "HEAD~1", "--head", "HEAD")) == {"lint"}
    assert running(plan(bare, "--base", "HEAD~1")) == {"lint"}


def judge_all(shard: Report) -> Report:
    """The report that a lane would write of a shard, its mark kept."""
    specs = [CaseSpec(one.model, Scheme(one.scheme), one.soc) for one in shard.cases]
    limits = read_emulator_policy().describe_limits(specs)
    return replace(make_judged(shard.session, specs, limits), shard=shard.shard)


@pytest.mark.parametrize(
    ("event", "words", "everything"),
    [
        ("pull_request", ["--base", "HEAD~2"], ""),
        ("merge_group", ["--base", "HEAD~2"], "the event is merge_group"),
        ("push", ["--base", "HEAD~1"], ""),
        ("push", ["--base", "f" * 40], "ffffffffffff"),
        ("push", ["--base", "HEAD~2"], "commits of main, here at commit 10"),
        ("push", ["--base", "HEAD~9"], "commits of main, here at commit 10"),
        ("schedule", [], "the event is schedule"),
        ("workflow_dispatch", [], "the event is workflow_dispatch"),
        ("", ["--everything"], "--everything"),
    ],
)
def test_nightly_and_every_nth_commit_run_everything(
    history: Checkout, event: str, words: list[str], everything: str
) -> None:
    data = plan(history, "--head", "HEAD", "--event", event, *words)
    assert everything in data["everything"]
    assert bool(everything) == bool(data["everything"])
    assert len(data["cases"]) == (3 if everything else 0)
    assert running(data) > {"lint", "tests"} if everything else running(data) == {"lint"}


def test_rules_of_one_s_own(checkout: Checkout, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'branch = "main"\nevery_nth = 5\nwords = false\n'
        '[sessions.qnn]\nroots = ["ci/cases/**"]\n'
        '[[rule]]\nfiles = ["**.md"]\nsessions = []\nreason = "prose"\n'
    )
    checkout.commit({"noxfile.py": None})
    checkout.commit({"ci/report/write.py": "x = 1\n", "README.md": "x\n"})
    checkout.commit({"README.md": "y\n"})
    words = ["--rules", str(rules), "--head", "HEAD~1", "--base"]
    assert running(plan(checkout, *words, "HEAD~2")) == {"qnn"}
    assert running(plan(checkout, "--rules", str(rules), "--base", "HEAD~1")) == set()
    rules.write_text("branch = 1\n")
    assert "does not match its schema" in refuse(checkout, "--rules", str(rules))["what"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", ""),
        ("no shard 2", "the job left no report.json"),
        ("shard 1 twice", "shard 1/2 was passed 2 times"),
        ("another policy", "different policies"),
        ("a case fewer", "planned cases are missing (1): mlp"),
        ("no plan", "cannot read the plan"),
    ],
)
def test_the_gate_judges_shards_and_reports(
    checkout: Checkout, tmp_path: Path, change: str, says: str
) -> None:
    """What else may be wrong is in tests/unit/ci/gate/test_tampered_results.py."""
    data = plan(checkout, "--everything", "--out", str(tmp_path / "p.json"))
    jobs = [job for job in data["jobs"] if job["session"] == "test_emulator"]
    names = [" ".join(case.values()) for case in data["cases"]]
    for count in (1, 2):
        job = {**jobs[0], "id": f"test_emulator-{count}-of-2", "shard": f"{count}/2"}
        jobs.append({**job, "cases": []})  # how they are split here is not how a plan splits them
    (tmp_path / "p.json").write_text(json.dumps({**data, "jobs": jobs[-2:]}))
    cases = make_cases(*(names if change != "a case fewer" else names[1:]))
    shards = make_shards(cases, 2)
    if change == "another policy":
        shards[1] = make_shards(cases, 2, policy="1" * 64)[1]
    if change == "shard 1 twice":
        shards[1] = shards[0]
    results = tmp_path / "results"
    for number, report in enumerate(shards, 1):
        folder = results / f"result-test_emulator-{number}-of-2"
        if not (change == "no shard 2" and number == 2):
            write_report(judge_all(report), folder / "reports/test_emulator")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "exit-code.txt").write_text("0\n")
    needs = {"plan": {"result": "success"}, "session": {"result": "success"}}
    (tmp_path / "needs.json").write_text(json.dumps(needs))
    if change == "no plan":
        (tmp_path / "p.json").unlink()
    words = ["gate", str(tmp_path / "p.json"), "--needs", str(tmp_path / "needs.json")]
    code, verdict = run(*words, "--results", str(results))
    assert code == (1 if change else 0), verdict
    assert says in json.dumps(verdict)
    text = run_command("qnn-ci", VERBS, [*words, "--results", str(results), "--markdown"])[1]
    assert text.startswith(f"## Gate: {'red' if change else 'green'}")
