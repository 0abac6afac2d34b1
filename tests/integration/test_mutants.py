"""Mutants of two small functions, judged in forks of one pytest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.mutants.forks import FAILS, RAISED, Task, run_tasks
from tests.mutants.packages import Sample

ROOT = Path(__file__).parents[2]
SETTINGS = "[mutmut]\nsource_paths = light\nalso_copy = checks\n"
CODE = """
def is_loud(decibels):
    return decibels > 40

def is_dark(lux):
    return lux < 1
"""
CHECK = """
from light.limits import is_loud

def test_that_loud_is_loud():
    assert is_loud(41)
    assert not is_loud(0)
"""
# Passes after the other, as the file has it, and not before it.
ORDERED = """
import time
from light.limits import is_loud
SEEN = []

def test_a():
    time.sleep(0.1)
    SEEN.append(is_loud(41))

def test_b():
    assert is_loud(41) and SEEN
"""

BLIND = """
from light.limits import is_loud

def test_nothing():
    try:
        is_loud(0)
    except Exception:
        pass
"""


def run_module(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mutants have been made."""
    place = tmp_path_factory.mktemp("place")
    files = {"setup.cfg": SETTINGS, "light/__init__.py": "", "light/limits.py": CODE}
    for name, text in {**files, "checks/test_limits.py": CHECK}.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    made = run_module(place, "tests.mutants.generate", "1")
    assert made.returncode == 0, made.stdout + made.stderr
    return place / "mutants"


@pytest.fixture
def place(generated: Path, tmp_path: Path) -> Path:
    """A copy, to judge them in."""
    return Path(shutil.copytree(generated, tmp_path / "mutants"))


def read_codes(place: Path) -> dict[str, int | None]:
    """Exit codes by mutant, without the module's name."""
    codes = json.loads((place / "light/limits.py.meta").read_text())["exit_code_by_key"]
    return {name.rpartition(".")[2]: code for name, code in codes.items()}


def test_each_mutant_gets_the_verdict_of_the_tests_that_reach_it(place: Path) -> None:
    judged = run_module(place, "tests.mutants.judge", "2", "0", "0", "checks")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert judged.stdout.count("judged 4 of 4") == 1
    assert read_codes(place) == {
        "x_is_loud__mutmut_1": 0,  # >=
        "x_is_loud__mutmut_2": 1,  # 41
        "x_is_dark__mutmut_1": 33,
        "x_is_dark__mutmut_2": 33,
    }


def test_a_sample_judges_no_more_than_it_asks_for(place: Path) -> None:
    judged = run_module(place, "tests.mutants.judge", "2", "3", "1", "checks")
    assert judged.stdout.count("judged 3 of 3") == 1, judged.stdout + judged.stderr
    assert sum(code is not None for code in read_codes(place).values()) == 3


def test_a_sample_is_drawn_by_its_seed() -> None:
    names = [str(number) for number in range(100)]
    one = Sample(10, 1).draw(names)
    assert (len(set(one)), Sample(10, 1).draw(names[::-1])) == (10, one)
    assert Sample(20, 1).draw(names)[:10] == one
    assert Sample(10, 2).draw(names) != one
    assert sorted(Sample().draw(names)) == sorted(names)


def test_tests_that_fail_without_a_mutant_are_named(place: Path) -> None:
    (place / "checks" / "test_limits.py").write_text(CHECK.replace("(0)", "(41)"))
    judged = run_module(place, "tests.mutants.judge", "2", "0", "0", "checks")
    assert judged.returncode == 1
    assert FAILS + " checks/test_limits.py::test_that_loud_is_loud\n" in judged.stdout


def test_a_test_that_needs_another_before_it_is_named(place: Path) -> None:
    (place / "checks" / "test_limits.py").write_text(ORDERED)
    judged = run_module(place, "tests.mutants.judge", "2", "0", "0", "checks")
    assert judged.returncode == 1
    assert FAILS + " checks/test_limits.py::test_b\n" in judged.stdout


def test_tests_that_notice_nothing_are_no_judges(place: Path) -> None:
    (place / "checks" / "test_limits.py").write_text(BLIND)
    judged = run_module(place, "tests.mutants.judge", "2", "0", "0", "checks")
    assert judged.returncode == 1
    assert "no test fails where each function of the package raises" in judged.stdout


def test_a_fork_ends_with_its_code_or_its_signal() -> None:
    tasks = [Task("nine", lambda: 9), Task("killed", lambda: os.kill(os.getpid(), 15) or 0)]
    assert dict(run_tasks([*tasks, Task("raised", lambda: 1 // 0)], 2)) == {
        "nine": 9,
        "killed": -15,
        "raised": RAISED,
    }


def test_a_fork_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a process nor a file, also when it is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def leave() -> int:
        Path(tempfile.mkdtemp(), "file").write_text("")
        with subprocess.Popen(["sleep", "99"]) as child:
            (tmp_path / "pid").write_text(str(child.pid))
        return 0

    ended = run_tasks([Task("quick", lambda: 0), Task("slow", leave)], 2)
    assert next(ended) == ("quick", 0)
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    ended.close()
    assert [one.name for one in tmp_path.iterdir()] == ["pid"]
    pid = int((tmp_path / "pid").read_text())
    while is_running(pid):
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; nobody may have waited for it yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
