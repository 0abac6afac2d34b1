"""The tables of docs/reference/onnx.md and docs/findings/onnx.md are those of the data.

``python -m tests.static.test_onnx_page`` writes them into the pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ci.onnx.fallback import read_notes
from ci.onnx.options import Option, read_options
from tests.qnn_provider.table import Answer, Operator, read_operators

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE, FINDINGS = DOCS / "reference" / "onnx.md", DOCS / "findings" / "onnx.md"
OPTIONS = (
    "| option | values | default | since | what it does | wrong value |\n" + "|---" * 6 + "|\n"
)
OPERATORS = "| operator | supported | refused | notes |\n|---|---|---|---|\n"
SPECIAL = re.compile(r"([*_<>|$`])")


def render_options(page: str) -> str:
    """``page`` with the rows of its tables as manifests/policies/onnx-options.toml has them."""
    table = read_options()
    for options in (table.provider, table.session, table.run):
        first = _mark(options[0].name)
        pattern = re.compile(re.escape(OPTIONS + f"| {first} |") + r".*\n(?:\| .*\n)*")
        page, count = pattern.subn(lambda _, rows=options: OPTIONS + _rows(rows), page)
        assert count == 1, first
    return page


def render_operators(page: str) -> str:
    """``page`` with the rows of its table as tests/qnn_provider/operators.toml has them."""
    rows = "".join(map(_operator_row, read_operators().operator))
    pattern = re.compile(re.escape(OPERATORS) + r"(?:\| .*\n)*")
    page, count = pattern.subn(lambda _: OPERATORS + rows, page)
    assert count == 1, "operators"
    return page


def _operator_row(operator: Operator) -> str:
    taken = "; ".join(row.where for row in operator.rows_of(Answer.TAKEN))
    limits = "; ".join(
        f"{row.where}: {row.reason}".removesuffix(".")
        for row in operator.rows_of(Answer.REFUSED, Answer.CRASHED)
    )
    if not taken and not operator.rows_of(Answer.WRONG):
        limits = operator.rows_of(Answer.REFUSED, Answer.CRASHED)[0].reason
    wrong = "; ".join(row.where for row in operator.rows_of(Answer.WRONG))
    notes = [f"Other values than the CPU's: {wrong}."] * bool(wrong)
    notes += [note] if (note := read_notes().get(operator.name)) else []
    notes += ["Not in upstream's older table."] * bool(taken and not operator.listed)
    notes += ["In upstream's table."] * bool(not taken and operator.listed)
    words = (taken, limits, " ".join(notes))
    return "| " + " | ".join([_mark(operator.name), *map(_escape, words)]) + " |\n"


def _rows(options: Sequence[Option]) -> str:
    return "".join(map(_row, options))


def _row(option: Option) -> str:
    if_wrong = {"session": "no session", "killed": "ends the process"}.get(
        option.wrong, option.wrong
    )
    where = f" Only for {option.where}." if option.where else ""
    backends = "" if not option.backends or option.backends == ("htp",) else option.backends[0]
    only = f" Only for the backend {backends}." if backends else ""
    needs = f" Needs {' and '.join(option.needs)}.".replace("|", " or ") if option.needs else ""
    words = (
        option.allowed + (", or several, separated by commas" if option.several else ""),
        option.default,
        option.since.removeprefix("2.3.0"),
        f"{option.doc}.{needs}{only}{where}",
        if_wrong,
    )
    return "| " + " | ".join([_mark(option.name), *map(_escape, words)]) + " |\n"


def _mark(name: str) -> str:
    return f"`{name}`"


def _escape(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


RENDERED = {REFERENCE: render_options, FINDINGS: render_operators}


def test_the_tables_of_the_onnx_page_are_generated_from_the_data() -> None:
    hint = "run `python -m tests.static.test_onnx_page`"
    for path, render in RENDERED.items():
        page = path.read_text("utf-8")
        assert render(page) == page, hint


if __name__ == "__main__":
    for path, render in RENDERED.items():
        path.write_text(render(path.read_text("utf-8")), "utf-8")
