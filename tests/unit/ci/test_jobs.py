"""How many cases run at a time: the command line says it, QNN_CI_JOBS, or the number of cores."""

from __future__ import annotations

import argparse
import os

import pytest

from ci.verbs.lanes.steps import add_case_arguments, check_numbers
from provisioning.errors import UsageError

CORES = str(len(os.sched_getaffinity(0)))


def read_jobs(*words: str) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_case_arguments(parser, "a model", "a_session")
    args = parser.parse_args(words)
    check_numbers(args)
    jobs: int = args.jobs
    return jobs


@pytest.mark.parametrize(
    ("variable", "words", "jobs"),
    [
        ("", (), CORES),
        ("37", (), "37"),
        ("37", ("--jobs", "2"), "2"),
        ("x", ("--jobs", "2"), "2"),
    ],
)
def test_who_says_it_last_is_heard(
    variable: str, words: tuple[str, ...], jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", variable)
    assert read_jobs(*words) == int(jobs)


def test_without_the_variable_it_is_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_CI_JOBS", raising=False)
    assert read_jobs() == int(CORES)


def test_what_is_no_number_of_cases_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", "0")
    with pytest.raises(UsageError, match="--jobs 0"):
        read_jobs()
    monkeypatch.setenv("QNN_CI_JOBS", "many")
    with pytest.raises(argparse.ArgumentError, match="invalid int value: 'many'"):
        read_jobs()
