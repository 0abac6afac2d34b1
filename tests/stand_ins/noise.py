"""Runs of a verb in which other packages print in all ways: from Python, from C, from a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOISY = ROOT / "tests" / "stand_ins" / "noisy"


def run_with_noise(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(NOISY), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "ci", verb, *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
