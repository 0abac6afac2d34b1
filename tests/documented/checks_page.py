"""The tables of docs/checks.md, out of the registry of checks.

``python -m tests.documented.checks_page`` writes them into the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from provisioning.doctor.checks.environment import list_checks
from provisioning.doctor.checks.registry import Check

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
HEAD = (
    "| id | severity | what is wrong | what you would meet later | fix |\n|---|---|---|---|---|\n"
)
TABLE = re.compile(re.escape(HEAD) + r"(?:\| QNN(\d)\d\d .*\n)+")
SPECIAL = re.compile(r"([`*_<>|$])")


def render_page(page: str) -> str:
    """``page`` with the rows of each of its tables as the registry has them."""
    return TABLE.sub(lambda found: HEAD + "".join(map(_row, _hundred(found[1]))), page)


def _hundred(digit: str) -> list[Check[Any]]:
    return [check for check in list_checks() if check.id.startswith(f"QNN{digit}")]


def _row(check: Check[Any]) -> str:
    texts = " | ".join(map(_markdown, (check.what, check.why, check.fix)))
    return f"| {check.id} | {check.severity.value} | {texts} |\n"


def _markdown(template: str) -> str:
    """The text, with what is filled in as *a word*."""
    escaped = SPECIAL.sub(r"\\\1", template)
    return re.sub(r"\{(?:\w+\.)*?(\w+?)(?::\w)?\}", lambda found: f"*{found[1]}*", escaped)


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text()))
