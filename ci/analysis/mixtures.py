"""The parts of a mixture: to which of them a node belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ci.graphs.candidates import Candidate
from ci.models.lowering_options import Part
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


def belongs(candidate: Candidate, part: Part) -> bool:
    """Return whether a part selects a node."""
    for selector, pattern in part.selectors.items():
        values = getattr(candidate, selector)
        if not any(_is_match(selector, pattern, value) for value in values):
            return False
    return True


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
        selected = [candidate for candidate in all_nodes if belongs(candidate, part)]
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
