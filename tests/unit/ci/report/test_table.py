from __future__ import annotations

import re
import sys

import msgspec
import pytest

from ci.report.schema import Report
from ci.report.table import render_table, terminal_style


def test_a_run_fits_a_hundred_columns_and_shows_every_case(report: Report) -> None:
    text = render_table(report, colour=False, width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if " SM8650 " in line]
    assert len(rows) == len(report.cases)
    assert rows[0].split() == [
        *("mlp", "fp16", "SM8650", "passed", "62.0", "58.0", "12/12", "1.10", "0.004"),
        *("87.9", "KiB", "yes"),
    ]
    assert "8 of 8 rejected" in text
    assert "passed  40 passed, 0 failed, 0 unsupported, 14 cached; 94.2 s" in text
    assert "time, s: lower 81.0, run 9.5, provision 2.4, compare 1.2\n" in text
    assert text.endswith("of it, s: lowering 50.5, running 1.0 summed over workers\n")


def test_reasons_logs_and_controls_follow(troubled: Report) -> None:
    text = render_table(troubled, colour=False, width=100)
    assert "  | SQNR 3.4 dB is below 20.0 dB" in text
    assert "  | on the CPU: aten.cdist.default: no builder" in text
    assert "  | QNN: block quantization needs rank 4" in text
    assert "  | QnnBackend: error 14001" in text
    assert "7 of 8 rejected" in text
    assert "mlp 8a8w SM8650: outputs that are zeros passed the gate, SQNR 0.0 dB" in text
    assert "FAILED  1 passed, 2 failed, 1 unsupported" in text


def test_colour_marks_the_status_and_nothing_else_changes(troubled: Report) -> None:
    coloured = render_table(troubled, colour=True, width=100)
    assert "\x1b[32mpassed" in coloured
    assert "\x1b[1;31mfailed" in coloured
    plain = render_table(troubled, colour=False, width=100)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == plain.split()


def test_hostile_text_reaches_neither_the_terminal_nor_the_runner(hostile: Report) -> None:
    text = render_table(hostile, colour=False, width=100)
    assert "alert" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "##[" not in text
    assert not re.search(r"(?m)^\s*::", text)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_every_width_is_kept(troubled: Report, width: int) -> None:
    text = render_table(troubled, colour=False, width=width)
    assert max(map(len, text.splitlines())) <= width


def test_long_names_are_folded_not_cut(report: Report) -> None:
    name = "somebody_elses_model.py:make_the_model_of_somebody"
    case = msgspec.structs.replace(report.cases[0], model=f"/a/path/to/{name}")
    text = render_table(msgspec.structs.replace(report, cases=(case,)), colour=False, width=100)
    assert "/a/path" not in text
    assert name in "".join(line.split(" ")[0] for line in text.splitlines()[3:7])


def test_a_path_is_left_out_where_the_model_is_clear_without(report: Report) -> None:
    clear = msgspec.structs.replace(report.cases[0], model="/home/me/net.py:make")
    alike = [
        msgspec.structs.replace(clear, model=f"/home/{name}/net.py:same") for name in ("me", "you")
    ]
    text = render_table(
        msgspec.structs.replace(report, cases=(clear, *alike)), colour=False, width=140
    )
    assert "/home/me/net.py:make " not in text
    assert "\nnet.py:make " in text
    assert "/home/me/net.py:same " in text
    assert "/home/you/net.py:same " in text


@pytest.mark.parametrize("variable", ["CI", "NO_COLOR"])
def test_colour_only_on_a_terminal_that_wants_it(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "107")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert terminal_style() == (True, 107)
    monkeypatch.setenv(variable, "1")
    assert terminal_style() == (False, 107)


def test_a_narrow_terminal_still_shows_every_model(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    colour, width = terminal_style()
    text = render_table(report, colour=colour, width=width)
    assert all(case.model in text for case in report.cases)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_narrow_terminal_drops_columns_and_breaks_no_word(report: Report, width: int) -> None:
    case = msgspec.structs.replace(report.cases[0], model="net.py:bad", scheme="16a4w_block")
    more = msgspec.structs.replace(report, cases=(case, *report.cases))
    lines = render_table(more, colour=False, width=width).splitlines()
    assert max(map(len, lines)) <= width
    (row,) = [line for line in lines if line.startswith("net.py:bad ")]
    assert "16a4w_block" in row
    assert ("yes" in row) == (width >= 100)
    assert "…" not in "".join(lines)
