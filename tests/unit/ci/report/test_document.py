"""Tables and cards in each medium."""

from __future__ import annotations

import html
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci.report.document import (
    Card,
    Document,
    Row,
    Table,
    render_markdown,
    render_text,
)
from ci.report.html import render_document
from provisioning.console.command import Outcome, Verb, run_command
from provisioning.console.progress import Progress
from tests.stand_ins.snapshots import check_snapshot

HOSTILE = "<script>alert(1)</script> ::error::x @someone"
ROWS = (Row((HOSTILE, "failed", "7"), "failed"), Row(("b", "passed", "81"), "passed"))
TABLE = Table("Cases", "all", ("model", "status", "nodes"), ROWS, 1, frozenset({2}), most=1)
CARDS = (
    Card("failed", HOSTILE, (("", "a detail"), ("why", HOSTILE), ("-", "old"), ("+", "new"))),
    Card("known fault", "b"),
)
DOCUMENT = Document(f"Audit {HOSTILE}", "1 failed", (TABLE, *CARDS), ("a note",))


def test_a_message_that_a_log_repeats_is_shown_once() -> None:
    repeated, other = "[E:onnxruntime:] Unsupported node", "[W:onnxruntime:] another"
    lines = [
        f"2026-12-01 15:45:05.98 {repeated}",
        f"2026-12-01 15:45:06.98 {repeated}",
        f"2026-12-01 15:45:07.98 {other}",
        f"2026-12-01 15:45:08.98 {repeated}",
        "return f(x)",
        "return f(x)",
    ]
    card = Card("failed", "a", (), log="\n".join(lines))
    text = render_text(Document("test", "FAILED", (card,)), 100)
    assert text.splitlines() == [
        "failed  a",
        f"  | {lines[0]}",
        f"  | {lines[2]}",
        *["  | return f(x)"] * 2,
        "",
        "FAILED",
    ]


def test_a_document_reads_as_its_snapshot_on_a_terminal_and_in_a_summary() -> None:
    texts = [render_text(DOCUMENT, 60), render_text(DOCUMENT, 40), render_markdown(DOCUMENT)]
    assert "size of a summary is limited" in render_markdown(DOCUMENT, 500)
    check_snapshot(Path(__file__).parent / "snapshots" / "document.txt", "---\n".join(texts))


def test_a_page_escapes_texts_colours_a_verdict_and_filters_the_first_table() -> None:
    page = render_document(replace(DOCUMENT, parts=(TABLE, replace(TABLE, title="More"), *CARDS)))
    assert "<script>alert" not in page
    parts = (
        "chip failed",
        '<td class="n" data-label="nodes">81</td>',
        "<del>- old</del>",
        "Known fault</h2>",
    )
    assert [part for part in parts if part not in page] == []
    assert (page.count('data-i="'), page.count('id="case-table"')) == (2, 1)


@pytest.mark.parametrize("render", [render_document, render_markdown])
def test_commands_in_pages_and_summaries_are_those_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, render: Callable[[Document], str]
) -> None:
    card = Card("failed", "a", (("try", "`qnn-ci mend --model a.py:net` tries rewrites"),))

    def execute(_args: Namespace, _progress: Progress) -> Outcome:
        return Outcome(render(replace(DOCUMENT, parts=(TABLE, card))), {})

    verb = SimpleNamespace(add_arguments=lambda _parser: None, execute=execute)
    monkeypatch.setitem(sys.modules, "a_verb", verb)
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    _, page = run_command("qnn-ci", {"mend": Verb("a_verb", "mends", "mend")}, ["mend"])
    text = re.sub("<[^>]*>", "", html.unescape(page))  # options are in elements of their own
    assert "./nox -s mend -- --model a.py:net" in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_line_with_a_command_is_wrapped_around_the_whole_command(width: int) -> None:
    command = "`qnn-ci mend --model nets/a.py:net --scheme fp16 --soc SM8650`"
    line = f"{command} tries known rewrites of the model, one by one, and proves the result"
    card = Card("failed", "a", (("try", line),))
    lines = render_text(replace(DOCUMENT, parts=(card,)), width).splitlines()
    (command_line,) = [line for line in lines if command in line]
    assert all(len(line) <= width for line in lines if line != command_line)
    assert len(command_line) <= max(width, len(f"  | {command}"))
