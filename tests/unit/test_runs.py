"""A program that ends otherwise than a test expects shows its code and what it printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stand_ins.runs import JUDGED, run_to_end

ROOT = Path(__file__).resolve().parents[2]


def test_a_program_that_fails_shows_its_code_and_output() -> None:
    argv = ["sh", "-c", "echo out; echo reason >&2; exit 3"]
    with pytest.raises(AssertionError, match="exit 3\nout\nreason"):
        run_to_end(argv, timeout_s=1200, codes=JUDGED)
    assert run_to_end(argv, timeout_s=1200, codes={3}) == "out\nreason\n"
    with pytest.raises(AssertionError, match="exit -9"):
        run_to_end(["sh", "-c", "kill -9 $$"], timeout_s=1200)


@pytest.mark.parametrize("words", [("bench", "gate"), ("trained",), ("mutants", "ci/gate")])
def test_arguments_are_checked_in_a_python_without_packages(words: tuple[str, ...]) -> None:
    """As a session of nox calls these modules before it installs their environment."""
    module, *arguments = words
    environment = {**os.environ, "QNN_CI_ONLY_PARSE": "1"}
    for refused in ((), ("--nope",)):
        command = [sys.executable, "-S", "-m", f"tests.{module}", *arguments, *refused]
        checked = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, "nope" in checked.stderr) == (
            (2, True) if refused else (0, False)
        )
