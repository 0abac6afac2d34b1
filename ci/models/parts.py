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
        return self.node[0]

    def belongs(self, part: Part) -> bool:
        """Return whether a part selects this node."""
        return all(
            any(_is_match(selector, wanted, one) for one in getattr(self, selector))
            for selector, wanted in part.selectors.items()
        )


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


def _is_match(selector: str, wanted: str, value: str) -> bool:
    if selector == "module":
        return f"{value}.".startswith(f"{wanted}.")
    if selector == "line":
        return f"/{value}".endswith(f"/{wanted}")
    if selector == "op":
        return value.lower() == wanted.lower()
    return value == wanted


def assign_parts(candidates: Iterable[Candidate], parts: Sequence[Part]) -> dict[str, Part]:
    """Return the part of each node that has one. The keys are the nodes' names. A node belongs to
    the first part that selects it.

    Raises UsageError for a part that selects no node, or only nodes of earlier parts.
    """
    every = [*candidates]
    owners: dict[str, Part] = {}
    for part in parts:
        found = [candidate for candidate in every if candidate.belongs(part)]
        left = [candidate for candidate in found if candidate.name not in owners]
        if not found:
            raise _lacks(part, every)
        if not left:
            hiding = [*dict.fromkeys(str(owners[candidate.name]) for candidate in found)]
            raise UsageError(
                f"the part {part} is hidden by the part {' and '.join(hiding)}",
                why="a node belongs to the first part that selects it, and earlier parts select all"
                f" of {', '.join(one.name for one in found[:MOST_NAMES])}",
                fix="put the narrower part first, or remove one of them",
            )
        owners |= {candidate.name: part for candidate in left}
    return owners


def _lacks(part: Part, candidates: Sequence[Candidate]) -> UsageError:
    for selector, wanted in part.selectors.items():
        values = (value for candidate in candidates for value in getattr(candidate, selector))
        known = [*dict.fromkeys(values)]
        if any(_is_match(selector, wanted, value) for value in known):
            continue
        more = f", and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
        return UsageError(
            f"no node belongs to the part {part}",
            why=f"the model has no {selector} {wanted}",
            fix=f"use one of its {KINDS[selector]}: {', '.join(known[:MOST_NAMES])}{more}"
            if known
            else f"select by something other than {selector}: this model's nodes have none",
        )
    why = "nodes match each of its selectors, but no node matches all of them"
    return UsageError(f"no node belongs to the part {part}", why=why)


def list_parts(
    candidates: Iterable[Candidate], parts: Sequence[Part], base: str
) -> list[Mapping[str, str]]:
    """Return a row for each node of a model: ``node``, ``op``, ``line``, ``scheme`` and ``part``,
    which is empty for a node with the scheme ``base``. Raises UsageError as assign_parts does."""
    every = [*candidates]
    owners = assign_parts(every, parts)
    rows: list[Mapping[str, str]] = []
    for candidate in every:
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
