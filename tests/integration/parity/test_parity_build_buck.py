"""``--build-buck``: a stand-in for buck2 writes the build reports that buck2 would."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioning.console.process import Completed, run_process
from provisioning.errors import ExitCode

ROOT = Path(__file__).parents[3]
FILES = {
    "p/BUCK": 'cxx_library(\n    name = "lib",\n    srcs = ["a.cpp"],\n)\n',
    "p/a.cpp": "int a;\n",
    "CMakeLists.txt": "add_library(lib p/a.cpp)\n",
}
BUCK2 = """#!{python}
import json, os, sys
words = sys.argv[1:]
open(os.environ["SEEN"], "w").write(json.dumps([os.getcwd(), words]))
path = next(word.partition("=")[2] for word in words if word.startswith("--build-report="))
report = os.environ["REPORT"]
if report:
    open(path, "w").write(report)
print("BUILD FAILED")
sys.exit(3)
"""
CONFIGURED = "root//p:lib (prelude//platforms:default#1)"
COMPILE = {
    "success": False,
    "results": {CONFIGURED: {"success": "FAIL", "errors": [{"message_content": "77"}]}},
    "failures": {},
    "strings": {"77": "Action failed: root//p:lib\n./p/a.cpp:1:5: error: expected ';'\n"},
}
ANALYSIS = {
    "success": False,
    "results": {},
    "failures": {"root//p:lib": "Error loading `load` of `root//p:gone.bzl`"},
}
FINE = {"success": True, "results": {CONFIGURED: {"success": "SUCCESS"}}, "failures": {}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree without drift."""
    for name, text in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "source"


def run(source: Path, report: str | None, *words: str) -> Completed:
    """Run the verb with a buck2 that leaves this report; without one, with no buck2."""
    folder = source.parent / "bin"
    folder.mkdir(exist_ok=True)
    if report is not None:
        (folder / "buck2").write_text(BUCK2.format(python=sys.executable), encoding="utf-8")
        (folder / "buck2").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "REPORT": report or "",
        "SEEN": str(source.parent / "seen.json"),
        "QNN_CI_HOME": str(source.parent / "home"),
    }
    command = [sys.executable, "-m", "ci", "parity", "--source", str(source), "--build-buck"]
    return run_process([*command, *words], env=env, cwd=ROOT, check=False)


def findings(ended: Completed) -> list[dict[str, Any]]:
    """What the JSON lists of it, other than the allow-list."""
    rows = json.loads(ended.output[ended.output.index("{") :])["findings"]
    return [row for row in rows if row["kind"] != "stale-allowance"]


@pytest.mark.parametrize(
    ("report", "place", "what"),
    [(COMPILE, "p/a.cpp:1", "expected ';'"), (ANALYSIS, "p/BUCK:2", "gone.bzl")],
    ids=["a source", "a build file"],
)
def test_what_buck2_does_not_build_is_a_finding(
    report: dict[str, Any], place: str, what: str, source: Path
) -> None:
    ended = run(source, json.dumps(report), "--json", "--scope", "p")

    (found,) = findings(ended)
    assert ended.returncode == ExitCode.FAILED
    assert (found["kind"], found["buck_target"]) == ("build-failure", "//p:lib")
    assert f"{found['buck_place']['path']}:{found['buck_place']['line']}" == place
    assert what in found["message"]
    folder, words = json.loads((source.parent / "seen.json").read_text("utf-8"))
    assert (folder, words[0], words[-1]) == (str(source), "build", "//p/...")


def test_what_buck2_builds_is_none(source: Path) -> None:
    ended = run(source, json.dumps(FINE), "--json")

    assert findings(ended) == []


def test_without_buck2_it_says_what_to_install(source: Path) -> None:
    ended = run(source, None)

    assert ended.returncode == ExitCode.ENVIRONMENT
    assert "buck2 is not installed" in ended.output
    assert "github.com/facebook/buck2/releases" in ended.output


def test_a_build_without_a_report_is_a_failure_of_the_tool(source: Path) -> None:
    ended = run(source, "")

    assert ended.returncode == ExitCode.TOOL
    assert "BUILD FAILED" in ended.output


def test_a_revision_is_not_built(source: Path) -> None:
    ended = run(source, json.dumps(FINE), "--rev", "HEAD")

    assert ended.returncode == ExitCode.USAGE
    assert "not a revision" in ended.output
