"""Evaluate list() and string(), for each alternative of their values.

The sub-commands that ExecuTorch's list files use are computed. The result of all others is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice, product

from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.regex import UnknownMatchError, find_all, replace, search
from ci.parity.cmake.state import Call
from ci.parity.cmake.values import (
    MOST_ALTERNATIVES,
    Value,
    is_unknown,
    split_list,
    split_values,
    unknown,
)

NUMBER = re.compile(r"-?\d+")


def edit_list(run: Interpreter, call: Call) -> None:
    """Evaluate list(). The variable that an unsupported sub-command sets becomes unknown."""
    words = call.words
    if len(words) < 2:
        return
    action, name, rest = words[0], words[1], words[2:]
    values = run.scope.get(name) or ("",)
    if action in READS:
        if rest:
            answers = (READS[action](split_list(value), rest[:-1]) for value in values)
            run.set(rest[-1], tuple(dict.fromkeys(answers)))
    elif action == "TRANSFORM":
        _transform(run, name, rest)
    elif action in LIST_EDITS:
        edited = (";".join(LIST_EDITS[action](split_list(value), rest)) for value in values)
        run.set(name, tuple(dict.fromkeys(edited)))
    else:
        for changed in (name, *rest):
            run.set(changed, unknown(f"list({action})"))


def _get(items: list[str], words: list[str]) -> str:
    numbers = [int(word) for word in words if NUMBER.fullmatch(word)]
    inside = all(-len(items) <= number < len(items) for number in numbers)
    if not numbers or len(numbers) < len(words) or not inside:
        return unknown("list(GET)")[0]
    return ";".join(items[number] for number in numbers)


def _find(items: list[str], words: list[str]) -> str:
    if any(map(is_unknown, items)):
        return unknown("list(FIND)")[0]
    return str(items.index(words[0]) if words and words[0] in items else -1)


def _length(items: list[str], _: list[str]) -> str:
    return unknown("list(LENGTH)")[0] if any(map(is_unknown, items)) else str(len(items))


READS: dict[str, Callable[[list[str], list[str]], str]] = {
    "LENGTH": _length,
    "GET": _get,
    "JOIN": lambda items, words: (words[0] if words else "").join(items),
    "FIND": _find,
}


def _filter(items: list[str], rest: list[str]) -> list[str]:
    if len(rest) < 3 or rest[1] != "REGEX":
        return items
    keep = rest[0] == "INCLUDE"
    return [item for item in items if _fits(rest[2], item, keep) is keep]


def _fits(pattern: str, item: str, otherwise: bool) -> bool:
    try:
        return search(pattern, item) is not None
    except UnknownMatchError:
        return otherwise  # if unknown, the item is kept


def _insert(items: list[str], rest: list[str]) -> list[str]:
    if not rest or not NUMBER.fullmatch(rest[0]):
        return items
    at = int(rest[0])
    return items[:at] + rest[1:] + items[at:]


def _sort(items: list[str], rest: list[str]) -> list[str]:
    return list(unknown("list(SORT)")) if rest else sorted(items)


LIST_EDITS: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "APPEND": lambda items, rest: items + rest,
    "PREPEND": lambda items, rest: rest + items,
    "REMOVE_ITEM": lambda items, rest: [item for item in items if item not in rest],
    "REMOVE_DUPLICATES": lambda items, _: list(dict.fromkeys(items)),
    "SORT": _sort,
    "INSERT": _insert,
    "FILTER": _filter,
}


def _transform(run: Interpreter, name: str, rest: list[str]) -> None:
    """Evaluate list(TRANSFORM) with PREPEND or APPEND. With other actions, or with selectors such
    as AT, the result is unknown.
    """
    target = name
    if len(rest) > 2 and rest[-2] == "OUTPUT_VARIABLE":
        target, rest = rest[-1], rest[:-2]
    if len(rest) != 2 or rest[0] not in {"PREPEND", "APPEND"}:
        run.set(target, unknown("list(TRANSFORM)"))
        return
    before, after = (rest[1], "") if rest[0] == "PREPEND" else ("", rest[1])
    lists = [split_list(value) for value in run.scope.get(name) or ("",)]
    results = (";".join(before + item + after for item in items) for items in lists)
    run.set(target, tuple(dict.fromkeys(results)))


STRING_EDITS: dict[str, Callable[[str], str]] = {
    "TOLOWER": str.lower,
    "TOUPPER": str.upper,
    "STRIP": str.strip,
    "LENGTH": lambda text: str(len(text.encode())),
}
# The position of the output variable of each sub-command that is not computed. By default, it is
# the last argument.
OUTPUTS = {"JSON": 1, "CONFIGURE": 2, "TIMESTAMP": 1, "UUID": 1, "RANDOM": -1, "FIND": 3}
HASHES = ("MD5", "SHA")


def edit_string(run: Interpreter, call: Call) -> None:
    edit_each(run, call, _edit_words)


def edit_each(run: Interpreter, call: Call, edit: Callable[[Interpreter, list[str]], None]) -> None:
    """Evaluate a command with ``edit``, which sets variables, for each combination of the
    alternatives of its arguments, up to MOST_ALTERNATIVES. The results become alternatives.
    """
    scope, arguments = run.scope, call.command.arguments
    found: dict[str, Value] = {}
    for values in islice(product(*map(run.expand, arguments)), MOST_ALTERNATIVES):
        parts = [
            [value] if argument.quoted else split_values((value,))
            for argument, value in zip(arguments, values, strict=True)
        ]
        run.scope = scope.new_child()
        edit(run, [word for part in parts for word in part])
        for name, value in run.scope.maps[0].items():
            both = (*found.get(name, ()), *(value or ()))
            found[name] = tuple(dict.fromkeys(both))[:MOST_ALTERNATIVES]
    run.scope = scope
    scope.maps[0].update(found)


def _edit_words(run: Interpreter, words: list[str]) -> None:
    if len(words) < 2:
        return
    action, rest = words[0], words[1:]
    if action in {"APPEND", "PREPEND"}:
        extra = "".join(rest[1:])
        before, after = ("", extra) if action == "APPEND" else (extra, "")
        run.set(rest[0], tuple(before + old + after for old in run.lookup("", rest[0])))
    elif action == "CONCAT":
        run.set(rest[0], ("".join(rest[1:]),))
    elif action == "JOIN" and len(rest) > 1:
        run.set(rest[1], (rest[0].join(rest[2:]),))
    elif action == "REPLACE" and len(rest) > 2:
        text = "".join(rest[3:])
        run.set(rest[2], (text.replace(rest[0], rest[1]) if rest[0] else text,))
    elif action == "REGEX" and len(rest) > 2:
        use_regex(run, rest[0], rest[1:])
    else:
        at = 1 if action.startswith(HASHES) else OUTPUTS.get(action, -1)
        target = words[at] if len(words) > at else ""
        name, value = compute(action, rest) or (target, unknown(f"string({action})")[0])
        run.set(name, (value,))


def compute(action: str, rest: list[str]) -> tuple[str, str] | None:
    """Return the output variable of a string() sub-command and its value, or None if it is not
    supported or an argument is unknown.
    """
    known = not any(map(is_unknown, rest))
    if action in STRING_EDITS and len(rest) == 2 and known:
        return rest[1], STRING_EDITS[action](rest[0])
    if action == "FIND" and len(rest) > 2 and known:
        at = rest[0].rfind(rest[1]) if rest[3:] == ["REVERSE"] else rest[0].find(rest[1])
        return rest[2], str(at)
    return None


def use_regex(run: Interpreter, action: str, rest: list[str]) -> None:
    """Evaluate string(REGEX) with MATCH, MATCHALL or REPLACE, which also sets CMAKE_MATCH_n."""
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
