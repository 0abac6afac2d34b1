"""What the terminal shows of a verb while other packages print in all ways: our lines only. The
same of lanes, whose workers print, too, is in tests/journeys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ci.verbs.registry import VERBS
from tests.stand_ins.noise import run_with_noise

ROOT = Path(__file__).resolve().parents[3]

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
    ended = run_with_noise(verb, *SMALL[verb], "--help" if verb == "audit" else "--json")
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
