"""Compares a footprint with a budget: finds limits that are exceeded or could be tighter."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from ci.facts.finding import Figure, Finding, advise
from ci.facts.kinds import OVER_BUDGET
from ci.report.schema import Budget, DeviceFigures, Estimate, Footprint
from ci.report.text import count

ROOM = 0.9  # a figure below this share of its limit suggests a tighter limit
LEAST = "segment_align"  # the only figure whose limit is a minimum
MEASURED = ("lowering_memory_bytes",)  # figures that vary between runs
UNITS = {"vtcm_mb": " MB", "partitions": "", LEAST: ""}  # the unit of all others is bytes
TILES = "activations do not fit in VTCM: use smaller inputs, fewer bits or an SoC with more VTCM"
TRAFFIC = "use fewer bits, or fewer operators that only move data, such as transposes"
OPERATORS = "write the model differently, so that it needs fewer of these operators"
# The fix if a limited figure is unknown.
UNKNOWN = "remove the limit"
NO_SUMMARY = (
    "remove the limit, or lower for HTP on this host without online_prepare: QNN then prepares the"
    " graph and prints its DDR bandwidth summary"
)
NO_CONTEXT = (
    "remove the limit, or lower for HTP without online_prepare: only then does the program have a"
    " context binary with this figure"
)
UNKNOWNS = {
    **dict.fromkeys(("spill_bytes", "fill_bytes", "read_bytes", "write_bytes"), NO_SUMMARY),
    **dict.fromkeys(("context_bytes", "vtcm_mb"), NO_CONTEXT),
    LEAST: "remove the limit: only ExecuTorch's programs have segments",
}
# Each figure's name, as the subject of a message, and the fix if the figure exceeds its limit.
FIGURES = {
    "program_bytes": ("the size of the program", "use fewer bits for the weights, or share them"),
    "context_bytes": (
        "the size of the largest context binary",
        "split the model (for an LLM, use more shards), or use fewer bits for the weights",
    ),
    "spill_bytes": ("the spill to DDR", TILES),
    "fill_bytes": ("the fill from DDR", TILES),
    "read_bytes": ("the amount read from DDR", TRAFFIC),
    "write_bytes": ("the amount written to DDR", TRAFFIC),
    "vtcm_mb": ("the VTCM size", "compile with less VTCM"),
    "partitions": (
        "the number of partitions",
        "make the operators between the partitions run on the NPU",
    ),
    LEAST: ("the alignment of segments", "set ExecutorchBackendConfig.segment_alignment"),
    "lowering_memory_bytes": ("the peak memory of lowering", "split the model"),
}


# Limits of a device's times and memory: the figure's field in DeviceFigures, the field of its
# spread ("" if it has none), and the figure's name.
TIMES = {
    "p50_ms": ("p50_ms", "p50_spread_ms", "the median time of a run"),
    "p90_ms": ("p90_ms", "p90_spread_ms", "the 90th percentile of the run times"),
    "load_ms": ("load_ms", "load_spread_ms", "the loading time"),
    "device_memory_bytes": ("peak_memory_bytes", "", "the peak memory on the device"),
}
SLOW = (
    "use fewer bits, run more operators on the NPU, or use a faster performance mode;"
    " profile_level = detailed shows where the time goes"
)
LARGE = "use fewer bits or smaller inputs, or split the model"
HOT = "let the device cool down, and run again"
TIMELESS = "use a qnn_executor_runner that was built with EXECUTORCH_ENABLE_EVENT_TRACER"
UNREAD = "remove the limit: the device did not show the runner's memory in /proc"


def make_finding(text: str, fix: str, *details: str, figure: Figure | None = None) -> Finding:
    """Return the finding that a limit is exceeded or cannot be checked. ``fix`` is what the user
    can do."""
    advice = advise(fix=f"{fix}; or raise the budget if this is intended")
    figures = (figure,) if figure else ()
    return OVER_BUDGET.find(text, details=details, figures=figures, advice=advice)


def find_excesses(footprint: Footprint | None, budget: Budget, own: Budget) -> Iterator[Finding]:
    """Yield a finding for each exceeded limit of ``budget``. A limit whose figure is unknown
    counts as exceeded only if the model's ``own`` budget sets it, because then the user relies on
    it."""
    known = footprint or Footprint()
    for name, (what, fix) in FIGURES.items():
        limit, now = getattr(budget, name), getattr(known, name)
        if limit is None:
            continue
        if now is None:
            if getattr(own, name) is not None:
                text = f"{name} = {limit:,} cannot be checked"
                yield make_finding(text, UNKNOWNS.get(name, UNKNOWN), f"{what} is not known")
        elif (now < limit) if name == LEAST else (now > limit):
            unit, apart = UNITS.get(name, " bytes"), abs(now - limit)
            share = f" ({100 * apart / limit:.0f} %)" if limit else ""
            side = "below" if name == LEAST else "above"
            text = f"{name} is {now:,}{unit}, {limit:,} allowed"
            figure = Figure(name=name, value=now, unit=unit.strip(), allowed=limit)
            detail = f"{what} is {apart:,}{unit}{share} {side} its limit"
            yield make_finding(text, fix, detail, figure=figure)
    for glob, limit in budget.operators.items():
        nodes = [operator for operator in known.operators if fnmatchcase(operator.op, glob)]
        found = sum(node.npu + node.cpu for node in nodes)
        if found > limit:
            text = (
                f"the program has {count(found, f'{glob} node')}, {found - limit} more than the"
                f" limit of {limit}"
            )
            yield make_finding(text, OPERATORS)


def find_slow(
    device: DeviceFigures | None, budget: Budget
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return findings and warnings for a device's times and memory. A figure that is unknown, or
    that exceeds its limit by more than its spread, is a finding. A smaller excess is a warning.
    Without a device, or if a host emulates it, nothing is checked."""
    excesses: list[Finding] = []
    warnings: list[str] = []
    limits = ((name, getattr(budget, name)) for name in TIMES)
    for name, limit in limits if device and not device.emulated else ():
        field, spread, what = TIMES[name]
        now, off = getattr(device, field), getattr(device, spread, None) or 0.0
        unit = " bytes" if name == "device_memory_bytes" else " ms"
        if limit is None:
            continue
        if now is None:
            told = f"{name} = {limit:,} cannot be checked"
            fix = TIMELESS if spread else UNREAD
            excesses.append(make_finding(told, fix, f"{what} is not known"))
        elif now > limit:
            within = f" ±{off:.2g}" if spread else ""
            told = f"{what} is {now:,}{within}{unit}, above {name} = {limit:,}"
            if now - off > limit:
                hot = bool(device and device.throttled and spread)
                fix = HOT if hot else SLOW if spread else LARGE
                figure = Figure(name=name, value=now, unit=unit.strip(), allowed=limit)
                details = ["the device was throttled"] * hot
                excesses.append(make_finding(told, fix, *details, figure=figure))
            else:
                warnings.append(f"{told} by no more than its spread")
    return tuple(excesses), tuple(warnings)


