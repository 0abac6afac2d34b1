"""`localise` leads to a fault of a real program by itself, and its reproducer shows that alone.

It lowers five programs, so it runs with QNN_CI_TEST_PLAIN set, as nightly.yml does.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("QNN_CI_TEST_PLAIN"), reason="QNN_CI_TEST_PLAIN"),
]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
ROOT = Path(__file__).resolve().parents[3]


def test_a_shared_bias_is_found_and_reproduced(tmp_path: Path) -> None:
    file = tmp_path / "smallest.py"
    argv = [sys.executable, "-m", "ci", "localise", "--json", "--scheme", "16a8w"]
    argv += ["--model", f"{ROOT}/tests/realistic/sequences.py:gru_cell", "--reproducer", str(file)]
    ended = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    (case,) = json.loads(ended.stdout)["cases"]
    (operator,) = case["part"]
    assert operator["kind"] == "linear"
    assert operator["bias_off"] > 0.02
    assert case["mended_by"] == ["biases"]
    variables = subprocess.run(
        [sys.executable, "-m", "ci", "env", "emulator", "--shell"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    alone = f"{variables}\ncd {shlex.quote(str(tmp_path))} && {sys.executable} smallest.py"
    ran = subprocess.run(["sh", "-c", alone], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr[-2000:]
    assert "output 0: 48." in ran.stdout
