from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from markdown_it import MarkdownIt

from ci.report.comparison import compare_reports
from ci.report.github import LIMIT_BYTES, append_summary, escape_markdown, render_summary
from ci.report.schema import Place, Report, Status
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
    assert text.count(":white_check_mark:") == 45  # the worst five stand in two tables
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
    opened_and_closed = 2 * (len(report.cases) + 1 + 5 + 1)  # and that of the worst five
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


def test_a_summary_keeps_its_limit(hostile: Report, troubled: Report) -> None:
    """GitHub drops one that is larger, and the step's whole summary with it."""
    rows = [
        msgspec.structs.replace(
            one,
            model=f"{one.model[:20]}{'|é' * 2000} {i}",
            log_tail="<@é>" * 9000,
            reason="`|" * 9000,
        )
        for i in range(1_000)
        for one in (hostile.cases[0], troubled.cases[2])
    ]
    large = msgspec.structs.replace(
        hostile,
        cases=tuple(rows),
        controls=hostile.controls * 10_000,
        command="qnn-ci test-emulator",
    )
    base = msgspec.structs.replace(large, cases=troubled.cases * 1 + tuple(rows[:-10]))
    changed = msgspec.structs.replace(rows[0], sqnr_db=9.0)
    compared = compare_reports(
        msgspec.structs.replace(base, cases=(changed,) * 1 + base.cases), large
    )
    for limit in (LIMIT_BYTES, 100_000, 300, 0):
        text = render_summary(large, base=compared, limit_bytes=limit)
        assert len(text.encode()) <= max(limit, 200)
        assert text.endswith("The rest is in report.json: a summary has a limit.\n")
    text = render_summary(large, base=compared)
    assert len(text.encode()) > LIMIT_BYTES * 0.8, "there was room for more"
    assert "and 1800 more in report.json" in text, "the table stands though most failures do not"


def test_what_else_is_in_the_summary_of_a_step_counts(troubled: Report, tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_text("x" * (LIMIT_BYTES - 600))
    append_summary(troubled, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(path)})
    assert LIMIT_BYTES - 600 < path.stat().st_size <= LIMIT_BYTES
    assert "The rest is in report.json" in path.read_text()


def test_nobody_is_mentioned_and_no_issue_named() -> None:
    escaped = escape_markdown("by @octocat/team, see #12, GH-7 and pytorch/executorch#3 at a@b.c")
    shown = html.unescape(escaped)
    assert not re.search(r"@\w|#\d|GH-\d", shown)
    assert (
        shown.replace("\u2060", "")
        == "by @octocat/team, see #12, GH-7 and pytorch/executorch#3 at a@b.c"
    )


