from __future__ import annotations

import pytest

from ci.report.geometry import Datum, Grid, choose_scale, lay_out, nice_step, shorten


def make_grid(**values: float) -> Grid:
    data = {
        (name, "only"): Datum(((value, "value"),), f"{value:g}", name)
        for name, value in values.items()
    }
    return Grid("g", "Grid", "s", "", tuple(values), ("only",), data)


def test_lengths_are_in_proportion_and_start_at_zero() -> None:
    (panel,) = lay_out(make_grid(a=10, b=20, c=0)).panels
    a, b, c = panel.cells
    assert b.bars[0].width == pytest.approx(2 * a.bars[0].width, abs=0.2)
    assert c.bars[0].width == 0
    assert a.bars[0].x == b.bars[0].x == panel.zero_x


def test_segments_are_stacked() -> None:
    datum = Datum(((30, "value"), (10, "fallback")), "30/40", "h")
    grid = Grid("g", "Grid", "", "", ("r",), ("c",), {("r", "c"): datum})
    first, second = lay_out(grid).panels[0].cells[0].bars
    assert second.x == pytest.approx(first.x + first.width, abs=0.2)
    assert first.width == pytest.approx(3 * second.width, abs=0.4)


def test_a_negative_value_reaches_left_of_zero() -> None:
    (panel,) = lay_out(make_grid(good=20, bad=-25)).panels
    bad = panel.cells[1].bars[0]
    assert bad.x + bad.width == pytest.approx(panel.zero_x)
    assert bad.width > 0
    assert [label for _, label in panel.ticks] == ["-20", "0", "20"]


def test_limits_and_markers_are_in_sight() -> None:
    datum = Datum(((3.0, "bad"),), "3", "h", limit=20.0, marker=40.0)
    grid = Grid("g", "Grid", "", "", ("r",), ("c",), {("r", "c"): datum})
    (panel,) = lay_out(grid).panels
    cell = panel.cells[0]
    assert cell.limit_x is not None
    assert cell.marker_x is not None
    assert cell.bars[0].x + cell.bars[0].width < cell.limit_x < cell.marker_x
    assert cell.marker_x < panel.label_x < panel.x + panel.width


def test_panels_share_one_scale_and_do_not_overlap() -> None:
    data = {
        ("r", column): Datum(((value, "value"),), "", "")
        for column, value in (("a", 10.0), ("b", 5.0))
    }
    chart = lay_out(Grid("g", "Grid", "", "", ("r",), ("a", "b"), data))
    a, b = chart.panels
    assert a.cells[0].bars[0].width == pytest.approx(2 * b.cells[0].bars[0].width, abs=0.2)
    assert a.x + a.width <= b.x + 0.1
    assert b.x + b.width <= chart.width + 0.1


def test_an_empty_grid_has_a_layout() -> None:
    chart = lay_out(Grid("g", "Grid", "", "", (), (), {}))
    assert chart.panels == ()
    assert choose_scale([]) == (0.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("rough", "step"), [(1, 1), (1.1, 2), (2.2, 2.5), (3, 5), (7, 10), (0.013, 0.02), (333, 500)]
)
def test_ticks_are_round_numbers(rough: float, step: float) -> None:
    assert nice_step(rough) == pytest.approx(step)


def test_a_long_name_keeps_its_ends() -> None:
    assert shorten("short", 10) == "short"
    short = shorten("a/very/long/path/model.py:factory", 16)
    assert len(short) == 16
    assert short.endswith(":factory")
