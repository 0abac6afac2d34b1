"""Search for a user's regular expression in time that grows linearly with the text.

Python's own engine tries one way after the other, so that a pattern such as ``(.*)(.*)(.*)b$`` in a
policy keeps a run busy for hours on one long line. This one follows all ways at once (K. Thompson,
Regular Expression Search Algorithm, 1968), and remembers each set of places that it was in. It
takes Python's syntax without references to groups and without conditions on what comes before or
after.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants, _parser

    ops, parser = _constants, _parser
else:
    import sre_constants
    import sre_parse

    ops, parser = sre_constants, sre_parse

MOST_STATES = 2_000
MOST_REMEMBERED = 20_000
# By their names: Python 3.10 lacks some.
NO_SUPPORT = {
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition on a group",
    "ASSERT": "a condition on what follows or precedes",
    "ASSERT_NOT": "a condition on what follows or precedes",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
}
CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}
LINE_END = "\n"
# What conditions tell apart: a letter of ASCII, another one, and what is neither.
LIKE = ("a", "\u00e9", " ")

Accepts = Callable[[str], bool]
# Whether a condition holds between two characters, each empty at an end of the text, and before the
# last newline.
Holds = Callable[[str, str, bool], bool]


@dataclass
class _State:
    """A place in a pattern: it goes on to ``following``, after a character that ``accepts`` if that
    is set, and only where ``holds`` if that is."""

    following: list[int] = field(default_factory=list)
    accepts: Accepts | None = None
    holds: Holds | None = None


@functools.cache
def compile_linear(pattern: str) -> LinearPattern:
    """Return a pattern for searches. Raises ValueError if it is invalid, or has something that
    needs another engine."""
    try:
        parsed = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        why = str(error) or "it is nested too deeply"
        raise ValueError(f"{pattern!r} is not a regular expression: {why}") from error
    return LinearPattern(pattern, parsed)


class _Position(dict[str, Any]):
    """The places of a pattern that a search is in behind a character like ``before``. It maps the
    next character to the next position, or to None if the pattern matches."""

    def __init__(self, owner: LinearPattern, places: frozenset[int], before: str) -> None:
        super().__init__()
        self.owner, self.places, self.before = owner, places, before

    def __missing__(self, character: str) -> _Position | None:
        following = self.owner.follow(self, character)
        self[character] = following
        return following


class LinearPattern:
    """A regular expression that is searched for without going back."""

    def __init__(self, pattern: str, parsed: Any) -> None:
        self.pattern = pattern
        self._states: list[_State] = []
        self._start = self._add()
        self._end = self._build(parsed, self._start, parsed.state.flags)
        self._has_conditions = any(state.holds for state in self._states)
        self._literal = _find_literal(parsed)
        self._known: dict[tuple[frozenset[int], str], _Position] = {}
        self._count = 0

    def search(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in ``text``."""
        if self._literal not in text:
            return False
        position = self._enter(frozenset({self._start}), "")
        for character in text[:-1]:
            if (following := position[character]) is None:
                return True
            position = following
        last = text[-1:]
        places, before = position.places, position.before
        if last:
            is_line_end = last == LINE_END
            places, is_found = self._step(places, before, last, is_last_line=is_line_end)
            if is_found:
                return True
        return self._step(places, last, "", is_last_line=False)[1]

    def follow(self, position: _Position, character: str) -> _Position | None:
        """Return the position behind a character that is not the last one, or None if the pattern
        matches before it."""
        places, before = position.places, position.before
        following, is_found = self._step(places, before, character, is_last_line=False)
        self._count += 1
        if self._count > MOST_REMEMBERED:
            for positions in self._known.values():
                positions.clear()
            self._known.clear()
            self._count = 0
        return None if is_found else self._enter(following, character)

    def _enter(self, places: frozenset[int], before: str) -> _Position:
        like = ""
        if self._has_conditions:
            like = next((example for example in LIKE if _is_like(example, before)), before)
        key = (places, like)
        return self._known.setdefault(key, _Position(self, places, like))

    def _step(
        self, places: frozenset[int], before: str, after: str, *, is_last_line: bool
    ) -> tuple[frozenset[int], bool]:
        """Return the places after the next character, and whether the pattern's end was reached
        before it."""
        reached, waiting = set(places), [*places]
        while waiting:
            state = self._states[waiting.pop()]
            if state.accepts or (state.holds and not state.holds(before, after, is_last_line)):
                continue
            fresh = set(state.following) - reached
            reached |= fresh
            waiting += fresh
        following = {self._start}
        for place in reached:
            state = self._states[place]
            if after and state.accepts and state.accepts(after):
                following.update(state.following)
        return frozenset(following), self._end in reached

    def _add(self, *before: int) -> int:
        if len(self._states) >= MOST_STATES:
            raise ValueError(f"{self.pattern!r} is too large: it repeats too much")
        self._states.append(_State())
        for place in before:
            self._states[place].following.append(len(self._states) - 1)
        return len(self._states) - 1

    def _build(self, parsed: Iterable[Any], place: int, flags: int) -> int:
        """Add the states of a part of the pattern behind ``place``, and return its end."""
        for op, argument in parsed:
            if op.name in NO_SUPPORT:
                raise ValueError(
                    f"{self.pattern!r} has {NO_SUPPORT[op.name]}, which is not supported"
                )
            place = self._build_one(op, argument, place, flags)
        return place

    def _build_one(self, op: Any, argument: Any, place: int, flags: int) -> int:
        if op is ops.SUBPATTERN:
            _, added, dropped, inner = argument
            return self._build(inner, place, (flags | added) & ~dropped)
        if op is ops.BRANCH:
            return self._add(*(self._build(part, self._add(place), flags) for part in argument[1]))
        if op is ops.AT:
            state = self._add(place)
            self._states[state].holds = _make_condition(argument, flags)
            return self._add(state)
        if op in {ops.MAX_REPEAT, ops.MIN_REPEAT}:
            minimum, maximum, inner = argument
            return self._repeat(inner, place, flags, minimum=minimum, maximum=maximum)
        state = self._add(place)
        self._states[state].accepts = _make_test(op, argument, flags)
        return self._add(state)

    def _repeat(self, inner: Any, place: int, flags: int, *, minimum: int, maximum: int) -> int:
        for _ in range(minimum):
            place = self._build(inner, place, flags)
        if maximum is ops.MAXREPEAT:
            loop = self._add(place)
            end = self._build(inner, self._add(loop), flags)
            self._states[end].following.append(loop)
            return self._add(loop)
        ends = [place]
        for _ in range(maximum - minimum):
            place = self._build(inner, self._add(place), flags)
            ends.append(place)
        return self._add(*ends)


