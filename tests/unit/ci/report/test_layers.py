"""The layers of a red case, as a line of blocks and as bars on its page."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from ci.facts.kinds import NOISE
from ci.report.html import render_html
from ci.report.layers import MOST_BLOCKS, LayerChart, show_blocks
from ci.report.overview import make_document
from ci.report.schema import LayerFigures, Report, Status
from tests.stand_ins.reports import change_case


def make_layers(count: int, wrong: int) -> tuple[LayerFigures, ...]:
    """Layers of which those from ``wrong`` on have 15 of 60 dB, and two are a part."""
    return tuple(
        LayerFigures(
            label=f"conv2d [net.py:{index}]",
            sqnr_db=60.0 if index < wrong else 15.0,
            predicted_db=60.0,
            is_first=index == wrong,
            in_part=index in {wrong - 1, wrong},
        )
        for index in range(count)
    )


UNKNOWN = LayerFigures(label="cast")


@pytest.mark.parametrize(
    ("layers", "blocks"),
    [
        (make_layers(5, 3), "███[▃]▃"),
        (make_layers(3, 0), "[▃]▃▃"),
        (make_layers(2, 9), "██"),  # all are right: what follows them is wrong
        ((UNKNOWN,), "▁"),
        ((replace(UNKNOWN, sqnr_db=-540.0, predicted_db=64.0),), "▁"),
        ((replace(UNKNOWN, sqnr_db=-3.0, predicted_db=-5.0),), "█"),
        ((replace(UNKNOWN, sqnr_db=30.0),), "▅"),
        ((), ""),
    ],
)
def test_a_line_of_blocks_shows_what_of_the_prediction_is_reached(
    layers: tuple[LayerFigures, ...], blocks: str
) -> None:
    assert show_blocks(layers) == blocks


@pytest.mark.parametrize("number", [48, 60, 61, 300, 1000])
def test_a_line_of_blocks_fits_into_a_terminal_and_has_the_first_wrong_layer(number: int) -> None:
    blocks = show_blocks(make_layers(number, number // 2))
    assert len(blocks) <= MOST_BLOCKS + len("[]")
    assert blocks.count("[▃]") == 1


def test_a_chart_has_a_bar_per_layer_on_one_scale() -> None:
    chart = LayerChart((*make_layers(4, 2), replace(UNKNOWN, predicted_db=80.0)))
    assert [bar.tone for bar in chart.bars] == ["value", "value", "bad", "bad", "bad"]
    assert [bar.height for bar in chart.bars] == [75.0, 75.0, 18.8, 18.8, 1.0]
    assert [bar.predicted for bar in chart.bars] == [75.0, 75.0, 75.0, 75.0, 100.0]
    assert [bar.in_part for bar in chart.bars] == [False, True, True, False, False]
    assert chart.bars[-1].start + chart.bars[-1].width <= 100
    assert chart.caption == (
        "5 layers; the first wrong one is conv2d [net.py:2]: 15.0 dB, 60.0 dB predicted; the"
        " smallest part that is wrong by itself is marked"
    )


@pytest.mark.parametrize("number", [0, 10, 300])
def test_the_page_and_the_terminal_show_the_layers_of_a_red_case(
    report: Report, number: int
) -> None:
    findings = (NOISE.find("the error is 44 dB above"),)
    layers = make_layers(number, number // 2)
    case = change_case(report.cases[0], status=Status.FAILED, findings=findings, layers=layers)
    shown = replace(report, cases=(case,))
    page = render_html(shown)
    figure = "".join(re.findall(r'<figure class="layers">.*?</figure>', page, re.DOTALL))
    assert figure.count("<title>conv2d [net.py:") == number
    assert figure.count('class="part" x=') == 2 * bool(number)
    assert " style=" not in figure  # which the page's policy forbids
    lines = [dict(card.lines).get("layers", "") for card in make_document(shown).cards]
    assert any("[▃]" in line for line in lines) is bool(number)
