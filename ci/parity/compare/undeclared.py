"""Find headers and imports that Buck targets use without declaring them.

CMake finds all headers through a few include directories. Buck finds only the headers of
dependencies. This module finds:

- headers that no Buck target exports
- includes that no Buck target resolves
- headers and Python files that a Buck library uses, but that none of its dependencies provides
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import reduce
from operator import and_
from posixpath import commonpath

from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind, Level, at, noted
from ci.parity.compare.groups import Groups, Reached
from ci.parity.compare.index import Index, is_compiling, is_native
from ci.parity.compare.relations import buck_names
from ci.parity.compare.sources import fix_in_buck, levels_of, nearest_buck_target
from ci.parity.facts import (
    BuckTarget,
    Include,
    closure,
    collect,
    directory_of,
    is_header,
    is_source,
)
from ci.parity.policy import matches
from ci.report.text import count


def find_header_drift(index: Index) -> Iterator[Finding]:
    """Yield a finding for each header that no Buck target lists, although one should.

    In packages where Buck compiles C++, these are headers that a CMake target lists, headers in
    folders where Buck lists headers or sources, and headers that a listed file includes by their
    full path.
    """
    listed = index.buck_mentions
    folders = {directory_of(path) for path in index.buck_uses if is_source(path)}
    folders |= {directory_of(path) for path in listed if is_header(path)}
    needed = {entry.path for target in index.built for entry in target.headers}
    needed |= {header for path in listed for header in index.facts.needed.get(path, ())}
    for path in index.facts.files - listed:
        if not is_header(path) or index.is_outside(path):
            continue
        if index.package_of(path) not in index.native_packages:
            continue
        if directory_of(path) not in folders and path not in needed:
            continue
        target = nearest_buck_target(index, path, None)
        is_used = path.rpartition("/")[2] in index.facts.header_names
        yield Finding(
            kind=Kind.HEADER,
            path=path,
            **(levels_of(index, path, Level.ERROR) if is_used else {"level": Level.NOTE}),
            message="no Buck target exports this header"
            + ("" if is_used else ", and nothing includes it"),
            fix=fix_in_buck(index, path, target, "the exported_headers of "),
            **at(target),
        )


def find_include_drift(index: Index) -> Iterator[Finding]:
    """Yield a finding for each include that no Buck target's header map, namespace or include
    directory resolves, and for each by a full path that neither the tree nor a Buck rule has.

    One match in any target is enough, because Meta's macros also affect which targets are reached.
    """
    targets = index.facts.buck.targets
    names = {name for target in targets for name in target.include_names}
    listed = {name for t in targets for entry in t.entries for name in (entry.path, entry.made_as)}
    made_headers = {name for name in listed if is_header(name) and not index.exists(name)}
    folders = {folder for target in targets for folder in target.include_directories}
    compiling = filter(is_compiling, reversed(targets))
    owners = {entry.path: target for target in compiling for entry in target.entries}
    broken: dict[str, list[tuple[Include, BuckTarget]]] = defaultdict(list)
    for row in index.facts.includes:
        header = posixpath.normpath(posixpath.join(row.directory or "", row.text))
        owner = owners.get(row.place.path)
        if owner is None or row.text in names:
            continue
        if row.directory is None:
            header = header.partition("/")[2]  # without the project's name
        if index.is_outside(row.place.path) or index.is_outside(header):
            continue
        if row.directory is None:
            if index.package_of(header) in index.native_packages:
                broken[header].append((row, owner))
            continue
        if any(index.exists(posixpath.normpath(posixpath.join(f, row.text))) for f in folders):
            continue
        package = index.package_of(header) or ""
        inside = posixpath.relpath(header, package or ".")
        yield Finding(
            kind=Kind.INCLUDE,
            path=row.place.path,
            **levels_of(index, row.place.path),
            message=f"this file includes {row.text}, which CMake finds in "
            f"{row.directory or 'the root'}; no Buck target exports a header of that name",
            detail=row.text,
            cmake_place=row.place,
            fix=f"in //{package}, add a library with exported_headers = "
            f'{{"{row.text}": "{inside}"}} and header_namespace = "", or include it by its full '
            "path",
            **at(owner),
        )
    for header, rows in sorted(broken.items()):
        yield _broken_include(index, header, rows, made_headers)


def _broken_include(
    index: Index, header: str, rows: list[tuple[Include, BuckTarget]], made_headers: Collection[str]
) -> Finding:
    """Return the finding for the includes of ``header`` by its full path, which nothing has.

    ``made_headers`` are the headers that rules make. If none of them is in the folder of
    ``header``, the finding is a note, because a macro of Meta's may make the header.
    """
    made_here = [name for name in made_headers if directory_of(name) == directory_of(header)]
    near = get_close_matches(header, made_here, 1, cutoff=0)
    rows.sort(key=lambda row: (index.policy.is_test(row[0].place.path), row[0].place))
    row, owner = rows[0]
    further = (
        f" (as {count(len(rows) - 1, 'other file does', 'other files do')})" if rows[1:] else ""
    )
    return Finding(
        kind=Kind.INCLUDE,
        path=row.place.path,
        **(levels_of(index, row.place.path, Level.ERROR) if made_here else {"level": Level.NOTE}),
        message=f"this file includes {row.text}{further}, but there is no such file, and no Buck"
        " rule makes one of that name",
        detail=row.text,
        cmake_place=row.place,
        fix=f"include {near[0]}, or rename that header"
        if near
        else "correct the name, or add a rule that makes the header",
        **at(owner),
    )


def find_undeclared_headers(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each header that a Buck library uses without a dependency on a target
    that provides it.

    A source of the library includes the header, directly or through other headers. Headers that no
    target provides are left out.
    """
    owners = find_owners(groups)
    for target in find_judged(groups):
        reached = groups.passed_on(target, groups.policy.given)
        needs = find_needs(groups, target)
        copied = set(groups.copied(target))
        sources = {entry.path for entry in groups.resolved(target.srcs)} | copied
        for source in sorted(path for path in sources if is_source(path)):
            for path in sorted(closure([source], needs)):
                lacking = [h for h in needs(path) if h in owners and reached.isdisjoint(owners[h])]
                users = {target.label} if path == source else owners.get(path, set()) & reached
                for header in lacking if users else ():
                    label = target.label if target.label in users else best(users)
                    provider = best(owners[header])
                    if path in copied:
                        label = collector_of(groups, target, provider)
                    yield _undeclared(groups, groups.by_label[label], path, header, provider)


