"""Compiles Python modules in a second process while the fork server imports others.

uv installs packages without bytecode. In a new environment, the fork server has to compile 2,300
modules, one after the other, while the other cores have little to do.
"""

from __future__ import annotations

import compileall
import importlib
import mmap
import os
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from provisioning.console.process import end_with_parent

# What a lowering imports last, so that it is compiled when the fork server gets there. Of the
# packages, only what they import is compiled: a third of sympy. Of the folders, most is needed.
PACKAGES = ("sympy", "networkx")
FOLDERS = (
    "torch/_dynamo",
    "torch/distributed",
    "torchao",
    "executorch/exir",
    "executorch/backends/qualcomm",
)
processes: list[int] = []  # the process that compiles, while there is one
is_enough = mmap.mmap(-1, 1)  # shared with that process: not 0 if it is to end


def before_forks() -> None:
    """Start the process if this environment is new. It ends with ``end_compiling``, or with this
    process."""
    if not lacks_bytecode() or len(os.sched_getaffinity(0)) < 2:
        return
    parent = os.getpid()
    child = os.fork()
    if child:
        processes.append(child)
        return
    try:
        end_with_parent(parent)
        compile_modules()
    finally:
        os._exit(0)


def end_compiling() -> None:
    """Let the process end after the module that it compiles now, and wait for it."""
    is_enough[0] = 1
    while processes:
        os.waitpid(processes.pop(), 0)


def lacks_bytecode() -> bool:
    """Return whether the package that is imported last has no bytecode, but could have it."""
    spec = find_spec(PACKAGES[-1])
    if spec is None or spec.origin is None:
        return False
    return not Path(cache_from_source(spec.origin)).exists() and os.access(
        Path(spec.origin).parent, os.W_OK
    )


def compile_modules() -> None:
    """Compile PACKAGES and FOLDERS, except modules that are compiled already."""
    for name in PACKAGES:
        with suppress(ImportError):
            importlib.import_module(name)
    for folder in FOLDERS:
        package, _, path = folder.partition("/")
        spec = find_spec(package)  # not of the folder, which would import the package
        for place in list_places(spec):
            for module in sorted((place / path).rglob("*.py")):
                if is_enough[0]:
                    return
                compileall.compile_file(module, quiet=2)


def list_places(spec: ModuleSpec | None) -> list[Path]:
    """Return the folders of a package, none if it is not installed."""
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
