"""Programs that a test runs for their results: one that ends otherwise shows what it printed."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from provisioning.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
# Cases may be red; any other code ends a run before all of them are judged.
JUDGED = frozenset({ExitCode.OK, ExitCode.FAILED})


def run_to_end(
    argv: Sequence[str],
    *,
    timeout_s: float,
    codes: Collection[int] = frozenset({ExitCode.OK}),
    env: Mapping[str, str] | None = None,
) -> str:
    """Return what a program printed. Raises AssertionError, with that, for another exit code."""
    ended = subprocess.run(
        argv,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode in codes, f"exit {ended.returncode}\n{ended.stdout}"
    return ended.stdout
