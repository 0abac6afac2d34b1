"""One line without a clone: uvx and uv tool, with the project from a git URL."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ci.packages.pip_settings import read_settings
from ci.packages.uv import find_uv, translate

ROOT = Path(__file__).resolve().parents[2]
NET = """
import torch

def factory():
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()), (torch.randn(1, 16),)
"""
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_uv() is None, reason="uv's wheel cannot be had here"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a model."""
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def run(place: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a page in a shell that finds uv, with pip's settings."""
    uv = Path(str(find_uv())).parent
    tools = {"UV_TOOL_DIR": str(place / "tools"), "UV_TOOL_BIN_DIR": str(place / "bin")}
    path = os.pathsep.join([str(place / "bin"), str(uv), os.environ["PATH"]])
    env = {**translate(read_settings(os.environ), os.environ), **tools, "PATH": path}
    env["QNN_CI_HOME"] = os.environ.get("QNN_CI_HOME", "") or str(place / "home")
    return subprocess.run(
        ["bash", "-c", line], cwd=place, env=env, capture_output=True, text=True, check=False
    )


def read_fix(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the command in the fix of an error."""
    (fix,) = re.findall(r"(?m)^  fix: (.*), which installs the tested versions$", ended.stderr)
    return str(fix)


def test_a_verb_without_its_extra_prints_the_line_for_uvx_and_this_line_judges_the_model(
    place: Path,
) -> None:
    verb = "qnn-ci test-emulator --model net.py:factory --scheme fp16"
    first = run(place, f"uvx --from git+file://{ROOT} {verb}")
    assert (first.returncode, "no torch" in first.stderr) == (3, True), first.stderr
    second = run(place, read_fix(first))
    assert second.returncode == 0, second.stdout + second.stderr
    assert "1 passed, 0 failed" in second.stdout


def test_a_tool_of_uv_is_installed_again_with_the_extra_that_a_verb_needs(place: Path) -> None:
    assert run(place, f"uv tool install git+file://{ROOT}").returncode == 0
    first = run(place, "qnn-ci test-onnx --model net.onnx")
    assert first.returncode == 2, first.stderr  # there is no such file
    first = run(place, "qnn-ci test-emulator --model net.py:factory")
    fix = read_fix(first)
    assert fix.startswith("uv tool install --force "), fix
    assert run(place, fix).returncode == 0
    second = run(place, "qnn-ci test-emulator --model net.py:factory --list")
    assert second.returncode == 0, second.stderr
