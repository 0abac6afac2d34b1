"""`localise` leads to a fault of a real program by itself, and its reproducer shows that alone."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(3000)]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
ROOT = Path(__file__).resolve().parents[3]


def localise(*words: str) -> dict[str, Any]:
    """What the verb prints of a case whose program is wrong."""
    argv = [sys.executable, "-m", "ci", "localise", "--json", *words]
    ended = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=2900, check=False
    )
    assert ended.returncode == 1, ended.stderr[-2000:]
    (case_row,) = json.loads(ended.stdout)["cases"]
    return dict(case_row)


@pytest.mark.nightly
def test_localise_names_a_known_fault_with_its_line_and_finds_it_by_running() -> None:
    model = f"{ROOT}/tests/realistic/lost.py:positions"
    case_row = localise("--model", model, "--scheme", "fp16")
    assert [operator["kind"] for operator in case_row["part"]] == ["add", "layer_norm"]
    (known_fault,) = case_row["known_faults"]
    assert known_fault["fault"] == "broadcast-add-before-norm"
    assert case_row["part"][0]["line"] == f"{known_fault['file']}:{known_fault['line']}"
    assert case_row["programs"] <= 6


FOUND = {
    "lost.py:positions fp16": (["add", "layer_norm"], []),
    "lost.py:norm 16a8w": (["batch_norm"], []),
    "sequences.py:gru_cell 16a8w": (["linear"], ["biases"]),
    "lost.py:twice 16a8w": (["linear"], ["biases"]),
}


@pytest.mark.nightly  # a journey of each run localises a trained model
@pytest.mark.parametrize("case", FOUND)
def test_localise_finds_the_faulty_operators_and_writes_a_script_that_reproduces_them(
    case: str, tmp_path: Path
) -> None:
    model, scheme = case.split()
    file = tmp_path / "smallest.py"
    path = f"{ROOT}/tests/realistic/{model}"
    case_row = localise("--model", path, "--scheme", scheme, "--reproducer", str(file))
    assert ([operator["kind"] for operator in case_row["part"]], case_row["mended_by"]) == FOUND[
        case
    ]
    variables = subprocess.run(
        [sys.executable, "-m", "ci", "env", "emulator", "--shell"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    alone = f"{variables}\ncd {shlex.quote(str(tmp_path))} && {sys.executable} smallest.py"
    ran = subprocess.run(["sh", "-c", alone], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr[-2000:]
    reached = case_row["part_outputs"][0]["reached_db"]
    assert f"output 0: {reached:.1f} dB" in ran.stdout
