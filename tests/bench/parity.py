"""Where the time of a parity run goes, against the figures that the project promises.

With EXECUTORCH_ROOT, a clone of pytorch/executorch, its build files are measured; without, a
generated tree of the same number of packages, and the table says so.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, TypedDict

from ci.parity.buck.reader import is_build_file, read_buck
from ci.parity.cmake.reader import StaticReader, is_list_file
from ci.parity.compare.comparison import compare_tree
from ci.parity.facts import Configuration, ParityFacts, is_header, is_source
from ci.parity.policy import ParityPolicy
from ci.parity.run import ParityRequest, compare_source
from ci.parity.trees import DirectoryTree, RevisionTree, find_git_dir
from ci.parity.uses import find_includes, find_macros
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.reader import read_policy


class Taken(TypedDict):
    """Wall time, and processor time of all processes: on a busy machine they differ."""

    wall_s: float
    cpu_s: float


LIMITS_S = {
    "whole tree, nothing kept": 20.0,
    "whole tree, nothing changed": 3.0,
    "whole tree, one CMake file changed": 3.0,
    "whole tree, one Buck file changed": 3.0,
}
PACKAGES = 370
TARGETS = 6
SCOPE = "backends/qualcomm"
REVISION = "refs/heads/main"


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure whole runs with and without what is kept, and the stages of one."""
    root = os.environ.get("EXECUTORCH_ROOT", "")
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as folder:
        source, cache = Path(folder) / "tree", Path(folder) / "cache"
        progress.step("writing the tree")
        what = export_revision(Path(root), source) if root else generate_tree(source)
        progress.step(f"measuring {what}")
        return {
            "tree": what,
            "files": len(DirectoryTree(source).files),
            "runs": measure_runs(source, cache),
            "stages": measure_stages(source),
            "limits": LIMITS_S,
            "load": os.getloadavg()[0],
            "cores": os.cpu_count() or 1,
        }


def measure_runs(source: Path, cache: Path) -> dict[str, Taken]:
    """Whole runs: read with workers, compare."""
    policy, today = read_policy("parity", ParityPolicy), date(2026, 1, 1)
    cmake, buck = source / SCOPE / "CMakeLists.txt", source / SCOPE / "runtime" / "BUCK"

    def run() -> None:
        compare_source(ParityRequest(source, today=today, cache=cache), policy)

    def changed(path: Path) -> Callable[[], None]:
        def change_and_run() -> None:
            path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
            run()

        return change_and_run

    steps = (run, run, changed(cmake), changed(buck))
    return {name: measure(step) for name, step in zip(LIMITS_S, steps, strict=True)}


def measure_stages(source: Path) -> dict[str, Taken]:
    """Each stage in one process."""
    taken: dict[str, Taken] = {}
    tree = DirectoryTree(source, read_policy("parity", ParityPolicy).layout)
    with timed(taken, "list and read files"):
        tree.read_all(tree.files)
    with timed(taken, "evaluate Buck"):
        buck = read_buck(tree)
    reader = StaticReader(tree)
    sides = []
    for configuration in (Configuration.ANY, Configuration.HOST, Configuration.ANDROID):
        with timed(taken, f"run CMake, {configuration.value}"):
            sides.append(reader.read(configuration))
    with timed(taken, "find includes"):
        includes = find_includes(tree, buck, sides)
    with timed(taken, "find macros"):
        macros = find_macros(tree, buck, sides, includes.headers)
    facts = ParityFacts(
        buck,
        tuple(sides),
        tree.files,
        tree.submodules,
        macros,
        headers=includes.headers,
        needed=includes.needed,
    )
    with timed(taken, "compare"):
        compare_tree(facts, read_policy("parity", ParityPolicy))
    return taken


def measure(step: Callable[[], None]) -> Taken:
    """How long a step takes."""
    wall, cpu = time.monotonic(), cpu_seconds()
    step()
    return Taken(wall_s=time.monotonic() - wall, cpu_s=cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Processor time of this process and of the workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def timed(taken: dict[str, Taken], name: str) -> Iterator[None]:
    """Note how long the block takes."""
    wall, cpu = time.monotonic(), cpu_seconds()
    yield
    taken[name] = Taken(wall_s=time.monotonic() - wall, cpu_s=cpu_seconds() - cpu)


def export_revision(root: Path, target: Path) -> str:
    """Write a revision's build files and sources; every other file is empty.

    Raises UsageError when EXECUTORCH_ROOT is not a git directory.
    """
    git_dir = find_git_dir(root)
    if git_dir is None:
        raise UsageError(f"EXECUTORCH_ROOT is no git directory: {root}")
    tree = RevisionTree(git_dir, REVISION)
    wanted = [p for p in tree.files if is_wanted(p)]
    tree.read_all(wanted)
    for path in tree.files:
        write(target / path, (tree.read(path) or "") if is_wanted(path) else "")
    return f"pytorch/executorch {tree.commit[:10]}"


def is_wanted(path: str) -> bool:
    """Whether a file's content matters to the comparison."""
    kinds = (is_build_file, is_list_file, is_source, is_header)
    return path == ".gitmodules" or any(is_kind(path) for is_kind in kinds)


def generate_tree(target: Path) -> str:
    """Write a tree of as many packages and files as ExecuTorch has."""
    lists = []
    for number in range(PACKAGES):
        folder = f"{SCOPE}/runtime" if number == 0 else f"area{number % 20}/package{number}"
        rules = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
        for index in range(TARGETS):
            name = f"lib{number}_{index}"
            sources = [f"{name}_{part}.cpp" for part in range(4)]
            rules += f'runtime.cxx_library(name = "{name}", srcs = {sources!r})\n'
            lists.append(f"add_library({name} {' '.join(f'{folder}/{s}' for s in sources)})")
            for source in sources:
                write(target / folder / source, "int x;\n")
        write(target / folder / "BUCK", rules.replace("'", '"'))
    write(target / SCOPE / "CMakeLists.txt", "# nothing of its own\n")
    write(target / "CMakeLists.txt", "\n".join(lists) + f"\nadd_subdirectory({SCOPE})\n")
    return f"a generated tree of {PACKAGES} packages (EXECUTORCH_ROOT is not set)"


def write(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def show(taken: Taken) -> str:
    """Wall and processor time."""
    return f"{taken['wall_s']:6.2f} s  (cpu {taken['cpu_s']:5.2f} s)"


def render_bench(figures: Mapping[str, Any]) -> str:
    """Whole runs against their limits, then the stages."""
    lines = [f"parity of {figures['tree']}, {figures['files']} files", ""]
    for name, taken in figures["runs"].items():
        limit = figures["limits"][name]
        verdict = "ok" if taken["wall_s"] < limit else "TOO SLOW"
        lines.append(f"  {name:<36} {show(taken)}   limit {limit:4.0f} s   {verdict}")
    lines += ["", "  stages of one process"]
    lines += [f"  {name:<36} {show(taken)}" for name, taken in figures["stages"].items()]
    load, cores = figures["load"], figures["cores"]
    if load > cores:
        lines += ["", f"  {load:.0f} processes wanted these {cores} cores: read the cpu column"]
    return "\n".join(lines) + "\n"
