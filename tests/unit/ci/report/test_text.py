from __future__ import annotations

import pytest

from ci.report.text import (
    clean_log_line,
    show_bytes,
    show_decibels,
    show_seconds,
    show_share,
)
from provisioning.console.terminal import clean


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("a\r\nb\rc\td", "a\nb\nc\td"),
        ("a\x00b\u202ec\ud800d\uffff", "abcd"),
        ("größe 模型", "größe 模型"),
    ],
)
def test_clean_takes_what_is_unsafe_and_keeps_the_rest(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_a_log_line_is_one_line_and_no_command() -> None:
    assert clean_log_line(" a\n##[error]b ##vso[task]c ") == "a # #[error]b # #vso[task]c"


def test_figures() -> None:
    assert [show_decibels(v) for v in (41.234, -0.04, None)] == ["41.2", "0.0", "-"]
    assert show_decibels(None, max_abs=0.0) == "exact"
    assert show_decibels(None, max_abs=0.1) == "-"
    assert [show_seconds(v) for v in (None, 0.0049, 1.844, 12.34, 340.4)] == [
        *("-", "0.005", "1.84", "12.3", "340")
    ]
    assert [show_bytes(v) for v in (None, 812, 96_512, 3_250_585, 5 << 30)] == [
        *("-", "812 B", "94.2 KiB", "3.10 MiB", "5.00 GiB")
    ]
    assert [show_share(3, 1), show_share(None, 1), show_share(0, 0)] == ["3/4", "-", "0/0"]
