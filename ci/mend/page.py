"""Renders what mend found as an HTML page: quality against cost of everything that was tried, and
each change at its source line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ci.mend.report import HEAD, MendedCase, name_cases, show_figures
from ci.mend.trials import AppliedChange
from ci.report.html import Sheet, SheetRow, render_page
from ci.report.schema import Status
from ci.report.text import show_bytes

WIDTH, HEIGHT = 600, 200  # of the plot, in units of its view box


@dataclass(frozen=True)
class Point:
    """A judged recipe in the plot. ``x`` and ``y`` are its position, ``tone`` a CSS class."""

    x: float
    y: float
    tone: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class Plot:
    """Quality against cost for one case. ``front`` are the positions of the recipes that are better
    than each cheaper one. ``ends`` are the labels at the ends of both axes: left, right, bottom,
    top. ``changes`` are those of the case, each with its number."""

    title: str
    case: MendedCase
    changes: tuple[tuple[AppliedChange, int], ...]
    points: tuple[Point, ...]
    front: tuple[tuple[float, float], ...]
    ends: tuple[str, str, str, str]


def render_html(cases: Sequence[MendedCase], notes: Sequence[str]) -> str:
    """Return the page."""
    titles = name_cases(cases)
    rows = [
        SheetRow((title, *show_figures(step)), step.status.value)
        for title, one in zip(titles, cases, strict=True)
        for step in (one.before, *one.steps)
    ]
    caption = "Each recipe that was judged. A step that did not help was undone"
    sheet = Sheet("Steps", caption, HEAD, tuple(rows), 2, frozenset(range(3, len(HEAD))))
    plots = [make_plot(*pair) for pair in zip(titles, cases, strict=True) if pair[1].steps]
    values = {"title": "mend", "notes": [*notes], "sheets": [sheet], "plots": plots}
    return render_page("mend.html.j2", **values)


def make_plot(title: str, case: MendedCase) -> Plot:
    """Return the plot of a case. Recipes without outputs are left out. The cost is the simulated
    time if it is known for all, otherwise the program's size."""
    ran = [one for one in (case.before, *case.steps) if one.sqnr_db is not None and one.size_bytes]
    timed = all(one.simulated_ms is not None for one in ran)
    costs = [float((one.simulated_ms if timed else one.size_bytes) or 0) for one in ran]
    quality = [one.sqnr_db or 0.0 for one in ran]
    points, front, best = [], [], float("-inf")
    for cost, sqnr, number in sorted(zip(costs, quality, range(len(ran)), strict=True)):
        one = ran[number]
        at = (_place(cost, costs, WIDTH), round(HEIGHT - _place(sqnr, quality, HEIGHT), 1))
        tone = "passed" if one.status is Status.PASSED else "failed"
        label = f"{one.name}: {sqnr:.1f} dB, {_show_cost(cost, timed=timed)}"
        points.append(Point(*at, tone, label, chosen=one.name == case.after.name))
        if sqnr > best:
            best = sqnr
            front.append(at)
    left, right = (_show_cost(pick(costs, default=0), timed=timed) for pick in (min, max))
    bottom, top = (f"{pick(quality, default=0):.1f} dB" for pick in (min, max))
    alike = [replace(one, nodes=() if one.place else one.nodes) for one in case.changes]
    changes = tuple(Counter(alike).items())
    return Plot(title, case, changes, tuple(points), tuple(front), (left, right, bottom, top))


def _show_cost(cost: float, *, timed: bool) -> str:
    return f"{cost:.3g} ms" if timed else show_bytes(int(cost))


def _place(value: float, values: Sequence[float], length: float) -> float:
    low, high = min(values), max(values)
    return round(length * ((value - low) / (high - low) if high > low else 0.5), 1)
