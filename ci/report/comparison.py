"""A report against that of the base of a change, case by case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ci.report.merge import name_of
from ci.report.schema import Case, Report, Status
from ci.report.text import name_some

T = TypeVar("T", int, float)
NAMES = 6
# What a case is made from, by the field of its digests.
SOURCES = {
    "weights": "weights",
    "inputs": "inputs",
    "calibration": "calibration sets",
    "float_outputs": "outputs of the float32 model",
}
SEEN_DB = 0.05  # what a figure of one decimal shows
RANKS = {Status.PASSED: 0, Status.UNSUPPORTED: 1, Status.FAILED: 2}


@dataclass(frozen=True)
class Change:
    """A case in both reports that differs; a difference is what is now less what was before.
    ``sources`` are the fields of its digests that differ."""

    before: Case
    now: Case
    sources: tuple[str, ...] = ()

    @property
    def status_is_worse(self) -> bool:
        return RANKS[self.now.status] > RANKS[self.before.status]

    @property
    def sqnr_db(self) -> float | None:
        return _subtract(self.now.sqnr_db, self.before.sqnr_db)

    @property
    def metric(self) -> float | None:
        if self.now.metric_name != self.before.metric_name:
            return None
        return _subtract(self.now.metric, self.before.metric)

    @property
    def pte_bytes(self) -> int | None:
        return _subtract(self.now.pte_bytes, self.before.pte_bytes)

    @property
    def fallback_nodes(self) -> int | None:
        return _subtract(self.now.fallback_nodes, self.before.fallback_nodes)

    @property
    def is_shown(self) -> bool:
        """Whether status, accuracy, size, delegation or what the case is made from differ."""
        rest = (self.metric, self.pte_bytes, self.fallback_nodes, self.sources)
        return (
            self.now.status is not self.before.status
            or abs(self.sqnr_db or 0.0) >= SEEN_DB
            or any(rest)
        )


@dataclass(frozen=True)
class Comparison:
    """``changed`` with the worst first; ``missing`` cases are in the base alone, ``new`` ones not
    in it; ``skipped`` are unsupported now and were not; ``tools`` differ: (name, before, now)."""

    changed: tuple[Change, ...]
    same: int
    missing: tuple[Case, ...]
    new: tuple[Case, ...]
    tools: tuple[tuple[str, str, str], ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What cases were made from that is not the base's: a sentence for each kind of it."""
        return tuple(
            f"warning: not the same {what} as in the base: {name_some(names, NAMES)}"
            for source, what in SOURCES.items()
            if (names := [" ".join(name_of(o.now)) for o in self.changed if source in o.sources])
        )

    @property
    def skipped(self) -> tuple[Case, ...]:
        return tuple(
            one.now
            for one in self.changed
            if one.now.status is Status.UNSUPPORTED is not one.before.status
        )


def compare_reports(base: Report, report: Report) -> Comparison:
    """What a change did to the cases of its base."""
    same_host = base.host.processor == report.host.processor
    before, now = ({name_of(case): case for case in one.cases} for one in (base, report))
    pairs = [
        Change(before[name], case, find_sources(before[name], case, same_host=same_host))
        for name, case in now.items()
        if name in before
    ]
    changed = sorted((one for one in pairs if one.is_shown), key=_rank)
    was, now_is = ({tool.name: tool.version for tool in one.toolchain} for one in (base, report))
    tools = ((name, was.get(name, ""), now_is.get(name, "")) for name in {**was, **now_is})
    return Comparison(
        changed=tuple(changed),
        same=len(pairs) - len(changed),
        missing=tuple(case for name, case in before.items() if name not in now),
        new=tuple(case for name, case in now.items() if name not in before),
        tools=tuple(one for one in tools if one[1] != one[2]),
    )


def find_sources(before: Case, now: Case, *, same_host: bool) -> tuple[str, ...]:
    """Return which of the case's digests differ. The last bits of float outputs depend on the
    processor, so that those of another one are not compared."""
    found = now.digests.differing(before.digests)
    return tuple(name for name in found if same_host or name != "float_outputs")


def _rank(change: Change) -> tuple[bool, float, float]:
    return (not change.status_is_worse, change.metric or 0.0, change.sqnr_db or 0.0)


def _subtract(now: T | None, before: T | None) -> T | None:
    return None if now is None or before is None else now - before
