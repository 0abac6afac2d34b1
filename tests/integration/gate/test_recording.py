"""What a session opens is recorded with strace, and compared with the plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.gate.reading import compress
from ci.gate.rules import Recorded
from provisioning.manifest.reader import read_toml
from tests.programs import missing_programs

ROOT = Path(__file__).resolve().parents[3]
RULES = """
branch = "main"
command = ["sh", "run"]
record = "opened.toml"
[sessions.build]
[sessions.notes]
by_hand = "it is slow"
[sessions.broken]
[sessions.lint]
record = false
always = true
"""
# Files opened by a child, by a computed name, as a module or below a directory; one only tested.
RUN = """
case $1 in
build) (cd data && cat one.txt) >/dev/null; test -e data/two.txt; python3 -c 'import lib.code' ;;
notes) test "$2 $3" = "-- --help" && python3 -c '
import os
folder = os.open("data", os.O_RDONLY)
os.close(os.open("tw" + "o.txt", os.O_RDONLY, dir_fd=folder))' ;;
*) cat data/two.txt; exit 3 ;;
esac
"""


def run_plan(folder: Path, *words: str) -> tuple[int, dict[str, list[dict[str, object]]]]:
    argv = [sys.executable, "-m", "ci", "plan", "--source", str(folder), *words, "--json"]
    rules = ["--rules", str(folder / "gate.toml")]
    done = subprocess.run([*argv, *rules], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def commit(folder: Path, *first: str) -> None:
    for words in (*first, "add .", "-c user.name=a -c user.email=b commit -qm x"):
        subprocess.run(["git", "-C", str(folder), *words.split()], check=True)


@pytest.mark.skipif(bool(missing_programs("strace")), reason=missing_programs("strace"))
def test_a_session_is_planned_for_changes_of_files_that_it_opened(
    tmp_path: Path,
) -> None:
    texts = {"gate.toml": RULES, "opened.toml": "", "run": RUN, "lib/__init__.py": ""}
    texts |= {
        "lib/code.py": "",
        "data/one.txt": "1",
        "data/two.txt": "2",
        "data/x.md": "x",
        ".gitignore": "__pycache__\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    commit(tmp_path, "init -q -b main")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tmp_path / "lib")], check=True)
    fresh = tmp_path / "fresh.toml"
    code, result = run_plan(tmp_path, "--record", "build", "notes", "--out", str(fresh))
    opened = {
        "build": ["data/one.txt", "lib/__init__.py", "lib/code.py", "run"],
        "notes": ["data/two.txt", "run"],
    }
    assert code == 0, "without a record, each session runs for every change"
    assert {row["name"]: row["files"] for row in result["sessions"]} == {"build": 4, "notes": 2}
    fresh.replace(tmp_path / "opened.toml")
    commit(tmp_path)
    for path, needs in (
        ("data/one.txt", ["build"]),
        ("data/two.txt", ["notes"]),
        ("lib/code.py", ["build"]),
        ("lib/new.py", ["build"]),
    ):
        old = (tmp_path / path).read_text() if (tmp_path / path).exists() else None
        (tmp_path / path).write_text("changed = 1\n")
        _, plan = run_plan(tmp_path, "--base", "HEAD")
        (tmp_path / path).write_text(old) if old is not None else (tmp_path / path).unlink()
        run = {row["name"] for row in plan["sessions"] if row["run"]} & {*opened}
        assert sorted(run) == needs, path
    stale = '[build]\nfiles = ["data/*"]\n[notes]\nfiles = ["run"]\n'
    (tmp_path / "opened.toml").write_text(stale)
    code, result = run_plan(tmp_path, "--record", "notes")
    assert (code, result["sessions"][0]["unplanned"]) == (1, ["data/two.txt"])
    (tmp_path / "opened.toml").write_text(stale + '[broken]\nfiles = ["data/one.txt"]\n')
    code, result = run_plan(tmp_path, "--record", "broken", "--out", str(fresh))
    recorded = read_toml(fresh.name, dict[str, Recorded], fresh.parent)["broken"].files
    assert recorded == ("data/one.txt", "data/two.txt", "run"), "a failed run takes nothing away"
    assert (code, result["sessions"][0]["exit_code"]) == (1, 3)


@pytest.mark.parametrize(
    ("opened", "patterns"),
    [
        ("a/x.py a/y.py a/b/z.py a/d.txt", "a/**"),
        ("a/x.py a/y.py", "a/*.py"),
        ("a/x.py a/d.txt", "a/d.txt a/x.py"),
        ("a/b/z.py root.py", "a/b/z.py root.py"),
        ("c/1.py c/2.py", "c/*.py"),
        ("c/1.py", "c/1.py"),
        ("", ""),
    ],
)
def test_recorded_files_are_compressed_into_few_patterns(opened: str, patterns: str) -> None:
    tree = "a/x.py a/y.py a/b/z.py a/d.txt c/1.py c/2.py c/3.py c/4.py root.py other.py"
    assert compress({*opened.split()}, tree.split()) == tuple(patterns.split())
