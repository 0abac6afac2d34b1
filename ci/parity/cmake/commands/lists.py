"""list(): its sub-commands, on each alternative of a list."""

from __future__ import annotations

import re
from collections.abc import Callable

from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.regex import UnknownMatchError, replace, search
from ci.parity.cmake.state import Call
from ci.parity.cmake.values import is_unknown, split_list, strip_genex, unknown

NUMBER = re.compile(r"-?\d+")


def edit_list(run: Interpreter, call: Call) -> None:
    """list(); a sub-command that is not known leaves an unknown value."""
    words = call.words
    if len(words) < 2:
        return
    action, name, rest = words[0], words[1], words[2:]
    values = run.scope.get(name) or ("",)
    if action in READS:
        if rest:
            answers = (READS[action](split_list(value), rest[:-1]) for value in values)
            run.set(rest[-1], tuple(dict.fromkeys(answers)))
    elif action in {"POP_BACK", "POP_FRONT"}:
        _pop(run, action, name, rest)
    elif action == "TRANSFORM":
        _transform(run, name, rest)
    elif action in EDITS:
        edited = (";".join(EDITS[action](split_list(value), rest)) for value in values)
        run.set(name, tuple(dict.fromkeys(edited)))
    else:
        run.set(name, unknown(f"list({action})"))


def _get(items: list[str], words: list[str]) -> str:
    numbers = [int(word) for word in words if NUMBER.fullmatch(word)]
    inside = all(-len(items) <= number < len(items) for number in numbers)
    if not numbers or len(numbers) < len(words) or not inside:
        return unknown("list(GET)")[0]
    return ";".join(items[number] for number in numbers)


def _sublist(items: list[str], words: list[str]) -> str:
    if len(words) != 2 or not all(NUMBER.fullmatch(word) for word in words):
        return unknown("list(SUBLIST)")[0]
    begin, size = int(words[0]), int(words[1])
    return ";".join(items[begin:] if size < 0 else items[begin : begin + size])


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
    "SUBLIST": _sublist,
    "FIND": _find,
}


def _pop(run: Interpreter, action: str, name: str, targets: list[str]) -> None:
    items = split_list((run.scope.get(name) or ("",))[0])
    at = -1 if action == "POP_BACK" else 0
    for target in targets or [""]:
        value = items.pop(at) if items else None
        if target:
            run.set(target, None if value is None else (value,))
    run.set(name, (";".join(items),))


def _filter(items: list[str], rest: list[str]) -> list[str]:
    if len(rest) < 3 or rest[1] != "REGEX":
        return items
    keep = rest[0] == "INCLUDE"
    return [item for item in items if _fits(rest[2], item, keep) is keep]


def _fits(pattern: str, item: str, otherwise: bool) -> bool:
    try:
        return search(pattern, item) is not None
    except UnknownMatchError:
        return otherwise  # what may stay does


def _insert(items: list[str], rest: list[str]) -> list[str]:
    if not rest or not NUMBER.fullmatch(rest[0]):
        return items
    at = int(rest[0])
    return items[:at] + rest[1:] + items[at:]


def _remove_at(items: list[str], rest: list[str]) -> list[str]:
    numbers = [int(word) for word in rest if NUMBER.fullmatch(word)]
    gone = {number % len(items) for number in numbers} if items else set()
    return [item for index, item in enumerate(items) if index not in gone]


def _sort(items: list[str], rest: list[str]) -> list[str]:
    if {"COMPARE", "CASE"}.intersection(rest):
        return list(unknown("list(SORT)"))
    return sorted(items, reverse="DESCENDING" in rest)


EDITS: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "APPEND": lambda items, rest: items + rest,
    "PREPEND": lambda items, rest: rest + items,
    "REMOVE_ITEM": lambda items, rest: [item for item in items if item not in rest],
    "REMOVE_AT": _remove_at,
    "REMOVE_DUPLICATES": lambda items, _: list(dict.fromkeys(items)),
    "SORT": _sort,
    "REVERSE": lambda items, _: items[::-1],
    "INSERT": _insert,
    "FILTER": _filter,
}
TRANSFORMS: dict[str, tuple[int, Callable[[str, list[str]], str]]] = {
    "APPEND": (1, lambda item, words: item + words[0]),
    "PREPEND": (1, lambda item, words: words[0] + item),
    "REPLACE": (2, lambda item, words: replace(words[0], words[1], item)),
    "TOUPPER": (0, lambda item, _: item.upper()),
    "TOLOWER": (0, lambda item, _: item.lower()),
    "STRIP": (0, lambda item, _: item.strip()),
    "GENEX_STRIP": (0, lambda item, _: strip_genex(item)),
}


def _transform(run: Interpreter, name: str, rest: list[str]) -> None:
    count, change = TRANSFORMS.get(rest[0], (0, None)) if rest else (0, None)
    words, more = rest[1 : count + 1], rest[count + 1 :]
    target = name
    if len(more) > 1 and more[-2] == "OUTPUT_VARIABLE":
        target, more = more[-1], more[:-2]
    # With a selector, such as AT or REGEX, there are more words.
    if change is None or len(words) < count or more:
        run.set(target, unknown("list(TRANSFORM)"))
        return
    lists = [split_list(value) for value in run.scope.get(name) or ("",)]
    try:
        results = tuple(";".join(change(item, words) for item in items) for items in lists)
    except UnknownMatchError:
        results = unknown("list(TRANSFORM)")
    run.set(target, tuple(dict.fromkeys(results)))
