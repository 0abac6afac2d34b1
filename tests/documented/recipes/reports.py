"""docs/reports.md: a recorded report is shown again."""

from __future__ import annotations

import json

from tests.documented.pages import ROOT
from tests.documented.recipe import Recipe
from tests.documented.setups import record_report
from tests.documented.stage import Ended, Stage


def is_the_schema(stage: Stage, ended: Ended) -> None:
    committed = (ROOT / "docs/schemas/report.schema.json").read_text("utf-8")
    assert json.loads(ended.stdout) == json.loads(committed)


RECIPES = {
    "qnn-ci report PATH": Recipe(
        setup=(record_report,),
        fill={"PATH": ("reports/test_emulator", "reports/test_emulator/report.json")},
        says=("mlp +fp16", "61.2", "1 passed"),
    ),
    "qnn-ci report --schema": Recipe(then=is_the_schema),
}
