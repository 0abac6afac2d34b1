"""The way of a case in CONTRIBUTING.md names its modules, and counts them."""

from __future__ import annotations

import re

from tests.documented.pages import ROOT
from tests.stand_ins.way import WAY


def test_contributing_lists_exactly_the_modules_on_the_way_of_a_case() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = page.partition("## The way of a case")[2].partition("\n## ")[0]
    assert {*re.findall(r"`(\w+/\w+\.py)`", part)} == WAY
    assert f"through {len(WAY)} modules" in part
    assert len(WAY) <= 18
