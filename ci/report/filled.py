"""Text from templates: what a verb prints about things that have many optional parts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.report.text import count, show_bytes

if TYPE_CHECKING:
    from jinja2 import Environment

ROOT = Path(__file__).resolve().parents[1]


def fill_text(name: str, /, **values: Any) -> str:
    """Return the text of the Jinja template ``name``, a path in this package, with ``values``. A
    template can also use the filters ``many`` (``3 cases``) and ``bytes``."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ROOT),
        autoescape=False,  # noqa: S701 - plain text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"many": count, "bytes": show_bytes}
    return environment
