"""The size of a known fault's error: read from the suite's report, and used to refuse a cause."""

from __future__ import annotations

import pytest

from ci.facts.finding import Question
from ci.faults.graph import parse_graph
from ci.faults.known import describe, read_faults
from ci.faults.match import match_faults
from ci.judging.causes import UNKNOWN, is_likely
from ci.report.schema import Case, JudgementFacts, Status
from tests.least_db import find_lowest, write_lowest
from tests.stand_ins.reports import make_report

POLICY = """# a comment
[[fault]]
name = "a"
remedy = "x"
graph = \"\"\"
y = relu(x)
\"\"\"

[[fault]]
name = "b"
remedy = "y"
least_db = 12

[[fault.tried]]
scheme = "fp16"
"""


def make_row(model: str, outcome: str, sqnr_db: float | None) -> Case:
    judgement = JudgementFacts(status=Status.PASSED, outcome=outcome, sqnr_db=sqnr_db)
    return Case(model=model, scheme="fp16", soc="SM8650", judgement=judgement)


def find(*rows: Case) -> dict[str, int]:
    return find_lowest(make_report(rows))


def test_the_lowest_wrong_sqnr_of_a_fault_is_taken_from_the_report_of_the_suite() -> None:
    rows = [
        make_row("a graph onnx", "wrong", 12.7),
        make_row("a graph executorch", "wrong", -3.2),
        make_row("a mended executorch", "wrong", -90.0),
        make_row("a graph onnx", "right", -80.0),
        make_row("b graph onnx", "refused", None),
    ]
    assert find(*rows) == {"a": -4}


@pytest.mark.parametrize(
    ("lowest", "lines"),
    [
        ({"a": -4}, ['remedy = "x"\nleast_db = -4\ngraph', 'remedy = "y"\nleast_db = 12\n']),
        ({"b": 3}, ['remedy = "x"\ngraph', 'remedy = "y"\nleast_db = 3\n\n[[fault.tried]]']),
        ({"b": 38}, ['remedy = "x"\ngraph', 'remedy = "y"\nleast_db = 12\n']),
        ({}, ['remedy = "x"\ngraph', "least_db = 12"]),
    ],
)
def test_least_db_is_written_behind_the_remedy_of_its_fault(
    lowest: dict[str, int], lines: list[str]
) -> None:
    text = write_lowest(POLICY, lowest)
    assert all(line in text for line in lines)
    assert write_lowest(text, lowest) == text


@pytest.mark.parametrize(("sqnr_db", "is_cause"), [(41.0, True), (38.0, False), (-103.0, False)])
def test_a_fault_is_not_likely_for_an_error_beyond_the_size_of_its_row(
    sqnr_db: float, is_cause: bool
) -> None:
    """-103 dB were put down to softplus, whose fault has 41 dB."""
    (row,) = (fault for fault in read_faults() if fault.name == "softplus-inexact")
    steps = describe(parse_graph(row.graph), front_end="onnx")
    faults = match_faults(steps, "u16a8w", "2.49.40")
    assert [fault.fault for fault in faults] == ["softplus-inexact"]
    assert is_likely(faults[0], Question.FAITHFUL, steps, UNKNOWN, sqnr_db) is is_cause
