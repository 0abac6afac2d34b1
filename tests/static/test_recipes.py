"""Every command that README.md, CONTRIBUTING.md and docs/ show has a recipe, by which it is run.

A recipe is known by the command's text: a page that shows another command needs another recipe.
"""

from __future__ import annotations

import re

from tests.documented.pages import ROOT, Command, commands_of, read_commands
from tests.documented.recipe import Recipe, find_stale, find_unproven
from tests.documented.table import NOT_RUN, read_recipes

RECIPES = read_recipes()
# What CHANGELOG.md names is history.
COMMANDS = [command for command in read_commands() if command.place != "CHANGELOG.md"]


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
