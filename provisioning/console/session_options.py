"""The options of a call of nox that runs several sessions: each takes those that it knows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

SESSIONS_VARIABLE = "QNN_CI_SESSIONS"  # the sessions of one call, when they are several


def list_together(sessions: Mapping[str, str], own: str) -> list[str]:
    """The other verbs of this call. ``sessions`` maps verbs to what nox runs them in, where a name
    that ends in ``_`` begins those of several sessions."""
    names = os.environ.get(SESSIONS_VARIABLE, "").split()
    return [
        verb
        for verb, session in sessions.items()
        if verb != own and session and any(_is_session(name, session) for name in names)
    ]


def _is_session(name: str, session: str) -> bool:
    return name.startswith(session) if session.endswith("_") else name == session


def keep_own(
    words: Sequence[str], own: argparse.ArgumentParser, others: Iterable[argparse.ArgumentParser]
) -> tuple[list[str], list[str]]:
    """``words`` without the options that only ``others`` know, and those with their values.

    What nobody knows stays, for ``own`` to refuse.
    """
    mine = own._option_string_actions
    theirs = {
        name: action for parser in others for name, action in parser._option_string_actions.items()
    }
    kept: list[str] = []
    left: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = _find_name(word, {*mine, *theirs})
        action = mine.get(name) or theirs.get(name)
        count = _count_values(action, word == name, rest) if action else 0
        target = left if action and name not in mine else kept
        target += [word, *rest[:count]]
        del rest[:count]
    return kept, left


def _find_name(word: str, known: set[str]) -> str:
    """The option that a word names: ``--model=mlp`` and ``-DA=1`` do, too."""
    name = word.partition("=")[0] if word.startswith("--") else word
    return name if name in known or word.startswith("--") else word[:2]


def _count_values(action: argparse.Action, is_bare: bool, rest: Sequence[str]) -> int:
    """How many of the words after an option are its values."""
    if not is_bare:
        return 0
    following = len(list(takewhile(lambda word: not word.startswith("-"), rest)))
    if isinstance(action.nargs, int):
        return action.nargs
    return {None: 1, "?": min(1, following)}.get(action.nargs, following)
