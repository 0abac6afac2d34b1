"""Read both sides of a tree as facts, with two parallel workers.

A worker is a process with limits on time and memory, because build files are other people's
programs.
"""

from __future__ import annotations

import gc
import resource
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ci.parity.buck.reader import read_buck
from ci.parity.cmake.reader import StaticReader
from ci.parity.facts import WHOLE, BuckFacts, CMakeFacts, Configuration, NotEvaluated, ParityFacts
from ci.parity.policy import Layout
from ci.parity.trees import DirectoryTree, RevisionTree, SourceTree
from ci.parity.uses import find_imports, find_includes, find_macros
from provisioning.console.process import run_process, run_tasks
from provisioning.documents import CONTENT_BYTES, read_bytes
from provisioning.errors import ToolError

WORKER_LIMIT_S = 300.0
MEMORY_BYTES = 3 << 30


def read_cmake(tree: SourceTree) -> tuple[CMakeFacts, ...]:
    """Return the facts of CMake's side, for each configuration."""
    reader = StaticReader(tree)
    return tuple(reader.read(configuration) for configuration in Configuration)


# The type of each side's facts, and the function that reads them.
SIDES: dict[str, tuple[Any, Callable[[SourceTree], Any]]] = {
    "buck": (BuckFacts, read_buck),
    "cmake": (tuple[CMakeFacts, ...], read_cmake),
}


def read_tree_here(tree: SourceTree) -> ParityFacts:
    """Read both sides in this process, without a memory limit and without the cache."""
    return join_sides(tree, read_buck(tree), read_cmake(tree))


def read_tree(tree: SourceTree) -> ParityFacts:
    """Read both sides with a worker for each."""
    if not isinstance(tree, (RevisionTree, DirectoryTree)):
        return read_tree_here(tree)  # this tree exists only in this process
    return join_sides(tree, *run_tasks([partial(read_side, tree, s) for s in SIDES], len(SIDES)))


def join_sides(tree: SourceTree, buck: BuckFacts, sides: tuple[CMakeFacts, ...]) -> ParityFacts:
    """Return the facts of both sides, with those that need both: includes, macros and imports."""
    includes = find_includes(tree, buck, sides)
    return ParityFacts(
        buck=buck,
        cmake=sides,
        files=tree.files,
        submodules=tree.submodules,
        macros=find_macros(tree, buck, sides, includes["headers"]),
        imports=find_imports(tree),
        **includes,
    )


def read_side(tree: RevisionTree | DirectoryTree, side: str) -> Any:
    """Return the facts of one side from a worker. If it fails, they only contain the reason."""
    source, commit = tree.source
    layout = msgspec.json.encode(tree.layout).decode()
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        answer = Path(folder) / "facts.json"
        # The worker runs in another directory, so the path is absolute.
        words = [side, str(source.resolve()), commit, layout, str(answer)]
        argv = [sys.executable, "-m", "ci.parity.reading", *words]
        try:
            root = Path(__file__).parents[2]
            ended = run_process(argv, cwd=root, timeout_s=WORKER_LIMIT_S, check=False)
            if ended.is_good:
                return msgspec.json.decode(read_bytes(answer, CONTENT_BYTES), type=SIDES[side][0])
            why = (ended.tail.strip().splitlines() or [ended.describe()])[-1].strip()
        except (ToolError, OSError) as error:
            why = getattr(error, "why", "") or str(error)
    reason = f"the process that reads this side of the tree failed: {why}"
    unread = (NotEvaluated(side, WHOLE, reason),)
    if side == "buck":
        return BuckFacts(not_evaluated=unread)
    return tuple(CMakeFacts(each, not_evaluated=unread) for each in Configuration)


def main(argv: list[str]) -> int:
    """Run as a worker: read one side of a directory, or of a commit of a git directory, and write
    the facts to a file.
    """
    gc.disable()  # this takes a tenth of the time, and the process is short
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    # A process cannot raise its hard limit.
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    side, source, commit, rules, answer = argv
    layout, place = msgspec.json.decode(rules, type=Layout), Path(source)
    tree = RevisionTree(place, commit, layout) if commit else DirectoryTree(place, layout)
    Path(answer).write_bytes(msgspec.json.encode(SIDES[side][1](tree)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
