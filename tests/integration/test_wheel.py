"""The wheel works in an environment that has nothing else, as release.yml checks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_the_wheel_runs_in_an_empty_environment_and_sets_up_an_empty_repository(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "repository"

    def run(*words: str | Path, cwd: Path = tmp_path) -> str:
        env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        argv = [str(word) for word in words]
        ended = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    run("git", "-c", "safe.directory=*", "clone", "-q", f"file://{ROOT}", "checkout")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "dist", "./checkout")
    (wheel,) = (tmp_path / "dist").iterdir()
    run(sys.executable, "-m", "venv", "environment")
    programs = tmp_path / "environment" / "bin"
    run(ROOT / ".ci" / "install", programs / "python", wheel)
    version = re.findall(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert run(programs / "qnn-ci", "--version").split()[-1] in version
    run("git", "init", "-q", repository)
    run(programs / "qnn-ci", "init", cwd=repository)
    assert (repository / "qnn.toml").is_file()
