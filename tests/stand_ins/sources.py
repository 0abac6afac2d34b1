"""Syntax trees of this project's modules for the tests that read them."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parse_source(text: str) -> ast.Module:
    """Return the tree of a module, which its readers do not change. Seven files of tests/static
    read all 500 modules; to parse them takes 2 s."""
    return ast.parse(text)


@cache
def list_nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree of parse_source. To walk through all modules takes a second."""
    return tuple(ast.walk(tree))
