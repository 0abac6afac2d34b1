"""What the terminal shows of a run while other packages print in all ways, in this process and in
workers: our lines only. The rest is in the run's log."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ci.verbs.registry import VERBS
from provisioning.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]
NOISY = ROOT / "tests" / "stand_ins" / "noisy"
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


def run(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(NOISY), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "ci", verb, *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


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
    ended = run(lane, *words)
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


SMALL = {
    "audit": ("--model", "mlp"),
    "cache": ("info",),
    "completion": ("bash",),
    "doctor": ("emulator",),
    "list": (),
    "parity": ("--help",),
}


@pytest.mark.parametrize("verb", SMALL)
def test_a_verb_prints_its_own_lines_only(verb: str) -> None:
    assert verb in VERBS
    ended = run(verb, *SMALL[verb], "--help" if verb == "audit" else "--json")
    assert "NOISE" not in f"{ended.stdout}{ended.stderr}"


FAILING = """
import os, sys
from provisioning.console.command import Outcome, Verb, run_program
from provisioning.errors import {error}
sys.modules["failing"] = sys.modules["__main__"]
def add_arguments(parser): pass
def execute(args, progress):
    progress.step("our line")
    for number in range(30):
        print(f"NOISE {{number}}")
    os.system("echo NOISE of a process >&2")
    raise {error}("it failed", why="NOISE 29", fix="repair it")
sys.exit(run_program("ours", {{"fail": Verb("failing", "fail")}}, ["fail"]))
"""


@pytest.mark.parametrize(
    ("error", "tail"),
    [
        # The last lines are shown, except one that the error already contains.
        (
            "ToolError",
            [*(f"  | NOISE {number}" for number in range(21, 29)), "  | NOISE of a process"],
        ),
        (
            "DefectError",
            [*(f"  | NOISE {number}" for number in range(21, 29)), "  | NOISE of a process"],
        ),
        ("UsageError", []),  # other packages have nothing to do with the caller's mistake
    ],
)
def test_the_last_lines_of_other_packages_are_shown_after_an_error(
    error: str, tail: list[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING.format(error=error)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == ""
    title = ["the last lines that other packages printed:"] if tail else []
    message = ["ours fail: it failed", "  why: NOISE 29", "  fix: repair it"]
    assert ended.stderr.splitlines() == ["our line", *title, *tail, *message]
