"""docs/findings/mending.md lists the rewrites of manifests/policies/rewrites.toml. Each works in
PyTorch and in ONNX, or its row says why the other lane needs none. Each is written once.

``python -m tests.static.test_mending_page`` writes the list.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest
from msgspec import structs

from ci.mend.graph_rewrites import DEFINITIONS
from ci.mend.table import Rewrite, RewriteLane, read_rewrites
from tests.stand_ins.sources import list_nodes, parse_source

MEND = Path(__file__).parents[2] / "ci" / "mend"
PAGE = Path(__file__).parents[2] / "docs" / "findings" / "mending.md"
HINT = "run `python -m tests.static.test_mending_page`"
LANES: tuple[RewriteLane, ...] = get_args(RewriteLane)
QUANTIZING: tuple[RewriteLane, ...] = ("torch", "onnx")
TABLE = re.compile(r"(<!-- rewrites -->\n\n)(?:\|.*\n)*")
HEAD = "| rewrite | replaces | PyTorch | ONNX | LiteRT |\n|---|---|---|---|---|\n"


def read_all_rewrites() -> list[Rewrite]:
    """The rewrites of all lanes by name, each once."""
    rows: dict[str, Rewrite] = {}
    for lane in LANES:
        for row in read_rewrites(lane):
            rows.setdefault(row.name, row)
    return [rows[name] for name in sorted(rows)]


def find_unexplained(rows: Sequence[Rewrite]) -> list[str]:
    """The rewrites that a lane lacks without a reason, and those with a reason that lack none."""
    return [row.name for row in rows if ({*QUANTIZING} <= {*row.lanes}) == bool(row.needless)]


def render_page(page: str, rows: Sequence[Rewrite]) -> str:
    """``page`` with the list of these rewrites."""
    lines = [HEAD]
    titles = {(lane, row.name): row.title for lane in LANES for row in read_rewrites(lane)}
    for row in rows:
        cells = []
        for lane in QUANTIZING:
            title = titles.get((lane, row.name), row.title)
            taken = "yes" if title == row.title else f"yes: {title}"
            cells.append(taken if lane in row.lanes else f"no: {row.needless}")
        cells.append("yes" if "litert" in row.lanes else "not seen")
        lines.append(f"| {' | '.join(map(escape, [f'`{row.name}`', row.title, *cells]))} |\n")
    return TABLE.sub(lambda match: match[1] + "".join(lines), page)


def escape(cell: str) -> str:
    """A text as a cell of a table in Markdown has it."""
    return re.sub(r"([|*_<])", r"\\\1", cell) if "`" not in cell else cell


def test_each_rewrite_works_in_both_lanes_or_the_other_lane_needs_none() -> None:
    assert find_unexplained(read_all_rewrites()) == []


def test_a_rewrite_of_both_lanes_is_written_once() -> None:
    of_both = {row.name for row in read_all_rewrites() if len(row.lanes) == len(LANES)}
    assert of_both <= DEFINITIONS.keys()


def list_definitions(sources: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The rewrites that these sources define by decorators of functions, each with the body of its
    function without the docstring."""
    for source in sources:
        for function in list_nodes(parse_source(source)):
            if not isinstance(function, ast.FunctionDef):
                continue
            body = "".join(map(ast.unparse, function.body[1:]))
            for decorator in function.decorator_list:
                call = ast.unparse(decorator)
                if call.startswith(("defines(", "rewrites(")):
                    yield re.split("['\"]", call)[1], body


def find_repeated(sources: Iterable[str]) -> set[str]:
    """The rewrites that are defined more than once, and those whose function is that of
    another."""
    definitions = [*list_definitions(sources)]
    names = Counter(name for name, _ in definitions)
    bodies = Counter(body for _, body in definitions)
    return {name for name, body in definitions if names[name] > 1 or bodies[body] > 1}


def test_no_rewrite_is_defined_twice() -> None:
    sources = [path.read_text("utf-8") for path in sorted(MEND.rglob("*.py"))]
    assert len([*list_definitions(sources)]) > len(DEFINITIONS)
    assert find_repeated(sources) == set()


@pytest.mark.parametrize(
    ("first", "second", "repeated"),
    [
        ('@defines("a", "add")', '@rewrites("b", "Add")', {"a", "b"}),
        ('@defines("a", "add")', '@rewrites("a", "Add")', {"a"}),
        ('@defines("a", "add")\n@defines("b", "add")', "", {"a", "b"}),
        ('@defines("a", "add")', "", set()),
    ],
)
def test_a_rewrite_that_is_defined_twice_is_found(
    first: str, second: str, repeated: set[str]
) -> None:
    function = '{}\ndef write(edit, node):\n    """Write it."""\n    edit.replace(node)\n'
    assert find_repeated([function.format(first), function.format(second)]) == repeated


@pytest.mark.parametrize(
    ("lanes", "needless", "is_explained"),
    [
        (("torch", "onnx"), "", True),
        (("torch", "onnx"), "ONNX has no such operator", False),
        (("onnx",), "ExecuTorch decomposes the operator", True),
        (("onnx",), "", False),
    ],
)
def test_a_rewrite_of_one_lane_without_a_reason_is_found(
    lanes: tuple[RewriteLane, ...], needless: str, is_explained: bool
) -> None:
    row = structs.replace(read_all_rewrites()[0], lanes=lanes, needless=needless)
    assert find_unexplained([row]) == ([] if is_explained else [row.name])


def test_the_page_lists_all_rewrites() -> None:
    page = PAGE.read_text("utf-8")
    assert TABLE.search(page)
    assert render_page(page, read_all_rewrites()) == page, HINT


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text("utf-8"), read_all_rewrites()), "utf-8")
