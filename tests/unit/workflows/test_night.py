"""Tests that need a clone of ExecuTorch are run every night, with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_toolchain

ROOT = Path(__file__).parents[3]
NIGHTLY: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
# They ask for Qualcomm's headers as well, which no public job may have.
LICENSED = {"tests/integration/builds/test_build_executorch.py"}


def test_a_job_runs_a_case_of_each_supported_pair_in_an_environment_of_its_own() -> None:
    rows = read_pairs().supported
    job = NIGHTLY["jobs"]["pairs"]
    assert job["strategy"]["matrix"]["executorch"] == [row.executorch for row in rows]
    (command,) = (step["run"] for step in job["steps"] if "test_emulator" in step.get("run", ""))
    assert '--executorch "$VERSION"' in command
    # nox installs the row's torch; the QNN is that of every row.
    assert {row.qnn for row in rows} == {read_toolchain("qnn-runtime").default}


def test_a_job_clones_executorch_and_runs_every_test_that_reads_it() -> None:
    steps = [step for job in NIGHTLY["jobs"].values() for step in job.get("steps", ())]
    runs = [step["run"] for step in steps if "EXECUTORCH_ROOT" in step.get("env", {})]
    (command,) = runs
    assert any("git clone" in step.get("run", "") for step in steps)
    run = [word for word in command.split() if word.startswith("tests/")]
    needing = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests/integration").rglob("test_*.py")
        for text in [path.read_text(encoding="utf-8")]
        if "WALKS" in text or "skipif(not EXECUTORCH" in text
    }
    assert len(needing) >= 4
    assert [path for path in sorted(needing - LICENSED) if not path.startswith(tuple(run))] == []


def test_every_test_that_is_skipped_by_day_runs_at_night() -> None:
    steps = [step for job in NIGHTLY["jobs"].values() for step in job.get("steps", ())]
    runs = [step["run"] for step in steps if "QNN_CI_NIGHTLY" in step.get("env", {})]
    lines = [line for run in runs for line in run.splitlines() if "-m nightly" in line]
    assert lines == [
        "./nox -s tests -- -m nightly --ignore=tests/integration/emulator",
        "./nox -s tests -- -m nightly tests/static",
    ]
    assert "./nox -s tests -- tests/integration/emulator" in runs
