"""`localise` leads to a fault of a real program by itself, and its reproducer shows that alone.

It lowers some twenty programs, so it runs with QNN_CI_TEST_PLAIN set, as nightly.yml does.
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


FOUND = {
    "sequences.py:gru_cell 16a8w": (["linear"], ["biases"]),
    "lost.py:twice 16a8w": (["linear"], ["biases"]),
    "lost.py:norm 16a8w": (["batch_norm"], []),
    "lost.py:positions fp16": (["add", "layer_norm"], []),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_fault_is_found_and_reproduced(case: str, tmp_path: Path) -> None:
    model, scheme = case.split()
    file = tmp_path / "smallest.py"
    argv = [sys.executable, "-m", "ci", "localise", "--json", "--scheme", scheme]
    argv += ["--model", f"{ROOT}/tests/realistic/{model}", "--reproducer", str(file)]
    ended = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    (found,) = json.loads(ended.stdout)["cases"]
    assert ([one["kind"] for one in found["part"]], found["mended_by"]) == FOUND[case]
    variables = subprocess.run(
        [sys.executable, "-m", "ci", "env", "emulator", "--shell"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    alone = f"{variables}\ncd {shlex.quote(str(tmp_path))} && {sys.executable} smallest.py"
    ran = subprocess.run(["sh", "-c", alone], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr[-2000:]
    reached = found["part_outputs"][0]["reached_db"]
    assert f"output 0: {reached:.1f} dB" in ran.stdout
