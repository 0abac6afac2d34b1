"""The version in pyproject.toml has a page, to which the changelog links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_next_version_has_a_page_and_a_row() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    versions = re.findall(r'(?m)^version = "(.+)"$', text)
    assert len(versions) == 1
    page = f"docs/changes/{versions[0]}.md"
    assert (ROOT / page).is_file()
    assert f"| [{versions[0]}]({page}) |" in (ROOT / "CHANGELOG.md").read_text("utf-8")
