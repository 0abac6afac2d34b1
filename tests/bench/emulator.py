"""The main job, cold and warm, next to a plain script.

The peer lowers and runs the same cases one by one in one process, as ExecuTorch's tests do. CPU
seconds are those of all processes: on a busy machine they say more than the wall clock.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.cases.policy import read_emulator_policy
from ci.report.write import read_report
from provisioning.artifacts.environment import provision_profile
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.store.store import store_home

ROOT = Path(__file__).resolve().parents[2]
LIMITS_S = {"cold": 75.0, "warm": 8.0}
SHARED = ("store", "downloads", "locks")
LIMIT_S = 3600.0
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure a run with an empty cache, one with a full one, and the plain script."""
    environment = provision_profile("emulator", progress).apply(os.environ)
    policy = read_emulator_policy()
    suite = {name: [one.value for one in schemes] for name, schemes in policy.suite.items()}
    # What a run leaves behind becomes ours, and so does the time that it took.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(dir=store_home(), prefix=".bench-") as name:
        folder = Path(name)
        home = make_home(folder / "home")
        runs = {}
        for run in LIMITS_S:
            progress.step(f"bench emulator: {run}")
            runs[run] = measure_run(folder, home)
        progress.step("bench emulator: the same cases one by one")
        script = [sys.executable, "-m", "tests.bench.one_by_one", json.dumps(suite)]
        plain = measure(script, {**environment, "PYTHONUTF8": "1"})
    cases = [line.split(maxsplit=4) for line in plain.pop("output").splitlines() if "CASE" in line]
    plain["failed"] = [f"{case[1]} {case[2]}: {case[4]}" for case in cases if case[4] != "ok"]
    return {
        "cases": sum(map(len, suite.values())),
        "runs": runs,
        "one_by_one": plain,
        "ratio_cold": round(plain["wall_s"] / runs["cold"]["wall_s"], 2),
        "limits_s": LIMITS_S,
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def make_home(home: Path) -> Path:
    """A home that shares all but what was lowered with the user's."""
    home.mkdir()
    for name in SHARED:
        (store_home() / name).mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(store_home() / name)
    return home


def measure_run(folder: Path, home: Path) -> dict[str, Any]:
    """One run of the whole suite as a user starts it."""
    reports = folder / "reports"
    words = ["test-emulator", "--json", "--offline", "--reports", str(reports)]
    taken = measure([sys.executable, "-m", "ci", *words], {**os.environ, "QNN_CI_HOME": str(home)})
    del taken["output"]
    report = read_report(reports / "test_emulator")
    return {
        **taken,
        "cached": report.summary.cached,
        "lowering_s": round(report.lowering_s, 2),
        "running_s": round(report.running_s, 2),
    }


def measure(argv: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Wall and CPU seconds of a program and of all that it starts."""
    cpu, began = cpu_seconds(), time.monotonic()
    ended = run_process(argv, cwd=ROOT, env=environment, timeout_s=LIMIT_S)
    wall_s = time.monotonic() - began
    while reap_one():
        pass
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_seconds() - cpu, 2),
        "output": ended.output,
    }


def reap_one() -> bool:
    """Wait for a process that was left to us; false when there is none."""
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def cpu_seconds() -> float:
    """Processor time of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def render_bench(figures: Mapping[str, Any]) -> str:
    """Each run against its limit, its stages, and the plain script."""
    lines = [f"{figures['cases']} cases on {figures['cores']} cores", ""]
    for name, run in figures["runs"].items():
        limit = figures["limits_s"][name]
        verdict = "ok" if run["wall_s"] <= limit else "TOO SLOW"
        lines.append(f"  {name:<12} {show(run)}   limit {limit:3.0f} s   {verdict}")
    plain = figures["one_by_one"]
    lines.append(f"  {'one by one':<12} {show(plain)}   {len(plain['failed'])} failed")
    lines += ["", "  seconds, added up over all processes"]
    for name, run in figures["runs"].items():
        parts = f"lowering {run['lowering_s']:.1f}  running {run['running_s']:.1f}"
        lines.append(f"  {name:<12} {parts}")
    if figures["load"] > figures["cores"] + 1:
        lines += ["", f"  the machine was busy (load {figures['load']:.0f}): read the CPU seconds"]
    return "\n".join(lines) + "\n"


def show(taken: Mapping[str, float]) -> str:
    """Wall and processor time."""
    return f"{taken['wall_s']:6.1f} s  (CPU {taken['cpu_s']:6.1f} s)"
