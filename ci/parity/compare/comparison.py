"""Compare a whole tree, leave out findings that depend on files that were not read, and apply the
allow-list.

An entry of the allow-list that has no effect is itself a finding.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import date

from ci.parity.compare import mistakes, relations, sources, undeclared
from ci.parity.compare.findings import Finding, Kind, Level, order_findings
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index
from ci.parity.facts import ParityFacts, Place, is_inside
from ci.parity.policy import Allowance, ParityPolicy

BUCK_LACKS = {Kind.CMAKE_ONLY, Kind.HEADER, Kind.INCLUDE, Kind.UNLISTED, Kind.VARIANT}
CMAKE_LACKS = {Kind.BUCK_ONLY, Kind.UNLISTED}
BROKEN = "fix this file; until then, nothing that depends on it is checked"
RELATIONS = {Kind.DEPENDENCY, Kind.DEFINE}
POLICY_SOURCE = "manifests/policies/parity.toml"


def find_unread(index: Index) -> Iterator[Finding]:
    """Yield a finding for each build file that could not be read, and for each targets.bzl that no
    build file loads. Also yield one for each directory that is added but has no list file.

    A missing list file is an error only if a change introduces it.
    """
    for row in index.not_evaluated:
        # A loaded file may be in an excluded folder, but what it leaves unknown is not.
        if row.folder is None or row.is_whole or index.policy.is_excluded(f"{row.folder}/BUCK"):
            continue
        yield Finding(
            kind=Kind.UNREAD,
            path=row.place.path,
            level=Level.ERROR if row.is_broken else Level.NOTE,
            when_new=Level.ERROR,
            message=row.reason if row.is_known else f"not read: {row.reason}",
            detail="" if row.is_broken else row.folder,
            buck_place=row.place if row.side == "buck" else None,
            cmake_place=row.place if row.side == "cmake" else None,
            fix=f"load it in {row.folder}/BUCK" if row.is_known else BROKEN,
        )


def find_certain(groups: Groups, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that depend on nothing that was not read, so that they cannot be wrong
    because of it.
    """
    unread = [row for row in groups.not_evaluated if row.folder is not None and not row.is_known]
    packages = {row.folder for row in unread if row.side == "buck"}
    directories = {row.folder or "" for row in unread if row.side == "cmake"}
    is_broken = any(row.side == "cmake" and row.is_broken for row in groups.not_evaluated)

    def reaches_unread(label: str) -> bool:
        reached = groups.buck_reach([label]) if packages and label else ()
        return any(text[2:].partition(":")[0] in packages for text in reached)

    def links_unknown(name: str) -> bool:
        for linked in groups.cmake_reach(name) if is_broken and name else ():
            rows = groups.cmake.get(linked, ())
            if not rows or any(is_inside(row.directory, directories) for row in rows):
                return True
        return False

    for finding in findings:
        kind = finding.kind
        path = f"{finding.path}/"  # it may be a folder
        is_doubtful = (
            (kind in BUCK_LACKS and groups.package_of(path) in packages)
            or (kind in CMAKE_LACKS and is_inside(path, directories))
            or (kind in RELATIONS and reaches_unread(finding.buck_target))
            or (kind in RELATIONS and links_unknown(finding.cmake_target))
        )
        if not is_doubtful:
            yield finding


def compare_tree(facts: ParityFacts, policy: ParityPolicy) -> list[Finding]:
    """Return all findings about ``facts``."""
    groups = Groups(facts, policy)
    lacking = list(undeclared.find_undeclared_headers(groups))
    findings = [
        *sources.find_cmake_only(groups),
        *sources.find_buck_only(groups),
        *sources.find_unlisted(groups),
        *mistakes.find_variant_files(groups),
        *mistakes.find_variant_dependencies(groups),
        *mistakes.find_missing(groups),
        *mistakes.find_duplicates(groups),
        *mistakes.find_repeated(groups),
        *mistakes.find_unknown_labels(groups),
        *mistakes.find_unknown_links(groups),
        *mistakes.find_empty_globs(groups),
        *undeclared.find_header_drift(groups),
        *undeclared.find_include_drift(groups),
        *sources.find_partial_drift(groups),
        *lacking,
        *undeclared.find_unexported_headers(groups),
        *relations.find_dependency_drift(groups, {finding.detail for finding in lacking}),
        *relations.find_define_drift(groups),
        *undeclared.find_import_drift(groups),
    ]
    return order_findings([*find_unread(groups), *find_certain(groups, findings)])


def is_about(finding: Finding, scope: Sequence[str]) -> bool:
    """Return whether a finding or one of its places is in ``scope``."""
    places = (finding.buck_place, finding.cmake_place)
    paths = [finding.path, *(place.path for place in places if place)]
    return any(in_scope(path, scope) for path in paths)


def in_scope(path: str, scope: Sequence[str]) -> bool:
    """Return whether a path is in one of the folders in ``scope``. Without folders, every path
    is."""
    return not scope or is_inside(path, scope)


def apply_allowances(
    findings: Sequence[Finding],
    policy: ParityPolicy,
    files: Container[str],
    today: date,
    *,
    is_whole: bool,
    is_current: bool,
) -> tuple[list[Finding], int]:
    """Return the findings that are not allowed, and the number of findings that the allow-list
    allows.

    An entry becomes a finding about the policy if it has expired, or if its condition is not met.
    If the whole tree was compared (``is_whole``), so does an entry that allows nothing. Such
    findings are reported only if ``is_current`` is true, because an older tree, or the tree of
    another project, may need other entries.
    """
    effect = {id(entry): why_without_effect(entry, files, today) for entry in policy.allow}
    live = [entry for entry in policy.allow if not effect[id(entry)]]
    used = set[int]()
    remaining = []
    for finding in findings:
        key = (finding.kind.value, finding.path, finding.detail)
        entry = next((entry for entry in live if entry.covers(*key)), None)
        if entry is None:
            remaining.append(finding)
        else:  # later entries that cover it, too, count as unused
            used.add(id(entry))
    allowed = len(findings) - len(remaining)
    if is_current:
        without_effect = [entry for entry in policy.allow if effect[id(entry)]]
        remaining += [_stale(entry, effect[id(entry)]) for entry in without_effect]
        unused = [entry for entry in live if id(entry) not in used] if is_whole else []
        remaining += [_stale(entry, "no finding matches the entry") for entry in unused]
    return remaining, allowed


def why_without_effect(entry: Allowance, files: Container[str], today: date) -> str:
    """Return why an entry of the allow-list has no effect, or "" if it has an effect."""
    if entry.until is not None and today >= entry.until:
        return f"the entry expired on {entry.until.isoformat()}"
    if entry.exists and entry.exists not in files:
        return f"the entry's condition is not met: {entry.exists} is not in the tree"
    if entry.absent and entry.absent in files:
        return f"the entry's condition is not met: {entry.absent} is in the tree"
    return ""


def _stale(entry: Allowance, why: str) -> Finding:
    about = ", ".join(entry.files)
    return Finding(
        kind=Kind.STALE,
        path=POLICY_SOURCE,
        level=Level.WARNING,
        message=f"the entry for {', '.join(entry.kinds)} in {about} has no effect: {why}",
        detail=about,
        buck_place=Place(POLICY_SOURCE),
        fix="remove the entry, or correct it",
    )
