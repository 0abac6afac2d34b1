"""Sources of a library that a CMake target compiles piece by piece, and forgets.

A target that lists another library's sources by hand drifts even when some other target still
compiles the forgotten file.
"""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index, is_compiling
from ci.parity.facts import CMakeTarget, closure, is_header, is_inside, is_source, suffix_of

FEWEST_TAKEN = 5


def find_partial_drift(index: Index, groups: Groups) -> Iterator[Finding]:
    """Sources that are the only ones of a Buck library which a CMake target does not compile, and
    those of another folder's library whose header it includes."""
    libraries = {
        target.label: {
            entry.path
            for entry in index.resolved(target.srcs)
            if is_source(entry.path) and index.exists(entry.path)
        }
        for target in index.facts.buck.targets
        if is_compiling(target) and not index.policy.is_twin(target.name)
    }
    compiled = {
        name: {entry.path for target in targets for entry in target.sources}
        for name, targets in groups.cmake.items()
    }
    for name in sorted(groups.cmake):
        reach = set[str]().union(*(compiled.get(n, set()) for n in groups.cmake_reach(name)))
        own = compiled[name]
        for label, sources in libraries.items():
            taken, missing = sources & own, sources - reach
            if len(taken) < FEWEST_TAKEN or len(missing) > 1:
                is_guest = taken and missing and is_foreign(index, groups.cmake[name], sources)
                missing = missing & find_halves(index, own) if is_guest else set()
            for path in sorted(missing & index.shared_files):
                yield _partial(index, groups.cmake[name][0], label, path, taken)


def is_foreign(index: Index, targets: list[CMakeTarget], sources: set[str]) -> bool:
    """Whether some CMake targets are no tests, and no source of a library lies below theirs."""
    folders = [target.directory for target in targets]
    own = (entry.path for target in targets for entry in target.sources)
    is_apart = not any(is_inside(path, folders) for path in sources)
    return is_apart and not any(map(index.policy.is_test, own))


def find_halves(index: Index, sources: set[str]) -> set[str]:
    """The sources that are the other halves of what some sources include: a.cpp of a.h."""
    included = closure(sources, lambda path: index.facts.headers.get(path, ()))
    stems = {path.removesuffix(suffix_of(path)) for path in included if is_header(path)}
    return {path for path in index.shared_files if path.removesuffix(suffix_of(path)) in stems}


def _partial(index: Index, target: CMakeTarget, label: str, path: str, taken: set[str]) -> Finding:
    entry = next(entry for entry in target.sources if entry.path in taken)
    use = index.buck_uses[path][0]
    return Finding(
        kind=Kind.BUCK_ONLY,
        path=path,
        level=Level.NOTE if index.policy.is_test(path) else Level.WARNING,
        message=f"{target.name} compiles {len(taken)} other sources of {label} but not this one",
        detail=target.name,
        fix=f"add {path} to {target.name} ({entry.place})",
        **at(index.by_label[label], use.entry.place),
        **at(target, entry.place),
    )
