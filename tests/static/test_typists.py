"""Each command that pages show is typed by exactly one of these: ``./nox -s journeys`` or ``python
-m tests.sessions`` daily, the night, or the week.

The selections of the night and the week are those that .ci/night passes to pytest in the jobs of
nightly.yml and weekly.yml, and are applied to the marks of the commands.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from _pytest.mark.expression import Expression

from ci.gate.rules import read_rules
from tests.documented.pages import ROOT, Command
from tests.documented.runner import (
    JOURNEYS,
    Run,
    choose_sample,
    list_runs,
    name_session_row,
    name_typists,
)
from tests.documented.sessions import ROWS, SessionRow, read_sessions
from tests.documented.table import SESSIONS, find_row
from tests.documented.test_documented_commands_run import mark
from tests.stand_ins.night import make_night

WORKFLOWS = {"nightly.yml": "night", "weekly.yml": "week"}  # with the name of the job
Selections = Mapping[str, Sequence[str]]  # pytest's arguments by job


# -- who says that they type commands --------------------------------------------------------------


def read_selections(
    folder: Path, night: str = "", jobs: Collection[str] = ()
) -> dict[str, list[str]]:
    """What each job of nightly.yml and weekly.yml, or only these ``jobs``, passes to pytest.
    ``night`` is another text of .ci/night."""
    workflow_of = {}
    for workflow, name in WORKFLOWS.items():
        text = (ROOT / ".github/workflows" / workflow).read_text("utf-8")
        matrix = yaml.safe_load(text)["jobs"][name]["strategy"]["matrix"]["job"]
        workflow_of |= {job: workflow for job in matrix if not jobs or job in jobs}
    script = make_night(folder, night)
    script.run(*workflow_of)
    selections = {}
    for call in script.words:
        if call[:4] == ["nox", "-s", "tests", "--"]:
            (job,) = re.findall(r"--junit-xml=reports/night/(.+)/junit\.xml", " ".join(call))
            selections[f"{workflow_of[job]}: {job}"] = call[4:]
    return dict(sorted(selections.items()))


def read_folders(session: str) -> list[str]:
    """The folders of tests that a session of noxfile.py runs."""
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    (function,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == session
    ]
    texts = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and text.startswith("tests/")]


def select(words: Sequence[str], runs: Sequence[Run], typists: Mapping[Run, str]) -> set[Run]:
    """The commands that pytest types for the arguments ``words``."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--every-documented-command", action="store_true")
    parser.add_argument("-k", default="")
    parser.add_argument("-m", default="")
    options, others = parser.parse_known_args(words)
    if not {"tests", "tests/documented"} & {*others}:
        return set()
    chosen = runs if options.every_documented_command else choose_sample(runs)
    marked = {run: mark(run, typists.get(run, "")).marks for run in chosen}
    is_named = compile_expression(options.k)
    is_marked = compile_expression(options.m)
    return {
        run
        for run, marks in marked.items()
        if is_named.evaluate(lambda name, run=run: name.lower() in str(run).lower())
        and is_marked.evaluate(lambda name, marks=marks: name in {mark.name for mark in marks})
    }


def compile_expression(text: str) -> Expression:
    return Expression.compile(text or "not nothing")


def find_faults(
    runs: Sequence[Run],
    typists: Mapping[Run, str],
    selections: Selections,
    session_rows: Sequence[SessionRow] = ROWS,
    journeys: Sequence[str] = tuple(read_folders("journeys")),
) -> list[str]:
    """The commands that nobody types, or several, or not those who are named in ``typists``."""
    typed_by_journeys = {(run.command, run.install) for run in select(journeys, runs, {})}
    typed_in_sessions = {
        (row.command, name_session_row(row))
        for row in session_rows
        if not (row.run_by or row.engine)
    }
    selected = {job: select(words, runs, typists) for job, words in selections.items()}
    faults = []
    for run in runs:
        if run.below:  # a second time, which only the journeys type for some
            continue
        typed_by = [job for job, chosen in selected.items() if run in chosen]
        if typist := typists.get(run):
            typed_by.append(typist)
            if typist == JOURNEYS:
                is_typed = (run.command, run.install) in typed_by_journeys
            else:
                is_typed = not run.install and (run.command.typed, typist) in typed_in_sessions
            if not is_typed:
                faults.append(f"{run.command}: {typist} does not type it")
        if len(typed_by) != 1:
            faults.append(f"{run.command}: typed by {' and '.join(typed_by) or 'nobody'}")
    return faults


# -- the commands, and those who type them ---------------------------------------------------------


@cache
def read_runs() -> tuple[Run, ...]:
    return tuple(list_runs())


@pytest.fixture(scope="module")
def selections(tmp_path_factory: pytest.TempPathFactory) -> Selections:
    return read_selections(tmp_path_factory.mktemp("night") / "checkout")


def test_each_command_is_typed_by_one_typist(selections: Selections) -> None:
    runs = read_runs()
    typists = name_typists(runs)
    assert find_faults(runs, typists, selections) == []
    typing = {job for job, words in selections.items() if select(words, runs, typists)}
    assert typing == {"nightly.yml: commands", "weekly.yml: commands-slow"}
    assert len({*typists.values()}) > 1


