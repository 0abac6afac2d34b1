"""Evaluate if(). The answer is True, False, or None if it depends on the configuration."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ci.parity.cmake.state import PLATFORM_NAMES
from ci.parity.cmake.values import UnknownMatchError, Value, is_unknown, search, split_list
from provisioning.versions import parse_version

Answer: TypeAlias = "bool | None"
FALSE = {"", "0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND"}
TRUE = {"1", "ON", "YES", "TRUE", "Y"}
# Not \d: numbers of other scripts are no numbers to if().
NONZERO = re.compile(r"-?0*[1-9][0-9]*")
# Tests with one argument. Those in the second row depend on the computer.
UNARY = {"TARGET", "DEFINED", "EXISTS", "COMMAND", "POLICY", "TEST"}
UNARY_FILE = {"IS_DIRECTORY", "IS_SYMLINK", "IS_ABSOLUTE", "IS_READABLE"}
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "EQUAL": operator.eq,
    "LESS": operator.lt,
    "GREATER": operator.gt,
    "LESS_EQUAL": operator.le,
    "GREATER_EQUAL": operator.ge,
}
# The text before the order states what is compared: strings, versions or numbers.
CONVERSIONS: dict[str, Callable[[str], Any]] = {"STR": str, "VERSION_": parse_version, "": int}
COMPARISON = re.compile(rf"(?P<what>STR|VERSION_|)(?P<order>{'|'.join(ORDERS)})")
OTHERS = {"MATCHES", "IN_LIST", "IS_NEWER_THAN", "PATH_EQUAL"}


@dataclass(frozen=True)
class Operand:
    """An expanded argument of if(): its possible values, and whether it was quoted."""

    values: Value
    quoted: bool

    @property
    def word(self) -> str:
        """The only value of the argument, which may be a keyword. It is "" if the argument has
        several values, or if it is quoted and therefore not a keyword.
        """
        return "" if self.quoted or len(self.values) != 1 else self.values[0]


@dataclass(frozen=True)
class Scope:
    """The functions that conditions call to look up variables, targets and paths."""

    variable: Callable[[str], Value | None]
    is_open: Callable[[str], bool]
    has_target: Callable[[str], bool]
    has_path: Callable[[str], bool]


def decide(operands: Sequence[Operand], scope: Scope) -> Answer:
    """Evaluate a condition. The answer is None if the condition cannot be parsed."""
    tokens = list(reversed(operands))
    try:
        answer = _join(tokens, scope)
    except IndexError:
        return None
    return None if tokens else answer


def _join(tokens: list[Operand], scope: Scope, word: str = "OR") -> Answer:
    """Evaluate the terms at the start of a condition that ``word`` (OR or AND) joins, and remove
    them. The first token of the condition is the last one here.
    """
    answers = []
    while True:
        answers.append(_join(tokens, scope, "AND") if word == "OR" else _not(tokens, scope))
        if not tokens or tokens[-1].word != word:
            break
        tokens.pop()
    decisive = word == "OR"
    return decisive if decisive in answers else None if None in answers else not decisive


def _not(tokens: list[Operand], scope: Scope) -> Answer:
    if tokens[-1].word != "NOT":
        return _primary(tokens, scope)
    tokens.pop()
    answer = _not(tokens, scope)
    return None if answer is None else not answer


def _primary(tokens: list[Operand], scope: Scope) -> Answer:
    head = tokens.pop()
    if head.word == "(":
        answer = _join(tokens, scope)
        del tokens[-1:]
        return answer
    word = tokens[-1].word if tokens else ""
    is_compared = word in OTHERS or bool(COMPARISON.fullmatch(word))
    if head.word in UNARY and tokens and not is_compared:
        return _unary(head.word, tokens.pop(), scope)
    if head.word in UNARY_FILE:
        del tokens[-1:]
        return None
    if is_compared and len(tokens) > 1:
        return _compare(head, tokens.pop().word, tokens.pop(), scope)
    return _agree(_truth(value, head.quoted, scope) for value in head.values)


def _agree(answers: Iterable[Answer]) -> Answer:
    """Return the answer that all alternatives of an argument have, or None if they differ."""
    distinct = set(answers)
    return distinct.pop() if len(distinct) == 1 else None


def _truth(text: str, quoted: bool, scope: Scope) -> Answer:
    """Evaluate a single argument: a constant such as ON, or the name of a variable."""
    constant = constant_truth(text)
    if constant is not None:
        return constant
    if is_unknown(text) or scope.is_open(text):
        return None
    if quoted:
        return False
    values = scope.variable(text) or ()
    return _agree(map(_is_not_false, values))


def _is_not_false(value: str) -> Answer:
    return None if is_unknown(value) else constant_truth(value) is not False


def constant_truth(text: str) -> Answer:
    """Return whether a number, or one of CMake's constants such as ON, is true. Return None for any
    other text.
    """
    upper = text.upper()
    if upper in FALSE or upper.endswith("-NOTFOUND"):
        return False
    if upper in TRUE or NONZERO.fullmatch(text):
        return True
    return None


def _unary(word: str, token: Operand, scope: Scope) -> Answer:
    """Evaluate a test with one argument, such as TARGET or EXISTS. The answer is True or None.

    It is never False. For example, a target that this reader has not seen may come from a package.
    """

    def is_set(name: str) -> bool:
        value = scope.variable(name)
        # A platform variable that is not set has an empty value here, but is not defined.
        is_empty = value is None or (name in PLATFORM_NAMES and value == ("",))
        return not is_empty and not scope.is_open(name)

    tests = {"TARGET": scope.has_target, "DEFINED": is_set, "EXISTS": scope.has_path}
    return True if word in tests and all(map(tests[word], token.values)) else None


def _compare(left: Operand, word: str, right: Operand, scope: Scope) -> Answer:
    # As in CMake, the left side of IN_LIST is the value of a variable, too, if one has its name.
    firsts = _values(left, scope)
    is_open = any(map(scope.is_open, (*left.values, *right.values)))
    if word == "IN_LIST":
        lists = scope.variable(right.word) if right.word else None
        if lists is None or is_open or any(map(is_unknown, lists + firsts)):
            return None
        return _agree(first in split_list(value) for value in lists for first in firsts)
    if word == "MATCHES":
        answers = {_match(first, second) for first in firsts for second in right.values}
    else:
        answers = {_order(a, word, b) for a in firsts for b in _values(right, scope)}
    return None if is_open else _agree(answers)


def _values(token: Operand, scope: Scope) -> Value:
    """Return the values of the variables that an argument names. An alternative that names no
    variable stands for itself, and so does each one of a quoted argument.
    """
    if token.quoted:
        return token.values
    return tuple(
        alternative for value in token.values for alternative in scope.variable(value) or (value,)
    )


def _order(first: str, word: str, second: str) -> Answer:
    comparison = COMPARISON.fullmatch(word)
    if comparison is None or is_unknown(first) or is_unknown(second):
        return None
    convert = CONVERSIONS[comparison["what"]]
    try:
        return ORDERS[comparison["order"]](convert(first), convert(second))
    except ValueError:  # it is not a number
        return False


def _match(text: str, pattern: str) -> Answer:
    try:
        return search(pattern, text) is not None
    except UnknownMatchError:
        return None
