"""docs/findings/gate.md names each fault below the noise that the tests of liars accept."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "findings" / "gate.md"
LIARS = TESTS / "integration" / "emulator" / "test_liars.py"
# Errors that are accepted because outputs are rounded to steps, and up to which size.
OTHERS = ("noise of 2 %", "bfloat16", "one channel louder", "one element off")


def list_accepted() -> list[str]:
    """The keys of BELOW_THE_NOISE, which runs of the suite are compared with."""
    for node in ast.parse(LIARS.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BELOW_THE_NOISE":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{LIARS} has no BELOW_THE_NOISE")


def test_the_page_lists_every_wrong_output_below_the_noise() -> None:
    text = PAGE.read_text("utf-8")
    below = text.partition("The errors that this project's gate accepts")[2]
    words = [
        accepted.removeprefix("rounded to ").removesuffix("'s") for accepted in list_accepted()
    ]
    assert words
    assert [word for word in (*words, *OTHERS) if word not in below] == []
