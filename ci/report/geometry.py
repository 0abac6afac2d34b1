"""Grids of bars, rows down and panels across, laid out in pixels: pure, no markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WIDTH = 1160.0
ROW = 22.0
TOP = 24.0
BOTTOM = 22.0
LABEL_MIN = 40.0
MARK = 4.0
GLYPH = 7.2
PANEL_MIN, PANEL_MAX = 150.0, 470.0
GUTTER_MIN, GUTTER_MAX = 60.0, 230.0


@dataclass(frozen=True)
class Datum:
    """What one place of a grid shows: ``segments`` are stacked (value, tone) pairs.

    ``limit`` is a line to reach, ``marker`` a second figure beside the bar, ``hint`` what a
    pointer or a screen reader is told, ``href`` where a click leads.
    """

    segments: tuple[tuple[float, str], ...]
    label: str
    hint: str
    tone: str = ""
    limit: float | None = None
    marker: float | None = None
    href: str = ""

    @property
    def low(self) -> float:
        """The least value that has to be in sight."""
        return min(0.0, sum(value for value, _ in self.segments), *self._marks())

    @property
    def high(self) -> float:
        """The greatest value that has to be in sight."""
        return max(0.0, sum(value for value, _ in self.segments), *self._marks())

    def _marks(self) -> list[float]:
        return [mark for mark in (self.limit, self.marker) if mark is not None] or [0.0]


@dataclass(frozen=True)
class Grid:
    """A figure before layout. ``data`` is by (row, column); a place without one stays empty.

    ``heads`` adds a remark to the name of a column.
    """

    name: str
    title: str
    unit: str
    note: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    data: Mapping[tuple[str, str], Datum]
    heads: Mapping[str, str] = field(default_factory=dict)
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Bar:
    """A segment in place."""

    x: float
    width: float
    tone: str


@dataclass(frozen=True)
class Cell:
    """A datum in place; ``y`` is the middle of its row, its label stands at the panel's end."""

    y: float
    datum: Datum
    bars: tuple[Bar, ...]
    limit_x: float | None
    marker_x: float | None


@dataclass(frozen=True)
class Panel:
    """A column in place: its own axis, and its cells."""

    x: float
    width: float
    title: str
    remark: str
    zero_x: float
    label_x: float
    ticks: tuple[tuple[float, str], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Chart:
    """A figure in place; lengths are pixels of its view box."""

    grid: Grid
    width: float
    height: float
    gutter: float
    rows: tuple[tuple[float, str, str], ...]
    panels: tuple[Panel, ...]

    @property
    def axis_y(self) -> float:
        """Where the ticks' labels begin."""
        return self.height - BOTTOM


@dataclass(frozen=True)
class Scale:
    """Values of ``low`` to ``high`` onto ``width`` pixels from ``x``."""

    low: float
    high: float
    x: float
    width: float

    def at(self, value: float) -> float:
        """The pixel of ``value``, to a tenth."""
        return round(self.x + (value - self.low) / (self.high - self.low) * self.width, 1)


def lay_out(grid: Grid) -> Chart:
    """Place every datum; all panels share one scale, so that lengths compare across them."""
    longest = max((len(row) for row in grid.rows), default=0)
    gutter = min(max(longest * GLYPH + 12, GUTTER_MIN), GUTTER_MAX)
    width = (WIDTH - gutter) / max(len(grid.columns), 1)
    width = min(max(width, PANEL_MIN), PANEL_MAX)
    low, high, step = choose_scale(grid.data.values())
    labels = max((len(datum.label) for datum in grid.data.values() if datum.segments), default=0)
    room = max(labels * GLYPH, LABEL_MIN) + 5 * MARK
    panels = []
    for index, column in enumerate(grid.columns):
        x = gutter + index * width
        scale = Scale(low, high, x + MARK, width - room)
        cells = tuple(
            _place(grid.data[row, column], scale, _middle(number))
            for number, row in enumerate(grid.rows)
            if (row, column) in grid.data
        )
        panels.append(
            Panel(
                x=round(x, 1),
                width=round(width, 1),
                title=shorten(column, int(width / GLYPH) - len(grid.heads.get(column, ""))),
                remark=grid.heads.get(column, ""),
                zero_x=scale.at(0.0),
                label_x=round(x + width - 2 * MARK, 1),
                ticks=_ticks(scale, step),
                cells=cells,
            )
        )
    shown = int((gutter - 12) / GLYPH)
    return Chart(
        grid=grid,
        width=round(gutter + len(grid.columns) * width, 1),
        height=TOP + ROW * len(grid.rows) + BOTTOM,
        gutter=round(gutter, 1),
        rows=tuple((_middle(i), shorten(row, shown), row) for i, row in enumerate(grid.rows)),
        panels=tuple(panels),
    )


def _middle(row: int) -> float:
    return TOP + ROW * (row + 0.5)


def _place(datum: Datum, scale: Scale, y: float) -> Cell:
    bars, reached = [], 0.0
    for value, tone in datum.segments:
        start, end = sorted((scale.at(reached), scale.at(reached + value)))
        bars.append(Bar(start, round(end - start, 1), tone))
        reached += value
    limit = None if datum.limit is None else scale.at(datum.limit)
    marker = None if datum.marker is None else scale.at(datum.marker)
    return Cell(y, datum, tuple(bars), limit, marker)


def choose_scale(data: Iterable[Datum]) -> tuple[float, float, float]:
    """Lowest value, highest value and distance of ticks that hold ``data``, zero included."""
    known = tuple(data)
    low = min((datum.low for datum in known), default=0.0)
    high = max((datum.high for datum in known), default=0.0)
    if high == low:
        high = low + 1.0
    step = nice_step((high - low) / 3)
    return low, high, step


def nice_step(rough: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is not below ``rough`` (above 0)."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)


def _ticks(scale: Scale, step: float) -> tuple[tuple[float, str], ...]:
    first = math.ceil(scale.low / step)
    last = math.floor(scale.high / step + 1e-9)
    return tuple((scale.at(n * step), f"{n * step:.6g}") for n in range(first, last + 1))


def shorten(text: str, most: int) -> str:
    """``text`` with its middle left out when it is longer than ``most`` characters."""
    most = max(most, 4)
    if len(text) <= most:
        return text
    tail = most * 2 // 3
    return f"{text[: most - tail - 1]}\N{HORIZONTAL ELLIPSIS}{text[-tail:]}"
