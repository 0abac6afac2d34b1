"""Run a comparison: open the trees, compare them, and make the report.

With a base revision, findings about targets and files that were only moved or renamed are not new.
"""

from __future__ import annotations

import difflib
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path

import msgspec

from ci.parity.buck.reader import is_build_file
from ci.parity.cmake.reader import is_list_file
from ci.parity.compare.comparison import apply_allowances, compare_tree, in_scope, is_about
from ci.parity.compare.findings import Finding, Kind, ParityReport, order_findings
from ci.parity.facts import (
    Configuration,
    NotEvaluated,
    Place,
    directory_of,
    group,
    is_header,
    is_source,
)
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree
from ci.parity.trees import SourceTree, find_git_dir, open_tree, resolve_revision
from provisioning.console.git import ask_git
from provisioning.documents import CONTENT_BYTES, DocumentError, read_json
from provisioning.errors import ToolError, UsageError
from provisioning.files import digest_sources, write_whole
from provisioning.versions import is_older, parse_version

BUCK = ("BUCK", "TARGETS", "targets.bzl")
KEPT_FILES = 12


@dataclass(frozen=True)
class ParityRequest:
    """The input of a comparison: a source, its revision, folders to compare, and a base revision.

    ``today`` is the day for which the allow-list is applied.
    """

    source: Path
    revision: str | None = None
    scope: tuple[str, ...] = ()
    base: str | None = None
    today: date = date.max
    cache: Path | None = None


def compare_source(request: ParityRequest, policy: ParityPolicy) -> ParityReport:
    """Compare the two sides of a source tree. With a base, only findings that the tree's merge base
    with it does not have are reported.

    Raises UsageError if the source, a revision or a scope does not exist, or if a tree is too old
    or lacks the build files of a side.
    """
    tree = open_tree(request.source, request.revision, policy.layout)
    if request.base is None:
        return compare_trees(tree, None, request, policy)
    git_dir = find_git_dir(request.source)
    if git_dir is None:
        raise UsageError(f"{request.source} is not a git repository", fix="omit --base")
    base = open_tree(git_dir, find_merge_base(git_dir, request), policy.layout)
    return compare_trees(tree, base, request, policy)


def find_merge_base(git_dir: Path, request: ParityRequest) -> str:
    """Return the commit at which the compared tree left the base revision. If git knows none, as in
    a shallow clone, return the base revision itself. Raises UsageError if that does not exist."""
    base = resolve_revision(git_dir, request.base or "")
    with suppress(ToolError):
        head = request.revision or "HEAD"
        return ask_git(git_dir, "merge-base", base, head).decode().strip()
    return base


def compare_folders(
    source: Path, folders: Iterable[str], policy: ParityPolicy, cache: Path | None
) -> ParityReport | None:
    """Compare the ``folders`` that have a Buck file. Return None if none of them has one.

    Entries of the allow-list that have no effect are not reported. Raises the same errors as
    ``compare_source``.
    """
    scope = tuple(folder for folder in folders if _has_buck_file(source / folder))
    if not scope:
        return None
    today = datetime.now(timezone.utc).date()
    request = ParityRequest(source, scope=scope, today=today, cache=cache)
    report = compare_source(request, policy)
    findings = tuple(finding for finding in report.findings if finding.kind is not Kind.STALE)
    return replace(report, findings=findings)


def _has_buck_file(folder: Path) -> bool:
    return any((folder / name).is_file() for name in BUCK)


def compare_trees(
    tree: SourceTree, base: SourceTree | None, request: ParityRequest, policy: ParityPolicy
) -> ParityReport:
    """Compare ``tree`` as ``compare_source`` does. ``base`` is the tree of the base revision, or
    None.
    """
    # Before anything is read: the files of another project would be reported one by one.
    check_tree(tree, request.scope, policy.layout.project)
    compared, all_findings, allowed = compare_one(tree, request, policy)
    findings, changed = all_findings, None
    old_findings: list[Finding] = []
    not_evaluated = [
        row
        for row in compared.not_evaluated
        if row.is_whole or in_scope(row.place.path, request.scope)
    ]
    if base is not None:
        old, before, _ = compare_one(base, request, policy)
        renames = find_renames(base, tree, old, compared)
        base_keys = {key for f in before for key in (f.key, renames.translate(f))}
        # Use the level that applies if a change introduces the finding.
        findings = [
            msgspec.structs.replace(f, level=f.when_new or f.level)
            for f in all_findings
            if f.key not in base_keys
        ]
        old_findings = [f for f in all_findings if f.key in base_keys]
        # By file and reason: lines move with each change above them.
        known_places = {(row.side, row.place.path, row.reason) for row in old.not_evaluated}
        not_evaluated = [
            row
            for row in not_evaluated
            if row.is_whole or (row.side, row.place.path, row.reason) not in known_places
        ]
        is_broken = any(row.is_broken for row in compared.not_evaluated if row.side == "cmake")
        orphans = [] if is_broken else sorted((compared.roots - old.roots) & base.files)
        findings += [
            Finding(
                kind=Kind.UNREAD,
                path=path,
                message="no CMakeLists.txt adds this file's folder any more, so nothing in it is "
                "built",
                cmake_place=Place(path),
                fix=f"call add_subdirectory() for {directory_of(path)}, or remove the file",
            )
            for path in orphans
            if in_scope(path, request.scope)
        ]
        places = (place for f in findings for place in (f.buck_place, f.cmake_place) if place)
        changed = {}
        for path in {place.path for place in places}:
            numbers = changed_lines(base.read(path) or "", tree.read(path) or "")
            if numbers:
                changed[path] = numbers
    return ParityReport(
        tree=tree.name,
        scope=request.scope,
        base=request.base or "",
        findings=tuple(order_findings(findings)),
        old=len(old_findings),
        old_notes=sum(finding.is_note for finding in old_findings),
        allowed=allowed,
        not_evaluated=tuple(not_evaluated),
        counts=compared.counts,
        changed=changed,
    )


