"""Some of ExecuTorch's own QNN tests: by pytest in one process, as upstream runs them, and by us.

The same tests, spread over the operator classes without the slowest. pytest gets our runner of
programs, which forks and is faster than an executable that starts anew. Ours also predicts the
noise of each output, and judges it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.upstream.emulator import write_client
from ci.upstream.suites import SUITES, find_executorch
from ci.verbs.lanes.upstream import name_variables
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import ToolError

SUITE = SUITES["upstream"]
COUNT, JOBS = 60, 2
SLOW = ("cdist", "index_put", "mha", "conv3d")
PYTEST = """
import pathlib, sys, pytest
from ci.upstream.emulator import serve_programs
from ci.upstream.stubs import install_stubs
install_stubs()
with serve_programs(pathlib.Path(sys.argv[1])):
    code = pytest.main(sys.argv[2:])
sys.exit(code)
"""


def run_pytest(variables: Mapping[str, str], folder: Path, *words: str) -> str:
    """What pytest prints, next to a process that runs the tests' programs."""
    options = ["-q", "-n", "0", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", "/"]
    return subprocess.run(
        [sys.executable, "-c", PYTEST, str(folder), "--import-mode=importlib", *options, *words],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout


def choose_names(variables: Mapping[str, str], folder: Path, file: str) -> list[str]:
    """COUNT tests as Class::test, spread over the operator classes."""
    lines = run_pytest(variables, folder, file, "--collect-only").splitlines()
    every = [line.partition("::")[2] for line in lines if "Operator::" in line]
    usual = [one for one in every if not any(name in one for name in SLOW)]
    return [usual[index * len(usual) // COUNT] for index in range(COUNT)]


def run_bench(progress: Progress) -> dict[str, Any]:
    """Seconds of both, one after the other. Raises ToolError if one ran other tests."""
    environment = provision_profile("emulator", progress)
    file = str(find_executorch() / SUITE.places[0])
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(name_variables(SUITE, SUITE.soc, None))
        client = Path(folder) / "runner"
        write_client(client)
        own = {"QNN_ARTIFACT_DIR": folder, "QNN_EXECUTOR_RUNNER": str(client)}
        variables = environment.apply({**os.environ, **own})
        programs = Path(folder) / "programs"
        names = choose_names(variables, programs, file)
        began = time.monotonic()
        told = run_pytest(variables, programs, *(f"{file}::{one}" for one in names))
        theirs_s = time.monotonic() - began
        words = ["--suite", SUITE.name, "--jobs", str(JOBS), "--reports", f"{folder}/reports"]
        words += [word for one in names for word in ("--filter", one)]
        began = time.monotonic()
        made = subprocess.run(
            [sys.executable, "-m", "ci", "test-emulator", *words],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        ).stdout
        ours_s = time.monotonic() - began
    counts = next((line for line in made.splitlines() if " passed by both" in line), "")
    if f"{COUNT} tests" not in counts or "passed" not in told:
        raise ToolError("not all tests ran", why=f"{told[-500:]}\n{made[-500:]}")
    return {
        "tests": names,
        "pytest_s": theirs_s,
        "pytest": told.splitlines()[-1],
        "ours_s": ours_s,
        "ours": counts.strip(),
        "jobs": JOBS,
    }


def render_bench(figures: Mapping[str, Any]) -> str:
    """A line each, and their ratio."""
    return (
        f"pytest, 1 process   {figures['pytest_s']:7.1f} s  {figures['pytest']}\n"
        f"ours, {figures['jobs']} workers     {figures['ours_s']:7.1f} s  {figures['ours']}\n"
        f"ratio               {figures['ours_s'] / figures['pytest_s']:7.2f}\n"
    )
