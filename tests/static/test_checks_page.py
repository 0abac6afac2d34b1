"""docs/reference/checks.md and the registry of checks agree, and each check has its texts.

``python -m tests.static.test_checks_page`` writes the tables into the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from ci.inspect.app_checks import APPS, PAIRINGS
from ci.inspect.genie_checks import FOLDERS
from provisioning.doctor.examine import SUBJECTS
from provisioning.doctor.registry import Check, read_rows

DROPPED = {"QNN224", "QNN853", "QNN865", "QNN866", "QNN868", "QNN869", "QNN871"}
OF_APPS = sorted([*APPS.checks, *PAIRINGS.checks], key=lambda check: check.id)
OF_DOCTOR = [check for subjects in SUBJECTS for check in subjects.checks]
CHECKS = sorted([*OF_DOCTOR, *OF_APPS, *FOLDERS.checks], key=lambda check: check.id)
IDS = [check.id for check in CHECKS]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checks.md"
HEAD = "| id | severity | what is wrong | what happens otherwise | fix |\n|---|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"\| (QNN\d\d\d) .*\n(?:\| QNN.*\n)*")
SPECIAL = re.compile(r"([`*_<>|$])")
# Values that start with a separator, such as " and 2 other files", and may be empty.
OPTIONAL = re.compile(r"(?<=[\w}])\{(others|reason|fault|more|partly|pth|qnn)\}")
FIELD = re.compile(r"\{((?:[\w\\]+[.\[])*([\w\\]+)\]?)(?::[.\w]+)?\}")


def render_page(page: str) -> str:
    """``page`` with the rows of each of its tables as the registry has them."""
    return TABLE.sub(lambda match: HEAD + "".join(map(_row, _table(match[1]))), page)


def _table(first: str) -> list[Check[Any]]:
    """The checks of apps, of folders for Genie, or the doctor's with the same first digit."""
    for family in (OF_APPS, sorted(FOLDERS.checks, key=lambda check: check.id)):
        if first in {check.id for check in family}:
            return family
    return [check for check in CHECKS if check in OF_DOCTOR and check.id.startswith(first[:4])]


def _row(check: Check[Any]) -> str:
    row = check.row
    templates = (row.what, row.why, row.fix)
    fields = {match[1]: match[2] for match in FIELD.finditer(SPECIAL.sub(r"\\\1", str(templates)))}
    texts = " | ".join(_markdown(template, [*fields.values()]) for template in templates)
    return f"| {check.id} | {row.severity.value} | {texts} |\n"


def _markdown(template: str, names: Sequence[str]) -> str:
    """The text, with what is filled in as *a word*; as *a whole.path* if its last word stands for
    several values in ``names``. A value that may be empty is in brackets."""
    escaped = SPECIAL.sub(r"\\\1", OPTIONAL.sub(r" [{\1}]", template))
    filled = FIELD.sub(
        lambda match: f"*{match[1] if names.count(match[2]) > 1 else match[2]}*", escaped
    )
    return filled.replace("{{", "{").replace("}}", "}")


def test_the_page_of_checks_is_generated_from_the_registry() -> None:
    page = PAGE.read_text()
    hint = "run `python -m tests.static.test_checks_page`"
    assert re.findall(r"^\| (QNN\d{3}) \|", page, re.MULTILINE) == IDS, hint
    assert render_page(page) == page, hint


def test_check_ids_are_unique_and_dropped_ones_are_not_reused() -> None:
    assert sorted(read_rows()) == IDS
    assert not DROPPED & set(IDS)
    assert all(re.fullmatch(r"QNN\d{3}", code) for code in IDS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_each_check_row_has_what_why_and_fix(check: Check[Any]) -> None:
    for text in (check.row.what, check.row.why, check.row.fix):
        assert text.strip()
        list(Formatter().parse(text))


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text()))
