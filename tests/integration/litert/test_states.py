"""Models that keep values between their runs, compiled by LiteRT's plugin and run on the emulator
for sixteen steps: right, and wrong if a state is not carried from one step to the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from tests.build.litert_states import STEPS, draw_steps, make_decoder, make_gru, make_lstm
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

ROOT = Path(__file__).parents[3]
pytestmark = NEEDS_PINNED_QNN
MODELS = {"decoder": make_decoder, "gru": make_gru, "lstm": make_lstm}
# A sitecustomize.py with which each step of a program begins with the first state. Workers start
# from a fresh Python, so that nothing else reaches them.
FORGET = """
import builtins
import sys

load = builtins.__import__


def forget(carried, run, arrays):
    carried.begin()
    return carried.run(arrays, run)


def load_and_plant(name, *arguments, **options):
    module = load(name, *arguments, **options)
    execution = sys.modules.get("ci.litert.execution")
    if hasattr(execution, "_run_carried"):
        execution._run_carried = forget
    return module


builtins.__import__ = load_and_plant
"""


def judge(folder: Path, plant: str = "") -> dict[str, Any]:
    """The cases of all models by name, with a sitecustomize.py."""
    arguments = ["test-litert", "--json", "--reports", str(folder / "reports")]
    for name, make in MODELS.items():
        path = folder / f"{name}.tflite"
        path.write_bytes(make())
        np.savez(path.with_suffix(".npz"), **draw_steps(name))
        arguments += ["--model", str(path)]
    environment = dict(os.environ)
    if plant:
        (folder / "sitecustomize.py").write_text(plant)
        environment["PYTHONPATH"] = str(folder)
    ended = subprocess.run(
        [sys.executable, "-m", "ci", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
    )
    cases = json.loads(ended.stdout)["cases"]
    return {Path(case["model"]).stem: case for case in cases}


def test_a_model_with_a_state_passes_over_sixteen_steps(tmp_path: Path) -> None:
    cases = judge(tmp_path)
    statuses = {name: case["judgement"]["status"] for name, case in cases.items()}
    assert statuses == dict.fromkeys(MODELS, "passed")
    assert {case["asked"]["inputs"] for case in cases.values()} == {STEPS}
    assert {case["program"]["fallback_nodes"] for case in cases.values()} == {0}


def test_a_state_that_is_not_carried_is_red(tmp_path: Path) -> None:
    cases = judge(tmp_path, FORGET)
    findings = {name: case["judgement"]["findings"][0]["id"] for name, case in cases.items()}
    assert findings == dict.fromkeys(MODELS, "QNN2001")
