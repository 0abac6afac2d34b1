"""Bars that show figures of cases, and charts of bars on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ci.report.schema import Case, Sizes, Status, Threshold
from ci.report.text import show_bytes, show_decibels, show_seconds, show_share

WAYS = ("read", "write", "spill", "fill")


@dataclass(frozen=True)
class Bar:
    """A figure drawn as a bar: a ``label``, and ``segments`` placed end to end, each with a length
    and a CSS class.

    ``limit`` is the figure's limit, and ``marker`` is a second figure; each is None if there is
    none. ``note`` is shown after the label, ``hint`` as a tooltip.
    """

    label: str = "-"
    segments: tuple[tuple[float, str], ...] = ()
    limit: float | None = None
    marker: float | None = None
    note: str = ""
    hint: str = ""


# Drawn here instead of by matplotlib 3.11.2, which takes 1.2 s and 241 KB of SVG for forty cases
# and five plots, and brings 150 MB of packages. This takes 0.05 s, and follows light and dark mode.
@dataclass(frozen=True)
class Figure:
    """A chart: bars one below the other, on one scale."""

    title: str
    bars: tuple[Bar, ...]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The ends of the scale, which includes zero and every bar, limit and marker."""
        values = [0.0]
        for bar in self.bars:
            values.append(sum(length for length, _ in bar.segments))
            values += [mark for mark in (bar.limit, bar.marker) if mark is not None]
        return min(values), max(values)

    @cached_property
    def has_notes(self) -> bool:
        """Whether a bar has a note."""
        return any(bar.note for bar in self.bars)

    @cached_property
    def marks(self) -> frozenset[str]:
        """What is drawn: the CSS classes of segments, and "limit" and "marker"."""
        marks = {tone for bar in self.bars for length, tone in bar.segments if length}
        marks |= {"limit" for bar in self.bars if bar.limit is not None}
        marks |= {"marker" for bar in self.bars if bar.marker is not None}
        return frozenset(marks)

    def place(self, value: float) -> float:
        """Return a value's position on the scale, in percent of its width."""
        low, high = self.ends
        return round(100 * (value - low) / ((high - low) or 1), 2)

    def place_segments(self, bar: Bar) -> list[tuple[float, float, str]]:
        """Return each segment's start and width in percent, and its CSS class."""
        segments, reached = [], 0.0
        for length, tone in bar.segments:
            start, end = sorted((self.place(reached), self.place(reached + length)))
            segments.append((start, round(end - start, 2), tone))
            reached += length
        return segments


def draw_sqnr(case: Case, rule: Threshold | None) -> Bar:
    """Return a bar for the SQNR of the worst sample against the float32 model, with its limit. If
    only the SQNR over all samples has one, this is shown, and the note ends with "all". The marker
    is the SQNR against the quantized model."""
    quantized, limit = case.judgement.sqnr_db_quantized, rule.min_sqnr_db if rule else None
    of_all = ""
    if rule and limit is None:
        limit, of_all = rule.min_sqnr_db_all, " all"
    label = show_decibels(case.judgement.sqnr_db, case.judgement.max_abs)
    if label == "-":
        return Bar("-" if case.judgement.status is Status.PASSED else case.judgement.status.value)
    tone = "bad" if case.judgement.status is Status.FAILED else "value"
    return Bar(
        label,
        ()
        if case.judgement.sqnr_db is None
        else ((case.judgement.sqnr_db, tone),),  # none for equal outputs
        limit,
        quantized,
        "" if limit is None else f"\N{GREATER-THAN OR EQUAL TO} {limit:g}{of_all}",
        "" if quantized is None else f"{quantized:.1f} dB against the quantized model",
    )


def draw_delegation(case: Case, _rule: Threshold | None) -> Bar:
    """Return a bar for the number of nodes on the NPU and the number of those left on the CPU."""
    # In a trend, a run that failed without a program is then a gap, and not a zero.
    if case.program.delegated_nodes is None:
        return Bar()
    delegated, fallback = case.program.delegated_nodes, case.program.fallback_nodes or 0
    label = show_share(case.program.delegated_nodes, case.program.fallback_nodes)
    return Bar(label, ((delegated, "value"), (fallback, "fallback")))


def draw_bytes(size: int | None, recorded: int | None, limit: int | None, parts: str = "") -> Bar:
    """Return a bar for a number of bytes, with its budget. The marker is the recorded figure.

    The tooltip shows ``parts``, which describes the parts of a sum, or else the exact size.
    """
    if size is None:
        return Bar()
    hint = parts or f"{size:,} bytes"
    hint += "" if recorded is None else f"; {recorded:,} recorded"
    return Bar(show_bytes(size), ((size, "value"),), limit, recorded, hint=hint)


def draw_size(case: Case, rule: Threshold | None) -> Bar:
    """Return a bar for the size of the program, with its budget and the recorded size."""
    recorded = (
        case.judgement.recorded_footprint.program_bytes
        if case.judgement.recorded_footprint
        else None
    )
    return draw_bytes(case.program.pte_bytes, recorded, rule.budget.program_bytes if rule else None)


def sum_traffic(sizes: Sizes | None) -> int | None:
    """Return the bytes that an inference reads from DDR and writes to it, or None if either is not
    known."""
    if sizes is None or sizes.read_bytes is None or sizes.write_bytes is None:
        return None
    return sizes.read_bytes + sizes.write_bytes


def draw_traffic(case: Case, rule: Threshold | None) -> Bar:
    """Return a bar for the bytes that an inference reads from DDR and writes to it.

    The marker is the recorded figure. The limit is the sum of the budget's limits for reading and
    writing, if both are set.
    """
    figures = (
        f"{way} {getattr(case.program.footprint, f'{way}_bytes', None) or 0:,}" for way in WAYS
    )
    recorded = sum_traffic(case.judgement.recorded_footprint)
    limit = sum_traffic(rule.budget if rule else None)
    return draw_bytes(
        sum_traffic(case.program.footprint), recorded, limit, f"{', '.join(figures)} bytes"
    )


def draw_time(seconds: float | None, *, cached: bool = False) -> Bar:
    """Return a bar for a time. A ``cached`` time is from an earlier run, and is drawn in another
    colour."""
    if seconds is None:
        return Bar()
    tone = "cached" if cached else "value"
    return Bar(show_seconds(seconds), ((seconds, tone),), note="cached" * cached)
