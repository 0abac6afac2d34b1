"""Match CMake's regular expressions with Python's module re. There is a time limit, because a match
can take forever.

CMake's expressions have no character classes such as ``\\d``, no repetition counts such as ``{2}``,
and no escapes in brackets (see CMake's manual, string(REGEX)).
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

from ci.parity.cmake.values import is_unknown

LIMIT_S = 0.5
MOST_SLOW = 10
REPEATS = frozenset("*+?")
PART = re.compile(r"\\(.)|(\[\^?\]?[^\]]*\])|([{}])|(\(\?)|(.)", re.DOTALL)
REFERENCE = re.compile(r"\\(.)", re.DOTALL)
_slow: set[str] = set()


class UnknownMatchError(Exception):
    """It is unknown whether a regular expression matches: the expression is invalid or too slow, or
    the expression or the text is unknown.
    """


def forget_slow() -> None:
    """Forget which expressions were slow, before another tree is read."""
    _slow.clear()


@lru_cache(maxsize=1024)
def compile_regex(text: str) -> re.Pattern[str] | None:
    """Return a compiled CMake regular expression, or None if CMake would reject it."""
    out: list[str] = []
    repeated = False
    for escaped, bracket, brace, extension, other in PART.findall(text):
        if extension or (repeated and other in REPEATS):
            return None
        repeated = other in REPEATS
        if escaped or brace:
            out.append(re.escape(escaped or brace))
        elif bracket:
            out.append("[" + re.sub(r"([\\\[&~|])", r"\\\1", bracket[1:]))
        else:
            out.append(r"\Z" if other == "$" else other)
    try:
        return re.compile("".join(out), re.DOTALL)
    except (re.error, RecursionError, OverflowError):
        return None


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Return the first match of a pattern in a text, or None. Raises UnknownMatchError, also if the
    match takes too much CPU time. There is no such limit outside the main thread.
    """
    compiled = compile_regex(pattern)
    if compiled is None or is_unknown(text) or is_unknown(pattern):
        raise UnknownMatchError
    if pattern in _slow or len(_slow) >= MOST_SLOW:
        raise UnknownMatchError
    if threading.current_thread() is not threading.main_thread():
        return compiled.search(text)
    signal.signal(signal.SIGVTALRM, stop_match)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        return compiled.search(text)
    except UnknownMatchError:
        _slow.add(pattern)
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def stop_match(_number: int, _frame: FrameType | None) -> None:
    """Handle the timer's signal. Raises UnknownMatchError."""
    raise UnknownMatchError


def find_all(pattern: str, text: str) -> Iterator[re.Match[str]]:
    """Yield all matches in the way CMake does: ``^`` matches again after each match.

    Raises UnknownMatchError, for example for an empty match, which CMake treats as an error.
    """
    while text:
        match = search(pattern, text)
        if match is None:
            return
        if not match.group():
            raise UnknownMatchError
        yield match
        text = text[match.end() :]


def replace(pattern: str, replacement: str, text: str) -> str:
    r"""Evaluate string(REGEX REPLACE), where ``\1`` is the first group. Raises
    UnknownMatchError.
    """
    out, rest = "", text
    for match in find_all(pattern, text):
        out += match.string[: match.start()] + fill(replacement, match)
        rest = match.string[match.end() :]
    return out + rest


def fill(replacement: str, match: re.Match[str]) -> str:
    r"""Return a replacement in which the groups' text replaces ``\0`` to ``\9``. The text of a
    missing group is "".
    """

    def put(reference: re.Match[str]) -> str:
        word = reference.group(1)
        if not word.isdigit():
            return "\n" if word == "n" else word
        number = int(word)
        return (match.group(number) or "") if number <= match.re.groups else ""

    return REFERENCE.sub(put, replacement)
