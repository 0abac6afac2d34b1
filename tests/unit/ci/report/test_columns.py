"""The columns: one definition, the same figures wherever a report is read."""

from __future__ import annotations

import msgspec
import pytest

from ci.report.columns import COLUMNS, columns_of, show_equal
from ci.report.github import render_summary
from ci.report.html import render_html
from ci.report.junit import render_junit
from ci.report.schema import OpCount, Report
from ci.report.table import render_table


def test_the_worst_channel_stands_in_every_form_of_a_report(report: Report) -> None:
    (case, *others) = report.cases
    case = msgspec.structs.replace(case, sqnr_db_channel=12.34, channel="channel 9 of 64")
    report = msgspec.structs.replace(report, cases=(case, *others))
    assert "worst channel 12.3 dB (channel 9 of 64)" in render_junit(report).decode()
    page = render_html(report)
    assert 'title="channel 9 of 64">12.3</td>' in page
    assert "| channel dB |" in render_summary(report)
    assert "| 12.3 |" in render_summary(report)
    row = next(line for line in render_table(report, colour=False, width=100).splitlines()[3:])
    assert " 12.3 " in row


def test_a_figure_that_no_case_has_is_left_out_everywhere(report: Report) -> None:
    assert "equal" not in {column.name for column in columns_of(report.cases)}
    assert " equal " not in render_table(report, colour=False, width=140)
    assert "| equal |" not in render_summary(report)
    (case, *others) = report.cases
    masks = msgspec.structs.replace(case, equal=0.99999)
    report = msgspec.structs.replace(report, cases=(masks, *others))
    assert "99.99 %" in render_table(report, colour=False, width=140)
    assert "| equal |" in render_summary(report)
    assert "99.99 % of the elements equal" in render_junit(report).decode()
    assert ">99.99 %</td>" in render_html(report)


def test_what_qnn_wrote_stands_in_every_form_of_a_report(report: Report) -> None:
    (case, *others) = report.cases
    counts = {"Conv2d": 5, "Relu": 4, "Transpose": 2, "Softmax": 1}
    ops = tuple(OpCount(op=op, count=count) for op, count in counts.items())
    case = msgspec.structs.replace(
        case, qnn_ops=ops, accelerator_cycles=11600000, accelerator_us=987
    )
    whole = msgspec.structs.replace(report, cases=(case, *others))
    shown, every = "12: Conv2d 5, Relu 4, Transpose 2 ...", "Transpose 2, Softmax 1"
    no_gate = "emulator: varies from run to run, no gate"
    assert f"QNN ops {shown} (12: Conv2d 5, Relu 4, {every})" in render_junit(whole).decode()
    assert f"accelerator cycles 11600000 ({no_gate})" in render_junit(whole).decode()
    assert f'title="{no_gate}">11600000</td>' in render_html(whole)
    assert f'{every}">{shown}</td>' in render_html(whole)
    assert f"| QNN ops | cycles ({no_gate}) | accelerator us ({no_gate}) |" in render_summary(whole)
    assert "11600000 " in render_table(whole, colour=False, width=140)
    assert "no gate" not in render_table(report, colour=False, width=140)
    assert {"QNN ops", "cycles", "accelerator us"}.isdisjoint(
        column.name for column in columns_of(report.cases)
    )


@pytest.mark.parametrize(
    ("share", "shown"),
    [(1.0, "100 %"), (0.999999, "99.99 %"), (0.5, "50.00 %"), (0.0, "0.00 %"), (None, "-")],
)
def test_a_share_is_100_only_when_nothing_is_wrong(share: float | None, shown: str) -> None:
    assert show_equal(share) == shown


def test_names_are_unique_and_heads_are_short() -> None:
    names = [column.name for column in COLUMNS]
    assert len(names) == len(set(names))
    assert all(len(line) <= 9 for column in COLUMNS for line in column.terminal.splitlines())
