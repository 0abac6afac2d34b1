from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from markdown_it import MarkdownIt

from ci.report.github import LIMIT_BYTES, append_summary, escape_markdown, render_summary
from ci.report.schema import Report
from provisioning.errors import StoreError


def tags_of(markdown: str) -> list[str]:
    """The tags of elements that a reader of GitHub's markdown makes, raw HTML as written."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown)
    inside = [child for token in tokens for child in token.children or []]
    raw = [t.content.strip() for t in [*tokens, *inside] if t.type.startswith("html")]
    return [t.tag for t in [*tokens, *inside] if t.tag] + raw


GITHUB = {"GITHUB_ACTIONS": "true"}


def test_the_summary_is_added_where_github_asks_for_it(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_text("before\n")
    assert append_summary(report, {**GITHUB, "GITHUB_STEP_SUMMARY": str(path)})
    text = path.read_text()
    assert text.startswith("before\n## test_emulator: passed\n")
    assert "40 passed, 0 failed" in text
    assert text.count(":white_check_mark:") == 40
    assert not append_summary(report, {})
    assert not append_summary(report, GITHUB)


def test_a_summary_that_cannot_be_written_is_an_error_of_the_tree(
    report: Report, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        append_summary(report, {**GITHUB, "GITHUB_STEP_SUMMARY": str(tmp_path)})


def test_what_failed_comes_before_the_table(troubled: Report) -> None:
    text = render_summary(troubled)
    assert text.index("the gate let zeros pass") < text.index("| model |")
    assert text.index("SQNR 3.4 dB is below 20.0 dB") < text.index("| model |")
    assert "<pre>\nloading\nQnnBackend: error 14001\n</pre>" in text


def test_the_table_is_a_table(report: Report) -> None:
    opened_and_closed = 2 * (len(report.cases) + 1)
    assert tags_of(render_summary(report)).count("tr") == opened_and_closed


def test_hostile_text_is_neither_markup_nor_a_link(hostile: Report) -> None:
    text = render_summary(hostile)
    allowed = {"h2", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "br"}
    raw = [tag for tag in tags_of(text) if tag not in allowed]
    assert all(tag.startswith(("<details><summary>log", "<pre>", "</details>")) for tag in raw)
    assert len(raw) == 3
    assert "<script" not in text


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
        "<img src=x onerror=alert(1)>",
        "&lt;",
        "a\n\nb",
        "\\",
    ],
)
def test_escaped_text_comes_back_as_it_was(text: str) -> None:
    escaped = escape_markdown(text)
    assert "://" not in escaped
    assert "www." not in escaped
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    (inline,) = [t for t in parser.parse(f"x {escaped}") if t.type == "inline"]
    children = inline.children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == "x " + " ".join(text.split())


def test_a_summary_keeps_its_limit(troubled: Report) -> None:
    case = msgspec.structs.replace(troubled.cases[3], log_tail="x" * 30_000)
    text = render_summary(msgspec.structs.replace(troubled, cases=(case,) * 60))
    assert len(text.encode()) < LIMIT_BYTES + 200
    assert text.endswith("The rest is in report.json: a summary has a limit.\n")


def test_a_long_table_names_what_it_leaves_out(report: Report) -> None:
    text = render_summary(msgspec.structs.replace(report, cases=report.cases * 6))
    assert "and 40 more in report.json" in text
