"""The commands that README.md, CONTRIBUTING.md and docs/ show are typed as a reader would.

``./nox -s journeys`` types one per page; ``--every-documented-command`` types all of them, each
also from a directory below. Of these, ``daily`` marks those that somebody else types, and
``weekly`` those of weekly.yml; tests/static/test_typists.py checks that each one is typed.
tests/static/test_documented_commands.py parses those that are not run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.documented.pages import Command
from tests.documented.place import Ended
from tests.documented.runner import Run, choose_sample, judge, list_runs, name_typists, prove
from tests.documented.table import Row, find_row


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        runs = list_runs()
        if metafunc.config.getoption("--every-documented-command"):
            typists = name_typists(runs)
            chosen = [mark(run, typists.get(run, "")) for run in runs]
        else:
            chosen = [pytest.param(run) for run in choose_sample(runs)]
        metafunc.parametrize("run", chosen, ids=str)


def mark(run: Run, typist: str) -> ParameterSet:
    """What a typist types daily, or what is typed once a week, is not typed every night."""
    row = find_row(run.command)
    if typist:
        return pytest.param(run, marks=pytest.mark.daily(typist))
    if row.weekly:
        return pytest.param(run, marks=[pytest.mark.weekly, pytest.mark.timeout(row.limit_s + 600)])
    return pytest.param(run)


def test_a_documented_command_does_what_its_page_says(run: Run, shared: Path) -> None:
    if lacks := find_row(run.command).lacks:
        pytest.skip(lacks)
    prove(run, shared)


@pytest.mark.parametrize(
    "ended",
    [
        Ended(1, "proven"),
        Ended(0, "invalid"),
        Ended(0, "proven\nTraceback (most recent call last):"),
    ],
    ids=["code", "line", "traceback"],
)
def test_a_documented_command_with_another_exit_code_or_output_fails(ended: Ended) -> None:
    run = Run(Command("page", "true"), "", below=False)
    judge(run, Row("", "pro ... en"), Ended(0, "proven"))
    with pytest.raises(AssertionError):
        judge(run, Row("", "proven"), ended)
