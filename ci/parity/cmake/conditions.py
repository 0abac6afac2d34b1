"""Evaluate if(). The answer is yes, no, or both if it depends on the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ci.parity.cmake.regex import UnknownMatchError, search
from ci.parity.cmake.state import PLATFORM_NAMES
from ci.parity.cmake.values import Value, is_unknown, split_list
from provisioning.versions import parse_version

FALSE = {"", "0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND"}
TRUE = {"1", "ON", "YES", "TRUE", "Y"}
UNARY = {"TARGET", "DEFINED", "EXISTS", "COMMAND", "POLICY", "TEST"}
UNARY_FILE = {"IS_DIRECTORY", "IS_SYMLINK", "IS_ABSOLUTE", "IS_READABLE"}
VERSION = re.compile(r"VERSION_(LESS|GREATER|EQUAL|LESS_EQUAL|GREATER_EQUAL)")
COMPARISONS = {
    "STREQUAL", "STRLESS", "STRGREATER", "STRLESS_EQUAL", "STRGREATER_EQUAL", "MATCHES",
    "EQUAL", "LESS", "GREATER", "LESS_EQUAL", "GREATER_EQUAL", "IN_LIST", "IS_NEWER_THAN",
    "PATH_EQUAL",
}  # fmt: skip


class Answer(Enum):
    """The value of a condition."""

    YES = "yes"
    NO = "no"
    BOTH = "both"


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
    """The functions that conditions call to look up variables, targets and paths, and to record
    matches.
    """

    variable: Callable[[str], Value | None]
    is_open: Callable[[str], bool]
    has_target: Callable[[str], bool]
    has_path: Callable[[str], bool]
    note_match: Callable[[re.Match[str] | None], None]
    note_unknown_match: Callable[[], None]


def decide(operands: Sequence[Operand], scope: Scope) -> Answer:
    """Evaluate a condition. The answer is BOTH if the condition cannot be parsed."""
    try:
        answer, rest = _or(list(operands), scope)
    except IndexError:
        return Answer.BOTH
    return Answer.BOTH if rest else answer


def _or(tokens: list[Operand], scope: Scope) -> tuple[Answer, list[Operand]]:
    answer, tokens = _and(tokens, scope)
    while tokens and tokens[0].word == "OR":
        other, tokens = _and(tokens[1:], scope)
        answer = either(answer, other)
    return answer, tokens


def _and(tokens: list[Operand], scope: Scope) -> tuple[Answer, list[Operand]]:
    answer, tokens = _not(tokens, scope)
    while tokens and tokens[0].word == "AND":
        other, tokens = _not(tokens[1:], scope)
        answer = negate(either(negate(answer), negate(other)))
    return answer, tokens


def _not(tokens: list[Operand], scope: Scope) -> tuple[Answer, list[Operand]]:
    if tokens[0].word == "NOT":
        answer, rest = _not(tokens[1:], scope)
        return negate(answer), rest
    return _primary(tokens, scope)


def _primary(tokens: list[Operand], scope: Scope) -> tuple[Answer, list[Operand]]:
    head = tokens[0]
    if head.word == "(":
        answer, rest = _or(tokens[1:], scope)
        return answer, rest[1:]
    if head.word in UNARY and len(tokens) > 1 and not _is_operator(tokens[1]):
        return _unary(head.word, tokens[1], scope), tokens[2:]
    if head.word in UNARY_FILE:
        return Answer.BOTH, tokens[2:]
    if len(tokens) > 2 and _is_operator(tokens[1]):
        return _compare(head, tokens[1].word, tokens[2], scope), tokens[3:]
    return truth(head, scope), tokens[1:]


def _is_operator(token: Operand) -> bool:
    return token.word in COMPARISONS or bool(VERSION.fullmatch(token.word))


def either(left: Answer, right: Answer) -> Answer:
    if Answer.YES in (left, right):
        return Answer.YES
    return Answer.BOTH if Answer.BOTH in (left, right) else Answer.NO


def negate(answer: Answer) -> Answer:
    return {Answer.YES: Answer.NO, Answer.NO: Answer.YES}.get(answer, Answer.BOTH)


def truth(token: Operand, scope: Scope) -> Answer:
    """Evaluate a single argument of a condition: a constant such as ON, or the name of a
    variable.
    """
    answers = {_truth_of(value, token.quoted, scope) for value in token.values}
    return answers.pop() if len(answers) == 1 else Answer.BOTH


def _truth_of(text: str, quoted: bool, scope: Scope) -> Answer:
    constant = constant_truth(text)
    if constant is not None:
        return constant
    if is_unknown(text) or scope.is_open(text):
        return Answer.BOTH
    if quoted:
        return Answer.NO
    answers = set()
    for value in scope.variable(text) or ():
        is_false = constant_truth(value) is Answer.NO
        answers.add(Answer.BOTH if is_unknown(value) else Answer.NO if is_false else Answer.YES)
    return answers.pop() if len(answers) == 1 else Answer.BOTH


def constant_truth(text: str) -> Answer | None:
    """Return YES or NO for a number or one of CMake's constants, such as ON. Return None for any
    other text.
    """
    upper = text.upper()
    if upper in FALSE or upper.endswith("-NOTFOUND"):
        return Answer.NO
    if upper in TRUE or (text.lstrip("-").isdigit() and int(text) != 0):
        return Answer.YES
    return None


def _unary(word: str, token: Operand, scope: Scope) -> Answer:
    """Evaluate a test with one argument, such as TARGET or EXISTS. The answer is YES or BOTH.

    It is never NO. For example, a target that this reader has not seen may come from a package.
    """
    tests = {
        "TARGET": scope.has_target,
        "DEFINED": lambda name: _is_set(name, scope) and not scope.is_open(name),
        "EXISTS": scope.has_path,
    }
    is_true = word in tests and all(map(tests[word], token.values))
    return Answer.YES if is_true else Answer.BOTH


def _is_set(name: str, scope: Scope) -> bool:
    """Return whether a variable has a value. A platform variable that is empty has none."""
    value = scope.variable(name)
    return value is not None and not (name in PLATFORM_NAMES and value == ("",))


def _compare(left: Operand, operator: str, right: Operand, scope: Scope) -> Answer:
    if operator == "IN_LIST":
        return _in_list(left, right, scope)
    firsts = _values(left, scope)
    if operator == "MATCHES":
        answers = {_match(first, second, scope) for first in firsts for second in right.values}
        if len(answers) > 1 or len(firsts) > 1:
            scope.note_unknown_match()
    else:
        seconds = _values(right, scope)
        answers = {_compare_one(one, operator, two) for one in firsts for two in seconds}
    if _is_open(left, scope) or _is_open(right, scope):
        return Answer.BOTH
    return answers.pop() if len(answers) == 1 else Answer.BOTH


def _is_open(token: Operand, scope: Scope) -> bool:
    return any(scope.is_open(value) for value in token.values)


def _values(token: Operand, scope: Scope) -> Value:
    """Return the values of the variables that an argument names. An alternative that names no
    variable stands for itself, and so does each one of a quoted argument.
    """
    if token.quoted:
        return token.values
    return tuple(one for value in token.values for one in scope.variable(value) or (value,))


def _compare_one(first: str, operator: str, second: str) -> Answer:
    if is_unknown(first) or is_unknown(second):
        return Answer.BOTH
    if operator.startswith("STR"):
        return _order(first, operator.removeprefix("STR"), second)
    if operator.startswith("VERSION_"):
        left, right = parse_version(first), parse_version(second)
        return _order(left, operator.removeprefix("VERSION_"), right)
    if operator in {"EQUAL", "LESS", "GREATER", "LESS_EQUAL", "GREATER_EQUAL"}:
        try:
            return _order(int(first), operator, int(second))
        except ValueError:
            return Answer.NO
    return Answer.BOTH


def _match(text: str, pattern: str, scope: Scope) -> Answer:
    try:
        match = search(pattern, text)
    except UnknownMatchError:
        scope.note_unknown_match()
        return Answer.BOTH
    scope.note_match(match)
    return Answer.YES if match else Answer.NO


def _order(left: Any, operator: str, right: Any) -> Answer:
    table = {
        "EQUAL": left == right,
        "LESS": left < right,
        "GREATER": left > right,
        "LESS_EQUAL": left <= right,
        "GREATER_EQUAL": left >= right,
    }
    return Answer.YES if table[operator] else Answer.NO


def _in_list(left: Operand, right: Operand, scope: Scope) -> Answer:
    lists, words = scope.variable(right.word) if right.word else None, _values(left, scope)
    if lists is None or any(map(is_unknown, lists + words)):
        return Answer.BOTH
    inside = {word in split_list(value) for value in lists for word in words}
    if len(inside) > 1 or _is_open(left, scope) or scope.is_open(right.word):
        return Answer.BOTH
    return Answer.YES if inside.pop() else Answer.NO
