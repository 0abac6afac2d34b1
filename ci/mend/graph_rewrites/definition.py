"""How a rewrite of both lanes is defined: as a function that edits a graph of ci.graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from ci.graphs.edit import GraphEditor

Definition: TypeAlias = "Callable[[GraphEditor], None]"
DEFINITIONS: dict[str, Definition] = {}
OPERATORS: dict[str, frozenset[str]] = {}  # those of each rewrite that is applied to some only


def defines(name: str, *operators: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function the rewrite ``name``. The function edits a graph at
    a call of one of these operators of torch, or the whole graph if there are none."""

    def register(rewrite: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(rewrite)
        def apply(edit: GraphEditor) -> None:
            nodes: Any = edit.find(*operators)
            for node in nodes:
                rewrite(edit, node)

        DEFINITIONS[name] = apply if operators else rewrite
        OPERATORS[name] = frozenset(operators)
        return rewrite

    return register
