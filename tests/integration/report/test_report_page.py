"""index.html in a real browser that resolves no name."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from ci.report.html import render_html
from ci.report.schema import Case, Report, Status
from provisioning.console.process import run_process
from tests.stand_ins.reports import make_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--virtual-time-budget=2000", "--dump-dom", "--enable-logging=stderr"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
PROBE = """
const heads = [...table.tHead.querySelectorAll("button")];
const ratio = heads.findIndex((button) => button.textContent === "SQNR");
const column = () => [...body.rows].map((row) => row.cells[ratio].textContent.trim());
heads[ratio].click();
const ascending = column();
heads[ratio].click();
const descending = column();
filter.value = "BETA passed";
filter.dispatchEvent(new Event("input"));
document.title = JSON.stringify({
  ascending,
  descending,
  sort: table.tHead.rows[0].cells[ratio].getAttribute("aria-sort"),
  shown: [...body.rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent),
  message: document.getElementById("shown").textContent,
});
"""


@pytest.fixture
def report() -> Report:
    cases = [
        make_case("alpha", 9.5),
        make_case("beta", 120.0),
        make_case("gamma", -3.0, Status.FAILED),
        make_case("<script>document.title='owned'</script>", None, Status.UNSUPPORTED),
    ]
    return make_report(cases)


def make_case(model: str, sqnr_db: float | None, status: Status = Status.PASSED) -> Case:
    return Case(model=model, scheme="fp16", soc="SM8650", status=status, sqnr_db=sqnr_db)


def open_page(text: str, directory: Path) -> tuple[str, str]:
    """What the browser makes of a page: its document, and what its console said."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser on PATH: {', '.join(BROWSERS)}")
    page = directory / "index.html"
    page.write_text(text, encoding="utf-8")
    profile = f"--user-data-dir={directory / 'profile'}"
    ended = run_process([browser, *OPTIONS, profile, page.as_uri()], timeout_s=90)
    console = [line for line in ended.output.splitlines() if "CONSOLE" in line]
    return ended.output, "\n".join(console)


def test_cases_are_sorted_and_filtered(report: Report, tmp_path: Path) -> None:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render_html(report))
    document, console = open_page(
        text.replace("</script>\n</body>", f"{PROBE}</script>\n</body>"), tmp_path
    )
    title = re.search(r"<title>(\{.*?\})</title>", document)
    assert title, document[-2000:]
    found = json.loads(html.unescape(title[1]))
    assert found["ascending"] == ["-", "-3.0", "9.5", "120.0"]
    assert found["descending"] == ["120.0", "9.5", "-3.0", "-"]
    assert found["sort"] == "descending"
    assert found["shown"] == ["beta"]
    assert found["message"] == "1 of 4 shown"
    assert console == ""


def test_its_policy_lets_its_own_script_run_and_no_other(report: Report, tmp_path: Path) -> None:
    document, console = open_page(render_html(report), tmp_path)
    assert '<button type="button">SQNR</button>' in document
    assert "<title>FAILED: test_emulator" in document
    assert console == ""
    evil = render_html(report).replace("<main>", "<main><script>document.title = 1</script>")
    document, console = open_page(evil, tmp_path)
    assert "<title>FAILED: test_emulator" in document
    assert "Content Security Policy" in console
