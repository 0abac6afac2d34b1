"""What a documented command needs, and what it must do."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.documented.pages import ROOT, Command
from tests.documented.stage import Ended, Stage

MODELS = ("torch", "executorch", "torchgen", "yaml")


@dataclass(frozen=True)
class Recipe:
    """How a command is run and judged.

    ``fill`` puts values in the place of a page's placeholders, each in a run of its own where
    there are several. ``code`` and ``says`` (expressions that all have to be found) are the
    documented result, ``leaves`` the files of the checkout that are there afterwards, ``then`` a
    look at more. ``adds`` are words that only a stand-in makes necessary. A command that is
    run ``elsewhere`` has to stand in that file.
    """

    setup: Sequence[Callable[[Stage], None]] = ()
    fill: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    adds: str = ""
    code: int = 0
    says: Sequence[str] = ()
    leaves: Sequence[str] = ()
    then: Callable[[Stage, Ended], None] | None = None
    needs: Sequence[str] = ()
    with_models: bool = False
    elsewhere: str = ""

    @property
    def lacks(self) -> str:
        """Why it cannot run here; empty when it can."""
        missing = [name for name in self.needs if not shutil.which(name)]
        if self.with_models:
            missing += [name for name in MODELS if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else ""

    def lines(self, command: Command) -> list[str]:
        """The lines to type for ``command``."""
        lines = [command.text]
        for placeholder, values in self.fill.items():
            assert placeholder in command.text, f"{command} has no {placeholder}"
            several = [values] if isinstance(values, str) else values
            lines = [line.replace(placeholder, value) for line in lines for value in several]
        return [f"{line} {self.adds}".strip() for line in lines]


def prove(command: Command, recipe: Recipe, stage: Stage) -> None:
    """Run a command as its recipe says. Raises AssertionError when it does something else."""
    if recipe.elsewhere:
        lines = (ROOT / recipe.elsewhere).read_text("utf-8").splitlines()
        assert command.text in map(str.strip, lines), (
            f"{recipe.elsewhere} does not run {command.text}"
        )
        return
    for prepare in recipe.setup:
        prepare(stage)
    for line in recipe.lines(command):
        judge(line, recipe, stage, stage.run(line))


def judge(line: str, recipe: Recipe, stage: Stage, ended: Ended) -> None:
    """Raises AssertionError where ``ended`` is not what the recipe tells."""
    said = f"{line}\n{ended.said}"
    assert ended.returncode == recipe.code, said
    assert "Traceback" not in ended.said, said
    for pattern in recipe.says:
        assert re.search(pattern, ended.said), f"no {pattern!r} in:\n{said}"
    for name in recipe.leaves:
        assert list(Path(stage.project).glob(name)), f"no {name} after:\n{said}"
    if recipe.then:
        recipe.then(stage, ended)


def find_unproven(commands: Sequence[Command], recipes: Mapping[str, Recipe]) -> list[Command]:
    """Documented commands that no recipe runs."""
    return [command for command in commands if command.key not in recipes]


def find_stale(commands: Sequence[Command], recipes: Mapping[str, Recipe]) -> set[str]:
    """Recipes of commands that no page shows any more."""
    return set(recipes) - {command.key for command in commands}
