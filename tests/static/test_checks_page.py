from __future__ import annotations

import re
from string import Formatter

import pytest

from provisioning.doctor.checks.environment import list_checks
from tests.documented.checks_page import PAGE, render_page

DROPPED = {"QNN224"}
IDS = [check.id for check in list_checks()]


def test_the_page_is_what_the_registry_says() -> None:
    page = PAGE.read_text()
    hint = "run `python -m tests.documented.checks_page`"
    assert re.findall(r"^\| (QNN\d{3}) \|", page, re.MULTILINE) == IDS, hint
    assert render_page(page) == page, hint


def test_an_id_stands_for_one_check_for_ever() -> None:
    assert len(IDS) == len(set(IDS))
    assert not DROPPED & set(IDS)
    assert all(re.fullmatch(r"QNN\d{3}", code) for code in IDS)


@pytest.mark.parametrize("check", list_checks(), ids=lambda check: check.id)
def test_a_row_has_texts_and_follows_checks_that_are_there(check) -> None:  # type: ignore[no-untyped-def]
    for text in (check.what, check.why, check.fix):
        assert text.strip()
        list(Formatter().parse(text))
    assert set(check.after) <= set(IDS)
