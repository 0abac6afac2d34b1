"""index.html and trend.html in a real browser that resolves no name, clicked through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.report.document import Card, Document, Row, Table
from ci.report.html import render_document, render_html
from ci.report.schema import (
    Case,
    DeviceFigures,
    Element,
    Heat,
    JudgementFacts,
    OnDeviceFacts,
    OutputFigures,
    ProgramFacts,
    Report,
    Status,
    Threshold,
)
from tests.stand_ins.browser import Browser, open_browser
from tests.stand_ins.reports import change_case, make_report, say

HOSTILE = "<script>document.title='owned'</script></noscript><img src=x onerror=alert(1)>"
SHOWN = """[...document.querySelectorAll("%s")].filter((one) => one.offsetParent)
  .map((one) => one.textContent.trim())"""
COLUMN = """(() => {
  const heads = [...table.tHead.rows[0].cells].map((one) => one.textContent);
  const place = heads.indexOf("SQNR dB");
  return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent.trim());
})()"""
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def usual(browser: Browser) -> None:
    """A wide and light page that may run scripts."""
    browser.resize(1240)
    browser.prefer("light")
    browser.allow_scripts(allowed=True)
    browser.console.clear()


def make_case(model: str, sqnr_db: float | None, status: Status = Status.PASSED) -> Case:
    worst = Element(input_set=1, index=(0, 3), value=0.75, expected=0.5)
    output = OutputFigures(dtype="float32", shape=(1, 9), sqnr_db=(40.0, sqnr_db), worst=worst)
    return Case(
        model=model,
        scheme="fp16",
        soc="SM8650",
        judgement=JudgementFacts(
            status=status,
            sqnr_db=sqnr_db,
            findings=say("" if status is Status.PASSED else f"{status.value} because {HOSTILE}"),
            outputs=(output,),
        ),
    )


@pytest.fixture
def report() -> Report:
    cases = [
        make_case("alpha", 9.5),
        make_case("beta", 120.0),
        make_case("gamma", -3.0, Status.FAILED),
        make_case(HOSTILE, None, Status.UNSUPPORTED),
    ]
    return make_report(cases)


def show(browser: Browser, report: Report, directory: Path, fragment: str = "") -> None:
    page = directory / "index.html"
    page.write_text(render_html(report), encoding="utf-8")
    browser.open(page, fragment)


def test_cases_are_sorted_by_a_click_on_a_head(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    show(browser, report, tmp_path)
    head = "#case-table thead th:nth-child(5)"
    browser.click(f"{head} button")
    assert browser.ask(COLUMN) == ["-", "-3.0", "9.5", "120.0"]
    browser.click(f"{head} button")
    assert browser.ask(COLUMN) == ["120.0", "9.5", "-3.0", "-"]
    assert browser.ask(f'document.querySelector("{head}").ariaSort') == "descending"
    assert browser.console == []


CARDS = """(() => {
  const row = document.querySelector("#case-table tbody tr");
  const cells = [...row.cells].slice(1).filter((cell) => cell.offsetParent);
  const labels = cells.map((cell) => getComputedStyle(cell, "::before").content);
  const tops = new Set(cells.map((cell) => cell.getBoundingClientRect().top));
  return [getComputedStyle(row).display, labels, tops.size === cells.length];
})()"""
CUT = """[...document.querySelectorAll("#case-table, .figures, .cards")]
  .map((one) => one.closest(".scroll"))
  .filter((one) => one.scrollWidth > one.clientWidth).length"""


# The lines of the highest label next to a bar.
MOST_LINES = """Math.max(...[...document.querySelectorAll(".figure span")]
    .map((one) => Math.round(one.offsetHeight / parseFloat(getComputedStyle(one).lineHeight))))"""
TIMES = DeviceFigures(
    starts=3,
    runs=90,
    first_ms=12.25,
    p50_ms=3.125,
    p50_spread_ms=0.25,
    p90_ms=3.375,
    p90_spread_ms=0.25,
    load_ms=140.5,
    load_spread_ms=9.5,
    peak_memory_bytes=90_000_000,
    before=Heat(hottest_c=31.0),
    after=Heat(hottest_c=45.0),
)


def test_cases_are_whole_on_a_wide_page_and_cards_on_a_narrow_one(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    program = ProgramFacts(pte_bytes=90_000, delegated_nodes=12, fallback_nodes=0, lower_s=1.1)
    device = OnDeviceFacts(figures=TIMES, sqnr_db_emulator=98.5, equal_emulator=0.9995)
    choices = "parts attention u16a8w + mlp u16a8w, quantized per channel, 4 calibration samples"
    cases = tuple(
        replace(
            change_case(case, above_noise_db=-0.9, predicted_sqnr_db=60.0),
            program=program,
            device=device,
            asked=replace(case.asked, choices=choices),
        )
        for case in report.cases
    )
    browser.resize(1280)
    show(browser, replace(report, cases=cases), tmp_path)
    assert browser.ask(CUT) == 0
    # Only what is drawn has a place in the legend: no program has nodes on the CPU.
    legend = browser.ask(SHOWN % ".legend li")
    assert [text for text in legend if "CPU" in text or "earlier run" in text] == []
    assert "measured, case failed" in legend
    browser.resize(400)
    assert browser.ask(CUT) == 0
    display, labels, are_lines = browser.ask(CARDS)
    assert (display, are_lines) == ("block", True)
    assert browser.ask(MOST_LINES) == 1
    heads = ("scheme", "SoC", "status", "SQNR dB", "predicted dB", "above noise", "program size")
    assert [head for head in heads if f'"{head}"' not in labels] == []
    assert browser.ask(SHOWN % "caption").count("On the device") == 1
    scroll, client = browser.ask(WIDTHS)
    assert scroll == client


def test_a_narrow_page_shows_the_limits_of_a_case_and_the_first_chart_without_scrolling(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    place = "axis 1, channel 0 of 12, in the worst sample"
    cases = [
        change_case(case, above_noise_db=-0.9, above_noise_place=place) for case in report.cases
    ]
    limits = (Threshold(scheme="fp16", min_sqnr_db_all=30.0, max_above_noise_db=10.0),)
    browser.resize(400)
    show(browser, replace(report, cases=tuple(cases), thresholds=limits), tmp_path)
    browser.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for cell in ("details.case .scroll td:last-child", ".figures td:nth-child(2) span"):
        right, edge, text = browser.ask(
            f"""(() => {{
              const cell = document.querySelector("{cell}");
              const words = document.createRange();
              words.selectNodeContents(cell);
              const edge = cell.closest(".scroll").getBoundingClientRect().right;
              return [words.getBoundingClientRect().right, edge, cell.textContent];
            }})()"""
        )
        assert text
        assert right <= edge


def test_the_filter_and_status_buttons_hide_cards_charts_and_rows(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    show(browser, report, tmp_path)
    tables = {"#case-table tbody th": 4, ".figures tbody th": 4, "details.case": 4}
    assert {table: len(browser.ask(SHOWN % table)) for table in tables} == tables
    assert browser.ask("filter.getBoundingClientRect().y < figures.getBoundingClientRect().y")
    browser.click('button[data-status="failed"]')
    for selector in (*tables, ".problem"):
        (only,) = browser.ask(SHOWN % selector)
        assert "gamma" in only
    assert browser.ask("shown.textContent") == "1 of 4 shown"
    browser.click('button[data-status="passed"]')
    assert len(browser.ask(SHOWN % "#case-table tbody tr")) == 3
    browser.click('button[data-status="failed"]')
    browser.click("#filter")
    browser.type("BETA fp16")
    assert browser.ask(SHOWN % "#case-table tbody th") == ["beta"]
    assert browser.ask(SHOWN % ".problem") == []
    browser.ask('filter.value = ""; filter.dispatchEvent(new Event("input"))')
    browser.click('button[data-status="passed"]')
    assert len(browser.ask(SHOWN % "#case-table tbody tr")) == 4
    assert browser.ask("shown.textContent") == ""


def test_the_filter_acts_on_all_tables_with_the_columns_of_the_first(
    browser: Browser, tmp_path: Path
) -> None:
    head = ("model", "runtime", "scheme")
    tables = [
        Table(name, "", head, tuple(Row((name, runtime, "fp16")) for runtime in ("onnx", "litert")))
        for name in ("alpha", "beta")
    ]
    words_table = Table("others", "", ("word", "meaning", "place"), (Row(("a", "b", "c")),))
    page = tmp_path / "index.html"
    page.write_text(render_document(Document("Runtimes", "", (*tables, words_table))), "utf-8")
    browser.open(page)
    browser.click("#filter")
    browser.type("beta ONNX")
    assert browser.ask(SHOWN % "tbody th") == ["beta", "a"]
    assert browser.ask("shown.textContent") == "1 of 4 shown"


@pytest.mark.parametrize("scripts", [True, False])
def test_a_link_opens_the_details_of_a_case_with_and_without_scripts(
    browser: Browser, report: Report, tmp_path: Path, scripts: bool
) -> None:
    browser.allow_scripts(allowed=scripts)
    show(browser, report, tmp_path)
    browser.click('#case-table a[href="#open-2"]')
    (text,) = browser.ask(SHOWN % "details[open].case > div")
    assert "because" in text
    assert "0.75" in text
    assert "0.5" in text
    assert browser.ask("[...document.querySelectorAll('img, main script')].length") == 0
    assert browser.ask("document.title").startswith("FAILED")


def test_without_scripts_the_page_shows_everything_except_the_filter(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    browser.allow_scripts(allowed=False)
    show(browser, report, tmp_path)
    assert browser.ask(SHOWN % ".tools") == []
    assert len(browser.ask(SHOWN % "#case-table tbody tr")) == 4
    assert browser.ask("document.querySelectorAll('details.case table').length") == 8


def many(report: Report, models: int) -> Report:
    """A run of models whose long names differ at their ends, in five schemes."""
    cases = [
        replace(case, model=f"team/{'directory/' * 12}net_{number:04d}.py:make", scheme=scheme)
        for number in range(models)
        for case in report.cases[:1]
        for scheme in ("fp16", "8a8w", "16a8w", "16a16w", "16a4w")
    ]
    return make_report([*cases, *report.cases[2:]])


def test_a_page_of_a_thousand_cases_lays_out_details_only_when_opened(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    """Most of the page, the details of each case, is plain text until it is opened."""
    show(browser, many(report, 200), tmp_path)
    assert browser.ask("rows.length") == 1002
    assert browser.ask("document.querySelectorAll('details.case *').length") < 7 * 1002
    assert browser.ask("document.querySelectorAll('.figures tbody tr').length") == 20
    browser.click("#filter")
    browser.type("net_0123 8a8w")
    (cell,) = browser.ask(SHOWN % ".map td[data-i]:not(.out)")
    assert cell == "9.5"
    assert browser.ask(SHOWN % ".map tbody tr") == [browser.ask(SHOWN % ".map tbody tr")[0]]
    (name,) = browser.ask(SHOWN % "#case-table tbody th")
    assert name.endswith("net_0123.py:make")
    show(browser, many(report, 200), tmp_path, "#open-901")
    top = "document.querySelector('#open-901').getBoundingClientRect().top"
    settled = f"new Promise((done) => setTimeout(() => done({top}), 500))"
    assert 0 < browser.ask(settled) < 800, "the case that the address names is in view"
    assert browser.console == []


def test_the_content_security_policy_of_the_page_blocks_foreign_scripts(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    page = tmp_path / "evil.html"
    evil = render_html(report).replace("<main>", "<main><script>document.title = 1</script>")
    page.write_text(evil, encoding="utf-8")
    browser.open(page)
    assert browser.ask("document.title").startswith("FAILED: test_emulator")
    assert browser.ask(SHOWN % "thead button")
    assert "Content Security Policy" in "".join(browser.console)


def test_a_narrow_page_shows_the_lines_of_a_card_below_their_words(
    browser: Browser, tmp_path: Path
) -> None:
    name = "tests/realistic/causes.py:top_boxes"
    lines = (("only ExecuTorch", "the indices reach a node"), ("no time", "no costs"))
    document = Document(
        "Runtimes", "1 failed", (Table(name, "", ("a",), ()), Card("d", name, lines))
    )
    page = tmp_path / "index.html"
    page.write_text(render_document(document))
    lefts = "[...document.querySelectorAll('.lines > *')].map(e => e.getBoundingClientRect().left)"
    breaks = (
        "[...document.querySelectorAll('h2, strong')].map(e => e.querySelectorAll('wbr').length)"
    )
    for width, columns in ((1280, 2), (400, 1)):
        browser.resize(width)
        browser.open(page)
        assert len({*browser.ask(lefts)}) == columns
        # Names are broken where they have parts.
        assert [count for count in browser.ask(breaks) if count] == [5, 5]
