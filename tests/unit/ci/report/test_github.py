"""The summary on GitHub: where it goes, what text it escapes, what it leaves out."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from ci.facts.finding import Place
from ci.report.comparison import compare_reports
from ci.report.github import (
    LEFT_OUT,
    LIMIT_BYTES,
    ROWS,
    append_summary,
    escape_markdown,
    render_summary,
)
from ci.report.schema import FallbackOp, Report, Status
from provisioning.errors import StoreError
from tests.stand_ins.reports import say

GITHUB = {"GITHUB_ACTIONS": "true"}


def test_the_summary_is_added_where_github_asks_for_it(report: Report, tmp_path: Path) -> None:
    """What other programs wrote there counts for the limit."""
    path = tmp_path / "summary"
    path.write_text("before\n")
    environ = {**GITHUB, "GITHUB_STEP_SUMMARY": str(path)}
    assert append_summary(report, environ)
    assert path.read_text() == f"before\n{render_summary(report)}"
    assert not append_summary(report, {})
    assert not append_summary(report, GITHUB)
    path.write_text("x" * 999_400)
    assert append_summary(report, environ)
    assert 999_400 < path.stat().st_size <= 1_000_000
    assert path.read_text().endswith(LEFT_OUT)
    for bad in (tmp_path, path / "below a file"):
        with pytest.raises(StoreError):
            append_summary(report, {**GITHUB, "GITHUB_STEP_SUMMARY": str(bad)})


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
    (inline,) = [token for token in parser.parse(f"x {escaped}") if token.type == "inline"]
    children = inline.children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == "x " + " ".join(text.split())


def test_nobody_is_mentioned_and_no_issue_named() -> None:
    text = "by @octocat/team, see #12, GH-7 and pytorch/executorch#3 at a@b.c"
    shown = html.unescape(escape_markdown(text))
    assert not re.search(r"@\w|#\d|GH-\d", shown)
    assert shown.replace("\u2060", "") == text


def test_a_summary_keeps_its_limit(hostile: Report, troubled: Report) -> None:
    """GitHub drops one that is larger, and the step's whole summary with it."""
    rows = tuple(
        replace(
            one,
            model=f"{one.model[:20]}{'|é' * 2000} {i}",
            log_tail="<@é>" * 9000,
            findings=say("`|" * 9000),
        )
        for i in range(200)
        for one in (hostile.cases[0], troubled.cases[2])
    )
    large = replace(hostile, cases=rows, controls=hostile.controls * 2_000, command="qnn-ci x")
    before = (replace(rows[0], sqnr_db=9.0), *troubled.cases, *rows[1:-10])
    compared = compare_reports(replace(large, cases=before), large)
    for limit in (LIMIT_BYTES, 100_000, 300, 0):
        text = render_summary(replace(large, comparison=compared), limit_bytes=limit)
        assert len(text.encode()) <= max(limit, 200)
        assert text.endswith(LEFT_OUT)
    text = render_summary(replace(large, comparison=compared))
    assert len(text.encode()) > LIMIT_BYTES * 0.8, "there was room for more"
    assert "and 200 more in report.json" in text, "the table stands though most failures do not"


def test_of_more_cases_than_the_table_has_rows_the_failed_ones_are_shown(report: Report) -> None:
    passed = replace(report.cases[0], status=Status.PASSED, findings=say(""))
    failed = replace(passed, model="one", status=Status.FAILED, findings=say("wrong"))
    for number, first in ((ROWS, "net0"), (ROWS + 1, "one")):
        cases = (*(replace(passed, model=f"net{n}") for n in range(number - 1)), failed)
        text = render_summary(replace(report, cases=cases))
        table = text[text.index("SQNR dB") :]
        rows = [line for line in table.splitlines() if re.match(r"\| :\w+: \| (net\d|one)", line)]
        assert len(rows) == ROWS
        assert first in rows[0]
        assert ("more in report.json" in text) == (number > ROWS)


@pytest.mark.parametrize("number", [0, 1, 2, 5, 6])
def test_the_cases_nearest_to_their_limits_are_five_at_most(report: Report, number: int) -> None:
    """The smallest margin first; one case alone is no comparison."""
    figures = (52.0, 46.5, 44.0, 48.0, 47.0, 50.0)
    limited = [
        replace(report.cases[0], model=f"m{value:.1f}", sqnr_db=value, above_noise_db=None)
        for value in figures[:number]
    ]
    other = replace(report.cases[0], model="unlimited", sqnr_db=None, above_noise_db=None)
    text = render_summary(replace(report, cases=(other, *limited)))
    _, _, rest = text.partition("Cases nearest to their limits:\n\n")
    rows = [line.split(" | ")[1:] for line in rest.split("\n\n")[0].splitlines()[2:]]
    found = [(row[0], row[3], row[4], row[5].rstrip(" |")) for row in rows]
    nearest = sorted(figures[:number])[:5] if number > 1 else []
    assert found == [(f"m{v:.1f}", "SQNR", f"{v:.1f}", f"{v - 45:+.1f}") for v in nearest]


