"""Builds graphs from blocks of which models are made, such as an attention or a bottleneck. The
blocks and their sizes are data in manifests/policies/blocks.toml."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from ci.faults.generate import find_unfit
from ci.faults.graph import OPERATORS, Graph, parse_graph
from ci.faults.known import FRONTENDS, Frontend
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import read_policy

PLACE = re.compile(r"\{([^{}]+)\}")
MOST_TRIES, MOST_SMALL = 30, 7
Sizes = Mapping[str, tuple[int, ...]]


class Block(Struct, frozen=True, forbid_unknown_fields=True):
    """A block. ``graph`` is a graph of ci.faults.graph in which ``{NAME}`` is one of the sizes of a
    size class in the table ``sizes``, or one of ``choices``. ``frontends`` have its operators."""

    name: str
    sizes: str
    graph: str
    choices: dict[str, tuple[str | int, ...]] = {}
    frontends: tuple[Frontend, ...] = FRONTENDS

    @property
    def visits(self) -> int:
        """Return how often a round visits the block: more often if it has many forms."""
        forms = math.prod(map(len, self.choices.values()))
        return 1 + int(math.log2(forms))

    @property
    def is_large(self) -> bool:
        """Return whether the graph has so many lines that it takes long to try."""
        return self.graph.count("\n") > MOST_SMALL


class Blocks(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of blocks.toml. ``sizes`` are tables of size classes, each with a list per
    size."""

    sizes: dict[str, dict[str, Sizes]]
    block: tuple[Block, ...]


class Cell(NamedTuple):
    """A block and one of its size classes."""

    block: str
    size: str


@cache
def read_blocks(frontend: Frontend) -> Mapping[str, tuple[Block, Mapping[str, Sizes]]]:
    """Return the blocks of a front end by name, each with its size classes. Raises ManifestError
    for a table of sizes that does not exist."""
    blocks = read_policy("blocks", Blocks)
    for one in blocks.block:
        if one.sizes not in blocks.sizes:
            raise ManifestError(
                f"policies/blocks.toml, block {one.name!r}: there is no table sizes.{one.sizes}",
                why="the block has no sizes",
                fix="add the table, or name another one",
            )
    return {
        one.name: (one, blocks.sizes[one.sizes])
        for one in blocks.block
        if frontend in one.frontends
    }


def choose_cell(seed: int, number: int, frontend: Frontend) -> tuple[Cell, random.Random]:
    """Return the cell for the graph with this ``number``, and the random numbers for its form.

    The search goes through the cells in rounds. Each round visits every block once, in a random
    order, and then visits blocks with many forms again, small ones first. A block has another size
    class at each visit, until it had all of them."""
    blocks = {name: row[0] for name, row in read_blocks(frontend).items()}
    size_of_round = sum(one.visits for one in blocks.values())
    turn, place = divmod(number, size_of_round)
    dice = random.Random(f"{seed} round {turn}")  # noqa: S311 - repeatable
    first = dice.sample(sorted(blocks), len(blocks))
    again = [(name, n) for name in blocks for n in range(1, blocks[name].visits)]
    again = sorted(dice.sample(again, len(again)), key=lambda one: blocks[one[0]].is_large)
    name, visit = [*((name, 0) for name in first), *again][place]
    visit += turn * blocks[name].visits
    sizes = sorted(read_blocks(frontend)[name][1])
    cycle, at = divmod(visit, len(sizes))
    order = random.Random(f"{seed} {name} {cycle}").sample(sizes, len(sizes))  # noqa: S311
    return Cell(name, order[at]), random.Random(f"{seed} {name} {visit}")  # noqa: S311


def build(cell: Cell, dice: random.Random, frontend: Frontend) -> Graph | None:
    """Return a graph of a block with sizes of a size class, in a form that the front end supports
    and that can be judged, or None if there is none among MOST_TRIES random forms."""
    block, classes = read_blocks(frontend)[cell.block]
    for _ in range(MOST_TRIES):
        values: dict[str, str | int] = {
            name: dice.choice(given)
            for name, given in (*classes[cell.size].items(), *block.choices.items())
        }
        for _ in block.choices:
            values = {name: _fill(str(one), values) for name, one in values.items()}
        text = _fill(block.graph, values)
        try:
            graph = parse_graph(text)
            fits = bool(graph.inputs) and not find_unfit(graph, 0)
        except (UsageError, RuntimeError, ValueError, IndexError):
            continue  # such as more output padding than stride
        if fits and (frontend != "onnx" or all(OPERATORS[one].onnx for one in graph.operators)):
            return graph
    return None


def _fill(text: str, values: Mapping[str, str | int]) -> str:
    """Return a text with choices and sizes inserted. An expression of a choice that is not a number
    yet, such as ``{C // groups}`` with the choice ``{C}``, is left for the next time."""
    known = {name: int(one) for name, one in values.items() if str(one).isdecimal()}

    def insert(found: re.Match[str]) -> str:
        if found[1] in values:
            return str(values[found[1]])
        try:
            return str(eval(found[1], {"min": min, "range": range}, known))  # noqa: S307 - our data
        except NameError:
            return found[0]

    return PLACE.sub(insert, text)
