"""``python -m ci.parity.worker ORDER FACTS``: read one side of a tree within limits."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import msgspec

from ci.parity.buck.reader import read_buck
from ci.parity.reading import Order, read_cmake_side
from ci.parity.trees import DirectoryTree, RevisionTree, SourceTree

MEMORY_BYTES = 3 << 30


def main(argv: list[str]) -> int:
    """Carry out the order in a file, and write the facts into another."""
    limit_memory(MEMORY_BYTES)
    order = msgspec.json.decode(Path(argv[0]).read_bytes(), type=Order)
    tree = open_ordered(order)
    facts = read_buck(tree) if order.side == "buck" else None
    answer = facts if facts is not None else read_cmake_side(tree)
    Path(argv[1]).write_bytes(msgspec.json.encode(answer))
    return 0


def open_ordered(order: Order) -> SourceTree:
    if order.commit:
        return RevisionTree(Path(os.fsdecode(order.source)), order.commit, order.layout)
    return DirectoryTree(Path(os.fsdecode(order.source)), order.layout)


def limit_memory(limit_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
