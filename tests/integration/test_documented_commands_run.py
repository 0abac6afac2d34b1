"""Every command that README.md, CONTRIBUTING.md and docs/ show is run, and does what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documented.pages import ROOT, Command, commands_of, read_commands
from tests.documented.recipe import Recipe, find_stale, find_unproven, judge, prove
from tests.documented.stage import Ended, Stage
from tests.documented.table import NOT_RUN, read_recipes

RECIPES = read_recipes()
# What CHANGELOG.md names is history.
SHOWN = {c.key: c for c in reversed(read_commands()) if c.place != "CHANGELOG.md"}
COMMANDS = [*reversed(SHOWN.values())]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.key in RECIPES], ids=str)
def test_a_documented_command_does_what_the_page_says(command: Command, stage: Stage) -> None:
    recipe = RECIPES[command.key]
    if recipe.lacks:
        pytest.skip(recipe.lacks)
    prove(command, recipe, stage)


def test_every_documented_command_has_a_recipe() -> None:
    without = find_unproven(COMMANDS, RECIPES)
    assert [str(command) for command in without if command.key not in NOT_RUN] == []


def test_every_recipe_is_of_a_documented_command() -> None:
    assert find_stale(COMMANDS, {**RECIPES, **dict.fromkeys(NOT_RUN, Recipe())}) == set()


def test_every_session_of_the_readme_is_run() -> None:
    table = (ROOT / "README.md").read_text("utf-8").partition("## Sessions")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {"nox"}
    run = {name for text in RECIPES for name in Command("", text).sessions}
    assert {"test_emulator", "bench"} <= named
    assert named - run == set()


def test_a_new_command_without_a_recipe_is_found() -> None:
    page = "`nox -s parity -- --news` and\n\n```sh\npython -m ci parity --more  # new\n```\n"
    found = find_unproven(commands_of("docs/new.md", page), RECIPES)
    assert [c.text for c in found] == ["nox -s parity -- --news", "python -m ci parity --more"]
    assert find_stale([], {"nox -s gone": Recipe()}) == {"nox -s gone"}


@pytest.mark.parametrize(
    ("recipe", "ended"),
    [
        (Recipe(), Ended(1, "", "")),
        (Recipe(code=2), Ended(0, "", "")),
        (Recipe(says=("proven",)), Ended(0, "invalid", "")),
        (Recipe(leaves=("signed",)), Ended(0, "", "")),
        (Recipe(), Ended(0, "", "Traceback (most recent call last):")),
    ],
)
def test_another_result_than_the_documented_one_is_found(
    recipe: Recipe, ended: Ended, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        judge("true", recipe, Stage(tmp_path, {}, tmp_path), ended)


def test_a_command_that_another_file_runs_has_to_stand_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {}, tmp_path)
    prove(Command("page", "./nox -s tests"), Recipe(elsewhere=".ci/run"), stage)
    with pytest.raises(AssertionError, match="does not run"):
        prove(Command("page", "./nox -s gone"), Recipe(elsewhere=".ci/run"), stage)
