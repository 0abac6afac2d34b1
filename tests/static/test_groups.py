"""What ``./nox -l`` and ``qnn-ci --help`` list: each session and verb once, on a line of a usual
terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

from ci.__main__ import main
from ci.verbs.groups import COLUMNS, PURPOSES, describe_sessions, group_verbs
from ci.verbs.registry import VERBS
from provisioning.console.process import run_process
from provisioning.errors import ExitCode
from tests.documented.sessions import list_sessions
from tests.documented.table import ROOT

SESSIONS = list_sessions()


def find_faults(sessions: Collection[str], verbs: Collection[str]) -> list[str]:
    """What the table of purposes lacks, has twice or has without need."""
    rows = [row for purpose in PURPOSES for row in purpose.rows]
    faults = []
    listed_verbs = Counter(row.verb for row in rows if row.verb)
    listed_sessions = Counter(row.session for row in rows if row.session)
    of_verbs = {verb.replace("-", "_") for verb in verbs}  # each verb is also a session
    for kind, names, listed, known_names in (
        ("verb", verbs, listed_verbs, {*verbs}),
        ("session", sessions, listed_sessions, {*sessions, *of_verbs}),
    ):
        faults += [f"{kind} {name} is in no group" for name in names if not listed[name]]
        faults += [f"there is no {kind} {name}" for name in listed if name not in known_names]
        faults += [
            f"{kind} {name} is listed twice" for name, number in listed.items() if number > 1
        ]
    return faults


def test_each_verb_and_session_is_in_one_group() -> None:
    assert find_faults(SESSIONS, VERBS) == []


@pytest.mark.parametrize(
    ("sessions", "verbs", "fault"),
    [
        ({*SESSIONS, "planted"}, VERBS, "session planted is in no group"),
        (SESSIONS, [*VERBS, "plant"], "verb plant is in no group"),
        (SESSIONS - {"tests"}, VERBS, "there is no session tests"),
    ],
)
def test_a_session_or_verb_in_no_group_is_a_fault(
    sessions: Collection[str], verbs: Collection[str], fault: str
) -> None:
    assert find_faults(sessions, verbs) == [fault]


def test_each_line_fits_a_usual_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_process(["./nox", "-l"], cwd=ROOT, timeout_s=60).output
    assert listed == run_process(["./nox"], cwd=ROOT, timeout_s=60).output
    assert "others" not in listed
    assert main(["--help"]) == ExitCode.OK
    for text in (listed, capsys.readouterr().out):
        assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
        starts = [text.index(f"{purpose.title}") for purpose in PURPOSES if purpose.title in text]
        assert starts == sorted(starts)
        assert "qnn_ci -- help JOB" in text or "-m ci help JOB" in text
        for group in group_verbs():
            assert f"{group.title} (help {group.name})\n" in text


def test_a_session_without_a_group_is_listed_last() -> None:
    text = describe_sessions("./nox", {"tests": "Run tests.", "planted": "Do a thing.\n\nMore."})
    assert text.rpartition("\n\n")[2].split() == ["others", "planted", "do", "a", "thing"]


def test_help_of_a_purpose_lists_its_verbs_with_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for group in group_verbs():
        assert group.name not in VERBS, "help NAME would be ambiguous"
        assert main(["help", group.name]) == ExitCode.OK
        printed = capsys.readouterr().out
        assert printed.startswith(f"{group.title}\n")
        for verb in group.lines:
            line = f"  {verb}: {group.lines[verb]}\n"
            assert line in printed
            assert len(line) <= COLUMNS
            assert all(example in printed for example in VERBS[verb].examples)
