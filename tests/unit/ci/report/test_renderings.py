"""One report in each form: as a snapshot, as its readers read it, and full of hostile text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from junitparser import JUnitXml
from markdown_it import MarkdownIt
from msgspec.structs import replace

from ci.facts.finding import Figure, Finding, Place, advise
from ci.facts.kinds import INCONCLUSIVE, QUANTIZED_BADLY
from ci.report.columns import show_equal
from ci.report.comparison import compare_reports
from ci.report.document import render_markdown, render_text
from ci.report.html import render_html
from ci.report.junit import render_junit
from ci.report.overview import make_document
from ci.report.schema import (
    Budget,
    ChannelFigures,
    ControlKind,
    DeviceFigures,
    Digests,
    Element,
    Estimate,
    FallbackOp,
    Footprint,
    Heat,
    OutputFigures,
    Phase,
    Report,
    Source,
    Status,
    Threshold,
)
from ci.report.write import read_report
from provisioning.artifacts.choice import list_device_runtimes
from provisioning.errors import UsageError
from tests.stand_ins.reports import change_case, say
from tests.stand_ins.snapshots import check_snapshot


def show_table(report: Report, width: int = 100) -> str:
    return render_text(make_document(report), width)


def read_page(page: str) -> str:
    """The text of a page, with a line for each row and paragraph."""
    text = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"</t[dh]>", " | ", text)
    text = re.sub(
        r"</(?:p|tr|h\d|li|dd|figcaption|caption|div|title|summary|pre|text)>", "\n", text
    )
    lines = html.unescape(re.sub(r"<[^>]*>", "", text)).splitlines()
    return "".join(f"{' '.join(line.split())}\n" for line in lines if line.strip())


def make_full(troubled: Report) -> Report:
    """A run on a device with two that differ of everything that a report lists."""
    passed, failed, refused, crashed = troubled.cases
    device = DeviceFigures(
        starts=3,
        runs=30,
        first_ms=9.5,
        p50_ms=1.25,
        p50_spread_ms=0.125,
        p90_ms=2.5,
        p90_spread_ms=0.5,
        load_ms=40.0,
        load_spread_ms=4.0,
        peak_memory_bytes=7 << 20,
        before=Heat(hottest_c=31.0),
        after=Heat(hottest_c=45.0, slowed=("cpu", "gpu")),
        throttled=True,
    )
    sizes = Footprint(program_bytes=90_000, spill_bytes=2048, read_bytes=4096, write_bytes=1024)
    outputs = (
        OutputFigures(
            dtype="float32",
            shape=(1, 16, 4),
            sqnr_db=(27.0, 31.5),
            sqnr_db_quantized=(36.0, None),
            channels=tuple(
                ChannelFigures(axis=1, index=index, sqnr_db=27.0 + index) for index in (3, 9)
            ),
            errors=(1, 0, 60, 3),
            max_error=0.25,
            worst=Element(input_set=1, index=(0, 3, 2), value=1.5, expected=1.25),
        ),
        OutputFigures(dtype="int64", shape=(1,), equal=(1.0, 0.5)),
    )
    measured = change_case(
        passed,
        warnings=("rounding alone", "slow"),
        figures=device,
        footprint=sizes,
        recorded_footprint=replace(sizes, spill_bytes=1024, program_bytes=80_000),
        equal=1.0,
        equal_exact=0.97,
        metric_quantized=0.7,
        sqnr_db_emulator=55.0,
        equal_emulator=0.875,
        outputs=outputs,
    )
    operators = tuple(
        FallbackOp(op=f"aten.{operator}", reason=f"no {operator}") for operator in ("cdist", "sort")
    )
    places = tuple(
        Place(file=f"nets/{stem}.py", line=line) for stem, line in (("a b", 7), ("c", 9))
    )

    def far(db: float) -> Finding:
        return QUANTIZED_BADLY.find(
            f"SQNR {db} dB is below 20.0 dB",
            figures=(Figure(name="sqnr", value=db, unit="dB", allowed=20.0),),
            details=("against the float32 model",),
            advice=advise("it saturates", "calibrate"),
            places=places,
        )

    failed = change_case(
        failed,
        findings=(far(3.4),),
        warnings=("as predicted", "and slow"),
        fallback_ops=operators,
        log_tail="first line\nlast line\n",
    )
    alike = change_case(failed, scheme="16a8w", findings=(far(4.5),), sqnr_db=4.5)
    alike = change_case(alike, estimate=Estimate(unknown="out of range"))
    lacking = change_case(
        refused, model="lstm", lacks="a phone", findings=say("no phone is connected")
    )
    unlike = change_case(refused, soc="SM8750", findings=say("no room"))
    on_random_inputs = change_case(
        passed, model="superres", soc="SM8750", made_inputs="random inputs"
    )
    cases = (measured, failed, refused, crashed, alike, lacking, unlike, on_random_inputs)
    shown = (ControlKind.ZEROS, ControlKind.GAIN)
    controls = tuple(
        replace(control, rejected=control.kind not in shown, sqnr_db=-2.0 * number)
        for number, control in enumerate(troubled.controls)
    )
    phases = tuple(Phase(name=f"step {n}", seconds=(5.0 * n) % 8) for n in range(1, 8))
    limits_of_mlp = Threshold(
        scheme="8a8w",
        model="mlp",
        min_sqnr_db=20.0,
        min_sqnr_db_quantized=30.0,
        min_cosine=0.99,
        min_metric=0.5,
        max_metric_drop=0.1,
        reason="tanh",
        budget=Budget(program_bytes=1 << 20, read_bytes=8192, write_bytes=2048, p50_ms=2.0),
    )
    return replace(
        troubled,
        cases=cases,
        controls=controls,
        summary=replace(troubled.summary, phases=phases),
        thresholds=(*troubled.thresholds, limits_of_mlp),
        backend="lpai",
        unsupported="QNN 2.49 with ExecuTorch 1.4",
        remarks=("a remark", "warning: another"),
        source=Source(commit="c" * 40, branch="main", pull_request="7"),
    ).recounted


FULL: dict[str, Callable[[Report], str]] = {
    "full-terminal.txt": lambda report: show_table(report, 200),
    "full-terminal-60.txt": lambda report: show_table(report, 60),
    "full-summary.md": lambda report: render_markdown(make_document(report)),
    "full-page.txt": lambda report: read_page(render_html(report)),
    "full-junit.xml": lambda report: render_junit(report).decode(),
}


def test_a_report_of_the_schema_before_reads_like_its_snapshots(troubled: Report) -> None:
    """A run as schema 6 wrote it is the run of the snapshots."""
    assert read_report(Path(__file__).with_name("report-6.json")) == make_full(troubled)


@pytest.mark.parametrize("name", FULL)
def test_a_report_with_two_of_everything_reads_like_its_snapshot(
    troubled: Report, name: str
) -> None:
    full = make_full(troubled)
    changed = [
        change_case(
            case, sqnr_db=(case.judgement.sqnr_db or 40.0) - 10, pte_bytes=1 << 20, digests=digests
        )
        for digests in (Digests(weights="a" * 64, inputs="a" * 64),)
        for case in full.cases[:3]
    ]
    tools = tuple(replace(tool, version=f"{tool.version}.1") for tool in full.toolchain[:2])
    gone = [replace(full.cases[0], model=model) for model in ("gone", "lost")]
    supported = change_case(full.cases[5], status=Status.PASSED)
    base = replace(
        full,
        cases=(*changed, supported, *gone),
        toolchain=tools,
        source=Source(commit="b" * 40, branch="main"),
    )
    now = tuple(
        change_case(case, digests=Digests(weights="c" * 64, inputs="d" * 64)) for case in full.cases
    )
    full = replace(full, cases=now)
    full = replace(full, comparison=compare_reports(base, full))
    check_snapshot(Path(__file__).with_name("snapshots") / name, FULL[name](full))


@pytest.mark.parametrize(
    ("changes", "style"),
    [({}, "32"), ({"unjudged": 1}, "1;31"), ({"controls": ()}, "32"), ({"cases": ()}, "1;31")],
)
def test_a_verdict_is_green_only_if_the_run_passed(
    report: Report, changes: dict[str, Any], style: str
) -> None:
    run = replace(report, **changes).recounted
    coloured = render_text(make_document(run), 200, colour=True)
    assert f"\x1b[{style}m{run.verdict}: " in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == show_table(run, 200).split()


# -- columns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "shown"),
    [(1.0, "100 %"), (0.999999, "99.99 %"), (0.5, "50.00 %"), (0.0, "0.00 %"), (None, "-")],
)
def test_a_share_is_100_only_when_nothing_is_wrong(share: float | None, shown: str) -> None:
    assert show_equal(share) == shown


def test_devices_that_the_policy_names_are_compared_and_no_other() -> None:
    assert list(list_device_runtimes(())) == []
    assert dict(list_device_runtimes({"qnn-android", "android", "emulator"})) == {
        "qnn-android": "2.37.1",
        "android": "2.37.0.250724",
    }
    with pytest.raises(UsageError, match="'anroid'"):
        list(list_device_runtimes({"anroid"}))


def test_a_card_of_several_cases_says_which_part_each_of_them_loses(report: Report) -> None:
    sqnr_db = (Figure(name="sqnr", value=0.4, unit="dB", allowed=15),)
    cases = []
    for case, part in zip(report.cases, ("4:8", "4:8", "10:14", *["0:1"] * 8), strict=False):
        headline = f"SQNR 0.4 dB in part {part} along axis 1, 15 dB required"
        finding = QUANTIZED_BADLY.find(headline, figures=sqnr_db)
        cases.append(change_case(case, status=Status.FAILED, findings=(finding,)))
    text = show_table(replace(report, cases=tuple(cases)), 200)
    also = [line for line in text.splitlines() if "also: " in line]
    assert "in part 10:14" in also[0]
    assert len(also) == 7
    assert "3 more with other figures" in also[-1]
    assert "also: " not in show_table(replace(report, cases=tuple(cases[:2])), 200)


# -- the terminal ----------------------------------------------------------------------------------


def test_a_command_to_copy_is_on_one_line_of_the_narrowest_terminal(troubled: Report) -> None:
    command = troubled.again(troubled.cases[1])
    assert f"again: {command}" in show_table(troubled, 40)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_a_report_table_fits_every_width_without_broken_words(report: Report, width: int) -> None:
    case = replace(report.cases[0], model="net.py:bad", scheme="16a4w_block")
    lines = show_table(replace(report, cases=(case, *report.cases)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    if width >= 60:
        (row,) = [line for line in lines if line.startswith("net.py:bad ")]
        assert "16a4w_block" in row
        assert ("yes" in row) == (width >= 120)
    assert (f"left out at {width} columns: " in "\n".join(lines)) == (width < 120)


@pytest.mark.parametrize(
    ("model", "scheme"), [("net.py:bad", "16a4w_block"), ("transformer", "u16a8w_channel")]
)
def test_the_narrowest_table_has_the_sqnr_and_not_the_inputs(
    report: Report, model: str, scheme: str
) -> None:
    case = change_case(report.cases[0], model=model, scheme=scheme, sqnr_db=27.0)
    case = change_case(case, made_inputs="random inputs")
    head, rows = show_table(replace(report, cases=(case,)), 40).split("─", 1)
    assert "SQNR" in head
    assert "inputs" not in head
    assert "27.0" in rows


def test_wrong_outputs_for_which_a_case_has_failed_are_named_once(report: Report) -> None:
    (first, *other_cases), (red, *controls) = report.cases, report.controls
    red = replace(red, rejected=False, model=first.model, scheme=first.scheme, soc=first.soc)
    for findings, count in (((INCONCLUSIVE.find("the gate accepts zeros"),), 0), (say("a"), 1)):
        case = change_case(first, status=Status.FAILED, findings=findings)
        run = replace(report, cases=(case, *other_cases), controls=(red, *controls)).recounted
        assert render_text(make_document(run), 120).count("let wrong outputs pass") == count


def test_a_run_whose_cases_all_failed_says_that_no_control_was_tried(report: Report) -> None:
    cases = tuple(
        change_case(case, status=Status.FAILED, findings=say("wrong")) for case in report.cases[:2]
    )
    red = replace(report, cases=cases, controls=()).recounted
    text, page = render_text(make_document(red), 120), render_html(red)
    assert "controls: none were tried" in text
    assert "0 of 0" not in text
    assert '<div class=""><dt>controls rejected</dt><dd>none<small> tried</small></dd>' in page
    # A green case without controls proves nothing.
    bare = replace(report, controls=()).recounted
    assert '<div class="not-ok"><dt>controls rejected</dt>' in render_html(bare)


def test_no_line_of_a_page_ends_inside_an_option(report: Report) -> None:
    """Browsers break lines after each hyphen, also between the first two."""
    findings = say("type `./nox -s mend -- --model net.py:net --keep-artifacts kept`")
    red = change_case(report.cases[0], status=Status.FAILED, findings=findings)
    page = render_html(replace(report, cases=(red,)).recounted)
    model, artifacts = (
        f'<span class="option">--{name}</span>' for name in ("model", "keep-artifacts")
    )
    assert f"<code>./nox -s mend -- {model} net.py:net {artifacts} kept</code>" in page


# -- JUnit -----------------------------------------------------------------------------------------


def test_junit_names_are_unique_and_counts_add_up(report: Report, tmp_path: Path) -> None:
    cases = (replace(report.cases[0], model="my.py:mlp"), *report.cases[1:])
    red = replace(report.controls[0], rejected=False)
    report = replace(report, cases=cases, controls=(red, *report.controls[1:])).recounted
    (tmp_path / "junit.xml").write_bytes(render_junit(report))
    suites = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    names = [(case.classname, case.name) for suite in suites for case in suite]
    assert len(names) == len(set(names)) == 48
    assert names[0] == ("test_emulator.my_py:mlp", "fp16 SM8650")
    assert (suites.tests, suites.failures, suites.errors) == (48, 1, 0)
    assert [(suite.tests, suite.failures) for suite in suites] == [(40, 0), (8, 1)]


# -- hostile text ----------------------------------------------------------------------------------


def list_tags(markdown: str) -> list[str]:
    """The elements that a reader of GitHub's Markdown makes, raw HTML as written."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown)
    inside = [child for token in tokens for child in token.children or []]
    raw = [token.content.strip() for token in (*tokens, *inside) if token.type.startswith("html")]
    return [token.tag for token in (*tokens, *inside) if token.tag] + raw


def test_hostile_text_is_data_in_junit(hostile: Report) -> None:
    root = ET.fromstring(render_junit(hostile))  # noqa: S314
    assert {element.tag for element in root.iter()} == {
        *("testsuites", "testsuite", "properties", "property", "testcase"),
        *("failure", "system-out"),
    }
    failure = next(root.iter("failure"))
    assert '<script>alert("x")</script> & ]]>' in (failure.text or "")


def test_hostile_text_is_neither_markup_nor_a_link_in_a_summary(hostile: Report) -> None:
    text = render_markdown(make_document(replace(hostile, uncompared="no base.json: <b>@x")))
    allowed = {
        *("h2", "h3", "p", "strong", "ul", "li"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    raw = [tag for tag in list_tags(text) if tag not in allowed]
    assert all(tag.startswith(("<details><summary>log", "<pre>", "</details>")) for tag in raw)
    assert len(raw) == 3
    assert "not compared with the base" in text
