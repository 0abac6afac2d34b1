"""Compares a footprint with a budget: finds limits that are exceeded or could be tighter."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache

from msgspec import Struct

from ci.facts.finding import Figure, Finding, advise
from ci.facts.kinds import OVER_BUDGET
from ci.report.schema import Budget, DeviceFigures, Estimate, Footprint
from ci.report.text import count
from provisioning.manifest.reader import read_policy

ROOM = 0.9  # a figure below this share of its limit suggests a tighter limit
OPERATORS = "write the model differently, so that it needs fewer of these operators"
HOT = "let the device cool down, and run again"


class LimitedFigure(Struct, frozen=True, forbid_unknown_fields=True):
    """A figure that a budget can limit. The comments in budget.toml explain each field."""

    what: str
    fix: str
    unknown: str
    unit: str
    least: bool = False
    measured: bool = False
    field: str = ""
    spread: str = ""


class FigureTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of budget.toml: the figures of a program, those that are measured on a device,
    and those that are predicted, by the names of their limits."""

    program: dict[str, LimitedFigure]
    device: dict[str, LimitedFigure]
    predicted: dict[str, LimitedFigure]


@cache
def read_figures() -> FigureTable:
    """Return the figures that a budget can limit. Raises ManifestError."""
    return read_policy("budget", FigureTable)


def make_finding(text: str, fix: str, *details: str, figure: Figure | None = None) -> Finding:
    """Return the finding that a limit is exceeded or cannot be checked. ``fix`` is what the user
    can do."""
    advice = advise(fix=f"{fix}; or raise the budget if this is intended")
    figures = (figure,) if figure else ()
    return OVER_BUDGET.find(text, details=details, figures=figures, advice=advice)


def find_excesses(
    footprint: Footprint | None, budget: Budget, model_budget: Budget
) -> Iterator[Finding]:
    """Yield a finding for each exceeded limit of ``budget``. A limit whose figure is unknown
    counts as exceeded only if the ``model_budget`` sets it, because then the user relies on
    it."""
    figures = footprint or Footprint()
    for name, row in read_figures().program.items():
        limit, now = getattr(budget, name), getattr(figures, name)
        if limit is None:
            continue
        if now is None:
            if getattr(model_budget, name) is not None:
                text = f"{name} = {limit:,} cannot be checked"
                yield make_finding(text, row.unknown, f"{row.what} is not known")
        elif (now < limit) if row.least else (now > limit):
            apart = abs(now - limit)
            share = f" ({100 * apart / limit:.0f} %)" if limit else ""
            side = "below" if row.least else "above"
            text = f"{name} is {now:,}{row.unit}, {limit:,} allowed"
            figure = Figure(name=name, value=now, unit=row.unit.strip(), allowed=limit)
            detail = f"{row.what} is {apart:,}{row.unit}{share} {side} its limit"
            yield make_finding(text, row.fix, detail, figure=figure)
    for glob, limit in budget.operators.items():
        nodes = [operator for operator in figures.operators if fnmatchcase(operator.op, glob)]
        node_count = sum(node.npu + node.cpu for node in nodes)
        if node_count > limit:
            text = (
                f"the program has {count(node_count, f'{glob} node')}, {node_count - limit} more"
                f" than the limit of {limit}"
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
    rows = read_figures().device if device and not device.emulated else {}
    for name, row in rows.items():
        limit, now = getattr(budget, name), getattr(device, row.field)
        off = getattr(device, row.spread, None) or 0.0
        if limit is None:
            continue
        if now is None:
            text = f"{name} = {limit:,} cannot be checked"
            excesses.append(make_finding(text, row.unknown, f"{row.what} is not known"))
        elif now > limit:
            within = f" ±{off:.2g}" if row.spread else ""
            text = f"{row.what} is {now:,}{within}{row.unit}, above {name} = {limit:,}"
            if now - off > limit:
                hot = bool(device and device.throttled and row.spread)
                figure = Figure(name=name, value=now, unit=row.unit.strip(), allowed=limit)
                details = ["the device was throttled"] * hot
                finding = make_finding(text, HOT if hot else row.fix, *details, figure=figure)
                excesses.append(finding)
            else:
                warnings.append(f"{text} by no more than its spread")
    return tuple(excesses), tuple(warnings)


def find_predicted_slow(
    estimate: Estimate | None, budget: Budget, model_budget: Budget
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return findings and warnings for predicted cycles and times. A figure whose whole range is
    above its limit is a finding; if only the figure itself is, this is a warning. A limit whose
    figure is unknown is a finding only if the ``model_budget`` sets it. Without an estimate,
    as for outputs that are judged again, nothing is checked."""
    excesses: list[Finding] = []
    warnings: list[str] = []
    if estimate is None:
        return (), ()
    simulation, times = estimate.simulation, estimate.times[:1]
    predictions = {
        "cycles": (simulation.cycles, simulation.lower_cycles) if simulation else None,
        "ms": (times[0].ms, times[0].low_ms) if times else None,
    }
    for name, row in read_figures().predicted.items():
        limit, figures = getattr(budget, name), predictions[name]
        if limit is None:
            continue
        if figures is None:
            if getattr(model_budget, name) is not None:
                text = f"{name} = {limit:,} cannot be checked"
                excesses.append(make_finding(text, row.unknown, estimate.unknown))
        elif figures[0] > limit:
            text = f"{row.what} is {figures[0]:,.6g}, above {name} = {limit:,}"
            if figures[1] > limit:
                low = f"its range starts at {figures[1]:,.6g}"
                figure = Figure(name=name, value=figures[0], allowed=limit)
                excesses.append(make_finding(text, row.fix, low, figure=figure))
            else:
                warnings.append(f"{text}, which is within its range")
    return tuple(excesses), tuple(warnings)


def suggest_tighter(footprint: Footprint | None, model_budget: Budget) -> Iterator[str]:
    """Yield a warning for each figure that is more than 10 % below its maximum in the
    ``model_budget``. Such a limit would not detect small increases."""
    for name, row in read_figures().program.items():
        limit, now = getattr(model_budget, name), getattr(footprint, name, None)
        if limit and now is not None and not row.least and now < ROOM * limit:
            left = f"{int(100 - 100 * now / limit)} % below its budget"
            tighter = int(now / ROOM) if row.measured else now
            yield f"{row.what} is {now:,}{row.unit}, {left}: set {name} = {tighter}"
