"""The summary on GitHub: where it goes, what text it escapes, what it leaves out."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from ci.report.comparison import compare_reports
from ci.report.document import LEFT_OUT, LIMIT_BYTES, ROWS, escape_markdown, render_markdown
from ci.report.overview import make_document
from ci.report.publishing import append_summary
from ci.report.schema import Report, Status
from provisioning.errors import StoreError
from tests.stand_ins.reports import change_case, say

GITHUB = {"GITHUB_ACTIONS": "true"}


def test_the_summary_is_added_where_github_asks_for_it(report: Report, tmp_path: Path) -> None:
    """The text that other programs wrote into the file counts towards the limit."""
    path, document = tmp_path / "summary", make_document(report)
    path.write_text("before\n")
    environ = {**GITHUB, "GITHUB_STEP_SUMMARY": str(path)}
    assert append_summary(document, environ)
    assert path.read_text() == f"before\n{render_markdown(document)}"
    assert not append_summary(document, {})
    assert not append_summary(document, GITHUB)
    path.write_text("x" * 999_400)
    assert append_summary(document, environ)
    assert 999_400 < path.stat().st_size <= 1_000_000
    assert path.read_text().endswith(LEFT_OUT)
    for bad in (tmp_path, path / "below a file"):
        with pytest.raises(StoreError):
            append_summary(document, {**GITHUB, "GITHUB_STEP_SUMMARY": str(bad)})


@pytest.mark.parametrize(
    "text",
    [
        "![x](https://example.org/x.png)",
        "[a](https://example.org)",
        "https://example.org www.example.org",
        "a | b",
        "`code` *bold* __bold__ ~~gone~~",
        "# head",
        "- item",
        "1. item",
        "1) item",
        "+ item",
        "WWW.example.org",
        "a:tada:b",
        "<img src=x onerror=alert(1)>",
        "&lt;",
        "a\n\nb",
        "\\",
    ],
)
def test_escaped_markdown_renders_as_the_original_text(text: str) -> None:
    escaped = escape_markdown(text)
    assert "://" not in escaped
    assert "www." not in escaped
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    (inline,) = [token for token in parser.parse(f"x {escaped}") if token.type == "inline"]
    children = inline.children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == "x " + " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "net.py:factory 8a8w SM8650",
        "test_emulator: FAILED: 0 passed, 1 failed.",
        "-2.5 and +12.5 dB, 30/30 operators (97.0 %)",
    ],
)
def test_what_a_terminal_shows_of_a_summary_has_no_escapes(text: str) -> None:
    assert escape_markdown(text) == text


def test_a_github_summary_mentions_no_user_and_no_issue() -> None:
    text = "by @octocat/team, see #12, GH-7 and pytorch/executorch#3 at a@b.c"
    shown = html.unescape(escape_markdown(text))
    assert not re.search(r"@\w|#\d|GH-\d", shown)
    assert shown.replace("\u2060", "") == text


def test_a_summary_keeps_its_limit(hostile: Report, troubled: Report) -> None:
    """GitHub drops the whole summary of a step if it is larger."""
    rows = tuple(
        change_case(
            case,
            model=f"{case.model[:20]}{'|é' * 500} {i}",
            log_tail="<@é>" * 1500,
            findings=say(f"{i} {'`|' * 1500}"),
        )
        for i in range(200)
        for case in (hostile.cases[0], troubled.cases[2])
    )
    large = replace(hostile, cases=rows, controls=hostile.controls * 2_000, command="qnn-ci x")
    before = (change_case(rows[0], sqnr_db=9.0), *troubled.cases, *rows[1:-10])
    compared = compare_reports(replace(large, cases=before), large)
    document = make_document(replace(large, comparison=compared))
    for limit, limits in ((300, [300]), (0, [0]), (LIMIT_BYTES, [])):
        text = render_markdown(document, *limits)
        assert len(text.encode()) <= max(limit, 200)
        assert text.endswith(LEFT_OUT)
    assert len(text.encode()) > LIMIT_BYTES * 0.8, "there was room for more"
    assert "and 200 more in the report" in text, "the table stands though most failures do not"


def test_of_more_cases_than_the_table_has_rows_the_failed_ones_are_shown(report: Report) -> None:
    passed = change_case(report.cases[0], status=Status.PASSED, findings=say(""))
    failed = change_case(passed, model="one", status=Status.FAILED, findings=say("wrong"))
    for number, first in ((ROWS, "net0"), (ROWS + 1, "one")):
        cases = (*(replace(passed, model=f"net{n}") for n in range(number - 1)), failed)
        text = render_markdown(make_document(replace(report, cases=cases)))
        table = text[text.index("### Cases\n") :]
        rows = [line for line in table.splitlines() if re.match(r"\| (net\d|one)", line)]
        assert len(rows) == ROWS
        assert first in rows[0]
        assert ("more in the report" in text) == (number > ROWS)


def change(base: Report, **digests: str) -> Report:
    """The same report, its first case made from something else."""
    first, *other_cases = base.cases
    return replace(
        base,
        cases=(change_case(first, digests=replace(first.asked.digests, **digests)), *other_cases),
    )


def test_float_outputs_of_another_processor_are_not_compared(report: Report) -> None:
    base = change(report, float_outputs="a" * 64)
    other_host = replace(base.host, processor="Another processor")
    now = replace(change(base, float_outputs="b" * 64), host=other_host)
    assert compare_reports(base, now).changed == ()
    alike = replace(now, host=replace(base.host, python="3.13.1", cpus=64))
    (changed,) = compare_reports(base, alike).changed  # only the processor decides
    assert changed.sources == ("float_outputs",)
    base, now = change(base, weights="c" * 64), change(now, weights="d" * 64)
    (changed,) = compare_reports(base, now).changed
    assert changed.sources == ("weights",)
