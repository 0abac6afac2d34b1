"""docs/onnx.md says what the data says."""

from __future__ import annotations

from tests.documented.onnx_page import PAGE, render_page


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    page = PAGE.read_text("utf-8")
    hint = "run `python -m tests.documented.onnx_page`"
    assert render_page(page) == page, hint
