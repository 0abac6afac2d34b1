"""Find which parts of a file changed: keys of TOML files, such as
``pyproject.toml#dependency-groups.lint``, and the code blocks of Markdown pages, such as
``docs/reference/emulator.md#code``. Rules may name such parts instead of a whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from provisioning.documents import DocumentError, decoding

DEPTH = 2
CODE = "code"
# Blocks of these languages are not compared: tests/static finds commands without a test.
TYPED = frozenset({"", "sh", "bash", "console", "text"})
FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)


def list_changed_parts(path: str, old: str, new: str) -> frozenset[str] | None:
    """Return the changed parts of a TOML file or a Markdown page, or None for any other file."""
    if path.endswith(".toml"):
        return list_changed_keys(old, new)
    if path.endswith(".md"):
        return frozenset({CODE} if list_code(old) != list_code(new) else ())
    return None


def list_code(text: str) -> list[tuple[str, str]]:
    """Return the language and text of each code block of a page, except blocks of shell commands or
    plain text (see ``TYPED``)."""
    blocks = [(kind.strip(), body) for kind, body in FENCE.findall(text)]
    return [block for block in blocks if block[0] not in TYPED]


def list_changed_keys(old: str, new: str) -> frozenset[str]:
    """Return the dotted keys, at most two levels deep, whose values differ between two TOML texts,
    or ``?`` if one of the texts is not TOML. A changed comment makes no difference."""
    before, after = parse_table(old), parse_table(new)
    if before is None or after is None:
        return frozenset({"?"})
    return frozenset(_compare(before, after, "", DEPTH))


def parse_table(text: str) -> Mapping[str, Any] | None:
    """Return the content of a TOML text, or None if the text is not TOML."""
    try:
        with decoding():
            return msgspec.toml.decode(text, type=dict[str, Any])
    except DocumentError:
        return None


def _compare(
    before: Mapping[str, Any], after: Mapping[str, Any], above: str, depth: int
) -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        # 1, 1.0 and true are equal in Python, but different values in TOML.
        if old == new and type(old) is type(new):
            continue
        name = f"{above}{key}"
        if depth > 1 and isinstance(old or new, dict) and isinstance(new or old, dict):
            yield from _compare(old or {}, new or {}, f"{name}.", depth - 1)
        else:
            yield name
