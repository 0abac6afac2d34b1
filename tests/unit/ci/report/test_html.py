from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from ci.report.html import TEMPLATES, Bar, Figure, count_controls, make_figures, render_html
from ci.report.schema import ControlKind, Place, Report, Status

VOID = {"meta", "input"}
COLOURS = ("text", "dim", "bad", "good", "warn", "link")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """The elements of a page, in order, with the text directly in them."""

    elements: list[Element] = field(default_factory=list)
    open_elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self.open_elements.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_elements.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open_elements:
            self.open_elements[-1].text += data

    def find(self, tag: str, name: str = "") -> list[Element]:
        return [
            element
            for element in self.elements
            if element.tag == tag
            and (not name or name in element.attributes.get("class", "").split())
        ]


def read_page(report: Report) -> Page:
    page = Page()
    page.feed(render_html(report))
    page.close()
    assert not page.open_elements
    return page


@pytest.mark.parametrize("name", ["report", "troubled", "hostile"])
def test_the_page_needs_nothing_but_itself(name: str, request: pytest.FixtureRequest) -> None:
    page = read_page(request.getfixturevalue(name))
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in page.elements:
        assert not {"src", "srcset", "style", "onclick"} & set(element.attributes)
        if "href" in element.attributes:
            href = element.attributes["href"]
            assert href in {"report.json", "junit.xml"} or href[1:] in ids
    assert not {"link", "img", "iframe", "object", "base"} & {e.tag for e in page.elements}
    assert "@import" not in page.find("style")[0].text
    assert "url(" not in page.find("style")[0].text


def test_only_its_own_script_and_style_may_run(report: Report) -> None:
    page = read_page(report)
    (script,), (style,) = page.find("script"), page.find("style")
    policy = next(e for e in page.find("meta") if "http-equiv" in e.attributes)
    for element, directive in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy.attributes["content"]
    assert policy.attributes["content"].startswith("default-src 'none';")


def test_hostile_text_is_shown_and_never_markup(hostile: Report) -> None:
    page = read_page(hostile)
    assert len(page.find("script")) == 1
    reason = page.find("p", "reason")[1].text
    assert '<script>alert("x")</script> & ]]> red' in reason
    text = render_html(hostile)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_every_case_is_in_both_tables(report: Report) -> None:
    page = read_page(report)
    ids = [element.attributes.get("id", "") for element in page.find("tr")]
    assert [i for i in ids if i.startswith("case-")] == [f"case-{n}" for n in range(40)]
    links = [element.attributes["href"] for element in page.find("a")]
    assert links[:40] == [f"#case-{n}" for n in range(40)]
    assert len(page.find("div", "figure")) == 40 * 5 + len(report.summary.phases)
    assert len(page.find("line", "limit")) == len(page.find("circle", "marker")) == 40 + 1


def test_bars_limits_and_markers_have_one_scale_with_zero() -> None:
    """Lengths are percent of the scale, which a limit or a marker widens."""
    right = Bar("30/40", ((30, "value"), (10, "fallback")), limit=50, marker=60)
    wrong = Bar("-20", ((-20, "bad"),))
    figure = Figure("nodes", (right, wrong, Bar()))
    assert figure.place_segments(right) == [(25, 37.5, "value"), (62.5, 12.5, "fallback")]
    assert figure.place_segments(wrong) == [(0, 25, "bad")]
    assert [figure.place(value) for value in (-20, 0, 50, 60)] == [0, 25, 87.5, 100]
    assert Figure("none", (Bar(),)).place(0) == 0


def test_a_bar_shows_what_is_wrong_with_a_case(troubled: Report) -> None:
    figures = {figure.title: figure.bars for figure in make_figures(troubled)}
    passed, failed, unsupported, crashed = figures["SQNR, dB"]
    assert (passed.limit, passed.marker) == (20.0, troubled.cases[0].sqnr_db_quantized)
    assert (failed.label, failed.segments) == ("3.4", ((3.4, "bad"),))
    assert (unsupported.label, crashed.label) == ("unsupported", "failed")
    assert figures["nodes on the NPU"][1].segments == ((19, "value"), (1, "fallback"))
    assert figures["program"][0].hint == "90,000 bytes"
    assert figures["lower, s"][0].segments[0][1] == "cached"
    assert figures["run, s"][2].label == "-"


