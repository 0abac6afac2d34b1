"""Each fix that names an option or a command has a situation in tests/typed_fixes.py, in which
tests/unit/ci/verbs/test_hints_are_typed.py types it, or a reason why no test does."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

import pytest

from tests.documented.pages import ROOT
from tests.stand_ins.sources import list_nodes, parse_source
from tests.static.test_hints import show_string
from tests.typed_fixes import LEFT, OPTION, ROWS, ROWS_WITH, TYPED_BY


def read_fixes() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each fix that names an option or a command."""
    for top in ("ci", "provisioning"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in list_nodes(parse_source(path.read_text("utf-8"))):
                for value in list_values(node):
                    text = show_string(value).replace("{show_command(", "`qnn-ci {")
                    if OPTION.search(text):
                        yield path.relative_to(ROOT).as_posix(), text


def list_values(node: ast.AST) -> list[ast.expr]:
    """Return the texts of a fix: an argument, or a variable or a constant that becomes one."""
    if isinstance(node, ast.keyword):
        names = [node.arg or ""]
    elif isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    else:
        return []
    if not any(name.lower() == "fix" or name.lower().endswith("_fix") for name in names):
        return []
    value = node.value
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def is_printed(text: str, fixes: Collection[tuple[str, str]]) -> bool:
    """Return whether a row prints this fix. A row with all of a fix does not print longer ones."""
    whole_fixes = {fix for _, fix in fixes}
    return any(
        part == text or (part in text and part not in whole_fixes) for _, part in list_rows()
    )


def list_rows() -> list[tuple[str, str]]:
    return [*ROWS, *(row for rows in ROWS_WITH.values() for row in rows)]


def test_fixes_are_read_from_arguments_and_from_what_becomes_one() -> None:
    source = 'f(fix="pass --a" if x else "pass --b")\nfix = "pass --c"\nKEY_FIX = "pass --d"\n'
    source += 'prefixes = "pass --e"\nf(why="pass --f")\n'
    nodes = list_nodes(parse_source(source))
    texts = [show_string(value) for node in nodes for value in list_values(node)]
    assert sorted(texts) == ["pass --a", "pass --b", "pass --c", "pass --d"]


def test_no_row_is_there_twice() -> None:
    rows = list_rows()
    assert [row for row in {*rows} if rows.count(row) > 1] == []


def test_each_fix_with_an_option_or_a_command_is_typed_or_has_a_reason() -> None:
    fixes = {*read_fixes()}
    untyped = {text for file, text in fixes if not is_printed(text, fixes)}
    assert not {*TYPED_BY} & {*LEFT}
    assert untyped == {*TYPED_BY, *LEFT}


@pytest.mark.parametrize("place", sorted({*TYPED_BY.values()}))
def test_the_row_or_the_test_that_types_a_fix_exists(place: str) -> None:
    file, _, name = place.partition("::")
    if not name:
        assert place in {words for words, _ in list_rows()}
    else:
        assert re.search(rf"^(def )?{name}\b", (ROOT / file).read_text("utf-8"), re.MULTILINE)
