"""docs/reference/findings.md and the table of kinds agree, and each kind is used by the product.

``python -m tests.static.test_findings_page`` writes the tables into the page.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from ci.facts import kinds
from ci.facts.finding import HEADLINE_CHARS, Question
from ci.facts.kinds import FindingId, Kind, read_kinds

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "findings.md"
HEAD = "| id | what it states | what helps | for example |\n|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\| QNN.*\n)*")
NAMES = {kind.id: name for name, kind in vars(kinds).items() if isinstance(kind, FindingId)}


def render_page(page: str) -> str:
    """The page with one table for each question, in the order of ids."""
    tables = []
    for _, kinds_of_question in groupby(read_kinds(), lambda kind: kind.id[:5]):
        tables.append(HEAD + "".join(map(_row, kinds_of_question)))
    remaining = iter(tables)
    return TABLE.sub(lambda _: next(remaining), page)


def _row(kind: Kind) -> str:
    return f"| {kind.id} | {kind.meaning} | {kind.help} | `{kind.example}` |\n"


def test_the_page_has_each_finding_with_its_meaning_a_remedy_and_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert render_page(text) == text, "run: python -m tests.static.test_findings_page"
    missing = [kind.id for kind in read_kinds() if f"| {kind.id} |" not in text]
    assert not missing, "the page lacks a table"


@pytest.mark.parametrize("kind", read_kinds(), ids=lambda kind: kind.id)
def test_each_finding_kind_is_used_and_its_example_is_a_possible_headline(kind: Kind) -> None:
    name = NAMES[kind.id]
    files = [module for module in (ROOT / "ci").rglob("*.py") if module.name != "kinds.py"]
    assert any(re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) for file in files)
    assert len(kind.example) <= HEADLINE_CHARS
    lead = getattr(kinds, name).find("").headline
    assert kind.example.startswith(lead.rstrip(".")) or kind.question is Question.PROOF


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
