"""Read both sides of a tree as facts, with two parallel workers and a cache.

A worker is a process with limits on time and memory, because build files are other people's
programs. Its result is cached under a digest of everything that it reads.
"""

from __future__ import annotations

import gc
import hashlib
import resource
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ci.parity.buck.reader import is_build_file, read_buck
from ci.parity.cmake.reader import StaticReader, is_list_file
from ci.parity.facts import (
    WHOLE,
    BuckFacts,
    CMakeFacts,
    Configuration,
    NotEvaluated,
    ParityFacts,
    is_header,
    is_source,
)
from ci.parity.policy import Layout
from ci.parity.trees import DirectoryTree, RevisionTree, SourceTree
from ci.parity.uses import find_imports, find_includes, find_macros
from provisioning.console.process import run_process, run_tasks
from provisioning.documents import CONTENT_BYTES, DocumentError, read_bytes, read_json
from provisioning.errors import ToolError
from provisioning.files import digest_sources, write_whole

WORKER_LIMIT_S = 300.0
MEMORY_BYTES = 3 << 30
KEPT_FILES = 36
Kept = TypeVar("Kept")
SIDES: dict[str, Any] = {"buck": BuckFacts, "cmake": tuple[CMakeFacts, ...]}


def read_tree_here(tree: SourceTree) -> ParityFacts:
    """Read both sides in this process, without a memory limit and without the cache."""
    return join_sides(tree, read_buck(tree), read_cmake_side(tree))


def read_cmake_side(tree: SourceTree) -> tuple[CMakeFacts, ...]:
    reader = StaticReader(tree)
    return tuple(reader.read(configuration) for configuration in Configuration)


def join_sides(tree: SourceTree, buck: BuckFacts, sides: tuple[CMakeFacts, ...]) -> ParityFacts:
    includes = find_includes(tree, buck, sides)
    macros = find_macros(tree, buck, sides, includes.headers)
    return ParityFacts(
        buck=buck,
        cmake=sides,
        files=tree.files,
        submodules=tree.submodules,
        macros=macros,
        includes=tuple(includes.by_directory),
        headers=includes.headers,
        needed=includes.needed,
        guarded=includes.guarded,
        header_names=frozenset(includes.names),
        imports=find_imports(tree),
    )


def read_tree(tree: SourceTree, cache: Path | None = None) -> ParityFacts:
    """Read both sides with a worker for each. A side that has not changed comes from ``cache``."""
    if not isinstance(tree, (RevisionTree, DirectoryTree)):
        return read_tree_here(tree)  # this tree exists only in this process
    tasks = [partial(read_side, tree, side, cache) for side in SIDES]
    buck, listed = run_tasks(tasks, len(SIDES))
    return join_sides(tree, buck, listed)


def read_side(tree: RevisionTree | DirectoryTree, side: str, cache: Path | None) -> Any:
    """Return the facts of one side, from the cache or from a worker.

    If the worker fails, they only contain the reason.
    """
    kept = cache / f"{side}-{digest_side(tree, side)}.json" if cache else None
    if kept and (known := load(kept, SIDES[side])) is not None:
        return known
    answer = run_worker(tree, side)
    if isinstance(answer, str):
        row = NotEvaluated(side, WHOLE, answer)
        if side == "buck":
            return BuckFacts(not_evaluated=(row,))
        return tuple(CMakeFacts(each, not_evaluated=(row,)) for each in Configuration)
    facts = msgspec.json.decode(answer, type=SIDES[side])
    if kept is not None:
        keep(kept, answer)
    return facts


def run_worker(tree: RevisionTree | DirectoryTree, side: str) -> bytes | str:
    """Return the worker's result as JSON, or the reason why there is none."""
    source, commit = tree.source
    layout = msgspec.json.encode(tree.layout).decode()
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        answer = Path(folder) / "facts.json"
        words = [side, str(source.resolve()), commit, layout, str(answer)]
        argv = [sys.executable, "-m", "ci.parity.reading", *words]
        try:
            here = Path(__file__).parents[2]
            ended = run_process(argv, cwd=here, timeout_s=WORKER_LIMIT_S, check=False)
            if ended.is_good:
                return read_bytes(answer, CONTENT_BYTES)
            why = (ended.tail.strip().splitlines() or [ended.describe()])[-1].strip()
        except (ToolError, OSError) as error:
            why = getattr(error, "why", "") or str(error)
        return f"the process that reads this side of the tree failed: {why}"


def main(argv: list[str]) -> int:
    """Run as a worker: read one side of a directory, or of a commit of a git directory, and write
    the facts to a file.
    """
    gc.disable()  # this takes a tenth of the time, and the process is short
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    side, source, commit, rules, answer = argv
    layout, place = msgspec.json.decode(rules, type=Layout), Path(source)
    tree = RevisionTree(place, commit, layout) if commit else DirectoryTree(place, layout)
    facts = read_buck(tree) if side == "buck" else read_cmake_side(tree)
    Path(answer).write_bytes(msgspec.json.encode(facts))
    return 0


def is_read(path: str, side: str) -> bool:
    """Return whether the facts of ``side`` depend on the content of the file ``path``.

    If ``side`` is neither buck nor cmake, it stands for the whole comparison.
    """
    # CMake reads file lists from .bzl files too.
    is_list = is_list_file(path) or path.endswith(".bzl")
    if side in SIDES:
        return is_list if side == "cmake" else is_build_file(path)
    is_code = is_source(path) or is_header(path) or path.endswith(".py")
    return is_code or is_list or is_build_file(path) or path == "version.txt"


def digest_side(tree: SourceTree, side: str) -> str:
    """Return a digest of everything that the facts of a side depend on. These are the project's
    layout, the names of all files, the content of the files that are read, and the reader's code.
    """
    hasher = hashlib.sha256(digest_sources(Path(__file__).parent).encode())
    hasher.update(msgspec.json.encode(tree.layout))
    for part in tree.submodules:
        hasher.update(f"{part}\n".encode())
    for path in sorted(tree.files):
        content = tree.digest(path) if is_read(path, side) else ""
        hasher.update(f"{path}\0{content}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()[:32]


def load(path: Path, kind: type[Kept]) -> Kept | None:
    """Return the content of a cache file, or None if it is missing or cannot be read."""
    with suppress(DocumentError):
        return read_json(path, kind, CONTENT_BYTES)
    return None


def keep(path: Path, answer: bytes) -> None:
    """Write a result to the cache if possible, and remove the oldest results if there are more than
    KEPT_FILES.
    """
    try:
        write_whole(path, answer)
    except OSError:  # without a cache, reading is only slower
        return
    aged = sorted((old.stat().st_mtime, old) for old in path.parent.glob("*.json") if old.exists())
    for _, old in aged[:-KEPT_FILES]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
