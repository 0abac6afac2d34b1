"""Reports of a run, with as much in them as a test is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding, Place
from ci.facts.kinds import UNRECORDED
from ci.report.schema import (
    AskedFacts,
    Case,
    CaseName,
    Control,
    ControlKind,
    Host,
    JudgementFacts,
    Phase,
    Report,
    Status,
    Threshold,
    Tool,
    summarize,
)
from ci.report.write import PARTS, PLACES, report_data

HOST = Host(
    system="Linux 6.1",
    machine="x86_64",
    processor="A processor",
    cpus=2,
    memory_bytes=8 << 30,
    libc="glibc 2.36",
    python="3.11.2",
)


def say(text: str, *places: Place) -> tuple[Finding, ...]:
    """The finding of a case that fails: a headline, and evidence in the lines below it."""
    headline, _, evidence = text.partition("\n")
    return (UNRECORDED.find(headline, evidence=evidence, places=places),) if text else ()


def encode_earlier(report: Report) -> bytes:
    """A report in the form of schema 6, in which all fields of a case were side by side."""
    data = report_data(report)
    for row in data["cases"]:
        del row["runtime"]
        parts = {part: row.pop(part) for part in PARTS}
        row |= {name: parts[part][field] for name, (part, field) in PLACES.items()}
    return msgspec.json.encode({**data, "schema_version": 6})


def change_row(row: dict[str, Any], **fields: Any) -> None:
    """Change fields of a case in the JSON of a report, in whichever part they are."""
    for name, value in fields.items():
        part = next((part for part, kind in PARTS.items() if name in kind.__struct_fields__), "")
        (row[part] if part else row)[name] = value


def change_case(case: Case, **fields: Any) -> Case:
    """A case with other values for fields of its parts, such as ``sqnr_db``, or for its name. No
    field is in two parts."""
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        part = next((part for part, kind in PARTS.items() if name in kind.__struct_fields__), "")
        if part:
            changes[part] = replace(changes.get(part) or getattr(case, part), **{name: value})
        else:
            assert name in CaseName.__struct_fields__, name
            changes[name] = value
    return replace(case, **changes)


def make_report(
    cases: Sequence[Case],
    controls: Sequence[Control] = (),
    *,
    toolchain: tuple[Tool, ...] = (),
    thresholds: tuple[Threshold, ...] = (),
    wall_s: float = 1.0,
    phases: Sequence[Phase] = (),
) -> Report:
    """The report of these cases on HOST."""
    return Report(
        session="test_emulator",
        started="2026-11-20T08:00:00Z",
        host=HOST,
        toolchain=toolchain,
        thresholds=thresholds,
        cases=tuple(cases),
        controls=tuple(controls),
        summary=summarize(cases, controls, wall_s, phases),
    )


def make_judged(
    session: str,
    specs: Iterable[CaseSpec],
    thresholds: tuple[Threshold, ...],
    status: Status = Status.PASSED,
) -> Report:
    """A report as the lane would write it, in which every case ended the same."""
    specs = tuple(specs)
    cases = [
        Case(
            model=spec.model,
            scheme=spec.scheme.value,
            soc=spec.soc,
            judgement=JudgementFacts(
                status=status,
                sqnr_db=70.0,
                cosine=1.0,
                max_abs=0.001,
                equal=1.0,
                findings=say(
                    "it is wrong" if status is Status.FAILED else "",
                    Place(file=f"ci/models/suite/{spec.model}.py", line=1),
                ),
            ),
            asked=AskedFacts(inputs=4),
        )
        for spec in specs
    ]
    controls = [
        Control(
            model=spec.model,
            scheme=spec.scheme.value,
            soc=spec.soc,
            kind=ControlKind.ZEROS,
            rejected=True,
        )
        for spec in specs
    ]
    return replace(make_report(cases, controls, thresholds=thresholds), session=session)
