"""Phrases that are never right in this project: a page, a message, a comment or a docstring has the
usual word instead. What tests say to each other is not read here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = ("*.md", "docs", "ci", "provisioning", "manifests", "docker", ".github", ".ci", "noxfile.py")
UNREAD = (":!manifests/locks",)
AFTER = (
    r"(?=[.,;:)|\"'`]|$| (?:that|which|and|or|in|for|to|where|on|as|is|has|with|by|from|when)\b)"
)
PHRASES = {
    r"\bbut for\b": "except",
    r"\bwhoever\b": "anyone who, the user",
    r"\blest\b": "so that ... not",
    r"\bfor want of\b": "because ... is missing",
    r"\bc[ao]mes? to (?:no|nothing|be)\b|\bcame to\b|\bcomes to\b": "results in, the result of",
    r"\b(?:is|are|was|were|be|been|being) told\b": "is reported, prints",
    rf"\bof (?:its|their|our|your|his) own{AFTER}": "its own ..., a separate ...",
    r"\b(?:an?|some|each) [\w.-]+(?: [\w.-]+)? of (?:yours|ours|theirs)\b": "your ..., our ...",
    r"\bin (?:the )?place of\b": "instead of",
    r"\bas ever\b": "as usual",
    r"\bsays? so\b": "prints it, reports it",
    r"\b(?:ends?|ended) with \d(?![\d.]| dB)": "exits with",
}
FOUND = re.compile("|".join(f"({pattern})" for pattern in PHRASES), re.IGNORECASE)


def list_phrases(text: str) -> Iterator[str]:
    """Each phrase of a text with its line and what is usual instead."""
    usual = list(PHRASES.values())
    for number, line in enumerate(text.splitlines(), 1):
        for match in FOUND.finditer(line):
            yield f"{number}: {match[0]!r}, usual: {usual[(match.lastindex or 1) - 1]}"


def list_files() -> list[str]:
    words = ["git", "ls-files", "-z", *READ, *UNREAD]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in names.decode().split("\0") if name]


def test_no_source_or_page_uses_a_phrase_that_style_forbids() -> None:
    files = [name for name in list_files() if (ROOT / name).suffix not in {".webp", ".bin"}]
    assert {"README.md", "ci/judging/verdict.py", "docs/guides/red.md"} <= set(files)
    texts = {name: (ROOT / name).read_text("utf-8", errors="replace") for name in files}
    assert [
        f"{name}:{phrase}" for name, text in texts.items() for phrase in list_phrases(text)
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "everything but for one",
        "Whoever calls it",
        "copied, lest it change",
        "refused for want of a key",
        "what it came to",
        "it comes to no result",
        "the user is told",
        "has a name of its own.",
        "in a process of its own that ends",
        "a model of yours",
        "in the place of the other",
        "as ever",
        "and the message says so",
        "the session ends with 3",
    ],
)
def test_each_forbidden_phrase_is_found(text: str) -> None:
    assert len([*list_phrases(f"\n{text}\n")]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "in your own words",
        "the output of your own script",
        "the file ends with 3.5",
        "checked in place",
    ],
)
def test_text_without_a_listed_phrase_is_accepted(text: str) -> None:
    assert [*list_phrases(text)] == []
