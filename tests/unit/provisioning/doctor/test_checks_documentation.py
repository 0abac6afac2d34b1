from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
CODE = re.compile(r'"(QNN\d{3})"')
ROW = re.compile(r"^\| (QNN\d{3}) \| (error|warning) \| [^|]+ \| [^|]+ \| [^|]+ \|$", re.MULTILINE)


def ids_in_code() -> list[str]:
    sources = sorted((ROOT / "provisioning" / "doctor" / "checks").glob("*.py"))
    return [found for path in sources for found in CODE.findall(path.read_text())]


def ids_in_docs() -> list[str]:
    rows = ROW.findall((ROOT / "docs" / "checks.md").read_text())
    return [code for code, _ in rows]


def test_every_check_is_documented_once_and_every_documented_check_exists() -> None:
    documented = ids_in_docs()
    assert len(documented) == len(set(documented))
    assert set(documented) == set(ids_in_code())
    assert len(documented) > 80


def test_the_documentation_is_in_the_order_of_ids() -> None:
    assert ids_in_docs() == sorted(ids_in_docs())


def test_every_check_has_a_test_that_names_it() -> None:
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    named = {code for text in tests for code in CODE.findall(text)}
    assert set(ids_in_code()) - named == set()
