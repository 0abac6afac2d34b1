"""The table of docs/findings/operators.md is what tests/operators found."""

from __future__ import annotations

import json
import re

from ci.models.suite import SUITE
from provisioning.manifest.targets import read_socs
from tests.operators.survey import (
    ASKED,
    CLAIMS,
    FILE,
    FOUND,
    MARK,
    PAGE,
    ROOT,
    TAKEN,
    read_answers,
    render_rows,
    write_page,
)


def test_the_page_of_operators_is_generated_from_the_survey() -> None:
    page = PAGE.read_text("utf-8")
    assert write_page(page, render_rows(json.loads(FOUND.read_text("utf-8")))) == page, (
        "run `python -m tests.operators.survey --render`"
    )


def test_each_claimed_operator_is_marked_in_the_survey_model_and_has_an_answer() -> None:
    text = (ROOT / FILE).read_text("utf-8")
    marks = set(MARK.findall(text))
    assert marks == {*CLAIMS}
    assert {*json.loads(FOUND.read_text("utf-8"))["answers"]} == {*CLAIMS}
    assert {soc for socs in ASKED.values() for soc in socs} <= {*read_socs()}
    assert not marks & {*SUITE}


def test_an_operator_row_is_judged_by_the_audit_of_its_own_lines() -> None:
    lines = (ROOT / FILE).read_text("utf-8").splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.endswith("# row: topk"))
    left = {"op": "aten.topk.default", "taken": False, "reason": "no", "file": FILE, "line": line}
    taken = {"op": "aten.linear.default", "taken": True, "reason": "", "file": "", "line": 0}
    case = {"model": f"{FILE}:every", "scheme": "fp16", "soc": "SM8650", "findings": []}
    answers = read_answers({"cases": [{**case, "operators": [left, taken]}]})
    assert answers["topk"]["fp16"]["SM8650"] == "aten.topk.default: no"
    assert answers["linear"]["fp16"]["SM8650"] == TAKEN
    nowhere = {**left, "line": 0}  # a decomposition lost it: it may be any row's
    lost = read_answers({"cases": [{**case, "operators": [nowhere, taken]}]})
    assert lost["linear"]["fp16"]["SM8650"] != TAKEN
    crash = {"id": "QNN2401", "headline": "killed by SIGSEGV", "evidence": ""}
    dead = read_answers({"cases": [{**case, "operators": [], "findings": [crash]}]})
    assert all(re.search("SIGSEGV", row["fp16"]["SM8650"]) for row in dead.values())
