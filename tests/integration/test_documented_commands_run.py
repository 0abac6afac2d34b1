"""A command per verb and model that README.md, CONTRIBUTING.md or docs/ shows is run for real.

``--every-documented-command`` runs all of them. tests/static/test_documented_commands.py parses
those that are not run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented.pages import Command, list_shown
from tests.documented.recipes import NOT_RUN, SAMPLES, Recipe, find_recipe, judge, prove
from tests.documented.stage import Ended, Stage


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "command" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-documented-command")
        shown = [one for one in list_shown() if every or one.key in SAMPLES]
        shown = [one for one in shown if one.key not in NOT_RUN]
        metafunc.parametrize("command", shown, ids=str)


def test_a_documented_command_does_what_the_page_says(command: Command, stage: Stage) -> None:
    recipe = find_recipe(command)
    if recipe.lacks:
        pytest.skip(recipe.lacks)
    prove(command, recipe, stage)


@pytest.mark.parametrize(
    ("recipe", "ended"),
    [
        (Recipe(""), Ended(1, "", "")),
        (Recipe("", code=2), Ended(0, "", "")),
        (Recipe("", says="proven"), Ended(0, "invalid", "")),
        (Recipe(""), Ended(0, "", "Traceback (most recent call last):")),
    ],
)
def test_another_result_than_the_documented_one_is_found(
    recipe: Recipe, ended: Ended, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        judge("true", recipe, Stage(tmp_path, {}, tmp_path), ended)
