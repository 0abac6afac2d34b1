"""Assigns the nodes of a model to the parts of a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ci.models.lowering_options import Part
from ci.models.user_code import find_origin
from provisioning.errors import UsageError

MOST_NAMES = 12
KINDS = {
    "module": "modules",
    "type": "module types",
    "node": "nodes",
    "op": "operators",
    "line": "lines",
    "tensor": "tensors",
}


# Where a node of torch keeps the name and the operator that it had when the model was exported.
ORIGIN = "qnn_ci_origin"


class Candidate(Struct, frozen=True):
    """What a part can select in a model: a node, with the values to which each selector of Part is
    compared. A compiler may rewrite an operator, so a node may have several names."""

    node: tuple[str, ...]  # the current name first
    op: tuple[str, ...]
    module: tuple[str, ...] = ()  # the paths of the modules that call it, the outermost first
    type: tuple[str, ...] = ()  # their classes
    line: tuple[str, ...] = ()  # empty if it is unknown
    tensor: tuple[str, ...] = ()
    result_type: str = ""  # the type of its result, in a file that is already quantized

    @property
    def name(self) -> str:
        """Return the current name of the node."""
        return self.node[0]

    def belongs(self, part: Part) -> bool:
        """Return whether a part selects this node."""
        for selector, pattern in part.selectors.items():
            values = getattr(self, selector)
            if not any(_is_match(selector, pattern, value) for value in values):
                return False
        return True


def mark_origins(graph: Any) -> None:
    """Record the name and the operator of each node of a torch graph, for compilers that rewrite
    it."""
    for node in graph.nodes:
        node.meta[ORIGIN] = (node.name, name_operator(node))


def list_candidates(graph: Any) -> list[Candidate]:
    """Return the calls in a torch graph that parts can select."""
    return [_describe(node) for node in graph.nodes if node.op == "call_function"]


def _describe(node: Any) -> Candidate:
    stack = [*(node.meta.get("nn_module_stack") or {}).values()]
    origin = find_origin(node)
    name, operator = node.meta.get(ORIGIN) or (node.name, name_operator(node))
    return Candidate(
        node=tuple(dict.fromkeys((node.name, name))),
        op=tuple(dict.fromkeys((operator, name_operator(node)))),
        module=tuple(str(path) for path, *_ in stack if path),
        type=tuple(
            str(getattr(kind, "__name__", kind)).rpartition(".")[2] for _, kind, *_ in stack
        ),
        line=(str(origin),) if origin.line else (),
    )


def name_operator(node: Any) -> str:
    """Return a torch node's operator without its overload, such as ``softmax``."""
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0].strip("_")


def _is_match(selector: str, pattern: str, value: str) -> bool:
    if selector == "module":
        return f"{value}.".startswith(f"{pattern}.")  # also its submodules
    if selector == "line":
        return f"/{value}".endswith(f"/{pattern}")  # the path may be shortened
    if selector == "op":
        return value.lower() == pattern.lower()
    return value == pattern


def assign_parts(candidates: Iterable[Candidate], parts: Sequence[Part]) -> dict[str, Part]:
    """Return the part of each node that has one. The keys are the nodes' names. A node belongs to
    the first part that selects it.

    Raises UsageError for a part that selects no node, or only nodes of earlier parts.
    """
    all_nodes = [*candidates]
    owners: dict[str, Part] = {}
    for part in parts:
        selected = [candidate for candidate in all_nodes if candidate.belongs(part)]
        left = [candidate for candidate in selected if candidate.name not in owners]
        if not selected:
            raise _lacks(part, all_nodes)
        if not left:
            hiding = [*dict.fromkeys(str(owners[candidate.name]) for candidate in selected)]
            names = ", ".join(candidate.name for candidate in selected[:MOST_NAMES])
            raise UsageError(
                f"the part {part} is hidden by the part {' and '.join(hiding)}",
                why="a node belongs to the first part that selects it, and earlier parts select all"
                f" of {names}",
                fix="put the narrower part first, or remove one of them",
            )
        owners |= {candidate.name: part for candidate in left}
    return owners


def _lacks(part: Part, candidates: Sequence[Candidate]) -> UsageError:
    """Return the error for a part that selects no node: the first selector without a match, or
    that no node matches all of them."""
    for selector, pattern in part.selectors.items():
        values: dict[str, None] = {}  # in order, each one once
        for candidate in candidates:
            values |= dict.fromkeys(getattr(candidate, selector))
        if any(_is_match(selector, pattern, value) for value in values):
            continue
        fix = f"select by something other than {selector}: this model's nodes have none"
        if values:
            left = len(values) - MOST_NAMES
            and_more = f", and {left} more" if left > 0 else ""
            named = ", ".join([*values][:MOST_NAMES])
            fix = f"use one of its {KINDS[selector]}: {named}{and_more}"
        why = f"the model has no {selector} {pattern}"
        return UsageError(f"no node belongs to the part {part}", why=why, fix=fix)
    why = "nodes match each of its selectors, but no node matches all of them"
    return UsageError(f"no node belongs to the part {part}", why=why)


def list_parts(
    candidates: Iterable[Candidate], parts: Sequence[Part], base: str
) -> list[Mapping[str, str]]:
    """Return a row for each node of a model: ``node``, ``op``, ``line``, ``scheme`` and ``part``,
    which is empty for a node with the scheme ``base``. Raises UsageError as assign_parts does."""
    all_nodes = [*candidates]
    owners = assign_parts(all_nodes, parts)
    rows: list[Mapping[str, str]] = []
    for candidate in all_nodes:
        part = owners.get(candidate.name)
        selectors = part.selectors if part else {}
        rows.append(
            {
                "node": candidate.name,
                "op": candidate.op[0],
                "line": next(iter((*candidate.line, *reversed(candidate.module))), ""),
                "scheme": part.scheme.value if part else candidate.result_type or base,
                "part": " ".join(f"{name}={value}" for name, value in selectors.items()),
            }
        )
    return rows
