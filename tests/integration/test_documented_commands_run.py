"""Every command that README.md, CONTRIBUTING.md and docs/ show is run, and does what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented.pages import Command, read_commands
from tests.documented.recipe import Recipe, judge, prove
from tests.documented.stage import Ended, Stage
from tests.documented.table import read_recipes

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