def find_unexported_headers(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each header that an exported header of a library includes, but that no
    dependency of the library provides.

    For a library without sources, only exported dependencies count.
    """
    owners = find_owners(groups)
    compiled = closure(groups.buck_uses, lambda path: groups.facts.needed.get(path, ()))
    for target in find_judged(groups):
        label = target.label
        reached = groups.passed_on(target, groups.policy.given, exported=not target.srcs)
        exported = {entry.path for entry in groups.resolved(target.exported_headers)}
        for path in sorted(exported & compiled):
            for header in groups.facts.needed.get(path, ()):
                providers = owners.get(header)
                if providers and not providers & reached:
                    finding = _undeclared(groups, target, path, header, best(providers))
                    yield replace(
                        finding,
                        **noted(finding.when_new or finding.level),
                        message=f"{path} includes {header}, but {label} does not export "
                        f"{best(providers)}, so each user of {label} has to depend on it too",
                    )


def find_owners(index: Index) -> dict[str, set[str]]:
    """Map each header to the labels of the Buck targets that list or make it, and of the libraries
    outside the tree that contain it.

    A header of the tree is in no library outside the tree, even if a dependency with its name is on
    a target that does not exist.
    """
    buck = index.facts.buck
    made_headers = ((entry.made_as, t.label) for t in buck.targets for entry in t.entries)
    listed = ((path, t.label) for t in buck.targets for path in index.files_of(t))
    outside = (row for row in buck.outside_headers.items() if not index.exists(row[0]))
    pairs = (*made_headers, *listed, *outside)
    return collect((path, label) for path, label in pairs if is_header(path))


def find_judged(index: Index) -> Iterator[BuckTarget]:
    """Yield the Buck libraries whose includes are checked, in the order of their labels."""
    for _, target in sorted(index.by_label.items()):
        is_left_out = index.policy.is_twin(target.name) or index.policy.is_excluded(
            target.place.path
        )
        if is_native(target) and is_compiling(target) and not is_left_out:
            yield target


def collector_of(groups: Groups, target: BuckTarget, provider: str) -> str:
    """Return the label of the target that should depend on ``provider``, because a copied source of
    ``target`` includes a header of ``provider``.

    A macro makes the copies. It gives ``target`` a dependency without files, which declares what
    the originals include. If there are several such dependencies, return the one nearest to
    ``provider``. If there is none, return ``target``.
    """
    by_label = groups.by_label
    labels = {groups.plain(word.text) for word in (*target.deps, *target.exported_deps)}
    collecting = [label for label in labels & by_label.keys() if not groups.has_files(label)]

    def rank(label: str) -> tuple[int, str]:
        return (len(commonpath([by_label[label].package, by_label[provider].package])), label)

    return max(collecting, key=rank, default=target.label)


def find_needs(groups: Groups, target: BuckTarget) -> Callable[[str], Iterable[str]]:
    """Return a function from a file to the headers that it includes by full path when ``target``
    compiles it.

    An include that is guarded by a macro counts if the target has the macro in any build.
    """
    macros = buck_names(groups, [target.label])
    needed, guarded = groups.facts.needed, groups.facts.guarded

    def needs(path: str) -> Iterable[str]:
        headers_needed = needed.get(path, ())
        for macro, headers in guarded.get(path, {}).items():
            headers_needed += headers if macro in macros else ()
        return headers_needed

    return needs


def best(labels: set[str]) -> str:
    """Return the shortest label, because the others are usually variants of it."""
    return min(labels, key=lambda label: (len(label), label))


def _undeclared(
    groups: Groups, target: BuckTarget, path: str, header: str, provider: str
) -> Finding:
    attribute = "exported_deps" if is_header(path) or not target.entries else "deps"
    fix = f'add "{provider}" to the {attribute} of {target.label} ({target.place})'
    if target.label in groups.buck_reach([provider]):
        fix = f"list {path} in {provider}, which depends on {target.label} ({target.place})"
    lacks = "export" if provider in groups.passed_on(target) else "depend on"
    return Finding(
        kind=Kind.DEPENDENCY,
        path=target.place.path,
        **levels_of(groups, path),
        message=f"{path} includes {header}, but {target.label} does not {lacks} {provider}",
        detail=f"{target.label} -> {provider}",
        fix=fix,
        **at(target),
    )


def find_import_drift(groups: Groups) -> Iterator[Finding]:
    """Yield a finding for each imported file whose target the importing target does not depend on.
    In folders that the policy does not list, this is only a note.

    The importing target may lack the dependency if all top targets that use it have the dependency.
    (A top target is a Python target that no other Python target depends on.) If several targets
    list the imported file, one of them is enough. A file without a target is reported as
    unlisted.
    """
    targets = [target for target in groups.facts.buck.targets if "python" in target.kind]
    owners = collect((path, t.label) for t in targets for path in groups.files_of(t))
    edges = ((label, t.label) for t in targets for label in groups.buck_edges(t.label))
    users = collect((groups.plain(label), user) for label, user in edges)
    above = closure((target.label for target in targets), lambda label: users.get(label, ()))
    below = closure(users, groups.buck_edges)
    tops = [groups.buck_reach([label]) for label in sorted(above - below)]
    for target in targets:
        importer = target.label
        reaching = [reached for reached in tops if importer in reached]
        reaching = reaching or [groups.buck_reach([importer])]
        common = Reached(reaching[0].places, reduce(and_, (reached.bits for reached in reaching)))
        is_listed = matches(f"{target.package}/", groups.policy.imports)
        entries = groups.resolved(target.srcs)
        pairs = ((e.path, each) for e in entries for each in groups.facts.imports.get(e.path, ()))
        for path, imported in pairs:
            providers = owners.get(imported, set())
            if not providers or not common.isdisjoint(providers):
                continue
            if not any(reached.isdisjoint(providers) for reached in reaching):
                continue
            label = best(providers)
            yield Finding(
                kind=Kind.DEPENDENCY,
                path=path,
                **(levels_of(groups, path) if is_listed else {"level": Level.NOTE}),
                message=f"this file imports {imported}, but {importer} does not depend on {label}, "
                f"and not all targets that use {importer} do",
                detail=f"{importer} -> {label}",
                fix=f'add "{label}" to the deps of {importer} ({target.place})',
                **at(target),
            )
