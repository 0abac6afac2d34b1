"""A case is passed through the files of its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.emulator import make_home
from tests.stand_ins.way import TRACER, WAY

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
ROOT = Path(__file__).resolve().parents[3]


def test_a_case_runs_code_of_each_documented_file(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(TRACER)
    subprocess.run(
        [*(sys.executable, "-m", "ci", "test-emulator", "--model", "mlp", "--scheme", "fp16")],
        cwd=tmp_path,
        env={
            **os.environ,
            "WAY": str(tmp_path / "way.txt"),
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "QNN_CI_HOME": str(make_home(tmp_path / "home")),
        },
        timeout=500,
        check=True,
    )
    run_modules = {*(tmp_path / "way.txt").read_text().splitlines()}
    assert {*WAY} - run_modules == set()
