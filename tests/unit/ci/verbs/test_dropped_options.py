"""Options of the last release that have no effect: accepted with a warning, and not listed."""

from __future__ import annotations

import argparse

import pytest

from ci.__main__ import VERBS
from ci.verbs.dropped import DROPPED, Dropped
from provisioning.console.command import load_verb


def make_parser(row: Dropped) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    load_verb(VERBS[row.command.split()[0]]).add_arguments(parser)
    return parser


def test_which_options_were_dropped() -> None:
    assert [(row.command, row.option, row.takes_value) for row in DROPPED] == [
        ("image build", "--no-cache", False),
        ("parity", "--build-buck", False),
        ("plan", "--outcomes", True),
    ]


@pytest.mark.parametrize("row", DROPPED, ids=lambda row: f"{row.command} {row.option}")
@pytest.mark.parametrize("joined", [False, True])
def test_a_dropped_option_warns_and_changes_nothing(
    row: Dropped, joined: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    parser, action = make_parser(row), row.command.split()[1:]
    value = ["old.json"] if row.takes_value else []
    words = [f"{row.option}={value[0]}"] if joined and value else [row.option, *value]

    given = parser.parse_args([*action, *words])

    told = capsys.readouterr().err.split()
    assert told[:2] == ["warning:", row.option]
    assert told[-len(row.instead.split()) :] == row.instead.split()
    assert given == parser.parse_args(action)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("row", DROPPED, ids=lambda row: f"{row.command} {row.option}")
def test_the_help_does_not_list_a_dropped_option(
    row: Dropped, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser(row).parse_args([*row.command.split()[1:], "--help"])
    assert row.option not in capsys.readouterr().out
