"""Evaluate list() and string(), for each alternative of their values.

The sub-commands that ExecuTorch's list files use are computed. The result of all others is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, product

from ci.parity.cmake.blocks import NAME
from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.state import Call
from ci.parity.cmake.values import (
    MOST_ALTERNATIVES,
    UnknownMatchError,
    Value,
    find_all,
    is_unknown,
    replace,
    search,
    split_list,
    split_values,
    unknown,
)


def forget(run: Interpreter, command: str, words: list[str]) -> None:
    """Make every variable among the words unknown, because ``command`` sets it but is not
    computed."""
    for word in filter(NAME.fullmatch, words):
        run.set(word, unknown(command))


def edit_list(run: Interpreter, call: Call) -> None:
    """Evaluate list(). The variables that an unsupported sub-command names become unknown."""
    words = call.words
    if len(words) < 2:
        return
    action, name, operands = words[0], words[1], words[2:]
    lists = [split_list(value) for value in run.scope.get(name) or ("",)]
    try:
        if action in LIST_READS:
            *operands, name = operands
        results = [";".join(LIST_EDITS[action](items, operands)) for items in lists]
    except (LookupError, ValueError, UnknownMatchError):
        forget(run, f"list({action})", words[1:])
    else:
        run.set(name, tuple(dict.fromkeys(results)))


def _read_known(items: list[str]) -> list[str]:
    """Return the items. Raises ValueError if one of them is unknown."""
    if any(map(is_unknown, items)):
        raise ValueError
    return items


def _find(items: list[str], words: list[str]) -> list[str]:
    return [str(items.index(words[0]) if words[0] in _read_known(items) else -1)]


def _filter(items: list[str], words: list[str]) -> list[str]:
    mode, kind, pattern = words
    if kind != "REGEX":
        raise ValueError
    return [i for i in items if (search(pattern, i) is not None) is (mode == "INCLUDE")]


def _sort(items: list[str], words: list[str]) -> list[str]:
    if words:
        raise ValueError
    return sorted(items)


def _transform(items: list[str], words: list[str]) -> list[str]:
    action, text = words
    before, after = {"PREPEND": (text, ""), "APPEND": ("", text)}[action]
    return [before + item + after for item in items]


# Sub-commands whose last word is the variable for the result.
LIST_READS = {"LENGTH", "GET", "JOIN", "FIND"}
# A LookupError or ValueError means that the sub-command is not supported in this form.
LIST_EDITS: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "LENGTH": lambda items, _: [str(len(_read_known(items)))],
    "GET": lambda items, words: [items[int(word)] for word in words],
    "JOIN": lambda items, words: [words[0].join(items)],
    "FIND": _find,
    "APPEND": lambda items, words: items + words,
    "PREPEND": lambda items, words: words + items,
    "REMOVE_ITEM": lambda items, words: [item for item in items if item not in words],
    "REMOVE_DUPLICATES": lambda items, _: list(dict.fromkeys(items)),
    "SORT": _sort,
    "INSERT": lambda items, words: items[: int(words[0])] + words[1:] + items[int(words[0]) :],
    "FILTER": _filter,
    "TRANSFORM": _transform,
}


def edit_each(run: Interpreter, call: Call, edit: Callable[[Interpreter, list[str]], None]) -> None:
    """Evaluate a command with ``edit``, which sets variables, for each combination of the
    alternatives of its arguments, up to MOST_ALTERNATIVES. The results become alternatives.
    """
    scope, arguments = run.scope, call.command.arguments
    results: dict[str, Value] = {}
    for values in islice(product(*map(run.expand, arguments)), MOST_ALTERNATIVES):
        words: list[str] = []
        for argument, text in zip(arguments, values, strict=True):
            words += [text] if argument.quoted else split_values((text,))
        run.scope = scope.new_child()
        edit(run, words)
        for name, value in run.scope.maps[0].items():
            alternatives = (*results.get(name, ()), *(value or ()))
            results[name] = tuple(dict.fromkeys(alternatives))[:MOST_ALTERNATIVES]
    run.scope = scope
    scope.maps[0].update(results)


# Sub-commands with a text and the variable for the result.
STRING_EDITS: dict[str, Callable[[str], str]] = {
    "TOLOWER": str.lower,
    "TOUPPER": str.upper,
    "STRIP": str.strip,
    "LENGTH": lambda text: str(len(text.encode())),
}


def edit_string(run: Interpreter, words: list[str]) -> None:
    """Evaluate string(). The variables that an unsupported sub-command names become unknown."""
    match words:
        case ["APPEND" | "PREPEND" as action, name, *rest]:
            extra = "".join(rest)
            before, after = ("", extra) if action == "APPEND" else (extra, "")
            run.set(name, tuple(before + old + after for old in run.lookup("", name)))
        case ["CONCAT", name, *rest]:
            run.set(name, ("".join(rest),))
        case ["JOIN", glue, name, *rest]:
            run.set(name, (glue.join(rest),))
        case ["REPLACE", old, new, name, *rest]:
            text = "".join(rest)
            # Python would put ``new`` between all characters.
            run.set(name, (text.replace(old, new) if old else text,))
        case ["FIND", text, part, name] if not is_unknown(text + part):
            run.set(name, (str(text.find(part)),))
        case [action, text, name] if action in STRING_EDITS and not is_unknown(text):
            run.set(name, (STRING_EDITS[action](text),))
        case ["REGEX", "MATCH" | "MATCHALL" as action, pattern, name, *rest]:
            use_regex(run, action, pattern, ["", name, *rest])
        case ["REGEX", "REPLACE" as action, pattern, new, name, *rest]:
            use_regex(run, action, pattern, [new, name, *rest])
        case [action, *rest]:
            forget(run, f"string({action})", rest)


def use_regex(run: Interpreter, action: str, pattern: str, words: list[str]) -> None:
    """Evaluate string(REGEX). The words are the replacement (used by REPLACE only), the variable
    for the result, and the text.
    """
    new, name, text = words[0], words[1], "".join(words[2:])
    try:
        if action == "REPLACE":
            result = replace(pattern, new, text)
        else:
            matches = islice(find_all(pattern, text), 1 if action == "MATCH" else None)
            result = ";".join(match.group() for match in matches)
    except UnknownMatchError:
        result = unknown("string(REGEX)")[0]
    run.set(name, (result,))