def test_a_failure_is_shown_with_its_first_places_and_in_limited_length(report: Report) -> None:
    """Each reason, operator and line of the log is cut, and the command to repeat it is whole."""
    long = "x" * 1999 + "<" * 1001  # cut before it is escaped
    failed = replace(
        report.cases[0],
        status=Status.FAILED,
        findings=say(long, *(Place(file=f"n{n}.py", line=n) for n in range(1, 23))),
        fallback_ops=tuple(FallbackOp(op=f"op{n}", reason=long) for n in range(22)),
        log_tail=f"{long}\n",
    )
    text = render_summary(replace(report, cases=(failed,), command="qnn-ci x"))
    part = text.partition("**:x: mlp fp16 SM8650**: ")[2].partition("</details>")[0]
    assert html.unescape(part).splitlines() == [
        f"{failed.headline} (QNN2705)",
        "",
        f"- {long[:2000]}",
        *(f"- at n{n}.py, line {n}" for n in range(1, 21)),
        *(f"- on the CPU: op{n}: {long[:2000]}" for n in range(20)),
        "",
        "<pre>qnn-ci x --model mlp --scheme fp16 --soc SM8650</pre>",
        "",
        "<details><summary>log</summary>",
        "",
        "<pre>",
        "x" * 400,
        "</pre>",
        "",
    ]
    assert "<pre>" not in render_summary(replace(report, cases=(replace(failed, log_tail=""),)))


def test_cases_are_named_with_their_own_reason_not_to_run(report: Report) -> None:
    """The most frequent reason first."""
    refused = replace(report.cases[0], status=Status.UNSUPPORTED)
    reasons = {"a": "rare", "b": "no room", "c": "no room", "d": "y" * 99 + "<"}
    cases = tuple(replace(refused, model=name, findings=say(why)) for name, why in reasons.items())
    text = render_summary(replace(report, cases=cases))
    assert text.partition("Not run:\n\n")[2].partition("\n\n")[0].splitlines() == [
        "- b fp16 SM8650, c fp16 SM8650: no room",
        "- a fp16 SM8650: rare",
        f"- d fp16 SM8650: {'y' * 99}&#60;",
    ]
    before = replace(report, cases=tuple(replace(one, status=Status.PASSED) for one in cases[:2]))
    now = replace(report, cases=cases)
    text = render_summary(replace(now, comparison=compare_reports(before, now)))
    told = "unsupported, but supported in the base (2): a fp16 SM8650, b fp16 SM8650\n"
    assert f"- :warning: {told}" in text


def change(base: Report, **digests: str) -> Report:
    """The same report, its first case made from something else."""
    first, *rest = base.cases
    return replace(base, cases=(replace(first, digests=replace(first.digests, **digests)), *rest))


@pytest.mark.parametrize(
    ("before", "now", "cells"),
    [
        (
            {"sqnr_db": 40.25, "metric": 0.5, "pte_bytes": 4096, "fallback_nodes": 0},
            {"sqnr_db": 38.0, "metric": 0.75, "pte_bytes": 2048, "fallback_nodes": 3},
            ["38.0 (-2.2)", "0.75 (+0.25)", "2.00 KiB (-2.00 KiB)", "3 (+3)"],
        ),
        (
            {"sqnr_db": 40.0, "metric": 0.5, "pte_bytes": 2048, "fallback_nodes": 3},
            {"sqnr_db": None, "max_abs": 0.0, "metric": 0.0, "pte_bytes": 4096},
            ["exact", "0 (-0.5)", "4.00 KiB (+2.00 KiB)", "3"],
        ),
        (
            {"sqnr_db": 40.0, "metric": 0.5, "pte_bytes": 2048, "fallback_nodes": 3},
            {"sqnr_db": None, "metric": None, "pte_bytes": None, "fallback_nodes": 0},
            ["-", "-", "-", "0 (-3)"],
        ),
        (
            {"sqnr_db": 40.0, "metric": 0.5, "fallback_nodes": 3},
            {"sqnr_db": 41.0, "metric": 0.5, "fallback_nodes": None},
            ["41.0 (+1.0)", "0.5", "87.9 KiB", "-"],
        ),
    ],
)
def test_a_row_of_a_difference_has_each_figure_and_how_it_changed(
    report: Report, before: dict[str, object], now: dict[str, object], cells: list[str]
) -> None:
    first = replace(report.cases[0], metric_name="top1")
    was = replace(first, **before, status=Status.FAILED)  # type: ignore[arg-type]
    base = replace(report, cases=(was,))
    run = replace(report, cases=(replace(was, **now, status=Status.PASSED),))  # type: ignore[arg-type]
    text = render_summary(replace(run, comparison=compare_reports(base, run)))
    (row,) = [line for line in text.splitlines() if "\N{RIGHTWARDS ARROW}" in line]
    found = [html.unescape(cell).strip() for cell in row.split("|")[1:-1]]
    marks = ":x: \N{RIGHTWARDS ARROW} :white_check_mark:"
    assert found == ["mlp", "fp16", "SM8650", marks, "", *cells]


def test_float_outputs_of_another_processor_are_not_compared(report: Report) -> None:
    base = change(report, float_outputs="a" * 64)
    other = replace(base.host, processor="Another processor")
    now = replace(change(base, float_outputs="b" * 64), host=other)
    assert compare_reports(base, now).changed == ()
    alike = replace(now, host=replace(base.host, python="3.13.1", cpus=64))
    (changed,) = compare_reports(base, alike).changed  # only the processor decides
    assert changed.sources == ("float_outputs",)
    base, now = change(base, weights="c" * 64), change(now, weights="d" * 64)
    (changed,) = compare_reports(base, now).changed
    assert changed.sources == ("weights",)