def test_those_who_type_daily_run_daily() -> None:
    rule = read_rules().sessions["journeys"]  # pr.yml runs it if a change needs it
    assert not rule.by_hand
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text("utf-8"))
    assert nightly["jobs"]["everything"]["uses"].endswith("/pr.yml")
    steps = nightly["jobs"]["sessions"]["steps"]
    for script in (steps[-2]["run"], (ROOT / ".ci/run").read_text("utf-8")):
        calls = re.findall(r"(?m)^[^#]*python\S* -m tests\.sessions *(.*)$", script)
        assert calls
        # After a name of a session, only that one would run.
        assert all(re.match(r"$|[&|]", call) for call in calls)


def find_verbs(command: Command) -> set[str]:
    """The verbs, or else the sessions, that a command runs."""
    if command.sessions == ["qnn_ci"]:
        return {*command.passed_on[:1]}
    if command.sessions:
        return {" ".join(read_sessions().get(name, ["", name])[1:]) for name in command.sessions}
    return {*command.verb[1][:1]} if command.verb else set()


def find_false_places(runs: Sequence[Run], session_rows: Sequence[SessionRow] = ROWS) -> list[str]:
    """The places in ``daily_in`` of which no command with the same verb is typed daily."""
    verbs: dict[str, set[str]] = defaultdict(set)
    for run in choose_sample(runs):
        verbs[run.command.place] |= find_verbs(run.command)
    for row in session_rows:
        if not (row.run_by or row.engine):
            verbs[SESSIONS] |= find_verbs(Command(SESSIONS, row.command))
    return [
        f"{run.command}: {place} has no such verb"
        for run in runs
        if (place := find_row(run.command).daily_in) and not find_verbs(run.command) & verbs[place]
    ]


def test_a_command_with_the_same_verb_is_typed_in_the_place_that_a_row_names() -> None:
    runs = read_runs()
    assert find_false_places(runs) == []
    without_mend = [row for row in ROWS if row.name != "mend"]
    faults = find_false_places(runs, without_mend)
    assert faults
    assert all("mend" in fault for fault in faults)


# -- planted faults --------------------------------------------------------------------------------


def find_runs(text: str) -> list[Run]:
    return [run for run in read_runs() if not run.below and text in run.command.typed]


def test_a_typist_who_does_not_type_the_command_is_found(selections: Selections) -> None:
    runs = read_runs()
    typists = name_typists(runs)
    (by_night,) = find_runs("qnn-ci cache key")
    (by_sessions,) = find_runs("./nox -s mutants -- ci/gate/parts.py --sample 10")
    assert by_night not in typists
    for run, typist in ((by_night, JOURNEYS), (by_night, typists[by_sessions])):
        assert find_faults(runs, {**typists, run: typist}, selections) == [
            f"{run.command}: {typist} does not type it"
        ]
    for edit in ({"command": "./nox -s mutants"}, {"run_by": "another job"}, {"engine": True}):
        rows = [replace(row, **edit) if row.name == "mutants" else row for row in ROWS]
        assert find_faults(runs, typists, selections, rows) == [
            f"{by_sessions.command}: {typists[by_sessions]} does not type it"
        ]
        # If the marks are made from these rows, the night types it.
        assert find_faults(runs, name_typists(runs, rows), selections, rows) == []
    faults = find_faults(runs, typists, selections, journeys=["tests/journeys"])
    assert len(faults) == [*typists.values()].count(JOURNEYS) - count_below(typists) > 0


def count_below(typists: Mapping[Run, str]) -> int:
    return sum(run.below for run, typist in typists.items() if typist == JOURNEYS)


NIGHT_EDITS = {
    "the night leaves out what no mark selects": (
        '-m "not daily and not weekly"',
        '-m "not daily and not weekly and nightly"',
        "typed by nobody",
    ),
    "the night types what is typed daily": (
        '-m "not daily and not weekly"',
        '-m "not weekly"',
        "typed by nightly.yml: commands and ",
    ),
    "the night types what the week types": (
        '-m "not daily and not weekly"',
        '-m "not daily"',
        "typed by nightly.yml: commands and weekly.yml: commands-slow",
    ),
    "the week types another mark": ("-m weekly", "-m nightly", "typed by nobody"),
    "another directory": ("-k typed_from_root", "-k typed_from_below", "typed by nobody"),
    "one command per page": (" --every-documented-command", "", "typed by nobody"),
    "other tests": ("commands=(tests/documented", "commands=(tests/journeys", "typed by nobody"),
    "another job types all of them": (
        "    wheels) QNN_CI",
        '    wheels) tests "${commands[@]}" && QNN_CI',
        "nightly.yml: wheels",
    ),
}


@pytest.mark.parametrize(("text", "other", "fault"), NIGHT_EDITS.values(), ids=NIGHT_EDITS)
def test_a_selection_that_leaves_out_commands_or_repeats_them_is_found(
    tmp_path: Path, text: str, other: str, fault: str
) -> None:
    night = (ROOT / ".ci/night").read_text("utf-8")
    assert text in night
    runs = read_runs()
    jobs = ("commands", "commands-slow", "wheels")
    selections = read_selections(tmp_path / "checkout", night.replace(text, other), jobs)
    faults = find_faults(runs, name_typists(runs), selections)
    assert faults
    assert all(fault in found for found in faults)


@pytest.mark.parametrize("job", ["nightly.yml: commands", "weekly.yml: commands-slow"])
def test_a_job_that_is_gone_is_found(selections: Selections, job: str) -> None:
    runs = read_runs()
    remaining = {name: words for name, words in selections.items() if name != job}
    faults = find_faults(runs, name_typists(runs), remaining)
    assert faults
    assert all(fault.endswith("typed by nobody") for fault in faults)
