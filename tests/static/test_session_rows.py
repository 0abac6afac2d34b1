"""Each session of ``./nox``, and each verb that no session runs, has a real run in CI: a row of
tests/documented/sessions.py, with a command that a page shows."""

from __future__ import annotations

import re

import pytest

from ci.verbs.registry import VERBS
from tests.bench.run import BENCHES
from tests.documented.pages import ROOT, list_shown
from tests.documented.sessions import (
    ROWS,
    SessionRow,
    find_faults,
    list_names,
    list_sessions,
    read_sessions,
)

NAMES = list_names(list_sessions(), VERBS)
SHOWN = frozenset(command.key for command in list_shown())


def test_each_session_and_verb_has_a_row() -> None:
    assert find_faults(ROWS, NAMES, SHOWN) == []


def test_sessions_and_verbs_are_those_of_nox_and_of_the_command_line() -> None:
    assert {"tests", "docker_build", "qnn_ci", "explain", "cache"} <= NAMES
    assert not {"fetch", "doctor", "build", "sign", "image", "test-emulator"} & NAMES
    assert read_sessions()["provision"] == ["ci", "fetch"]


@pytest.mark.parametrize(
    ("rows", "names", "fault"),
    [
        (ROWS, list_names(list_sessions() | {"planted"}, VERBS), "planted has no row"),
        (ROWS, list_names(list_sessions(), [*VERBS, "plant"]), "plant has no row"),
        (
            [*ROWS, SessionRow("gone", "./nox -s plan", "")],
            NAMES,
            "gone is neither a session nor a verb without one",
        ),
        (
            [*ROWS, SessionRow("plan", "./nox -s plan -- --nowhere", "")],
            NAMES,
            "plan: no page shows `./nox -s plan -- --nowhere`",
        ),
        (
            [*ROWS, SessionRow("plan", "./nox -s audit", "")],
            NAMES,
            "plan: `./nox -s audit` does not run it",
        ),
        (
            [*ROWS, SessionRow("plan", "./nox -s plan", "")],
            NAMES,
            "plan: what `./nox -s plan` prints last is missing",
        ),
    ],
    ids=["session", "verb", "renamed", "not_on_a_page", "another", "nothing_promised"],
)
def test_a_session_or_verb_without_a_run_is_found(
    rows: list[SessionRow], names: set[str], fault: str
) -> None:
    assert fault in find_faults(rows, names, SHOWN)


def test_the_page_of_sessions_names_the_benchmarks() -> None:
    page = (ROOT / "docs/reference/sessions.md").read_text("utf-8")
    (row,) = re.findall(r"(?m)^\| `bench` \| (.+?) \|", page)
    assert re.findall(r"`([\w-]+)`", row) == [*BENCHES]