def test_the_worst_five_are_those_nearest_to_their_limits(report: Report) -> None:
    text = render_summary(report)
    table = text[text.index("Nearest to their limits") :].partition("\n\n")[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    margins = [float(html.unescape(row[-1].strip("| "))) for row in rows]
    every = sorted(
        (one.sqnr_db or 0) - (report.threshold_for(one).min_sqnr_db or 0)  # type: ignore[union-attr]
        for one in report.cases
    )
    assert margins == [round(one, 1) for one in every[:5]]


def test_of_a_case_the_figure_nearest_to_its_limit_counts(report: Report) -> None:
    rules = tuple(
        msgspec.structs.replace(rule, min_sqnr_db=0.0, min_sqnr_db_quantized=rule.min_sqnr_db)
        for rule in report.thresholds
    )
    text = render_summary(msgspec.structs.replace(report, thresholds=rules))
    assert "| against the quantized model |" in text
    assert "| SQNR | 2" not in text[: text.index("SQNR dB")]


def test_a_failure_says_where_it_is_and_how_to_repeat_it(troubled: Report) -> None:
    failed = msgspec.structs.replace(
        troubled.cases[1], model="a b/net.py:f", places=(Place(file="a b/net.py", line=7),)
    )
    whole = msgspec.structs.replace(
        troubled, cases=(failed,), command="qnn-ci test-emulator --policy 'q;n.toml'"
    )
    text = html.unescape(render_summary(whole))
    assert "- at a b/net.py, line 7" in text
    command = re.findall(r"<pre>(qnn-ci .*)</pre>", text)[0]
    assert shlex.split(command)[2:] == [
        "--policy", "q;n.toml", "--model", "a b/net.py:f", "--scheme", "8a8w", "--soc", "SM8650",
    ]  # fmt: skip
    assert "<pre>qnn" not in render_summary(msgspec.structs.replace(whole, command=""))


def test_what_did_not_run_is_named_with_the_reason(troubled: Report) -> None:
    text = html.unescape(render_summary(troubled))
    assert "- mobile 16a4w_block SM8650: QNN: block quantization needs rank 4" in text


@pytest.mark.parametrize(("count", "more"), [(20, ""), (23, " and 3 more")])
def test_of_many_refused_cases_twenty_are_named(report: Report, count: int, more: str) -> None:
    """Each once, and how many are not."""
    cases = tuple(
        msgspec.structs.replace(
            report.cases[0], model=f"net{number}", status=Status.UNSUPPORTED, reason="no room"
        )
        for number in range(count)
    )
    text = render_summary(msgspec.structs.replace(report, cases=cases))
    (row,) = [line for line in text.splitlines() if line.endswith(f"{more}: no room")]
    assert len(set(re.findall(r"net\d+", row))) == 20


def test_what_differs_from_the_base_is_shown(report: Report) -> None:
    cases = list(report.cases)
    replace = msgspec.structs.replace
    cases[0] = replace(cases[0], status=Status.FAILED, reason="crashed")
    cases[1] = replace(
        cases[1], sqnr_db=(cases[1].sqnr_db or 0) - 3, pte_bytes=(cases[1].pte_bytes or 0) + 2048
    )
    cases[2] = replace(cases[2], status=Status.UNSUPPORTED, reason="refused")
    cases[3] = replace(cases[3], fallback_nodes=2)
    cases[4] = replace(cases[4], model="new")
    cases[5] = replace(cases[5], lower_s=99.0, cached=not cases[5].cached)
    cases[6] = replace(cases[6], metric=0.75, metric_name="top1")
    base = list(report.cases)
    base[6] = replace(base[6], metric=0.875, metric_name="top1")
    tools = (replace(report.toolchain[0], version="2.4.0"), *report.toolchain[1:])
    compared = compare_reports(
        replace(report, cases=tuple(base), toolchain=tools), replace(report, cases=tuple(cases))
    )
    assert (len(compared.changed), compared.same, len(compared.new)) == (5, 34, 1)
    text = html.unescape(render_summary(replace(report, cases=tuple(cases)), base=compared))
    rows = text.replace("\u2060", "").splitlines()

    def row(name: str) -> str:
        return next(line for line in rows if line.startswith(f"| {name} "))

    assert "5 cases differ, 34 do not" in text
    assert rows.index(row("mlp | fp16")) < rows.index(row("mlp | 8a8w"))
    assert ":white_check_mark: → :x:" in row("mlp | fp16")
    assert "(-3.0)" in row("mlp | 8a8w")
    assert "(+2.00 KiB)" in row("mlp | 8a8w")
    assert "| 2 (+2) |" in row("mlp | 16a16w")
    assert "| 0.75 (-0.125) |" in row("resnet | 8a8w")
    assert ":warning: in the base, and not here (1): mlp 16a4w SM8650" in text
    assert ":warning: unsupported, and not so in the base (1): mlp 16a8w SM8650" in text
    assert "- not in the base (1): new 16a4w SM8650" in text
    assert "- made with onnxruntime-qnn 2.5.0, the base with onnxruntime-qnn 2.4.0" in text
    assert not any(line.startswith("| resnet | fp16 ") and "→" in line for line in rows)
    nothing = render_summary(report, note="no base.json: <b>@x")
    assert "Nothing to compare with" in nothing
    assert "<b>" not in nothing


def test_a_long_table_names_what_it_leaves_out(report: Report) -> None:
    text = render_summary(msgspec.structs.replace(report, cases=report.cases * 6))
    assert "and 40 more in report.json" in text
