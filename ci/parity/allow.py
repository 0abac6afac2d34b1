"""The allow-list: findings that are right for now, and entries that are right no more."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import date

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.facts import Place
from ci.parity.policy import Allowance, ParityPolicy, matches


@dataclass(frozen=True)
class Sorted:
    """The findings that count, those about entries without effect included, and how many others
    an entry allows."""

    findings: tuple[Finding, ...]
    allowed: int


def apply_allowances(
    findings: Sequence[Finding],
    policy: ParityPolicy,
    files: Container[str],
    today: date,
    *,
    whole: bool,
    is_current: bool,
    source: str,
) -> Sorted:
    """Sort findings by the allow-list; ``whole`` says that the whole tree was read and compared.

    An entry that is expired, whose condition does not hold, or that allows nothing in a whole
    comparison, is a finding about the policy file ``source``; not so for a tree that is not
    ``is_current``, older than the list or another project's.
    """
    effect = {id(entry): why_without_effect(entry, files, today) for entry in policy.allow}
    live = [entry for entry in policy.allow if not effect[id(entry)]]
    used: set[int] = set()
    kept: list[Finding] = []
    for finding in findings:
        entry = next((entry for entry in live if covers(entry, finding)), None)
        if entry is None:
            kept.append(finding)
        else:
            used.add(id(entry))
    allowed = len(findings) - len(kept)
    if is_current:
        unused = [entry for entry in live if id(entry) not in used] if whole else []
        stale = [(entry, why) for entry in policy.allow if (why := effect[id(entry)])]
        stale += [(entry, "it no longer allows anything") for entry in unused]
        kept += [_stale(entry, why, source) for entry, why in stale]
    return Sorted(tuple(kept), allowed)


def why_without_effect(entry: Allowance, files: Container[str], today: date) -> str:
    """Why an entry does not count; empty when it does."""
    if entry.until is not None and today >= entry.until:
        return f"it ended on {entry.until.isoformat()}"
    if entry.exists and entry.exists not in files:
        return f"its condition no longer holds: {entry.exists} is not in the tree"
    if entry.absent and entry.absent in files:
        return f"its condition no longer holds: {entry.absent} is in the tree"
    return ""


def covers(entry: Allowance, finding: Finding) -> bool:
    return (
        finding.kind.value in entry.kinds
        and matches(finding.path, entry.files)
        and (not entry.details or matches(finding.detail, entry.details))
    )


def _stale(entry: Allowance, why: str, source: str) -> Finding:
    about = ", ".join(entry.files)
    return Finding(
        kind=Kind.STALE,
        path=source,
        level=Level.WARNING,
        message=f"the entry for {', '.join(entry.kinds)} in {about} has no effect: {why}",
        detail=about,
        buck_place=Place(source),
        fix="remove the entry, or renew it with a reason",
    )
