"""The text of Gradle's files, in Groovy or Kotlin: comments, texts and blocks.

All patterns take linear time, so that a hostile file cannot stall them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_BYTES = 1 << 18
# Strings are matched first, because "**/*.so" contains the start of a comment.
COMMENT = re.compile(
    r"""("(?:[^"\\\n]|\\[^\n])*"?|'(?:[^'\\\n]|\\[^\n])*'?)|/\*.*?(?:\*/|\Z)|//[^\n]*""", re.DOTALL
)
QUOTED = re.compile(r"[\"']([^\"'\n]+)[\"']")
BRACE = re.compile(r"[{}]")
# npu { }, create("npu") { }, "npu" { }
CHILD = re.compile(
    r"\b(?:create|register|getByName|named|maybeCreate)\s{0,9}\(\s{0,9}[\"'](\w{1,60})[\"']\s{0,9}\)"
    r"\s{0,9}\{|\b(\w{1,60})[\"']?\s{0,9}\{"
)


def drop_comments(text: str) -> str:
    """Return the text without its comments."""
    return COMMENT.sub(lambda match: match[1] or " ", text)


def find_blocks(text: str, head: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the start of each block whose head, which ends with its brace, matches, and its end. A
    block inside of another one is not yielded."""
    end = 0
    while match := head.search(text, end):
        depth, end = 1, len(text)
        for brace in BRACE.finditer(text, match.end()):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                end = brace.end()
                break
        yield match.start(), end


def drop_blocks(text: str, head: re.Pattern[str]) -> str:
    """Return the text without the blocks whose head matches."""
    parts, kept_from = [], 0
    for start, end in find_blocks(text, head):
        parts.append(text[kept_from:start])
        kept_from = end
    return " ".join([*parts, text[kept_from:]])


def list_children(block: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each block directly in a block, which begins with its own
    name."""
    inside = block.find("{") + 1
    body = block[inside:]
    for start, end in find_blocks(body, CHILD):
        if match := CHILD.match(body, start):
            yield match[1] or match[2], body[start:end]