def changed_lines(before: str, after: str) -> frozenset[int]:
    """Return the numbers (from 1) of the lines in ``after`` that are new or that follow removed
    lines.
    """
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return frozenset(
        number + 1
        for change, _, _, start, end in matcher.get_opcodes()
        for number in range(start, max(end, start + 1))
        if change != "equal"
    )


class Compared(msgspec.Struct, frozen=True):
    """The comparison of a whole tree, as it is cached: before the allow-list and the scope are
    applied.

    ``buck`` and ``cmake`` map each side's targets to their sources. ``roots`` are the list files
    that no other list file adds.
    """

    findings: tuple[Finding, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    counts: dict[str, int]
    buck: dict[str, set[str]]
    cmake: dict[str, set[str]]
    roots: set[str]


def compare_whole(tree: SourceTree, policy: ParityPolicy, cache: Path | None) -> Compared:
    """Compare a tree, or return the comparison of the same tree from ``cache``."""
    record = None
    if cache is not None:
        rules = hashlib.sha256(msgspec.json.encode(policy)).hexdigest()[:16]
        record = cache / f"found-{digest_tree(tree)}-{rules}.json"
        with suppress(DocumentError):  # there is none yet, or it is damaged
            return read_json(record, Compared, CONTENT_BYTES)
    facts = read_tree(tree)
    findings = tuple(compare_tree(facts, policy))
    everything = [side for side in facts.cmake if side.configuration is Configuration.ANY]
    compared = Compared(
        findings=findings,
        not_evaluated=facts.not_evaluated,
        counts={
            "buck_targets": len(facts.buck.targets),
            "cmake_targets": len(everything[0].targets) if everything else 0,
            "files": len(facts.files),
        },
        buck={target.label: target.sources for target in facts.buck.targets},
        cmake={target.name: target.sources for side in everything for target in side.targets},
        roots={path for side in facts.cmake for path in side.roots},
    )
    # A side that is not read at all can have failed by chance, such as by the time limit of its
    # process, so that result is not kept.
    if record is not None and not any(row.is_whole for row in compared.not_evaluated):
        keep(record, msgspec.json.encode(compared))
    return compared


def is_read(path: str) -> bool:
    """Return whether the comparison depends on the content of the file ``path``."""
    is_code = is_source(path) or is_header(path) or path.endswith(".py")
    return is_code or is_list_file(path) or is_build_file(path) or path == "version.txt"


def digest_tree(tree: SourceTree) -> str:
    """Return a digest of everything that the comparison of a tree depends on, except the policy.

    This is the project's layout, the names of all files, the content of the files that are read,
    and the code of this package.
    """
    hasher = hashlib.sha256(digest_sources(Path(__file__).parent).encode())
    hasher.update(msgspec.json.encode(tree.layout))
    for part in tree.submodules:
        hasher.update(f"{part}\n".encode())
    for path in sorted(tree.files):
        content = tree.digest(path) if is_read(path) else ""
        hasher.update(f"{path}\0{content}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()[:32]


def keep(path: Path, answer: bytes) -> None:
    """Write a result to the cache if possible, and remove the oldest results if there are more than
    KEPT_FILES.
    """
    try:
        write_whole(path, answer)
    except OSError:  # without a cache, reading is only slower
        return
    # Another run may remove the same files at this moment.
    aged = sorted(
        (old.stat().st_mtime, old) for old in path.parent.glob("found-*.json") if old.exists()
    )
    for _, old in aged[:-KEPT_FILES]:
        old.unlink(missing_ok=True)


def compare_one(
    tree: SourceTree, request: ParityRequest, policy: ParityPolicy
) -> tuple[Compared, list[Finding], int]:
    """Return the comparison of a tree, the findings in the scope that are not allowed, and the
    number of allowed findings.

    Raises UsageError for a tree that is too old.
    """
    version = (tree.read("version.txt") or "").strip()
    oldest = parse_version(policy.oldest).release
    if version[:1].isdigit() and parse_version(version).release < oldest:
        raise UsageError(
            f"{tree.name} has version {version}, which is too old",
            why=f"trees before {policy.oldest} are not compared",
            fix="use a newer revision",
        )
    compared = compare_whole(tree, policy, request.cache)
    findings, allowed = apply_allowances(
        [finding for finding in compared.findings if is_about(finding, request.scope)],
        policy,
        tree.files,
        request.today,
        # If a side was not read as a whole, an entry that matches nothing may still be needed.
        is_whole=not request.scope
        and not any(row.is_broken or row.is_whole for row in compared.not_evaluated),
        is_current=not is_older(version, policy.written_for),
    )
    return compared, findings, allowed


def check_tree(tree: SourceTree, scope: Sequence[str], project: str) -> None:
    """Check that a tree is the ``project`` of the policy's layout, if that names one, and has build
    files of both sides and the folders in ``scope``. Raises UsageError.
    """
    listed = tree.read("CMakeLists.txt")
    declared = PROJECT.search(listed or "")
    if project and (not declared or declared[1].lower() != project.lower()):
        why = "it has no CMakeLists.txt at its root"
        if listed is not None:
            call = (
                f"calls project({declared[1]})" if declared else f"does not call project({project})"
            )
            why = f"its CMakeLists.txt {call}"
        raise UsageError(
            f"{tree.name} is not a tree of {project}, so parity cannot read it",
            why=why,
            fix=f"pass the root of a tree of {project}, or --policy with this project's layout",
        )
    for folder in scope:
        if not any(path.startswith(folder.rstrip("/") + "/") for path in tree.files):
            fault = f"{tree.name} has no folder {folder}"
            raise UsageError(fault, fix="correct the folder in --scope")
    if scope and not any(is_read(path) for path in tree.files if in_scope(path, scope)):
        raise UsageError(
            f"there is nothing to compare in {', '.join(scope)}",
            why="it has neither sources nor build files",
            fix="correct the folder in --scope",
        )
    names = {path.rpartition("/")[2] for path in tree.files}
    for build_files in (("BUCK", "TARGETS"), ("CMakeLists.txt",)):
        if names.isdisjoint(build_files):
            fault = f"{tree.name} has no {' or '.join(build_files)} file"
            raise UsageError(fault, fix="pass the root of an ExecuTorch tree")


PROJECT = re.compile(r"(?im)^[^\S\n]*project\s*\(\s*([^\s)]+)")
PARTS = re.compile(r"( -> |: )")


@dataclass(frozen=True)
class Renames:
    """The new names of the files, folders and targets that a change renamed. The keys are the old
    names."""

    files: Mapping[str, str]
    folders: Mapping[str, str]
    targets: Mapping[str, str]

    def translate(self, finding: Finding) -> tuple[str, str, str, str]:
        """Return the key that a finding about the base has after the change."""
        kind, path, detail, where = finding.key
        parts = (self.targets.get(part, part) for part in PARTS.split(detail))
        # A file that was not renamed itself moves with its folder.
        folder, _, name = path.rpartition("/")
        moved = posixpath.join(self.folders.get(folder, folder), name)
        return kind, self.files.get(path, moved), "".join(parts), where


def find_renames(base: SourceTree, tree: SourceTree, before: Compared, after: Compared) -> Renames:
    """Return what a change from ``base`` to ``tree`` renamed, from the comparisons of both."""
    files = find_moves(base, tree)
    folders: dict[str, str] = {}
    left = {directory_of(path) for path in tree.files}
    for old, new in files.items():
        if directory_of(old) not in left and old.rpartition("/")[2] == new.rpartition("/")[2]:
            folders.setdefault(directory_of(old), directory_of(new))
    buck = match_sources(before.buck, after.buck, files)
    cmake = match_sources(before.cmake, after.cmake, files)
    return Renames(files, folders, buck | cmake)


def find_moves(base: SourceTree, tree: SourceTree) -> dict[str, str]:
    """Map each removed file to the new file with the same content, otherwise to the only new file
    with the same name.
    """
    gone, fresh = sorted(base.files - tree.files), tree.files - base.files
    if not gone or not fresh:
        return {}
    base.read_all(gone)
    tree.read_all(fresh)
    contents = group((tree.read(path) or path, path) for path in fresh)
    names = group((path.rpartition("/")[2], path) for path in fresh)
    old_names = group((path.rpartition("/")[2], path) for path in gone)
    moves = {}
    for path in gone:
        name = path.rpartition("/")[2]
        identical = contents.get(base.read(path) or path, [])
        alike = names.get(name, []) if len(old_names[name]) == 1 else []
        destinations = [p for p in identical if p.rpartition("/")[2] == name] or identical or alike
        if len(destinations) == 1:
            moves[path] = destinations[0]
    return moves


def match_sources(
    before: Mapping[str, set[str]], after: Mapping[str, set[str]], files: Mapping[str, str]
) -> dict[str, str]:
    """Map each removed target to the new target that has most of its sources, if the two share more
    than half of their sources.
    """
    fresh = {name: sources for name, sources in after.items() if name not in before}
    matches = {}
    for name in before.keys() - after.keys():
        moved = {files.get(path, path) for path in before[name]}
        shared = {candidate: len(moved & sources) for candidate, sources in fresh.items()}
        best = max(shared, key=lambda candidate: (shared[candidate], candidate), default="")
        if best and shared[best] * 2 > len(moved | fresh[best]):
            matches[name] = best
    return matches
