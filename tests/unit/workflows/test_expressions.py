"""The evaluator of ${{ }} says what GitHub's does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.workflows.expressions import Context, ExpressionError, evaluate, judge, render

VALUES = {
    "github": {"ref": "refs/heads/main", "event": {"pull_request": {"number": 7}}, "run-id": "9"},
    "inputs": {"empty": "", "yes": True, "list": ["a", "B"]},
    "steps": {"one": {"outputs": {"x": "1"}}, "two": {"outputs": {"x": "2"}}},
}
CONTEXT = Context(VALUES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("github.ref == 'refs/heads/main'", True),
        ("github.ref == 'REFS/HEADS/MAIN'", True),
        ("github.event.pull_request.number == '7'", True),
        ("github.event.nothing.at.all", None),
        ("github['run-id']", "9"),
        ("github.run-id", "9"),
        ("inputs.empty || 'default'", "default"),
        ("inputs.yes && 'a' || 'b'", "a"),
        ("!inputs.yes", False),
        ("!(1 == 2) && 3 != 2", True),
        ("'it''s'", "it's"),
        ("null == ''", True),
        ("true == 1", True),
        ("'x' == 0", False),
        ("format('{0} {{x}} {1}', 1, true)", "1 {x} true"),
        ("fromJSON('{\"a\": [1, 2]}').a[1]", 2),
        ("toJSON(inputs.list)", '[\n  "a",\n  "B"\n]'),
        ("inputs.list[0]", "a"),
        ("inputs.list[5]", None),
    ],
)
def test_workflow_expressions_have_githubs_values(text: str, value: object) -> None:
    assert evaluate(text, CONTEXT) == value


@pytest.mark.parametrize(
    "text",
    [
        *("nothing.at", "shout('a')", "1 +", "(1", "fromJSON('')", "format('{1}', 0)", "a b", ""),
        *("1 < 2", "steps.*.outputs", "contains('a', 'b')"),  # GitHub knows these
    ],
)
def test_an_invalid_or_unsupported_workflow_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, CONTEXT)


@pytest.mark.parametrize(
    ("condition", "status", "runs"),
    [
        (None, "success", True),
        (None, "failure", False),
        ("github.ref == 'x'", "success", False),
        ("github.ref != 'x'", "failure", False),
        ("failure()", "failure", True),
        ("failure()", "success", False),
        ("always() && github.ref != 'x'", "failure", True),
        ("${{ !cancelled() }}", "failure", True),
        ("${{ !cancelled() }}", "cancelled", False),
        ("always()", "cancelled", True),
        ("success() || failure()", "cancelled", False),
        ("true", "skipped", False),
    ],
)
def test_a_condition_of_a_step_runs_it_as_on_github(
    condition: str | None, status: str, runs: bool
) -> None:
    assert judge(condition, Context(VALUES, status)) is runs


def test_text_around_a_workflow_expression_stays() -> None:
    assert render("a ${{ inputs.yes }}-${{ '}}' }} ${{ 3 }}", CONTEXT) == "a true-}} 3"


def test_hashfiles_gives_githubs_digest(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("1")
    digest = hashlib.sha256(hashlib.sha256(b"1").digest()).hexdigest()
    assert evaluate("hashFiles('*.toml')", Context({}, "success", tmp_path)) == digest
    assert evaluate("hashFiles('*.lock')", Context({}, "success", tmp_path)) == ""
