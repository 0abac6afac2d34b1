"""docs/ci.md: what a CI system runs; tests/integration/workflows runs its workflows."""

from __future__ import annotations

import json

from tests.documented.recipe import Recipe
from tests.documented.setups import use_our_store
from tests.documented.stage import Ended, Stage

REPORT = "reports/setup/doctor.json"


def is_fit(stage: Stage, ended: Ended) -> None:
    assert json.loads((stage.project / REPORT).read_text("utf-8"))["fit"] is True
    assert "export QNN_SDK_ROOT=" in ended.stdout
    assert all(line.startswith(("export ", "unset ")) for line in ended.stdout.splitlines())


RECIPES = {
    "qnn-ci cache-key emulator": Recipe(
        says=("qnn-runtime is in no cache: its licence", "qnn-ci-")
    ),
    "qnn-ci setup": Recipe(setup=(use_our_store,), leaves=(REPORT,), then=is_fit, with_models=True),
    "nox -s release": Recipe(elsewhere=".github/workflows/release.yml"),
}
