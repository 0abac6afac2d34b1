"""The process that compiles modules next to the fork server, with packages of a few modules."""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.stand_ins.runs import run_to_end

ROOT = Path(__file__).parents[4]
CORES = "import os; os.sched_getaffinity = lambda process: set(range({}))"
START = f"{CORES.format(2)}; from ci.executorch import bytecode; bytecode.before_forks()"
# The process has the time that it needs, and then ends by itself.
WAIT = f"{START}; import os; [os.waitpid(child, 0) for child in bytecode.processes]"
MODULES = {
    "networkx/__init__.py": "import networkx.graphs",
    "networkx/graphs.py": "",
    "networkx/tests.py": "",  # nothing imports it
    "sympy/__init__.py": "",
    "torch/__init__.py": "raise SystemExit('imported')",
    "torch/_dynamo/trace.py": "",
    "torch/_dynamo/broken.py": "def",
    "torch/other.py": "",
}
COMPILED = {"networkx/__init__.py", "networkx/graphs.py", "sympy/__init__.py"}
COMPILED |= {"torch/_dynamo/trace.py"}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with packages as uv installs them, without bytecode."""
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, code: str) -> str:
    """Run code that finds the packages, and return what it prints."""
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return run_to_end([sys.executable, "-c", code], timeout_s=1200, env=env)


def list_compiled(folder: Path) -> set[str]:
    return {name for name in MODULES if Path(cache_from_source(str(folder / name))).exists()}


def test_what_is_imported_late_is_compiled_without_importing_torch(packages: Path) -> None:
    assert run(packages, WAIT) == ""
    assert list_compiled(packages) == COMPILED


def test_nothing_is_compiled_beside_the_imports_on_one_core(packages: Path) -> None:
    run(packages, WAIT.replace(CORES.format(2), CORES.format(1)))
    assert list_compiled(packages) == set()


def test_an_environment_with_bytecode_is_left_alone(packages: Path) -> None:
    run(packages, "import networkx")
    assert run(packages, f"{START}; print(bytecode.processes)") == "[]\n"
    assert list_compiled(packages) == {"networkx/__init__.py", "networkx/graphs.py"}


def test_an_environment_without_these_packages_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, f"{START}; print(bytecode.processes)") == "[]\n"


def test_nothing_more_is_compiled_once_the_imports_are_done(packages: Path) -> None:
    end = WAIT.replace("bytecode.before_forks", "bytecode.end_compiling(); bytecode.before_forks")
    run(packages, end)
    assert "torch/_dynamo/trace.py" not in list_compiled(packages)
