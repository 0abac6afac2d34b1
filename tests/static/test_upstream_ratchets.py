"""What is known of upstream's suites can be read, and its figures are in the changelog."""

from __future__ import annotations

import re
from pathlib import Path

from ci.upstream.expectations import read_expectations
from ci.upstream.suites import SUITES

ROOT = Path(__file__).resolve().parents[2]


def test_upstream_expectations_are_valid_and_their_ratchets_are_in_the_changelog() -> None:
    policy = read_expectations()
    assert policy.suites.keys() == SUITES.keys()
    pages = sorted((ROOT / "docs/changes").glob("*.md"))
    changelog = " ".join(page.read_text(encoding="utf-8") for page in pages)
    for name, suite in policy.suites.items():
        line = (
            f"`{name}`: at least {suite.run} tests run, at most {suite.unsupported} unsupported,"
            f" limit {suite.timeout_s:g} s"
        )
        assert line in re.sub(r"\s+", " ", changelog), (
            f"no page in docs/changes has the line: {line}"
        )
