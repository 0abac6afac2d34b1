"""The audit asks LiteRT's plugin without compiling, and agrees with what test-litert compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from provisioning.errors import ExitCode
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

ROOT = Path(__file__).resolve().parents[3]
pytestmark = NEEDS_PINNED_QNN


def run(folder: Path, *words: str) -> Any:
    """The JSON of a verb that finds nothing red."""
    argv = [sys.executable, "-m", "ci", *words, "--reports", str(folder), "--json", "--offline"]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.OK, ended.stderr
    return json.loads(ended.stdout)


def test_the_audit_counts_what_the_compiled_file_has(tmp_path: Path) -> None:
    models = ("--model", "cpu_middle", "--model", "dense_int16")
    audited = run(tmp_path, "audit", "--runtime", "litert", *models)
    judged = run(tmp_path, "test-litert", *models)
    counts = []
    for case, program in zip(audited["cases"], judged["cases"], strict=True):
        taken = sum(row["count"] for row in case["operators"] if row["taken"])
        left = {row["op"]: row["count"] for row in case["operators"] if not row["taken"]}
        facts = program["program"]
        assert (taken, sum(left.values())) == (facts["delegated_nodes"], facts["fallback_nodes"])
        counts.append((case["model"], taken, left))
    assert counts == [("cpu_middle", 4, {"FLOOR_MOD": 1}), ("dense_int16", 2, {})]
