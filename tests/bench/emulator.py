"""The suite of test_emulator as a user starts it, with an empty cache and with a full one."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.report.write import read_report
from provisioning.artifacts.environment import provision_profile
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.store.home import store_home

LIMITS_S = {"cold": 75.0, "warm": 8.0}
SHARED = ("store", "downloads", "locks")
LIMIT_S = 3600.0


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure both runs: wall-clock and CPU seconds."""
    provision_profile("emulator", progress)  # its download is not measured
    with tempfile.TemporaryDirectory(dir=store_home(), prefix=".bench-") as name:
        home = make_home(Path(name) / "home")
        runs = {}
        for run in LIMITS_S:
            progress.step(f"bench emulator: {run}")
            runs[run] = measure_run(Path(name) / "reports", home)
    return {"runs": runs, "limits_s": LIMITS_S, "load": os.getloadavg()[0], "cores": os.cpu_count()}


def make_home(home: Path) -> Path:
    """Make a home that shares all but the lowered programs with the user's."""
    home.mkdir()
    for name in SHARED:
        (store_home() / name).mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(store_home() / name)
    return home


def measure_run(reports: Path, home: Path) -> dict[str, Any]:
    """Run the suite once."""
    before, began = os.times(), time.monotonic()
    run_process(
        [sys.executable, "-m", "ci", "test-emulator", "--offline", "--reports", reports],
        env={**os.environ, "QNN_CI_HOME": str(home)},
        timeout_s=LIMIT_S,
    )
    after, report = os.times(), read_report(reports / "test_emulator")
    return {
        "wall_s": round(time.monotonic() - began, 2),
        "cpu_s": round(sum(after[2:4]) - sum(before[2:4]), 2),
        "cases": len(report.cases),
        "cached": report.summary.cached,
        "lowering_s": round(
            sum(case.program.lower_s or 0 for case in report.cases if not case.program.cached), 2
        ),
        "running_s": round(sum(case.run.wall_s or 0 for case in report.cases), 2),
    }


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return each run next to its limit."""
    lines = []
    for name, run in figures["runs"].items():
        limit = figures["limits_s"][name]
        verdict = "ok" if run["wall_s"] <= limit else "TOO SLOW"
        lines.append(
            f"{name}: {run['wall_s']:6.1f} s, limit {limit:3.0f} s, {verdict}"
            f" (CPU {run['cpu_s']:6.1f} s, lowering {run['lowering_s']:.1f} s,"
            f" running {run['running_s']:.1f} s, {run['cases']} cases)\n"
        )
    return "".join(lines)
