from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from ci.facts.finding import Figure, Finding, Place, advise
from ci.facts.kinds import DIED, NOISE
from ci.report.html import TEMPLATES, choose_bars, make_map, render_html
from ci.report.overview import make_document
from ci.report.schema import Case, Report, Status
from tests.stand_ins.reports import change_case, say

VOID = {"meta", "input", "wbr"}
COLOURS = ("text", "dim", "bad", "good", "warn", "link")


@dataclass
class Tag:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """The elements of a page, in order, with the text directly in them."""

    elements: list[Tag] = field(default_factory=list)
    open_elements: list[Tag] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Tag(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self.open_elements.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Tag(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_elements.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open_elements:
            self.open_elements[-1].text += data

    def find(self, tag: str, name: str = "") -> list[Tag]:
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
def test_html_page_loads_nothing_from_elsewhere(name: str, request: pytest.FixtureRequest) -> None:
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
    directives = [words.split() for words in policy.attributes["content"].split("; ")]
    assert [directive[0] for directive in directives] == [
        *("default-src", "style-src", "script-src", "base-uri", "form-action")
    ]
    assert all(len(directive) == 2 for directive in directives)
    assert [directive[1] for directive in directives if "sha256" not in directive[1]] == [
        "'none'"
    ] * 3


def test_hostile_text_is_shown_and_never_markup(hostile: Report) -> None:
    page = read_page(hostile)
    assert len(page.find("script")) == 1
    assert any(
        '<script>alert("x")</script> & ]]> red' in description.text
        for description in page.find("dd")
    )
    text = render_html(hostile)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_colours_of_the_page_have_enough_contrast(mode: str) -> None:
    css = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", light if mode == "light" else dark))
    for ground in ("page", "raised"):
        for name in COLOURS:
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        assert contrast(colours["value"], colours[ground]) >= 3, ground


@pytest.mark.parametrize("field_name", ["cases", "controls", "thresholds", "toolchain"])
def test_a_report_without_cases_controls_limits_or_tools_still_has_a_page(
    report: Report, field_name: str
) -> None:
    assert read_page(replace(report, **{field_name: ()})).find("h1")


# -- causes, charts of many, a base, a case more closely -------------------------------------------


def fail(case: Case, *findings: Finding) -> Case:
    return change_case(case, status=Status.FAILED, findings=findings)


def test_failures_of_one_cause_are_one_card_and_the_most_frequent_is_the_first(
    report: Report,
) -> None:
    """Failures of other schemes, models or figures share a cause; other headlines, places or
    remedies do not."""
    a, b = advise(fix="a"), advise(fix="b")
    far = [
        NOISE.find(f"{db} dB", figures=(Figure(name="above_noise", value=db),), advice=a)
        for db in range(5)
    ]
    other_findings = (DIED.find("SIGSEGV"), DIED.find("SIGSEGV", advice=b), DIED.find("SIGKILL"))
    elsewhere = replace(far[0], places=(Place(file="net.py", line=7),))
    all_findings = (*other_findings, *far, elsewhere)
    cases = [fail(*pair) for pair in zip(report.cases[:9], all_findings, strict=True)]
    cases[4] = replace(cases[4], soc="SA8295")
    red = replace(report, cases=(*cases, *report.cases[9:])).recounted
    cards = [card for card in make_document(red).cards if card.kind == "failed"]
    cases_of_cards = []
    for card in cards:
        indices, _ = zip(*card.about, strict=True)
        cases_of_cards.append(indices)
    assert cases_of_cards == [(3, 4, 5, 6, 7), (0,), (1,), (2,), (8,)]
    page = read_page(replace(red, command="run"))
    assert len(page.find("div", "problem")) == 5
    assert "not faithful: 0 dB" in [description.text.strip() for description in page.find("dd")]


def many(report: Report, models: int) -> Report:
    """A report of so many models in five schemes, of which one case failed."""
    cases = [
        replace(case, model=f"team/{'deep/' * 20}net_{number:03d}.py:make_{number:03d}")
        for number in range(models)
        for case in report.cases[:5]
    ]
    cases[333] = fail(cases[333], *say("no"))
    return replace(report, cases=tuple(cases))


def test_a_large_report_shows_bars_of_the_worst_cases_and_a_map_of_all(report: Report) -> None:
    large = many(report, 100)
    page = read_page(large)
    shown = choose_bars(large)
    assert (len(shown), shown[0][0]) == (20, 333)
    assert len(page.find("div", "figure")) == 20 * 5
    cells = page.find("td", "heat")
    assert [cell.attributes["data-i"] for cell in cells] == [str(n) for n in range(500)]
    assert [n for n, cell in enumerate(cells) if "failed" in cell.attributes["class"]] == [333]
    assert [len(row) for row in make_map(large).values()] == [5] * 100
    names = {link.text for link in page.find("a") if "make_066" in link.text}
    assert all(name.split()[0].endswith("net_066.py:make_066") for name in names)
    assert "team/deep" not in "".join(link.text for link in page.find("a"))
