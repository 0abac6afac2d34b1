"""A page of tables for what is not a report of cases."""

from __future__ import annotations

from ci.report.html import Sheet, SheetRow, render_tables

HOSTILE = "<script>alert(1)</script>"


def test_cells_are_escaped_a_verdict_is_coloured_and_the_first_table_has_a_filter() -> None:
    rows = (SheetRow((HOSTILE, "failed", "7"), "failed"), SheetRow(("b", "passed", "8"), "passed"))
    first = Sheet("Cases", "all", ("model", "status", "nodes"), rows, 1, frozenset({2}))
    page = render_tables(
        f"Audit {HOSTILE}", ["a note", HOSTILE], [first, Sheet("More", "", ("x",), rows[:0])]
    )
    assert HOSTILE not in page
    assert '<span class="chip failed">failed</span>' in page
    assert '<td class="n">8</td>' in page
    assert 'placeholder="model, status, nodes"' in page
    assert (page.count('data-i="'), page.count('id="case-table"')) == (2, 1)