def test_tables_have_captions_and_scopes(report: Report) -> None:
    page = read_page(report)
    assert len(page.find("caption")) == len(page.find("table")) == 7
    assert all(e.attributes.get("scope") in {"col", "row"} for e in page.find("th"))


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_can_be_told_apart(mode: str) -> None:
    css = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    found = dict(re.findall(r"--(\w+): (#\w{6});", light if mode == "light" else dark))
    for ground in ("page", "raised"):
        for name in COLOURS:
            assert contrast(found[name], found[ground]) >= 4.5, (name, ground)
        assert contrast(found["value"], found[ground]) >= 3, ground


def test_the_page_is_always_alike(report: Report) -> None:
    first = render_html(report)
    assert render_html(report) == first
    assert len(first) < 300_000


@pytest.mark.parametrize("field_name", ["cases", "controls", "thresholds", "toolchain"])
def test_an_empty_part_leaves_a_whole_page(report: Report, field_name: str) -> None:
    assert read_page(replace(report, **{field_name: ()})).find("h1")


def test_socs_are_named_where_there_are_two(report: Report) -> None:
    other = replace(report.cases[0], soc="SM8750")
    page = read_page(replace(report, cases=(report.cases[0], other)))
    assert [e.text for e in page.find("span", "dim")[:2]] == ["fp16 SM8650", "fp16 SM8750"]
    assert read_page(report).find("span", "dim")[0].text == "fp16"


def test_what_failed_comes_first_with_its_reason_log_line_and_command(troubled: Report) -> None:
    places = (Place(file="nets/<b>.py", line=12),)
    failed = replace(troubled.cases[1], places=places)
    cases = (troubled.cases[0], failed, *troubled.cases[2:])
    troubled = replace(troubled, cases=cases, command="qnn-ci <run>")
    page, text = read_page(troubled), render_html(troubled)
    assert text.index('id="why"') < text.index('id="figures"') < text.index('id="cases"')
    control, *reasons = [element.text for element in page.find("p", "reason")]
    assert "zeros" in control
    assert reasons[:2] == [case.reason for case in (failed, cases[3])]
    assert page.find("pre")[0].text == cases[3].log_tail
    assert cases[2].reason in text
    codes = [element.text for element in page.find("code")]
    again = "--model resnet --scheme 8a8w --soc SM8650"
    assert codes[:3] == ["nets/<b>.py:12", f"qnn-ci <run> {again}", "aten.cdist.default"]
    assert codes[-3:] == ["a1" * 32, "b2" * 32, "-"]
    assert "<details open><summary>Each case" in text
    assert text.count("let through</span>") == 1
    assert page.find("title")[0].text.startswith("FAILED: test_emulator")


def test_a_good_run_has_no_section_of_failures(report: Report) -> None:
    page = read_page(report)
    ids = {element.attributes.get("id") for element in page.elements}
    assert ids.isdisjoint({"why", "unsupported"})
    assert page.find("span", "verdict")[0].text == "passed"


def test_a_run_in_which_nothing_passed_or_no_control_ran_says_so(report: Report) -> None:
    case = replace(report.cases[0], status=Status.UNSUPPORTED, reason="no")
    summary = replace(report.summary, passed=0, unsupported=1)
    page = read_page(replace(report, cases=(case,), summary=summary, controls=()))
    assert len(page.find("p", "reason")) == 2


def test_controls_are_counted_and_the_closest_is_named(troubled: Report) -> None:
    zeros, noise = (
        count_controls(troubled.controls, kind) for kind in (ControlKind.ZEROS, ControlKind.NOISE)
    )
    assert (zeros.total, zeros.rejected, zeros.closest) == (1, 0, 0.0)
    assert (noise.total, noise.rejected, noise.closest) == (1, 1, -1.0)
    assert count_controls((), ControlKind.NOISE).closest is None
