"""A page of tables for what is not a report of cases."""

from __future__ import annotations

from ci.report.html import Sheet, SheetRow, render_tables

HOSTILE = "<script>alert(1)</script>"


def make_page(*sheets: Sheet) -> str:
    return render_tables(f"Audit {HOSTILE}", ["a note", HOSTILE], sheets)


def test_cells_are_escaped_and_a_verdict_is_coloured() -> None:
    rows = (SheetRow((HOSTILE, "failed", "7"), "failed"), SheetRow(("b", "passed", "8"), "passed"))
    page = make_page(Sheet("Cases", "all", ("model", "status", "nodes"), rows, 1, frozenset({2})))
    assert HOSTILE not in page
    assert '<span class="chip failed">failed</span>' in page
    assert '<td class="n">8</td>' in page
    assert page.count('data-i="') == 2
    assert 'placeholder="model, status, nodes"' in page


def test_the_filter_acts_on_the_first_table_alone() -> None:
    sheet = Sheet("Cases", "all", ("model",), (SheetRow(("a",)),))
    page = make_page(sheet, Sheet("More", "all", ("model",), (SheetRow(("a",)), SheetRow(("b",)))))
    assert page.count('id="case-table"') == 1
    assert page.count('data-i="') == 1
    assert page.index('id="case-table"') < page.index("More")
