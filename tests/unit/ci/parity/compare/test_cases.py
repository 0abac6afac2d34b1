"""What the comparison finds in the small trees of the text files beside this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.ci.parity.compare.cases import Case, read_cases, write_messages

CASES = [case for file in sorted(Path(__file__).parent.glob("*.txt")) for case in read_cases(file)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_parity_case_has_exactly_its_findings(case: Case) -> None:
    lines = case.run()
    if os.environ.get("WRITE_SNAPSHOTS"):
        write_messages(case, lines)
    assert lines == case.found
