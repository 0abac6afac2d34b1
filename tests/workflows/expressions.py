"""GitHub's expressions, ``${{ }}``: lexer, parser and evaluator.

As https://docs.github.com/actions/reference/workflows-and-actions/expressions describes them. What
is not known is an error, so that no test passes on a guess.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXPRESSION = re.compile(r"\$\{\{((?:[^'}]|'(?:[^']|'')*'|\}(?!\}))*)\}\}")
TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))"
    r"|(?P<string>'(?:[^']|'')*')"
    r"|(?P<name>[A-Za-z_][\w-]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>()\[\].,*]))"
)
STATUS_FUNCTIONS = frozenset({"success", "failure", "always", "cancelled"})
CONSTANTS = {"true": True, "false": False, "null": None, "nan": math.nan, "infinity": math.inf}


class ExpressionError(Exception):
    """An expression that GitHub would refuse, or that this evaluator does not know."""


@dataclass(frozen=True)
class Context:
    """What names stand for, and the functions that ask about the job."""

    values: Mapping[str, Any]
    status: str = "success"
    workspace: Path = field(default_factory=Path)


def render(text: str, context: Context) -> str:
    """``text`` with every expression replaced by its value as a string."""
    return EXPRESSION.sub(lambda found: to_string(evaluate(found[1], context)), text)


def render_value(value: Any, context: Context) -> Any:
    """A YAML value with its expressions evaluated; one that is all expression keeps its type."""
    if isinstance(value, str):
        whole = EXPRESSION.fullmatch(value.strip())
        return evaluate(whole[1], context) if whole else render(value, context)
    if isinstance(value, Mapping):
        return {key: render_value(one, context) for key, one in value.items()}
    if isinstance(value, list):
        return [render_value(one, context) for one in value]
    return value


def judge(condition: Any, context: Context) -> bool:
    """An ``if``: success() is asked too unless it asks for the status itself."""
    text = str(condition if condition is not None else "success()").strip()
    whole = EXPRESSION.fullmatch(text)
    text = whole[1] if whole else text
    asks = any(name in STATUS_FUNCTIONS for name in re.findall(r"([a-z]+)\s*\(", text))
    if not asks and context.status != "success":
        return False
    return to_bool(evaluate(text, context))


def evaluate(text: str, context: Context) -> Any:
    """The value of one expression. Raises ExpressionError."""
    parser = Parser(split(text), context)
    value = parser.parse_or()
    if parser.peek():
        raise ExpressionError(f"{parser.peek()!r} is left over in {text!r}")
    return value()


def split(text: str) -> list[str]:
    """The tokens of an expression. Raises ExpressionError."""
    tokens, at, text = [], 0, text.strip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            raise ExpressionError(f"cannot read {text[at:]!r}")
        tokens.append(found[0].strip())
        at = found.end()
    return tokens


Thunk = Callable[[], Any]


class Parser:
    """Recursive descent; every rule gives a function, so that && and || can stop early."""

    def __init__(self, tokens: Sequence[str], context: Context) -> None:
        self.tokens = list(tokens)
        self.context = context

    def peek(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def take(self, wanted: str = "") -> str:
        if not self.tokens or (wanted and self.tokens[0] != wanted):
            raise ExpressionError(f"{wanted or 'a value'} is missing before {self.peek()!r}")
        return self.tokens.pop(0)

    def parse_or(self) -> Thunk:
        left = self.parse_and()
        while self.peek() == "||":
            self.take()
            left = _either(left, self.parse_and())
        return left

    def parse_and(self) -> Thunk:
        left = self.parse_compare()
        while self.peek() == "&&":
            self.take()
            left = _both(left, self.parse_compare())
        return left

    def parse_compare(self) -> Thunk:
        left = self.parse_not()
        while self.peek() in COMPARISONS:
            left = _compare(COMPARISONS[self.take()], left, self.parse_not())
        return left

    def parse_not(self) -> Thunk:
        if self.peek() == "!":
            self.take()
            inner = self.parse_not()
            return lambda: not to_bool(inner())
        return self.parse_postfix()

    def parse_postfix(self) -> Thunk:
        value = self.parse_primary()
        while self.peek() in {".", "["}:
            if self.take() == ".":
                name = self.take()
                value = _look_up(value, lambda name=name: name)
            else:
                star = self.peek() == "*"
                index = (lambda: "*") if star and self.take() else self.parse_or()
                self.take("]")
                value = _look_up(value, index)
        return value

    def parse_primary(self) -> Thunk:
        token = self.take()
        if token == "(":
            value = self.parse_or()
            self.take(")")
            return value
        if token.startswith("'"):
            return lambda: token[1:-1].replace("''", "'")
        if re.match(r"-?\d", token):
            return lambda: _plain(float(int(token, 16)) if "0x" in token else float(token))
        if token.lower() in CONSTANTS:
            return lambda: CONSTANTS[token.lower()]
        if self.peek() == "(":
            return self.parse_call(token)
        if token not in self.context.values:
            raise ExpressionError(f"there is no context {token!r} here")
        return lambda: self.context.values[token]

    def parse_call(self, name: str) -> Thunk:
        self.take("(")
        words: list[Thunk] = []
        while self.peek() != ")":
            words.append(self.parse_or())
            if self.peek() == ",":
                self.take()
        self.take(")")
        lower = name.lower()
        if lower in STATUS_FUNCTIONS:
            return lambda: _ask(lower, self.context.status)
        if lower == "hashfiles":
            return lambda: hash_files(self.context.workspace, [word() for word in words])
        if lower not in FUNCTIONS:
            raise ExpressionError(f"there is no function {name}")
        return lambda: FUNCTIONS[lower](*[word() for word in words])


def _either(left: Thunk, right: Thunk) -> Thunk:
    def run() -> Any:
        value = left()
        return value if to_bool(value) else right()

    return run


def _both(left: Thunk, right: Thunk) -> Thunk:
    def run() -> Any:
        value = left()
        return right() if to_bool(value) else value

    return run


def _compare(ask: Callable[[Any, Any], bool], left: Thunk, right: Thunk) -> Thunk:
    return lambda: ask(left(), right())


def _look_up(value: Thunk, key: Thunk) -> Thunk:
    def run() -> Any:
        found, name = value(), key()
        if name == "*":
            return list(found.values() if isinstance(found, Mapping) else found or [])
        if isinstance(found, Mapping):
            return found.get(name, {k.lower(): v for k, v in found.items()}.get(str(name).lower()))
        if isinstance(found, list) and isinstance(name, str):
            return [one.get(name) for one in found if isinstance(one, Mapping) and name in one]
        if isinstance(found, list):
            return found[int(name)] if 0 <= name < len(found) else None
        return None

    return run


def _ask(name: str, status: str) -> bool:
    return name in {"always", status}


def _plain(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def to_bool(value: Any) -> bool:
    """Whether a value counts as true."""
    return not (value is None or value is False or value in (0, "") or value != value)


def to_string(value: Any) -> str:
    """A value as it is put into text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, (Mapping, list)):
        return "Object" if isinstance(value, Mapping) else "Array"
    return str(value)


