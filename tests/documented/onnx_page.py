"""The tables of docs/onnx.md, out of manifests/policies/onnx-options.toml and onnx-operators.toml.

``python -m tests.documented.onnx_page`` writes them into the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ci.onnx.options.table import Option, read_options

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
OPTIONS = (
    "| option | values | default | since | what it does | wrong value |\n" + "|---" * 6 + "|\n"
)
SPECIAL = re.compile(r"([*_<>|$`])")


def render_page(page: str) -> str:
    """``page`` with the rows of its tables as the data has them."""
    table = read_options()
    for options in (table.provider, table.session, table.run):
        first = _mark(options[0].name)
        pattern = re.compile(re.escape(OPTIONS + f"| {first} |") + r".*\n(?:\| .*\n)*")
        page, found = pattern.subn(lambda _, rows=options: OPTIONS + _rows(rows), page)
        assert found == 1, first
    return page


def _rows(options: Sequence[Option]) -> str:
    return "".join(map(_row, options))


def _row(option: Option) -> str:
    seen = {"session": "no session", "killed": "ends the process"}.get(option.wrong, option.wrong)
    where = f" Only for {option.where}." if option.where else ""
    backends = "" if not option.backends or option.backends == ("htp",) else option.backends[0]
    only = f" Only the backend {backends}." if backends else ""
    needs = f" Needs {' and '.join(option.needs)}.".replace("|", " or ") if option.needs else ""
    words = (
        option.allowed + (", or several with commas" if option.several else ""),
        option.default,
        option.since.removeprefix("2.3.0"),
        f"{option.doc}.{needs}{only}{where}",
        seen,
    )
    return "| " + " | ".join([_mark(option.name), *map(_escape, words)]) + " |\n"


def _mark(name: str) -> str:
    return f"`{name}`"


def _escape(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text("utf-8")), "utf-8")
