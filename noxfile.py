"""Sessions of executorch-qnn-ci: ``nox -s test_emulator``; ``nox --list`` shows them all.

Each session runs a process in one of three shared environments. The models' one is large
(torch), so that what does not need it does not wait for it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]

ROOT = Path(__file__).resolve().parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# PyTorch's own index has CPU builds; without it the default index serves CUDA builds of some GB.
TORCH_INDEX = os.environ.get("QNN_CI_TORCH_INDEX", "")
TOOLS = ROOT / ".nox" / "tools"
MODELS = ROOT / ".nox" / "models"
TESTS = ROOT / ".nox" / "tests"


def install(session: nox.Session, group: str) -> None:
    """Install a dependency group of pyproject.toml, unless this environment has it already."""
    wanted = nox.project.dependency_groups(PYPROJECT, group)
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    key = hashlib.sha256("\n".join([*wanted, TORCH_INDEX]).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == key:
        return
    stamp.unlink(missing_ok=True)
    extra = ["--extra-index-url", TORCH_INDEX] if TORCH_INDEX else []
    session.install(*wanted, *extra)
    stamp.write_text(key)


@nox.session(venv_location=str(TESTS))
def tests(session: nox.Session) -> None:
    """The project's own tests."""
    install(session, "test")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n2"]))


@nox.session(venv_location=str(ROOT / ".nox" / "lint"))
def lint(session: nox.Session) -> None:
    """ruff, mypy strict and the contracts between packages."""
    install(session, "lint")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports", env={"PYTHONPATH": str(ROOT)})