def find_predicted_slow(
    estimate: Estimate | None, budget: Budget, own: Budget
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return findings and warnings for predicted cycles and times. A figure whose whole range is
    above its limit is a finding; if only the figure itself is, this is a warning. A limit whose
    figure is unknown is a finding only if the model's ``own`` budget sets it. Without an estimate,
    as for outputs that are judged again, nothing is checked."""
    excesses: list[Finding] = []
    warnings: list[str] = []
    if estimate is None:
        return (), ()
    one, times = estimate.simulation, estimate.times[:1]
    cycles = (one.cycles, one.lower_cycles) if one else None
    ms = (times[0].ms, times[0].low_ms) if times else None
    for name, figures, what in (
        ("cycles", cycles, "the number of simulated cycles"),
        ("ms", ms, "the estimated time in ms"),
    ):
        limit = getattr(budget, name)
        if limit is None:
            continue
        if figures is None:
            if getattr(own, name) is not None:
                told = f"{name} = {limit:,} cannot be checked"
                excesses.append(make_finding(told, UNKNOWN, estimate.unknown))
        elif figures[0] > limit:
            told = f"{what} is {figures[0]:,.6g}, above {name} = {limit:,}"
            if figures[1] > limit:
                low = f"its range starts at {figures[1]:,.6g}"
                figure = Figure(name=name, value=figures[0], allowed=limit)
                excesses.append(make_finding(told, SLOW, low, figure=figure))
            else:
                warnings.append(f"{told}, which is within its range")
    return tuple(excesses), tuple(warnings)


def suggest_tighter(footprint: Footprint | None, own: Budget) -> Iterator[str]:
    """Yield a warning for each figure that is more than 10 % below its maximum in the model's
    ``own`` budget. Such a limit would not detect small increases."""
    for name, (what, _) in FIGURES.items():
        limit, now = getattr(own, name), getattr(footprint, name, None)
        if limit and now is not None and name != LEAST and now < ROOM * limit:
            left = f"{int(100 - 100 * now / limit)} % below its budget"
            tighter = int(now / ROOM) if name in MEASURED else now
            yield f"{what} is {now:,}{UNITS.get(name, ' bytes')}, {left}: set {name} = {tighter}"
