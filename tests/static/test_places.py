"""What pages and sources hold is tested here, by lint, or where commands are run: nowhere else.

So a change of prose needs nothing but lint.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHAIN = re.compile(r'(?:"[\w.-]+"\s*/\s*)*"[\w./-]+\.md"')
ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
}
# Some run the code of a page, which is a part of its own in a plan; the others name pages.
EXEMPT = {
    "tests/integration/artifacts/test_provisioning_messages.py",
    "tests/integration/device/test_jumpstarter.py",
    "tests/integration/emulator/test_without_network.py",
    "tests/integration/gate/test_plan_verb.py",
    "tests/documented/test_documented_commands_run.py",
    "tests/integration/workflows/test_examples.py",
    "tests/integration/workflows/test_pr.py",
    "tests/unit/ci/audit/test_operators.py",
    "tests/unit/ci/gate/test_plan.py",
    "tests/unit/ci/onnx/test_options.py",
}
TESTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("unit", "integration")
    for path in (ROOT / "tests" / folder).rglob("*.py")
)


def list_pages(text: str) -> set[str]:
    """The pages that the code of a test names as paths, by themselves."""
    chains = CHAIN.findall(text)
    return {"/".join(re.findall(r"[^\s\"/]+", chain)) for chain in chains} & PAGES


@pytest.mark.parametrize("path", [path for path in TESTS if path not in EXEMPT])
def test_only_static_tests_read_pages_of_the_docs(path: str) -> None:
    assert list_pages((ROOT / path).read_text("utf-8")) == set()


def test_a_test_that_reads_a_page_of_the_docs_is_found() -> None:
    text = 'PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"'
    assert list_pages(text) == {"docs/reference/exit-codes.md"}
