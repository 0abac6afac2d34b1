"""The values of variables: strings, which may contain lists, alternatives and unknown text.

A value is a tuple of alternatives from different branches, usually just one. UNKNOWN marks text
that depends on a real configuration. Anything that contains such text is reported as not evaluated,
instead of being guessed.

Also match CMake's regular expressions with Python's module re. There is a time limit, because a
match can take forever. CMake's expressions have no character classes such as ``\\d``, no repetition
counts such as ``{2}``, and no escapes in brackets (see CMake's manual, string(REGEX)).
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType
from typing import TypeAlias

from ci.parity.facts import Configuration

Value: TypeAlias = tuple[str, ...]

UNKNOWN = "\x01"
MOST_ALTERNATIVES = 12
REFERENCE = re.compile(r"\$(ENV|CACHE)?\{([^${}]*)\}")
BORDER = re.compile(r"\$<|>")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", ";": "\\;", "\n": ""}


def unknown(name: str) -> Value:
    """Return an unknown value. ``name`` states where it comes from."""
    return (f"{UNKNOWN}{name}{UNKNOWN}",)


def is_unknown(text: str) -> bool:
    """Return whether a string contains unknown text."""
    return UNKNOWN in text


def split_list(text: str) -> list[str]:
    """Return the elements of a CMake list. An escaped semicolon does not separate elements."""
    if not text:
        return []
    if "\\;" not in text:
        return text.split(";")
    return [part.replace("\0", ";") for part in text.replace("\\;", "\0").split(";")]


def split_values(values: Value) -> list[str]:
    """Return the non-empty elements of all alternatives, each element only once."""
    elements: list[str] = []
    for value in values:
        earlier = set(elements)
        elements += [part for part in split_list(value) if part and part not in earlier]
    return elements


def expand(text: str, lookup: Callable[[str, str], Value]) -> Value:
    """Return up to MOST_ALTERNATIVES alternatives of ``text`` with references replaced, innermost
    first.

    ``lookup(kind, name)`` returns the value of a variable. The kind is empty, ENV or CACHE.
    """
    if "$" not in text:
        return (unescape(text),)
    if reference := REFERENCE.fullmatch(text):
        return tuple(dict.fromkeys(lookup(reference[1] or "", reference[2])[:MOST_ALTERNATIVES]))
    done: list[str] = []
    pending = [text]
    while pending:
        current = pending.pop(0)
        match = REFERENCE.search(current)
        if match is None:
            done.append(unescape(current))
            continue
        values = lookup(match.group(1) or "", match.group(2))
        room = MOST_ALTERNATIVES - len(done) - len(pending)
        for value in values[:room]:  # there is room for at least one
            # Dollar signs and backslashes in a value are text, not references.
            shielded = value.replace("\\", "\\\\").replace("$", "\x02")
            pending.append(current[: match.start()] + shielded + current[match.end() :])
    return tuple(dict.fromkeys(done))


def unescape(text: str) -> str:
    """Replace backslash escapes with the text that they stand for, and restore the dollar signs of
    values."""
    if "\\" in text:
        text = ESCAPE.sub(lambda match: ESCAPED.get(match.group(1), match.group(1)), text)
    return text.replace("\x02", "$")


def merge_value(before: Value | None, left: Value | None, right: Value | None) -> Value | None:
    """Merge the values that a variable has after two branches that could both be taken.

    If both branches add to the same list, both additions are kept. Different single words become
    alternatives. If only one branch sets the variable, its value is used.
    """
    if left == right or not right or right == ("",):
        return left
    if not left or left == ("",):
        return right
    if len(left) == 1 and len(right) == 1:
        first, second = split_list(left[0]), split_list(right[0])
        if len(first) > 1 or len(second) > 1:
            base = split_list(before[0]) if before and len(before) == 1 else []
            size = len(base) if first[: len(base)] == base == second[: len(base)] else 0
            added_first = set(first[size:])
            return (
                ";".join([*first, *(item for item in second[size:] if item not in added_first)]),
            )
    return tuple(dict.fromkeys(left + right))[:MOST_ALTERNATIVES]


TRANSPARENT = {"BUILD_INTERFACE", "LINK_ONLY", "BUILD_LOCAL_INTERFACE", "1"}
SYSTEMS = {Configuration.HOST: "Linux", Configuration.ANDROID: "Android"}


def resolve_genex(text: str, configuration: Configuration) -> Iterator[str]:
    """Yield the words that ``text`` may expand to if its generator expressions are evaluated.
    Unknown conditions are taken as true.
    """
    start = text.find("$<")
    if start < 0:
        if text:
            yield text
        return
    end = matching_end(text, start)
    if end < 0:
        return
    before, after = text[:start], text[end + 1 :]
    for inner in _evaluate(text[start + 2 : end], configuration):
        for ending in resolve_genex(after, configuration) if after else [""]:
            yield before + inner + ending


def matching_end(text: str, start: int) -> int:
    """Return where the generator expression that starts at ``start`` ends, or -1 if it is not
    closed.
    """
    depth = 0
    for match in BORDER.finditer(text, start):
        depth += 1 if match.group() == "$<" else -1
        if depth == 0:
            return match.start()
    return -1


def _evaluate(body: str, configuration: Configuration) -> Iterator[str]:
    head, _, payload = body.partition(":")
    if body.startswith("$<"):
        end = matching_end(body, 0)
        head, payload = body[: end + 1], body[end + 2 :]
    if head in TRANSPARENT:
        yield from _items(payload, configuration)
    elif head in {"LINK_LIBRARY", "LINK_GROUP"}:
        yield from _items(payload.partition(",")[2], configuration)
    elif head == "TARGET_OBJECTS":
        yield f"TARGET_OBJECTS:{payload}"
    elif head.startswith("$<") and _holds(head[2:-1], configuration):
        yield from _items(payload, configuration)


def _items(payload: str, configuration: Configuration) -> Iterator[str]:
    for item in payload.replace(",", ";").split(";") if "$<" not in payload else [payload]:
        yield from resolve_genex(item, configuration)


def _holds(condition: str, configuration: Configuration) -> bool:
    head, _, payload = condition.partition(":")
    if head == "PLATFORM_ID" and configuration in SYSTEMS:
        return SYSTEMS[configuration] in payload.split(",")
    if head == "NOT" and payload.startswith("$<PLATFORM_ID:") and configuration in SYSTEMS:
        return not _holds(payload[2:-1], configuration)
    return True


# Without a limit, an expression without end in a pull request costs its whole side and five
# minutes, instead of one finding with its line.
LIMIT_S = 0.5
MOST_SLOW = 10
REPEATS = frozenset("*+?")
PART = re.compile(r"\\(.)|(\[\^?\]?[^\]]*\])|([{}])|(\(\?)|(.)", re.DOTALL)
GROUP_REFERENCE = re.compile(r"\\(.)", re.DOTALL)
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
    for escaped, bracket, brace, extension, character in PART.findall(text):
        if extension or (repeated and character in REPEATS):
            return None
        repeated = character in REPEATS
        if escaped or brace:
            out.append(re.escape(escaped or brace))
        elif bracket:
            out.append("[" + re.sub(r"([\\\[&~|])", r"\\\1", bracket[1:]))
        else:
            out.append(r"\Z" if character == "$" else character)
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
    # Many slow expressions must end together, too.
    if pattern in _slow or len(_slow) >= MOST_SLOW:
        raise UnknownMatchError
    # Python handles signals in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        return compiled.search(text)
    signal.signal(signal.SIGVTALRM, stop_match)
    # The CPU's time of this process, so that a busy machine reads what an idle one does.
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
    out, remainder = "", text
    for match in find_all(pattern, text):
        out += match.string[: match.start()] + fill(replacement, match)
        remainder = match.string[match.end() :]
    return out + remainder


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

    return GROUP_REFERENCE.sub(put, replacement)
