"""README.md, CONTRIBUTING.md and docs/exit-codes.md."""

from __future__ import annotations

import ci.__main__
import provisioning.__main__
from tests.documented.recipe import Recipe
from tests.documented.setups import leave_doctor_out, plant_toolchains, shrink_suite, use_our_store

PASSED = "1 passed"
PAGE = "reports/test_emulator/index.html"
EMULATOR = Recipe(
    setup=(use_our_store, shrink_suite), says=(PASSED, PAGE), leaves=(PAGE,), with_models=True
)
HELP = {"says": (r"usage: .*\[--json\]",), "adds": "--help"}

RECIPES = {
    "nox -s test_emulator": EMULATOR,
    "nox -s tests": Recipe(says=("1 passed",)),
    "nox -s unit": Recipe(says=("1 passed",)),
    "nox -s lint": Recipe(elsewhere=".ci/run"),
    "nox -s build_android test_emulator": Recipe(
        setup=(use_our_store, shrink_suite, plant_toolchains, leave_doctor_out),
        says=("build_android: success", "test_emulator: success"),
        leaves=(PAGE, "reports/build_android/artifacts.json"),
        needs=("clang", "ld.lld"),
        with_models=True,
    ),
    "python -m provisioning VERB": Recipe(
        fill={"VERB": tuple(provisioning.__main__.VERBS)}, **HELP
    ),
    "python -m ci VERB": Recipe(fill={"VERB": tuple(ci.__main__.VERBS)}, **HELP),
    # Whatever a session runs, its exit code is kept.
    "nox -s SESSION": Recipe(
        fill={"SESSION": "parity -- --source /nonexistent"}, code=2, says=("is not a directory",)
    ),
}
