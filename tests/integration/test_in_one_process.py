"""Tests that import torch and ExecuTorch themselves, in one process.

Each process of pytest would else import them to collect the tests: 10 s of CPU, and memory that
every later collection of garbage goes through. A file of them can be given to pytest.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "in_one_process"
FILES = sorted(map(str, FOLDER.glob("*.py")))


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_tests_that_import_torch_pass_in_one_process() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ended = subprocess.run([*words, *FILES], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if all(map(find_spec, ("executorch", "onnxruntime_qnn"))):
        assert "skipped" not in ended.stdout