def to_number(value: Any) -> float:
    """A value for a comparison of two kinds."""
    if value is None:
        return 0.0
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value.strip() or 0)
        except ValueError:
            return math.nan
    return math.nan


def equal(left: Any, right: Any) -> bool:
    """Strings without regard to case, two kinds as numbers."""
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if isinstance(left, (Mapping, list)) or isinstance(right, (Mapping, list)):
        return left is right
    return to_number(left) == to_number(right)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "<": lambda left, right: to_number(left) < to_number(right),
    "<=": lambda left, right: to_number(left) <= to_number(right),
    ">": lambda left, right: to_number(left) > to_number(right),
    ">=": lambda left, right: to_number(left) >= to_number(right),
}


def contains(where: Any, what: Any) -> bool:
    """Of an array an element, of a string a part."""
    if isinstance(where, list):
        return any(equal(one, what) for one in where)
    return to_string(what).lower() in to_string(where).lower()


def format_text(text: str, *words: Any) -> str:
    """``{0}`` and on; doubled braces are braces."""
    return re.sub(r"\{\{|\}\}|\{(\d+)\}", lambda m: _field(m, words), text)


def _field(found: re.Match[str], words: Sequence[Any]) -> str:
    if found[1] is None:
        return found[0][0]
    if int(found[1]) >= len(words):
        raise ExpressionError(f"format has no argument {found[1]}")
    return to_string(words[int(found[1])])


def from_json(text: Any) -> Any:
    """Raises ExpressionError for what is not JSON, as GitHub fails the job."""
    try:
        return json.loads(to_string(text))
    except json.JSONDecodeError as error:
        raise ExpressionError(f"fromJSON: {error}") from error


def hash_files(workspace: Path, patterns: Sequence[str]) -> str:
    """The SHA-256 of the files' SHA-256, '' without one."""
    files = sorted({path for one in patterns for path in workspace.glob(one) if path.is_file()})
    whole = hashlib.sha256()
    for path in files:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest() if files else ""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "contains": contains,
    "startswith": lambda a, b: to_string(a).lower().startswith(to_string(b).lower()),
    "endswith": lambda a, b: to_string(a).lower().endswith(to_string(b).lower()),
    "format": format_text,
    "join": lambda items, by=",": to_string(by).join(
        map(to_string, items if isinstance(items, list) else [items])
    ),
    "tojson": lambda value: json.dumps(value, indent=2),
    "fromjson": from_json,
}
