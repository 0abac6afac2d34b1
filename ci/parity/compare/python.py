"""Python libraries whose files import what their deps do not reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ci.parity.compare.findings import Finding, Kind, Level, at
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index
from ci.parity.facts import BuckTarget
from ci.parity.policy import matches


def find_import_drift(index: Index, groups: Groups) -> Iterator[Finding]:
    """Imports of files of other targets, in the folders that the policy names.

    A library need not name what everything that is built of it depends on. A file of several
    targets is reached by any of them; one of no target is an unlisted file.
    """
    targets = [target for target in index.facts.buck.targets if "python" in target.kind]
    owners: dict[str, set[str]] = defaultdict(set)
    for target in targets:
        for path in index.files_of(target):
            owners[path].add(target.label)
    chosen = [t for t in targets if matches(f"{t.package}/", index.policy.imports)]
    tops = find_tops(groups, targets) if chosen else {}
    for target in chosen:
        yield from _missing(index, target, owners, tops[target.label])


def find_tops(groups: Groups, targets: Iterable[BuckTarget]) -> dict[str, list[set[str]]]:
    """What each top above a target reaches: those that nothing else of Python depends on."""
    reach = {target.label: groups.buck_reach([target.label]) for target in targets}
    below = {label for own, reached in reach.items() for label in reached if label != own}
    tops = {label: reached for label, reached in reach.items() if label not in below}
    return {label: [r for r in tops.values() if label in r] or [reach[label]] for label in reach}


def _missing(
    index: Index, target: BuckTarget, owners: dict[str, set[str]], tops: list[set[str]]
) -> Iterator[Finding]:
    for entry in index.resolved(target.srcs):
        for imported in index.facts.imports.get(entry.path, ()):
            wanted = owners.get(imported, set())
            if not wanted or all(wanted & reached for reached in tops):
                continue
            label = min(wanted, key=lambda each: (len(each), each))
            yield Finding(
                kind=Kind.DEPENDENCY,
                path=entry.path,
                level=Level.NOTE if index.policy.is_test(entry.path) else Level.WARNING,
                message=f"it imports {imported}; {target.label} does not depend on {label}, nor "
                "does everything built from it",
                detail=f"{target.label} -> {label}",
                fix=f'add "{label}" to the deps of {target.label} ({target.place})',
                **at(target),
            )
