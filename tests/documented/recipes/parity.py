"""docs/parity.md: a clone whose last commit adds a file to CMake alone."""

from __future__ import annotations

import json

from tests.documented.recipe import Recipe
from tests.documented.setups import (
    NEW_FILE,
    clone_beside,
    clone_executorch,
    enter_executorch,
    shrink_parity_bench,
)
from tests.documented.stage import Ended, Stage

DRIFT = f"cmake-only-source.*{NEW_FILE}"
CLONE = {"setup": (clone_executorch,), "code": 1}
HERE = {"setup": (enter_executorch,), "code": 1}


def shows_only_the_new(stage: Stage, ended: Ended) -> None:
    assert NEW_FILE in ended.stdout
    assert "old.cpp" not in ended.stdout


def has_sarif(stage: Stage, ended: Ended) -> None:
    shows_only_the_new(stage, ended)
    results = json.loads((stage.project / "parity.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert len(results) == 1


def be_on_github(stage: Stage) -> None:
    stage.variables["GITHUB_ACTIONS"] = "true"


RECIPES = {
    "nox -s parity -- --source ~/executorch": Recipe(says=(NEW_FILE, "old.cpp"), **CLONE),
    "nox -s parity -- --source ~/executorch --rev main": Recipe(says=(NEW_FILE,), **CLONE),
    "nox -s parity -- --source ~/executorch --scope backends/qualcomm": Recipe(
        says=(NEW_FILE,), **CLONE
    ),
    "nox -s parity -- --source ~/executorch --base origin/main": Recipe(
        then=shows_only_the_new, **CLONE
    ),
    "nox -s parity -- --source executorch --base origin/main --annotate --sarif parity.sarif": (
        Recipe(setup=(clone_beside, be_on_github), code=1, says=("::error file=",), then=has_sarif)
    ),
    "qnn-ci parity": Recipe(says=(NEW_FILE,), **HERE),
    "nox -s parity": Recipe(fill={"nox": "../../project/nox"}, says=(NEW_FILE,), **HERE),
    "nox -s bench -- parity": Recipe(
        setup=(shrink_parity_bench,),
        says=("whole tree, nothing kept",),
        leaves=("reports/bench/parity.json",),
        with_models=True,
    ),
}
