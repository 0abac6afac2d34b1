"""Colours of the real command, in a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ci.report.schema import Case, JudgementFacts, Status
from ci.report.write import write_report
from tests.stand_ins.reports import make_report

ROOT = Path(__file__).parents[3]
PLAIN = {"CI": "", "NO_COLOR": "", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
COLOUR = b"\x1b["


def read_terminal(descriptor: int) -> bytes:
    """What is written to a terminal until nobody holds its other end."""
    data = b""
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:  # Linux's word for the end
            return data
        if not piece:
            return data
        data += piece


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    case = Case(
        model="mlp",
        scheme="fp16",
        soc="SM8650",
        judgement=JudgementFacts(status=Status.PASSED, sqnr_db=60.0),
    )
    write_report(make_report([case]), directory)
    return directory


def show(report: Path, changes: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    environment = {**os.environ, **PLAIN, **changes}
    words = [sys.executable, "-m", "ci", "report", str(report)]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT
    ) as process:
        os.close(theirs)
        data = read_terminal(ours)
    os.close(ours)
    assert process.returncode == 0, data
    assert b"mlp" in data
    return data


def test_a_report_on_a_terminal_has_colours(report: Path) -> None:
    assert COLOUR in show(report, {})


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb"}])
def test_a_report_has_no_colours_with_no_color_in_ci_or_on_a_dumb_terminal(
    report: Path, changes: dict[str, str]
) -> None:
    assert COLOUR not in show(report, changes)
