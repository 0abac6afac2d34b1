"""The way of a case in CONTRIBUTING.md: at most ten steps, each with one file that exists."""

from __future__ import annotations

import re

from tests.documented.pages import ROOT
from tests.stand_ins.way import WAY


def test_contributing_lists_exactly_the_files_on_the_way_of_a_case() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = page.partition("## The way of a case")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| (\d+)\. [^|]* \| `([\w/]+\.py)` \|", part, re.MULTILINE)
    assert [file for _, file in steps] == [*WAY]
    assert [int(number) for number, _ in steps] == [*range(1, len(WAY) + 1)]
    assert len(WAY) <= 10
    assert all((ROOT / "ci" / file).is_file() for file in WAY)
