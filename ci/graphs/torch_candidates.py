"""Describes the nodes of a torch graph for the parts of a mixture."""

from __future__ import annotations

from typing import Any

from ci.graphs.candidates import Candidate
from ci.models.user_code import find_origin

# Where a node of torch keeps the name and the operator that it had when the model was exported.
ORIGIN = "qnn_ci_origin"


def mark_origins(graph: Any) -> None:
    """Record the name and the operator of each node of a torch graph, for compilers that rewrite
    it."""
    for node in graph.nodes:
        node.meta[ORIGIN] = (node.name, _name_operator(node))


def list_candidates(graph: Any) -> list[Candidate]:
    """Return the calls in a torch graph that parts can select."""
    return [_describe(node) for node in graph.nodes if node.op == "call_function"]


def _describe(node: Any) -> Candidate:
    stack = [*(node.meta.get("nn_module_stack") or {}).values()]
    origin = find_origin(node)
    name, operator = node.meta.get(ORIGIN) or (node.name, _name_operator(node))
    return Candidate(
        node=tuple(dict.fromkeys((node.name, name))),
        op=tuple(dict.fromkeys((operator, _name_operator(node)))),
        module=tuple(str(path) for path, *_ in stack if path),
        type=tuple(
            str(getattr(kind, "__name__", kind)).rpartition(".")[2] for _, kind, *_ in stack
        ),
        line=(str(origin),) if origin.line else (),
    )


def _name_operator(node: Any) -> str:
    # As a user writes it: without the underscore in front of torch's own, such as _softmax.
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0].strip("_")
