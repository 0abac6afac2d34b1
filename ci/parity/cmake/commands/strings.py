"""string() and math(): what builds names is computed, the rest leaves an unknown value."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.regex import UnknownMatchError, find_all, replace, search
from ci.parity.cmake.state import Call
from ci.parity.cmake.values import is_unknown, strip_genex, unknown

EDITS: dict[str, Callable[[str], str]] = {
    "TOLOWER": str.lower,
    "TOUPPER": str.upper,
    "STRIP": str.strip,
    "LENGTH": lambda text: str(len(text.encode())),
    "GENEX_STRIP": strip_genex,
    "MAKE_C_IDENTIFIER": lambda text: re.sub(
        r"^(?=\d)", "_", re.sub(r"\W", "_", text, flags=re.ASCII)
    ),
}
# Where the output variable stands when a sub-command is not computed; the last word else.
OUTPUTS = {"JSON": 1, "CONFIGURE": 2, "TIMESTAMP": 1, "UUID": 1, "RANDOM": -1, "FIND": 3}
HASHES = ("MD5", "SHA")


def edit_string(run: Interpreter, call: Call) -> None:
    words = [run.expand(argument)[0] for argument in call.command.arguments]
    if len(words) < 2:
        return
    action, rest = words[0], words[1:]
    if action in {"APPEND", "PREPEND"}:
        old, extra = run.get(rest[0]), "".join(rest[1:])
        run.set(rest[0], (old + extra if action == "APPEND" else extra + old,))
    elif action == "CONCAT":
        run.set(rest[0], ("".join(rest[1:]),))
    elif action == "JOIN" and len(rest) > 1:
        run.set(rest[1], (rest[0].join(rest[2:]),))
    elif action == "REPLACE" and len(rest) > 2:
        run.set(rest[2], ("".join(rest[3:]).replace(rest[0], rest[1]) if rest[0] else rest[3],))
    elif action == "REGEX" and len(rest) > 2:
        use_regex(run, rest[0], rest[1:])
    else:
        at = 1 if action.startswith(HASHES) else OUTPUTS.get(action, -1)
        target = words[at] if len(words) > at else ""
        name, value = compute(action, rest) or (target, unknown(f"string({action})")[0])
        run.set(name, (value,))


def compute(action: str, rest: list[str]) -> tuple[str, str] | None:
    """The variable and the value of a sub-command of known text, or None."""
    known = not any(map(is_unknown, rest))
    if action in EDITS and len(rest) == 2 and known:
        return rest[1], EDITS[action](rest[0])
    if action == "SUBSTRING" and len(rest) == 4 and known:
        begin, size = int(rest[1]), int(rest[2])
        return rest[3], rest[0][begin:] if size < 0 else rest[0][begin : begin + size]
    if action == "FIND" and len(rest) > 2 and known:
        at = rest[0].rfind(rest[1]) if rest[3:] == ["REVERSE"] else rest[0].find(rest[1])
        return rest[2], str(at)
    return None


def use_regex(run: Interpreter, action: str, rest: list[str]) -> None:
    """string(REGEX MATCH, MATCHALL, REPLACE): also sets CMAKE_MATCH_n."""
    target = rest[2] if action == "REPLACE" and len(rest) > 2 else rest[1]
    text = "".join(rest[3 if action == "REPLACE" else 2 :])
    try:
        found = list(find_all(rest[0], text)) if action != "MATCH" else [search(rest[0], text)]
        matches = [match for match in found if match is not None]
        run.note_match(matches[-1] if matches else None)
        if action == "REPLACE":
            run.set(target, (replace(rest[0], rest[1], text),))
        else:
            run.set(target, (";".join(match.group() for match in matches),))
    except UnknownMatchError:
        run.note_unknown_match()
        run.set(target, unknown("string(REGEX)"))


OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if left * right >= 0 else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
FORMULA = re.compile(r"[\s0-9a-fA-FxX()+*/%|&^-]{1,200}")


def do_math(run: Interpreter, call: Call) -> None:
    words = call.words
    if len(words) < 3:
        return
    value = unknown("math")
    if FORMULA.fullmatch(words[2]):
        try:
            number = evaluate(ast.parse(words[2].strip(), mode="eval").body)
            value = (hex(number) if "HEXADECIMAL" in words else str(number),)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError):
            pass  # it stays unknown
    run.set(words[1], value)


def evaluate(node: ast.expr) -> int:
    """A formula of whole numbers. Raises ValueError, ArithmeticError."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
    raise ValueError("no formula of whole numbers")
