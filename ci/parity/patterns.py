"""Compile glob patterns from build files and policies into regular expressions for paths."""

from __future__ import annotations

import re
from functools import lru_cache

PIECE = re.compile(
    r"(?P<folders>(?:(?<=/)|^)(?:\*\*/)+)|(?P<all>\*{2,})|(?P<star>\*)|(?P<text>[^*]+)"
)
CLASS = re.compile(r"\[(!?)(\]?[^\]]*)\]|(\?)|(.)", re.DOTALL)
ANY = {"folders": "(?:[^/]+/)*", "all": ".*"}


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a glob pattern as a regular expression for relative paths.

    The text between two wildcards matches at its first occurrence, and no other one is tried;
    otherwise some patterns would never finish. (fnmatch does the same.)
    """
    runs: list[tuple[str, list[str]]] = [("", [""])]
    for piece in PIECE.finditer(pattern):
        kind = piece.lastgroup or ""
        if kind in ANY:
            runs.append((ANY[kind], [""]))
        elif kind == "star":
            runs[-1][1].append("")
        else:
            runs[-1][1][-1] += piece.group()
    out, last = "", len(runs) - 1
    for index, (before, parts) in enumerate(runs):
        inner = _translate_run(parts, f"s{index}_")
        middle = 0 < index < last
        out += _first(f"{before}?{inner}", f"r{index}") if middle else before + inner
    return re.compile(out, re.DOTALL)


def _translate_run(parts: list[str], name: str) -> str:
    """Return a regular expression for the glob that joins ``parts`` with ``*``."""
    out = _translate_text(parts[0])
    for index, part in enumerate(parts[1:], 1):
        head, slash, tail = part.partition("/")
        star = "[^/]*" + _translate_text(head)
        ends = slash or index == len(parts) - 1
        out += star if ends else _first("[^/]*?" + _translate_text(head), f"{name}{index}")
        out += _translate_text(slash + tail)
    return out


def _first(expression: str, name: str) -> str:
    return f"(?=(?P<{name}>{expression}))(?P={name})"


def _translate_text(text: str) -> str:
    out = ""
    for negated, inside, question, other in CLASS.findall(text):
        if inside:
            inside = inside.replace("\\", r"\\").replace("[", r"\[").replace("/", "")
            out += f"[^/{inside}]" if negated else f"[{inside}]"
        else:
            out += "[^/]" if question else re.escape(other)
    return out
