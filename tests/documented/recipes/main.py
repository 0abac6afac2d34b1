"""README.md, CONTRIBUTING.md, docs/exit-codes.md, concepts.md and troubleshooting.md."""

from __future__ import annotations

import re

import ci.__main__
from tests.documented.recipe import Recipe
from tests.documented.setups import (
    leave_doctor_out,
    plant_toolchains,
    shrink_judging,
    shrink_suite,
    use_one_worker,
    use_our_store,
)
from tests.documented.stage import Ended, Stage

PASSED = "1 passed"
PAGE = "reports/test_emulator/index.html"
EMULATOR = Recipe(
    setup=(use_our_store, shrink_suite), says=(PASSED, PAGE), leaves=(PAGE,), with_models=True
)
HELP = {"says": (r"usage: .*\[--json\]",), "adds": "--help"}


def is_installed(stage: Stage, ended: Ended) -> None:
    """The wheel has its manifests and runs without the checkout."""
    stage.variables["PYTHONPATH"] = str(stage.project / "installed")
    stage.directory = stage.home
    listed = stage.run(f"{stage.project}/installed/bin/qnn-ci list")
    assert "qnn-runtime" in listed.stdout, listed.said


MUTANTS = "nox -s mutants -- ci/judging"
EQUIVALENT = """
[[equivalent]]
path = "ci/judging/limit.py"
function = "is_loud"
removed = "return decibels > 40"
added = "return decibels >= 40"
reason = "no sound has 40 dB"
"""


def resumes(stage: Stage, ended: Ended) -> None:
    """A survivor that is listed as equivalent counts no more; a new test kills it all the same."""
    page = stage.project / "reports/mutants/ci.judging.md"
    assert "+    return decibels >= 40" in page.read_text("utf-8")
    stage.write("tests/mutants/equivalents.toml", EQUIVALENT)
    listed = stage.run(f"./{MUTANTS}").said
    assert re.search(r"judging +2 +1 +0 +0 +1 +0 +100\.0\n", listed), listed
    assert "no sound has 40 dB" in page.read_text("utf-8")
    stage.edit("tests/unit/ci/emulator/test_limit.py", "is_loud(0)", "is_loud(40)")
    killed = stage.run(f"./{MUTANTS}").said
    assert re.search(r"judging +2 +2 +0 +0 +0 +0 +100\.0\n", killed), killed
    assert "no surviving mutant of ci/judging/limit.py fits is_loud" in killed, killed


RECIPES = {
    "nox -s test_emulator": EMULATOR,
    "nox -s tests": Recipe(setup=(use_one_worker,), says=("1 passed",)),
    "nox -s unit": Recipe(setup=(use_one_worker,), says=("1 passed",)),
    MUTANTS: Recipe(
        setup=(shrink_judging,),
        says=(r"ci/judging +2 +1 +1 +0 +0 +0 +50\.0\n",),
        leaves=("reports/mutants/ci.judging.md",),
        then=resumes,
    ),
    "nox -s lint": Recipe(elsewhere=".ci/run"),
    "nox -s build_android test_emulator": Recipe(
        setup=(use_our_store, shrink_suite, plant_toolchains, leave_doctor_out),
        says=("build_android: success", "test_emulator: success"),
        leaves=(PAGE, "reports/build_android/artifacts.json"),
        needs=("clang", "ld.lld"),
        with_models=True,
    ),
    "nox -s validate -- emulator": Recipe(
        setup=(use_our_store,), says=("emulator: fit",), with_models=True
    ),
    "nox -s validate -- android": Recipe(code=3, says=("not fit", "provision -- android")),
    "nox -s qnn_ci -- cache info": Recipe(says=("toolchains", "in all")),
    "nox -s qnn_ci -- cache clean all": Recipe(says=("removed .* MiB of store, ",)),
    "pip install .": Recipe(
        adds="--quiet --no-deps --target installed", says=("^",), then=is_installed
    ),
    "qnn-ci VERB": Recipe(fill={"VERB": tuple(ci.__main__.VERBS)}, **HELP),
    "qnn-ci --version": Recipe(says=(r"^executorch-qnn-ci \d",)),
    "qnn-ci completion bash": Recipe(says=("complete .*qnn-ci",)),
    "qnn-ci completion zsh": Recipe(says=("#compdef qnn-ci",)),
    'eval "$(qnn-ci completion bash)"': Recipe(adds="&& complete -p qnn-ci", says=("-F ",)),
    # Whatever a session runs, its exit code is kept.
    "nox -s SESSION": Recipe(
        fill={"SESSION": "parity -- --source /nonexistent"}, code=2, says=("is not a directory",)
    ),
}
