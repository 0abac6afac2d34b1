"""Relative links of the README and docs/, headings included."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def tokens_of(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or []


def links_of(text: str) -> list[str]:
    targets = (token.attrs.get("href") or token.attrs.get("src") for token in tokens_of(text))
    return [str(target) for target in targets if target and not urlsplit(str(target)).scheme]


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    pairs = itertools.pairwise(tokens_of(text))
    titles = [after.content.lower() for token, after in pairs if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


def leads_somewhere(link: str, page: Path) -> bool:
    parts = urlsplit(link)
    target = page.parent / unquote(parts.path) if parts.path else page
    if not target.exists():
        return False
    if not parts.fragment or target.suffix != ".md":
        return True
    return parts.fragment in anchors_of(target.read_text(encoding="utf-8"))


def broken_links(page: Path) -> list[str]:
    links = links_of(page.read_text(encoding="utf-8"))
    return [link for link in links if not leads_somewhere(link, page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {index.parent / link for link in links_of(index.read_text("utf-8"))}
    assert {index, *listed} >= {page for page in PAGES if page.parent != ROOT}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A head: line\n[a](page.md#a-head-line) [b](page.md#other) [c](gone.md) ![d](d.png)\n"
        "[e](https://example.org) `[f](code.md)`\n"
    )
    assert broken_links(page) == ["page.md#other", "gone.md", "d.png"]


def test_every_schema_is_on_the_page_of_schemas() -> None:
    page = ROOT / "docs/reference/sessions.md"
    linked = {Path(link).name for link in links_of(page.read_text(encoding="utf-8"))}
    assert {path.name for path in (ROOT / "docs/schemas").iterdir()} <= linked
