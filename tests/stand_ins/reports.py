"""Reports of a run, with as much in them as a test is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding, Place
from ci.facts.kinds import UNRECORDED
from ci.report.schema import (
    Case,
    Control,
    ControlKind,
    Host,
    Phase,
    Report,
    Status,
    Threshold,
    Tool,
    summarize,
)

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
            status=status,
            sqnr_db=70.0,
            cosine=1.0,
            max_abs=0.001,
            equal=1.0,
            inputs=4,
            findings=say(
                "it is wrong" if status is Status.FAILED else "",
                Place(file=f"ci/models/suite/{spec.model}.py", line=1),
            ),
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
