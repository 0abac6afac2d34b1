"""What the terminal shows of a lane while other packages print in all ways, in this process and in
workers: our lines only. The rest is in the run's log."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from provisioning.errors import ExitCode
from tests.stand_ins.noise import run_with_noise

# A limit that no program reaches, for a red run of each lane.
POLICY = """extends = "default"
[schemes.{scheme}]
min_sqnr_db = 150.0
min_sqnr_db_all = 150.0
"""
OURS = re.compile(
    r"[1-4]/4 |doctor: |report: |policy: |note: |warning: |  \[1/1\] |  cases |what other packages"
)
LANES = {
    "test-emulator": ("executorch", "mlp", "fp16"),
    "test-onnx": ("onnxruntime_qnn", "mlp", "u8"),
    "test-litert": ("ai_edge_litert", "dense", "fp16"),
}


@pytest.mark.emulator
@pytest.mark.parametrize("is_green", [True, False], ids=["green", "red"])
@pytest.mark.parametrize("lane", LANES)
def test_a_lane_shows_its_own_lines_only(lane: str, is_green: bool, tmp_path: Path) -> None:
    package, model, scheme = LANES[lane]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed in this environment")
    if lane == "test-litert" and version("onnxruntime-qnn") < "2.7":
        pytest.skip("the QNN of this environment does not run what LiteRT compiles")
    words = ["--model", model, "--scheme", scheme, "--reports", str(tmp_path)]
    if not is_green:
        policy = tmp_path / "qnn.toml"
        policy.write_text(POLICY.format(scheme=scheme), encoding="utf-8")
        words += ["--policy", str(policy)]
    ended = run_with_noise(lane, *words)
    assert ended.returncode == (ExitCode.OK if is_green else ExitCode.FAILED), ended.stderr
    assert "NOISE" not in ended.stdout
    assert [line for line in ended.stderr.splitlines() if not OURS.match(line)] == []
    log = tmp_path / lane.replace("-", "_") / "log.txt"
    assert f"what other packages printed: {log}\n" in ended.stderr
    text = log.read_text("utf-8")
    for way in ("from Python", "by write", "from C", "from a logger", "from a thread", "process"):
        assert way in text
    title = "failed  " if not is_green else "passed"
    assert title in ended.stdout
    assert len(ended.stdout.splitlines()) <= 40, "a screen"
