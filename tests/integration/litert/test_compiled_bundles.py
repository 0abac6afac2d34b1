"""Bundles of LiteRT-LM whose decoder LiteRT's plugin compiled, for real: on the emulator, through
the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.litert.plugin import run_plugin
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from tests.build.litert_bundles import PLACE, pack_tiny, plant_at_zero, read_part, write_tiny
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

pytestmark = NEEDS_PINNED_QNN
TEXT = "Ben has a blue boat. The boat sails far."
Call = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The decoder of ``tiny``, compiled for SM8650."""
    place = tmp_path_factory.mktemp("compiled")
    root = provision_profile("litert", Progress()).root("qnn-runtime")
    target = place / "compiled.tflite"
    folder = next(root.glob("lib/x86_64-*"))
    source = PLACE / "decoder.tflite"
    log = place / "log"
    run_plugin(source, target, "SM8650", library_folder=folder, log=log, timeout_s=300)
    return target.read_bytes()


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def run(*words: str) -> tuple[int, str, dict[str, Any]]:
        ended = subprocess.run(
            [sys.executable, "-m", "ci", "test-llm", *words, "--reports", "reports"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            check=False,
        )
        report = tmp_path / "reports" / "test_llm" / "report.json"
        data = json.loads(report.read_bytes()) if report.is_file() else {}
        return ended.returncode, ended.stdout + ended.stderr, data

    return run


def test_a_compiled_bundle_runs_on_the_emulator(
    tmp_path: Path, compiled: bytes, call: Call
) -> None:
    pack_tiny(tmp_path / "npu.litertlm", tmp_path, decoder=compiled)
    write_tiny(tmp_path / "cpu.litertlm")
    words = ("--bundle", "npu.litertlm", "--reference", "cpu.litertlm", "--prompt", "Ben has a")
    code, output, report = call(*words)
    assert code == ExitCode.OK, output
    assert TEXT in output
    (case,) = report["cases"]
    assert (case["soc"], case["judgement"]["status"]) == ("SM8650", "passed")
    assert case["judgement"]["equal"] == 1.0
    assert len(report["controls"]) == 4
    assert all(control["rejected"] for control in report["controls"])


def test_the_cache_written_at_0_is_red_on_the_emulator(
    tmp_path: Path, compiled: bytes, call: Call
) -> None:
    auxiliary = plant_at_zero(read_part("auxiliary.tflite"))
    write_tiny(tmp_path / "npu.litertlm", decoder=compiled, auxiliary=auxiliary)
    code, output, report = call("--bundle", "npu.litertlm", "--prompt", "Ben has a")
    assert code == ExitCode.FAILED, output
    assert "where: from the second chunk on: keys of layer 0" in output
    assert report["cases"][0]["judgement"]["status"] == "failed"


def test_a_bundle_for_another_soc_is_refused(tmp_path: Path, compiled: bytes, call: Call) -> None:
    write_tiny(tmp_path / "npu.litertlm", decoder=compiled)
    code, output, report = call("--bundle", "npu.litertlm", "--soc", "SM8750")
    assert code == ExitCode.ENVIRONMENT
    assert "does not load on SM8750" in output
    assert not report


def test_a_bundle_of_a_newer_qnn_is_refused(tmp_path: Path, compiled: bytes, call: Call) -> None:
    newer = compiled.replace(b"v2.51.0.", b"v2.99.0.")
    assert newer != compiled
    write_tiny(tmp_path / "npu.litertlm", decoder=newer)
    code, output, report = call("--bundle", "npu.litertlm")
    assert code == ExitCode.ENVIRONMENT
    assert "compiled with QNN 2.99.0" in output
    assert not report
