"""QNN's simulator predicts what LiteRT's plugin compiles."""

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


def run(*words: str) -> Any:
    """The JSON of a verb that finds nothing red."""
    argv = [sys.executable, "-m", "ci", *words, "--json", "--offline"]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.OK, ended.stderr
    return json.loads(ended.stdout)["cases"]


def test_the_simulated_program_is_for_the_requested_soc_and_has_the_partitions_of_the_judged_one(
    tmp_path: Path,
) -> None:
    models = ("--model", "transformer", "--model", "cpu_middle", "--model", "dense_int16")
    words = ("estimate", "--runtime", "litert", *models, "--soc", "SM8650", "--soc", "SM8750")
    simulations = {}
    unknown = {}
    for case in run(*words, "--trace", str(tmp_path / "traces")):
        simulations[case["model"], case["soc"]] = case["estimate"]["simulation"]
        unknown[case["model"]] = case["estimate"]["unknown"]
    socs = {soc: simulation["soc"] for (_, soc), simulation in simulations.items()}
    assert socs == {"SM8650": "QCS9100", "SM8750": "SA8797"}
    # More operators take longer.
    for soc in socs:
        large, small = (simulations[name, soc]["cycles"] for name in ("transformer", "dense_int16"))
        assert large > 2 * small
    assert "1 node runs on the CPU" in unknown["cpu_middle"]
    assert len([*(tmp_path / "traces").iterdir()]) == len(simulations)
    judged = run("test-litert", *models, "--reports", str(tmp_path / "reports"))
    partitions = {case["model"]: case["program"]["partitions"] for case in judged}
    assert partitions["cpu_middle"] == 2
    assert partitions == {name: simulations[name, "SM8650"]["graphs"] for name in partitions}
