"""Builds graphs from blocks of which models are made, such as an attention or a bottleneck. The
blocks and their sizes are data in manifests/policies/blocks.toml."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec import Struct

from ci.faults.generate import find_unfit
from ci.faults.graph import Graph, parse_graph, read_operators
from ci.faults.known import FRONTENDS, Frontend
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import read_policy

PLACE = re.compile(r"\{([^{}]+)\}")
MOST_TRIES = 30
Card = str | int
Sizes = Mapping[str, tuple[int, ...]]


class Block(Struct, frozen=True, forbid_unknown_fields=True):
    """A block. ``graph`` is a graph of ci.faults.graph in which ``{NAME}`` is one of the sizes of a
    size class in the table ``sizes``, or one of ``choices``. ``frontends`` have its operators."""

    name: str
    sizes: str
    graph: str
    choices: dict[str, tuple[Card, ...]] = {}
    frontends: tuple[Frontend, ...] = FRONTENDS


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
    for block in blocks.block:
        if block.sizes not in blocks.sizes:
            raise ManifestError(
                f"policies/blocks.toml, block {block.name!r}: there is no table"
                f" sizes.{block.sizes}",
                why="the block has no sizes",
                fix="add the table, or name another one",
            )
    supported = [block for block in blocks.block if frontend in block.frontends]
    return {block.name: (block, blocks.sizes[block.sizes]) for block in supported}


class Deck:
    """The forms of a block in a front end. The size classes, the sizes of each class and the values
    of each choice are dealt like cards: each of them comes once before any of them comes again."""

    def __init__(self, name: str, frontend: Frontend, seed: int) -> None:
        self.block, self.classes = read_blocks(frontend)[name]
        self.frontend, self.dice = frontend, random.Random(f"{seed} {name}")  # noqa: S311
        self.left: dict[str, list[Card]] = {}
        forms = math.prod(map(len, (self.classes, *self.block.choices.values())))
        self.weight = 1 + math.log2(forms)

    def deal(self, name: str, cards: Sequence[Card]) -> Card:
        """Return the next one of the cards with this name."""
        left = self.left.setdefault(name, [])
        if not left:
            left += self.dice.sample(cards, len(cards))
        return left.pop()

    def build(self, size: str) -> Graph | None:
        """Return a graph of the block with sizes of a size class, in a form that the front end
        supports and that can be judged. If the dealt cards do not fit each other, one of them is
        replaced, up to MOST_TRIES times. Return None if they never fit."""
        # Size classes have sizes with the same names, and each class deals its own cards.
        sizes = {f"{size} {name}": cards for name, cards in self.classes[size].items()}
        decks: dict[str, Sequence[Card]] = {**sizes, **self.block.choices}
        dealt = {name: self.deal(name, cards) for name, cards in decks.items()}
        for _ in range(MOST_TRIES):
            values = {name.removeprefix(f"{size} "): card for name, card in dealt.items()}
            for _ in self.block.choices:  # a choice may contain another one
                values = {name: _fill(str(card), values) for name, card in values.items()}
            if graph := self.parse(_fill(self.block.graph, values)):
                return graph
            name = self.dice.choice([*decks])
            dealt[name] = self.deal(name, decks[name])
        return None

    def parse(self, text: str) -> Graph | None:
        """Return a graph if the front end supports it and it can be judged, otherwise None."""
        try:
            graph = parse_graph(text)
            fits = bool(graph.inputs) and not find_unfit(graph, 0)
        except (UsageError, RuntimeError, ValueError, IndexError):
            return None  # such as more output padding than stride
        if self.frontend == "onnx":
            fits &= all(read_operators()[operator].onnx for operator in graph.operators)
        return graph if fits else None


def visit_blocks(seed: int, frontend: Frontend) -> Iterator[tuple[Cell, Graph]]:
    """Yield graphs of blocks without end, each with its cell. A seed always yields the same graphs.

    Each block comes once, in a random order. After that, the time is shared: a block comes the more
    often, the more forms it has and the fewer operators its graphs have."""
    order = random.Random(seed)  # noqa: S311 - repeatable
    decks = {name: Deck(name, frontend, seed) for name in read_blocks(frontend)}
    # Times below 0, so that each block comes once before any comes again.
    queue = [(order.random() - 1, name) for name in decks]
    heapify(queue)
    while True:
        time, name = heappop(queue)
        deck = decks[name]
        cell = Cell(name, str(deck.deal("", [*deck.classes])))
        graph = deck.build(cell.size)
        cost = 1 + len(graph.nodes) if graph else 1
        heappush(queue, (max(time, 0) + cost / deck.weight * (0.5 + order.random()), name))
        if graph:
            yield cell, graph


def _fill(text: str, values: Mapping[str, Card]) -> str:
    """Return a text with choices and sizes inserted. An expression of a choice that is not a number
    yet, such as ``{C // groups}`` with the choice ``{C}``, is left for the next time."""
    numbers = {name: int(card) for name, card in values.items() if str(card).isdecimal()}

    def insert(place: re.Match[str]) -> str:
        expression = place[1]
        if expression in values:
            return str(values[expression])
        functions = {"min": min, "range": range}
        try:
            return str(eval(expression, functions, numbers))  # noqa: S307 - our data
        except NameError:
            return place[0]

    return PLACE.sub(insert, text)
