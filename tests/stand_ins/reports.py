"""Reports of a run, with as much in them as a test is about."""

from __future__ import annotations

from collections.abc import Sequence

from ci.report.schema import (
    Case,
    Control,
    Host,
    Phase,
    Report,
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
