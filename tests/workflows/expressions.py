"""GitHub's expressions, ``${{ }}``: lexer, parser and evaluator.

As https://docs.github.com/actions/reference/workflows-and-actions/expressions describes them, and
as far as the project's workflows use them. Anything else is an error, so that no test passes on a
guess.
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
    r"\s*(?:(?P<number>\d+)|(?P<string>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w-]*)"
    r"|(?P<sign>&&|\|\||==|!=|[!()\[\].,]))"
)
STATUS_FUNCTIONS = frozenset({"success", "failure", "always", "cancelled"})
CONSTANTS = {"true": True, "false": False, "null": None}


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
    return EXPRESSION.sub(lambda match: to_string(evaluate(match[1], context)), text)


def render_value(value: Any, context: Context) -> Any:
    """A YAML value with its expressions evaluated; one that is all expression keeps its type."""
    if isinstance(value, str):
        expression = EXPRESSION.fullmatch(value.strip())
        return evaluate(expression[1], context) if expression else render(value, context)
    if isinstance(value, Mapping):
        return {key: render_value(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [render_value(item, context) for item in value]
    return value


def judge(condition: Any, context: Context) -> bool:
    """An ``if``: success() is asked too unless it asks for the status itself."""
    text = str(condition if condition is not None else "success()").strip()
    expression = EXPRESSION.fullmatch(text)
    text = expression[1] if expression else text
    asks = any(name in STATUS_FUNCTIONS for name in re.findall(r"([a-z]+)\s*\(", text))
    if not asks and context.status != "success":
        return False
    return to_bool(evaluate(text, context))


def evaluate(text: str, context: Context) -> Any:
    """Return the value of one expression. Raises ExpressionError."""
    evaluator = Evaluator(split(text), context)
    value = evaluator.read_or()
    if evaluator.tokens:
        raise ExpressionError(f"{evaluator.tokens[0]!r} is left over in {text!r}")
    return value


def split(text: str) -> list[str]:
    """Return the tokens of an expression. Raises ExpressionError."""
    tokens, at, text = [], 0, text.strip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if not token:
            raise ExpressionError(f"cannot read {text[at:]!r}")
        tokens.append(token[0].strip())
        at = token.end()
    return tokens


class Evaluator:
    """Recursive descent: each rule takes its tokens and returns their value."""

    def __init__(self, tokens: list[str], context: Context) -> None:
        self.tokens, self.context = tokens, context

    def take(self, *expected: str) -> str:
        """Take the next token. Raises ExpressionError if there is none, or not a wanted one."""
        if not self.tokens or (expected and self.tokens[0] not in expected):
            raise ExpressionError(f"{expected or 'a value'} is missing before {self.tokens[:1]}")
        return self.tokens.pop(0)

    def take_if(self, *expected: str) -> str:
        """Take the next token if it is a wanted one, else return ""."""
        return self.take() if self.tokens and self.tokens[0] in expected else ""

    def read_or(self) -> Any:
        value = self.read_and()
        while self.take_if("||"):
            right = self.read_and()
            value = value if to_bool(value) else right
        return value

    def read_and(self) -> Any:
        value = self.read_comparison()
        while self.take_if("&&"):
            right = self.read_comparison()
            value = right if to_bool(value) else value
        return value

    def read_comparison(self) -> Any:
        value = self.read_part()
        while sign := self.take_if("==", "!="):
            value = equal(value, self.read_part()) is (sign == "==")
        return value

    def read_part(self) -> Any:
        if self.take_if("!"):
            return not to_bool(self.read_part())
        value = self.read_primary()
        while sign := self.take_if(".", "["):
            if sign == ".":
                value = look_up(value, self.take())
                continue
            value = look_up(value, self.read_or())
            self.take("]")
        return value

    def read_primary(self) -> Any:
        token = self.take()
        if token == "(":
            value = self.read_or()
            self.take(")")
            return value
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if token.lower() in CONSTANTS:
            return CONSTANTS[token.lower()]
        if self.take_if("("):
            return self.call(token)
        if token not in self.context.values:
            raise ExpressionError(f"there is no context {token!r} here")
        return self.context.values[token]

    def call(self, name: str) -> Any:
        words = []
        while not self.take_if(")"):
            words.append(self.read_or())
            if not self.take_if(","):
                self.take(")")
                break
        if name.lower() in STATUS_FUNCTIONS:
            return name.lower() in {"always", self.context.status}
        if name.lower() == "hashfiles":
            return hash_files(self.context.workspace, words)
        if name.lower() not in FUNCTIONS:
            raise ExpressionError(f"there is no function {name}")
        return FUNCTIONS[name.lower()](*words)


def look_up(container: Any, name: Any) -> Any:
    """Return a property or an element; None, as GitHub does, where there is none."""
    if isinstance(container, Mapping):
        return container.get(
            name, {k.lower(): v for k, v in container.items()}.get(str(name).lower())
        )
    if isinstance(container, list) and isinstance(name, int):
        return container[name] if 0 <= name < len(container) else None
    return None


def to_bool(value: Any) -> bool:
    """Whether a value counts as true."""
    return not (value is None or value is False or value in (0, ""))


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


def format_text(text: str, *words: Any) -> str:
    """``{0}`` and on; doubled braces are braces."""
    return re.sub(r"\{\{|\}\}|\{(\d+)\}", lambda m: _field(m, words), text)


def _field(match: re.Match[str], words: Sequence[Any]) -> str:
    if match[1] is None:
        return match[0][0]
    if int(match[1]) >= len(words):
        raise ExpressionError(f"format has no argument {match[1]}")
    return to_string(words[int(match[1])])


def from_json(text: Any) -> Any:
    """Raises ExpressionError for what is not JSON, as GitHub fails the job."""
    try:
        return json.loads(to_string(text))
    except json.JSONDecodeError as error:
        raise ExpressionError(f"fromJSON: {error}") from error


def hash_files(workspace: Path, patterns: Sequence[str]) -> str:
    """The SHA-256 of the files' SHA-256, '' without one."""
    files = sorted(
        {path for pattern in patterns for path in workspace.glob(pattern) if path.is_file()}
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest() if files else ""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "format": format_text,
    "tojson": lambda value: json.dumps(value, indent=2),
    "fromjson": from_json,
}
