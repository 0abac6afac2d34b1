"""Each test runs in one of two places: a bare system, or a machine with the programs it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import FILE, add_runs, main, read_results

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "a-program-of-this-test"
TESTS = {
    "conftest.py": "from tests.conftest import pytest_addoption, pytest_configure\n",
    "test_bare.py": """
import pytest
def test_passes(): pass
@pytest.mark.skip(reason="QNN_CI_NIGHTLY is not set")
def test_of_the_night(): pass
""",
    "test_both.py": f"""
import pytest
from tests.programs import missing_programs, require_programs
@pytest.fixture
def tool(request): require_programs(request.param, package="a-package")
def test_passes(): pass
@pytest.mark.skipif(bool(missing_programs("{PROGRAM}")), reason=missing_programs("{PROGRAM}"))
@pytest.mark.parametrize("text", ["a b", "[::]"])
def test_with_a_mark(text): pass
@pytest.mark.parametrize("tool", ["sh", "{PROGRAM}"], indirect=True)
def test_with_a_fixture(tool): pass
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests and the results of their run in a bare system, from when the program is there."""
    folder = tmp_path_factory.mktemp("tests")
    for name, text in TESTS.items():
        (folder / name).write_text(text)
    programs = folder / "programs"
    programs.mkdir()
    run_pytest(folder, f"--junit-xml={folder / 'bare/junit.xml'}")
    (programs / PROGRAM).write_text("#!/bin/sh\n")
    (programs / PROGRAM).chmod(0o755)
    return folder


def run_pytest(folder: Path, *words: str) -> str:
    env = {**os.environ, "PATH": f"{folder}/programs:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some import torch
    plugins = ("-p", "xdist")
    argv = [sys.executable, "-m", "pytest", "-v", f"--rootdir={folder}", *plugins, *words]
    argv.append(str(folder))
    ended = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_tests_that_lack_a_program_run_where_it_is_installed_and_only_these(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, machine = folder / "bare/junit.xml", folder / "machine/junit.xml"
    only = f"--only-skipped-in={bare.parent / FILE}"
    shown = run_pytest(folder, f"--junit-xml={machine}", only, "-n1")  # as .ci/run does
    assert "test_bare.py" not in shown  # not even imported
    results = read_results(machine)
    assert {name.partition("::")[2] for name in results} == {
        "test_with_a_mark[a b]",
        "test_with_a_mark[[::]]",
        f"test_with_a_fixture[{PROGRAM}]",
    }
    assert main(str(bare), str(machine)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "6 passed, 0 failed, 1 skipped"


def test_a_test_that_ran_twice_nowhere_or_failed_is_a_fault(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, repeated = folder / "bare/junit.xml", folder / "again/junit.xml"
    run_pytest(folder, f"--junit-xml={repeated}")
    assert main(str(bare), str(repeated)) == 1
    lines = capsys.readouterr().out.splitlines()
    twice = "ran in the bare system and on this machine: test_both::test_passes"
    assert (twice in lines, lines[-1]) == (True, "6 passed, 0 failed, 1 skipped")
    results = read_results(bare)
    assert len(add_runs(results, {})[1]) == 3
    waiting = {name: entry for name, entry in results.items() if PROGRAM in entry[1]}
    passed = dict.fromkeys(waiting, ("passed", ""))
    assert add_runs(results, passed) == ({**results, **passed}, [])
    failure = '><failure message="AssertionError: 3 == 4&#10;more" /><skipped'
    repeated.write_text(repeated.read_text().replace("><skipped", failure, 1))
    assert main(str(bare), str(repeated)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(": AssertionError: 3 == 4")]
    assert lines[-1].split(", ")[1] == "1 failed"
