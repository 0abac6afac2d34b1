"""Sources that a configured build leaves out of a target although Buck compiles them.

The static reading takes every branch of an option, so a file that only one branch has counts as
compiled there; a configured build has taken one of the branches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.compare.index import BUILT, BuckUse, Index
from ci.parity.compare.sources import is_compared
from ci.parity.facts import CMakeTarget, Configuration, ListEntry


def find_configured_drift(index: Index) -> Iterator[Finding]:
    """Files of a configured target that its build compiles nowhere, and Buck does."""
    for configuration in BUILT:
        facts = index.cmake.get(configuration)
        for target in facts.targets if facts else ():
            for entry in target.left_out:
                uses = index.buck_uses.get(entry.path, ())
                fitting = [use for use in uses if configuration in index.configurations(use)]
                if fitting and is_compared(index, entry.path) and index.exists(entry.path):
                    yield _left_out(index, target, entry, fitting[0], configuration)


def _left_out(
    index: Index, target: CMakeTarget, entry: ListEntry, use: BuckUse, configuration: Configuration
) -> Finding:
    path, label = entry.path, use.target.label
    return Finding(
        kind=Kind.BUCK_ONLY,
        path=path,
        level=Level.NOTE if index.policy.is_test(path) else Level.WARNING,
        message=f"Buck compiles it in {label}; {target.name} does under other options than this "
        "build's only",
        detail=target.name,
        buck_target=label,
        cmake_target=target.name,
        configuration=configuration,
        buck_place=use.entry.place,
        cmake_place=entry.place,
        fix=f"add it to {target.name} whatever the option, or select() it in {label}",
    )
