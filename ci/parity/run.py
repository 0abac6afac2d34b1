"""One comparison from its source to its report."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec

from ci.parity.compare.comparison import Sorted, apply_allowances, compare_tree, in_scope
from ci.parity.compare.findings import Finding, order_findings
from ci.parity.facts import Configuration, ParityFacts
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree
from ci.parity.renames import find_renames
from ci.parity.report import ParityReport
from ci.parity.trees import SourceTree, find_git_dir, open_tree
from provisioning.errors import UsageError

Reader = Callable[[SourceTree, "Path | None"], ParityFacts]
POLICY_SOURCE = "manifests/policies/parity.toml"


@dataclass(frozen=True)
class ParityRequest:
    """What to compare: a source, a revision of it, folders of it, and a base revision."""

    source: Path
    revision: str | None = None
    scope: tuple[str, ...] = ()
    base: str | None = None
    today: date = date.max
    cache: Path | None = None


def compare_source(
    request: ParityRequest, policy: ParityPolicy, read: Reader = read_tree
) -> ParityReport:
    """Read, compare and sort.

    Raises UsageError for a source, revision or scope that does not exist, or a tree that is too
    old.
    """
    tree = open_tree(request.source, request.revision, policy.layout)
    base = None
    if request.base is not None:
        git_dir = find_git_dir(request.source)
        if git_dir is None:
            raise UsageError(f"{request.source} has no revisions", fix="leave --base out")
        base = open_tree(git_dir, request.base, policy.layout)
    return compare_trees(tree, base, request, policy, read)


def compare_trees(
    tree: SourceTree,
    base: SourceTree | None,
    request: ParityRequest,
    policy: ParityPolicy,
    read: Reader = read_tree,
) -> ParityReport:
    """Compare two trees that are open already, as ``compare_source`` does."""
    check_tree(tree, request.scope)
    facts, result = compare_one(tree, request, policy, read)
    found, changed = result.findings, None
    if base is not None:
        base_facts, before = compare_one(base, request, policy, read)
        renames = find_renames(base, tree, base_facts, facts)
        known = {key for f in before.findings for key in (f.key, renames.translate(f))}
        # At the level that each has when a change introduces it.
        found = tuple(
            msgspec.structs.replace(f, level=f.when_new or f.level)
            for f in result.findings
            if f.key not in known
        )
        changed = find_changes(found, tree, base)
    return ParityReport(
        tree=tree.name,
        scope=request.scope,
        base=request.base or "",
        findings=tuple(order_findings(list(found))),
        old=len(result.findings) - len(found),
        allowed=result.allowed,
        not_evaluated=tuple(
            row
            for row in facts.not_evaluated
            if row.is_whole or in_scope(row.place.path, request.scope)
        ),
        counts=count_facts(facts),
        changed=changed,
    )


def find_changes(
    findings: Sequence[Finding], tree: SourceTree, base: SourceTree
) -> dict[str, frozenset[int]]:
    """Changed lines of the files that findings point to and that are not the same in the base."""
    places = (place for f in findings for place in (f.buck_place, f.cmake_place) if place)
    paths = {place.path for place in places}
    lines = {path: changed_lines(base.read(path) or "", tree.read(path) or "") for path in paths}
    return {path: numbers for path, numbers in lines.items() if numbers}


def changed_lines(before: str, after: str) -> frozenset[int]:
    """Numbers of the lines of ``after``, from 1, that are new or stand where some went away."""
    if before == after:
        return frozenset()
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    return frozenset(
        number + 1 for _, _, _, start, end in blocks for number in range(start, max(end, start + 1))
    )


def compare_one(
    tree: SourceTree, request: ParityRequest, policy: ParityPolicy, read: Reader
) -> tuple[ParityFacts, Sorted]:
    """The facts of one tree and its findings, sorted by the allow-list.

    Raises UsageError for a tree that is too old.
    """
    version = (tree.read("version.txt") or "").strip()
    if policy.refuses(version):
        raise UsageError(
            f"{tree.name} is version {version}",
            why=f"trees before {policy.oldest} are not compared",
            fix="name a newer revision",
        )
    facts = read(tree, request.cache)
    findings: list[Finding] = compare_tree(facts, policy, request.scope)
    return facts, apply_allowances(
        findings,
        policy,
        facts.files,
        request.today,
        whole=not request.scope and not any(row.is_broken for row in facts.not_evaluated),
        is_current=policy.is_for(facts.version),
        source=POLICY_SOURCE,
    )


def check_tree(tree: SourceTree, scope: Sequence[str]) -> None:
    """Refuse a tree without build files, and a scope that is not in it. Raises UsageError."""
    folders = {path.rpartition("/")[0] for path in tree.files}
    for folder in scope:
        if not any(f"{name}/".startswith(folder.rstrip("/") + "/") for name in folders):
            raise UsageError(f"no folder {folder} in {tree.name}", fix="correct --scope")
    names = {path.rpartition("/")[2] for path in tree.files}
    if not names & {"BUCK", "TARGETS"}:
        raise UsageError(f"{tree.name} has no BUCK or TARGETS file", fix="name an ExecuTorch tree")
    if "CMakeLists.txt" not in names:
        raise UsageError(f"{tree.name} has no CMakeLists.txt", fix="name an ExecuTorch tree")


def count_facts(facts: ParityFacts) -> dict[str, int]:
    everything = [f for f in facts.cmake if f.configuration is Configuration.ANY] or facts.cmake
    return {
        "buck_targets": len(facts.buck.targets),
        "cmake_targets": sum(len(f.targets) for f in everything[:1]),
        "files": len(facts.files),
    }
