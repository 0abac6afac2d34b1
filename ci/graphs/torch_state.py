"""Which values of a torch graph share memory, and into which of them an operator writes."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from torch.fx import Node


def is_view(node: Node) -> bool:
    """Return whether a node's value may share memory with its first operand."""
    alias = _find_alias(node)
    return node.target is operator.getitem or bool(alias and not alias.is_write)


def find_written(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes whose memory an operator among ``nodes`` writes into, with all views of
    it."""
    nodes = [*nodes]
    base: dict[Node, Node] = {}
    for node in nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        if source and (_find_alias(node) or node.target is operator.getitem):
            base[node] = base.get(source, source)
    written: set[Node] = set()
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema else ()):
            if argument.alias_info and argument.alias_info.is_write:
                keyword = node.kwargs.get(argument.name)
                changed = node.args[place] if place < len(node.args) else keyword
                if isinstance(changed, Node):
                    written.add(base.get(changed, changed))
    return written | {node for node, origin in base.items() if origin in written}


def _find_alias(node: Node) -> Any:
    """Return torch's notes on the memory that a node's value shares with an operand, or None."""
    schema = getattr(node.target, "_schema", None)
    return schema.returns[0].alias_info if schema and schema.returns else None
