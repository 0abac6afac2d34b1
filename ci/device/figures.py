"""Compute the times, memory and heat of a runner's starts on a device.

The times come from ExecuTorch's ETDump, a flatbuffer with a size prefix
(devtools/etdump/etdump_schema_flatcc.fbs). It has a list of blocks, each with a name and events.
The block "Default" has the event Program::load_method. A block "Execute" has the event
Method::execute for each execution. Times are in nanoseconds on Android and Linux.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ci.report.schema import DeviceFigures, Heat
from provisioning.elf.programs import Tables

IDENTIFIER, IDENTIFIER_PLACE, PREFIX = b"ED00", 8, 4
BLOCKS, EVENTS, PROFILE, NAME, BEGAN, ENDED = 1, 3, 0, 0, 6, 7  # field numbers
LOAD, EXECUTE = "Program::load_method", "Method::execute"
NS_PER_MS = 1e6
CELSIUS = range(-40, 151)  # zones without a sensor report values far outside this range
# Cooling devices that slow down a processor; others are fans, displays, modems and chargers.
SLOWING = ("cpu", "gpu", "npu", "nsp", "cdsp", "hexagon", "ddr", "devfreq", "thermal-pause")

UNKNOWN = Heat()


@dataclass(frozen=True)
class Start:
    """One start of a runner: the time of loading the program, the time of each execution in order,
    the largest resident memory, and the heat before and after. Unknown values are None or empty."""

    load_ms: float | None = None
    runs_ms: tuple[float, ...] = ()
    memory_bytes: int | None = None
    before: Heat = UNKNOWN
    after: Heat = UNKNOWN


def read_times(dump: bytes) -> tuple[float | None, tuple[float, ...]]:
    """Return the time of loading the program and the times of all executions, in ms. The first is
    None if ``dump`` has no event for it. Return None and () if ``dump`` is not a valid ETDump."""
    loads: list[float] = []
    runs: list[float] = []
    # A runner that was built without event tracing writes no ETDump.
    if dump[IDENTIFIER_PLACE:][:4] != IDENTIFIER:
        return None, ()
    try:
        for block in Tables(dump, PREFIX).root().list_tables(BLOCKS):
            for event in block.list_tables(EVENTS):
                profile = event.table(PROFILE)
                if profile and (name := profile.text(NAME)) in {LOAD, EXECUTE}:
                    took = profile.number(ENDED, "Q") - profile.number(BEGAN, "Q")
                    (loads if name == LOAD else runs).append(took / NS_PER_MS)
    # A start that was killed leaves an incomplete ETDump; only its times are lost.
    except struct.error:
        return None, ()
    return (sum(loads) if loads else None), tuple(runs)


def parse_heat(text: str) -> Heat:
    """Return the heat of a device from the lines that the script run.sh wrote:
    ``status of_system 1``, ``zone NAME MILLIDEGREES`` and ``cooling NAME STATE``. Other lines are
    ignored."""
    zones: list[tuple[float, str]] = []
    slowed: list[str] = []
    status = None
    for line in text.splitlines():
        kind, _, name_and_value = line.partition(" ")
        name, _, value = name_and_value.rpartition(" ")
        # A zone may have no value, or one that this user may not read.
        if not value.lstrip("-").isdigit():
            continue
        number = int(value)
        if kind == "status":
            status = number
        elif kind == "zone" and number // 1000 in CELSIUS:
            zones.append((number / 1000, name))
        elif kind == "cooling" and number > 0 and any(word in name.lower() for word in SLOWING):
            slowed.append(name)
    hottest, zone = max(zones, default=(None, ""))
    return Heat(status=status, hottest_c=hottest, zone=zone, slowed=tuple(sorted(set(slowed))))


def summarize_starts(
    starts: Sequence[Start], *, warm_up: int, iteration: int, emulated: bool
) -> DeviceFigures:
    """Return the figures of a program's starts. ``starts`` must not be empty.

    For each sample, the runner executes the program ``warm_up`` times, then ``iteration`` times.
    The percentiles are computed over all starts, without warm-ups and without the first execution
    of a start (unless it is the only one). ``first_ms`` is the median of the first executions.

    The spread of a figure is half the difference between its highest and its lowest value over the
    starts. With one start, the spread of a percentile is half the interquartile range of the
    executions, and the load time has no spread.
    """
    timed = [list(list_timed(start.runs_ms, warm_up, iteration)) for start in starts]
    timed = [runs for runs in timed if runs]
    all_runs = [run for runs in timed for run in runs]
    firsts = [start.runs_ms[0] for start in starts if start.runs_ms]
    loads = [start.load_ms for start in starts if start.load_ms is not None]
    memory = [start.memory_bytes for start in starts if start.memory_bytes]
    after = [start.after for start in starts]
    p50, p90 = (find_percentile(all_runs, share) for share in (50, 90))
    return DeviceFigures(
        starts=len(starts),
        runs=len(all_runs),
        first_ms=show(median(firsts)) if firsts else None,
        p50_ms=show(p50),
        p50_spread_ms=show(find_spread(timed, 50)),
        p90_ms=show(p90),
        p90_spread_ms=show(find_spread(timed, 90)),
        load_ms=show(median(loads)) if loads else None,
        load_spread_ms=show((max(loads) - min(loads)) / 2) if len(loads) > 1 else None,
        loads_ms=tuple(round(load, 4) for load in loads),
        peak_memory_bytes=max(memory, default=None),
        before=starts[0].before,
        # The hottest start, since that one may have been slowed down.
        after=max(after, key=lambda heat: heat.hottest_c or 0),
        throttled=any(heat.throttled for start in starts for heat in (start.before, start.after)),
        emulated=emulated,
    )


def list_timed(runs: Sequence[float], warm_up: int, iteration: int) -> Iterator[float]:
    """Yield the times of the executions that are not a warm-up. The first execution is left out if
    there are others."""
    for number, run in enumerate(runs):
        # The first execution also allocates and maps memory, so it has a separate figure.
        if number % (warm_up + iteration) >= warm_up and (number or len(runs) == 1):
            yield run


def find_percentile(runs: Sequence[float], percent: int) -> float | None:
    """Return a percentile of ``runs``, or None if there are none."""
    if len(runs) < 2:
        return runs[0] if runs else None
    return quantiles(runs, n=100, method="inclusive")[percent - 1]


def find_spread(starts: Iterable[Sequence[float]], percent: int) -> float | None:
    """Return the spread of a percentile (see summarize_starts), or None if nothing was timed."""
    starts_runs = list(starts)
    if len(starts_runs) == 1:
        low, high = (find_percentile(starts_runs[0], quartile) or 0.0 for quartile in (25, 75))
        return (high - low) / 2
    percentiles = [find_percentile(runs, percent) for runs in starts_runs]
    figures = [figure for figure in percentiles if figure is not None]
    return (max(figures) - min(figures)) / 2 if figures else None


def show(value: float | None) -> float | None:
    """Return a time in ms rounded to four decimals, or None for None."""
    return None if value is None else round(value, 4)
