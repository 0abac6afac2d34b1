"""The whole comparison of a tree."""

from __future__ import annotations

from collections.abc import Sequence

from ci.parity.compare.defines import find_define_drift
from ci.parity.compare.dependencies import find_dependency_drift
from ci.parity.compare.findings import Finding, order_findings
from ci.parity.compare.groups import Groups
from ci.parity.compare.headers import find_header_drift, find_include_drift
from ci.parity.compare.index import Index
from ci.parity.compare.partial import find_partial_drift
from ci.parity.compare.python import find_import_drift
from ci.parity.compare.sources import find_source_drift
from ci.parity.compare.targets import find_target_drift
from ci.parity.compare.unread import Doubt, find_unread
from ci.parity.compare.variants import find_variants
from ci.parity.facts import ParityFacts, is_inside
from ci.parity.policy import ParityPolicy


def compare_tree(
    facts: ParityFacts, policy: ParityPolicy, scope: Sequence[str] = ()
) -> list[Finding]:
    """Every finding about ``facts`` below ``scope``; an empty scope is the whole tree."""
    index = Index(facts, policy)
    groups = Groups(index)
    found = [
        *find_source_drift(index),
        *find_variants(index),
        *find_target_drift(index),
        *find_header_drift(index),
        *find_include_drift(index),
        *find_partial_drift(index, groups),
        *find_dependency_drift(index, groups),
        *find_define_drift(index, groups),
        *find_import_drift(index, groups),
    ]
    doubt = Doubt(index, groups)
    kept = [*find_unread(index), *(finding for finding in found if not doubt.covers(finding))]
    return order_findings([finding for finding in kept if is_about(finding, scope)])


def is_about(finding: Finding, scope: Sequence[str]) -> bool:
    places = (finding.buck_place, finding.cmake_place)
    paths = [finding.path, *(place.path for place in places if place)]
    return any(in_scope(path, scope) for path in paths)


def in_scope(path: str, scope: Sequence[str]) -> bool:
    return not scope or is_inside(path, scope)