def _is_like(example: str, character: str) -> bool:
    """Return whether conditions hold behind a character as they do behind ``example``."""
    if character in {"", LINE_END}:
        return False
    is_word, is_ascii = (bool(re.match(r"\w", character, flags)) for flags in (0, re.ASCII))
    return (is_word, is_ascii) == {"a": (True, True), " ": (False, False)}.get(
        example, (True, False)
    )


def _find_literal(parsed: Any) -> str:
    """Return the longest text that each match contains, as far as it is easily seen."""
    if parsed.state.flags & re.IGNORECASE:
        return ""
    letters = "".join(chr(value) if op is ops.LITERAL else "\0" for op, value in parsed)
    return max(letters.split("\0"), key=len)


def _make_condition(at: Any, flags: int) -> Holds:
    """Return the test of ``^``, ``$``, ``\\b`` and their like."""
    is_word = re.compile(r"\w", flags & re.ASCII).match
    if at in {ops.AT_BOUNDARY, ops.AT_NON_BOUNDARY}:
        is_boundary = at is ops.AT_BOUNDARY
        # As in Python before 3.14, an empty text has neither.
        return lambda before, after, _: (
            bool(before or after) and (bool(is_word(before)) != bool(is_word(after))) is is_boundary
        )
    if at is ops.AT_BEGINNING and flags & re.MULTILINE:
        return lambda before, _after, _: before in {"", LINE_END}
    if at in {ops.AT_BEGINNING, ops.AT_BEGINNING_STRING}:
        return lambda before, _after, _: not before
    if at is ops.AT_END and flags & re.MULTILINE:
        return lambda _before, after, _: after in {"", LINE_END}
    if at is ops.AT_END:
        return lambda _before, after, is_last_line: not after or is_last_line
    return lambda _before, after, _: not after


def _make_test(op: Any, argument: Any, flags: int) -> Accepts:
    """Return the test of a part of a pattern that stands for one character."""
    if op is ops.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda character: character != LINE_END)
    is_negated = op is ops.NOT_LITERAL
    rows = argument if op is ops.IN else [(ops.LITERAL, argument)]
    tests = []
    for row, value in rows:
        if row is ops.NEGATE:
            is_negated = True
        else:
            tests.append(re.compile(_spell(row, value), flags & (re.IGNORECASE | re.ASCII)).match)
    return lambda character: any(test(character) for test in tests) is not is_negated


def _spell(row: Any, value: Any) -> str:
    """Return the pattern of a part of a set of characters."""
    if row is ops.CATEGORY:
        return CATEGORIES[value]
    bounds = value if row is ops.RANGE else (value, value)
    return "[{}-{}]".format(*(f"\\U{bound:08x}" for bound in bounds))
