"""Reports of the shards of one run, as test_emulator would mark them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ci.gate.plan import split_cases
from ci.report.merge import digest_names
from ci.report.schema import Case, JudgementFacts, Report, ShardMark, Status
from tests.stand_ins.reports import make_report

POLICY = "0" * 64


def make_cases(*names: str, status: Status = Status.PASSED) -> list[Case]:
    """Cases by "MODEL SCHEME SOC"."""
    rows = (name.split(" ") for name in names)
    return [
        Case(model=m, scheme=s, soc=soc, judgement=JudgementFacts(status=status, sqnr_db=50.0))
        for m, s, soc in rows
    ]


def make_shards(cases: Sequence[Case], count: int, policy: str = POLICY) -> list[Report]:
    """The reports of ``count`` shards of these cases."""
    parts = split_cases(cases, count, lambda case: 1.0)
    reports = []
    for index, part in enumerate(parts, 1):
        positions = [place for place, case in enumerate(cases) if case in part]
        mark = ShardMark(
            index=index,
            count=count,
            positions=tuple(positions),
            whole=digest_names(case.name for case in cases),
            policy=policy,
        )
        reports.append(replace(make_report(part), shard=mark))
    return reports
