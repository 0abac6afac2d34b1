"""Folders for Genie for real: contexts that onnxruntime-qnn compiles, on the emulator, through the
command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("tokenizers", reason="tokenizers is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.onnx.options import find_library
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from tests.build.genie_decoder import WEIGHTS
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

pytestmark = NEEDS_PINNED_QNN
ROOT = Path(__file__).parents[3]
PROMPT, TEXT = " Ben has a", "' Ben has a blue boat. The boat sails far.'"
Call = Callable[..., tuple[int, str, dict[str, Any]]]


def run_python(place: Path, *words: str, **variables: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def find_qnn() -> Path:
    return find_library(provision_profile("litert", Progress()).root("qnn-runtime"), {})


def make_folder(place: Path, *words: str) -> Path:
    module = "tests.build.genie_decoder"
    code, output = run_python(place, module, "folder", str(find_qnn()), *words)
    assert code == ExitCode.OK, output
    return place / "folder"


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def run(*words: str) -> tuple[int, str, dict[str, Any]]:
        words = ("--bundle", "folder", "--prompt", PROMPT, *words, "--reports", "reports")
        code, output = run_python(tmp_path, "ci", "test-llm", *words)
        report = tmp_path / "reports" / "test_llm" / "report.json"
        return code, output, json.loads(report.read_bytes()) if report.is_file() else {}

    return run


def test_a_folder_in_two_parts_runs_on_the_emulator(tmp_path: Path, call: Call) -> None:
    """Then with another base of the rotations, which only the weights show."""
    folder = make_folder(tmp_path)
    code, output, report = call("--weights", str(WEIGHTS))
    assert code == ExitCode.OK, output
    assert TEXT in " ".join(output.split())
    (case,) = report["cases"]
    assert (case["soc"], case["judgement"]["status"]) == ("SM8650", "passed")
    assert case["judgement"]["equal"] == 1.0
    assert "top-1 100%" in output
    assert len(report["controls"]) == 4
    assert all(control["rejected"] for control in report["controls"])
    # libGenie itself, on the same emulator, generates the same text.
    libraries = str(find_qnn().parent)
    variables = {"LD_LIBRARY_PATH": libraries, "MALLOC_PERTURB_": "255"}
    words = ("tests.stand_ins.genie_query", libraries, PROMPT)
    code, output = run_python(folder, *words, **variables)
    assert TEXT.strip("'").removeprefix(PROMPT) in output.splitlines(), output
    code, output = run_python(tmp_path, "ci", "inspect", "folder", "--soc", "SM8650")
    assert code == ExitCode.OK
    assert "are the same part in separate files" in " ".join(output.split())
    config = json.loads((folder / "genie_config.json").read_text())
    config["dialog"]["engine"]["model"]["positional-encoding"]["rope-theta"] = 20
    (folder / "genie_config.json").write_text(json.dumps(config))
    code, output, report = call("--weights", str(WEIGHTS))
    assert code == ExitCode.FAILED, output
    assert "of the tokens are those of the float32 weights" in " ".join(output.split())


def test_shared_weights_run_from_the_models_of_the_graphs(tmp_path: Path, call: Call) -> None:
    folder = make_folder(tmp_path, "--shared", "--models")
    code, output = run_python(tmp_path, "ci", "inspect", "folder", "--soc", "SM8650", "--strict")
    assert code == ExitCode.OK, output
    code, output, _ = call()
    assert code == ExitCode.OK, output
    assert TEXT in " ".join(output.split())
    assert "part_1_of_2.bin ran from the .onnx files" in " ".join(output.split())
    for model in folder.glob("*.onnx"):
        model.unlink()
    code, output, _ = call()
    assert code == ExitCode.ENVIRONMENT
    assert "Shared weights buffer isn't supported on this platform" in output
