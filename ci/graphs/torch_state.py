"""Which values of a torch graph share memory, and into which of them an operator writes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

from torch import fx


def is_view(node: fx.Node) -> bool:
    """Return whether a node's value may share memory with its first operand."""
    alias = _find_alias(node)
    return node.target is operator.getitem or bool(alias and not alias.is_write)


def is_state(node: fx.Node) -> bool:
    """Return whether a node reads a buffer that the graph also writes, directly or through a
    view."""
    if node.op != "get_attr":
        return False
    views = [node]
    for view in views:  # which grows
        for user in view.users:
            if any(changed is view for changed in _list_changed(user)):
                return True
            if is_view(user) and user.args[0] is view:
                views.append(user)
    return False


def find_written(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose memory an operator among ``nodes`` writes into, with all views of
    it."""
    nodes = [*nodes]
    base: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source and (_find_alias(node) or node.target is operator.getitem):
            base[node] = base.get(source, source)
    written: set[fx.Node] = set()
    for node in nodes:
        written.update(base.get(changed, changed) for changed in _list_changed(node))
    return written | {node for node, origin in base.items() if origin in written}


def _list_changed(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes into whose values a node writes."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info and argument.alias_info.is_write:
            keyword = node.kwargs.get(argument.name)
            changed = node.args[place] if place < len(node.args) else keyword
            if isinstance(changed, fx.Node):
                yield changed


def _find_alias(node: fx.Node) -> Any:
    """Return torch's notes on the memory that a node's value shares with an operand, or None."""
    schema = getattr(node.target, "_schema", None)
    return schema.returns[0].alias_info if schema and schema.returns else None
