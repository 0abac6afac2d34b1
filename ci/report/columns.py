"""How cases and limits are shown: one list of columns for the terminal, HTML, GitHub and JUnit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from ci.report import bars
from ci.report.schema import (
    MADE_PROVES,
    Case,
    DeviceFigures,
    Report,
    Threshold,
    TypeShare,
)
from ci.report.text import (
    Names,
    count,
    name_models,
    show_bytes,
    show_decibels,
    show_seconds,
    show_share,
)

NOTHING = "-"
Draw = Callable[[Case, Threshold | None], bars.Bar]
RANGE = "80 % of left-out models are in the range; nothing was measured"
NO_GATE = "not judged, because it varies between runs on the emulator"


@dataclass(frozen=True)
class Column:
    """A figure or text of a case. ``show`` returns it as text. ``sort`` returns the sort key; it is
    needed only if the text is not suitable for sorting.

    If ``number`` is true, the text is aligned as a number, and the column is omitted everywhere if
    no case has a value for it. ``title`` is the heading if it differs from ``name``. A terminal
    omits columns that are not ``on_terminal``. Those that are ``page_only`` are only in the details
    of a case on the HTML page, and in JUnit; those that are ``on_device`` are in a second table
    there. ``hint`` returns a tooltip. ``draw`` makes a bar for the chart with the title
    ``chart``.
    """

    name: str
    show: Callable[[Case], str]
    sort: Callable[[Case], object] | None = None
    number: bool = True
    title: str = ""
    on_terminal: bool = True
    page_only: bool = False
    on_device: bool = False
    hint: Callable[[Case], str] | None = None
    chart: str = ""
    draw: Draw | None = None

    def value(self, case: Case) -> str:
        """Return the sort key as text, ``-`` if the case has none, or an empty string if the column
        is sorted by the shown text."""
        key = self.sort(case) if self.sort else ""
        return NOTHING if key is None else str(key)

    def is_had(self, case: Case) -> bool:
        """Return whether the case has a value for the column."""
        return self.show(case) not in {"", NOTHING}


Form = str | Callable[[Any], str]  # the format of a figure, or what shows it as text


def _show(value: float | None, form: Form) -> str:
    """Return a figure as text. In a format, ``-`` stands for None."""
    if callable(form):
        return form(value)
    return NOTHING if value is None else format(value, form)


def _figure(
    name: str, find: str | Callable[[Case], float | None], form: Form, **column_options: Any
) -> Column:
    """Return a column for a figure, by which it is sorted. ``find`` is the field of Case with the
    figure, or returns it."""
    get = attrgetter(find) if isinstance(find, str) else find
    return Column(name, lambda case: _show(get(case), form), get, **column_options)


def show_equal(share: float | None) -> str:
    """Return a share such as ``99.95 %``. The result is ``100 %`` only if every element is
    correct."""
    if share is None:
        return NOTHING
    return "100 %" if share == 1 else f"{min(share * 100, 99.99):.2f} %"


def show_shares(equal: float | None, exact: float | None) -> str:
    """Return ``100 %`` or, if the shares differ, ``100 % (97.00 % exact)``. The arguments are the
    figures ``equal`` and ``equal_exact`` of a case."""
    shown = show_equal(equal)
    return shown if exact is None or exact == equal else f"{shown} ({show_equal(exact)} exact)"


def show_types(case: Case, figure: Callable[[TypeShare], int]) -> str:
    """Return text such as ``8: 71 %, 16: 29 %``: the share of operators or of weights of each
    type. If all have the same type, the column has no value."""
    total = sum(map(figure, case.program.types))
    shares = [(type_.type, figure(type_) / total) for type_ in case.program.types if figure(type_)]
    if len(shares) < 2:
        return NOTHING
    return ", ".join(f"{name.removesuffix(' bit')}: {share * 100:.0f} %" for name, share in shares)


def show_operators(case: Case, most: int = 3) -> str:
    """Return text such as ``12: Conv2d 4, Relu 4, Transpose 2 ...``: the number of QNN operators,
    then the first ``most`` types with their numbers."""
    if not case.program.qnn_ops:
        return NOTHING
    named = ", ".join(f"{count.op} {count.count}" for count in case.program.qnn_ops[:most])
    ellipsis = " ..." if len(case.program.qnn_ops) > most else ""
    return f"{sum(count.count for count in case.program.qnn_ops)}: {named}{ellipsis}"


def _make_accelerator_column(name: str, figure: Callable[[Case], int | None]) -> Column:
    return Column(
        name,
        lambda case: _show(figure(case), "d"),
        title=f"{name} (no gate)",
        hint=lambda _: NO_GATE,
    )


def _make_time_column(
    name: str,
    figure: Callable[[DeviceFigures], float | None],
    spread: Callable[[DeviceFigures], float | None] = lambda _: None,
) -> Column:
    def show(case: Case) -> str:
        if case.device.figures is None or (time := figure(case.device.figures)) is None:
            return NOTHING
        deviation = spread(case.device.figures)
        return f"{time:.4g}" + (f" ±{deviation:.2g}" if deviation is not None else "")

    return Column(
        name,
        show,
        sort=lambda case: case.device.figures and figure(case.device.figures),
        on_device=True,
        hint=describe_timing,
    )


def describe_timing(case: Case) -> str:
    """Return text such as ``30 runs in 3 starts``, and whether the device was emulated or
    throttled."""
    if case.device.figures is None:
        return ""
    runs = (
        f"{count(case.device.figures.runs, 'run')} in {count(case.device.figures.starts, 'start')}"
    )
    emulated = (
        "; times of a host that emulated the SoC, not of a device" * case.device.figures.emulated
    )
    return runs + emulated + "; throttled" * case.device.figures.throttled


def show_heat(case: Case) -> str:
    """Return text such as ``31 -> 45 C, throttled``: the temperature of the hottest sensor before
    and after a run, and whether the device was throttled."""
    if case.device.figures is None:
        return NOTHING
    parts = []
    before_c, after_c = case.device.figures.before.hottest_c, case.device.figures.after.hottest_c
    if before_c is not None and after_c is not None:
        parts.append(f"{before_c:.0f} -> {after_c:.0f} C")
    if case.device.figures.throttled:
        parts.append("throttled")
    return ", ".join(parts) or NOTHING


def _make_footprint_column(name: str, field: str, form: Form) -> Column:
    """Return a column for a figure of the footprint, with the recorded figure as tooltip."""

    def find(case: Case) -> int | None:
        return getattr(case.program.footprint, field, None)

    def recall(case: Case) -> str:
        was = getattr(case.judgement.recorded_footprint, field, None)
        return "" if was is None or was == find(case) else f"{_show(was, form)} recorded"

    return _figure(name, find, form, hint=recall, page_only=True)


# Columns for figures of the footprint: the name, the field, and what shows it as text.
FOOTPRINT: tuple[tuple[str, str, Form], ...] = (
    ("DDR read", "read_bytes", show_bytes),
    ("DDR write", "write_bytes", show_bytes),
    ("spill", "spill_bytes", show_bytes),
    ("fill", "fill_bytes", show_bytes),
    ("largest context", "context_bytes", show_bytes),
    ("VTCM MiB", "vtcm_mb", "d"),
    ("segment alignment", "segment_align", "d"),
    ("lowering memory", "lowering_memory_bytes", show_bytes),
)


def show_estimate(case: Case) -> str:
    """Return text such as ``1.05 (0.91 to 1.3)``, or ``0 to 0.21`` if only an upper bound is known:
    the time that is predicted for the first device with the SoC, in milliseconds. If there is no
    time, return ``cannot tell``; the cycles have their own column."""
    if not case.program.estimate:
        return NOTHING
    for time in case.program.estimate.times:
        if time.is_bound:  # "at most 0.21" was read as slower than a time of 0.12
            return f"0 to {time.high_ms:.3g}"
        return f"{time.ms:.3g} ({time.low_ms:.3g} to {time.high_ms:.3g})"
    return "cannot tell"


def _find_cycles(case: Case) -> int | None:
    simulation = case.program.estimate and case.program.estimate.simulation
    return simulation.cycles if simulation else None


KEYS = ("model", "scheme", "SoC", "status")  # the first columns
COLUMNS = (
    Column("model", lambda case: case.model, number=False),
    Column("scheme", lambda case: case.scheme, number=False),
    Column("SoC", lambda case: case.soc, number=False),
    Column("status", lambda case: case.judgement.status.value, number=False),
    Column("verdicts", lambda case: case.judgement.outcome),
    Column(
        "inputs",
        lambda case: case.asked.made_inputs.removesuffix(" inputs"),
        hint=lambda case: MADE_PROVES if case.asked.made_inputs else "",
    ),
    Column(
        "SQNR",
        lambda case: show_decibels(case.judgement.sqnr_db, case.judgement.max_abs),
        lambda case: case.judgement.sqnr_db,
        chart="SQNR, dB",
        draw=bars.draw_sqnr,
        title="SQNR dB",
    ),
    Column(
        "SQNR q", lambda case: show_decibels(case.judgement.sqnr_db_quantized), title="SQNR q dB"
    ),
    Column(
        "predicted",
        lambda case: show_decibels(case.judgement.predicted_sqnr_db),
        title="predicted dB",
    ),
    _figure(
        "noise",
        "judgement.above_noise_db",
        "+.1f",
        hint=lambda case: case.judgement.above_noise_place,
        title="above noise",
    ),
    Column(
        "scheme SQNR", lambda case: show_decibels(case.judgement.sqnr_db_scheme), page_only=True
    ),
    Column(
        "equal",
        lambda case: show_shares(case.judgement.equal, case.judgement.equal_exact),
        lambda case: case.judgement.equal,
    ),
    _figure("equal q", "judgement.equal_quantized", show_equal, page_only=True),
    _figure(
        "metric",
        "judgement.metric",
        ".4g",
        hint=lambda case: (
            f"{case.judgement.metric_name}, float32"
            f" {_show(case.judgement.metric_float, '.4g')}, quantized"
            f" {_show(case.judgement.metric_quantized, '.4g')}"
        ),
    ),
    Column("gain", lambda case: _show(case.judgement.gain, ".4f"), page_only=True),
    Column("offset", lambda case: _show(case.judgement.offset, ".4f"), page_only=True),
    Column("cosine", lambda case: _show(case.judgement.cosine, ".5f"), page_only=True),
    Column("cosine q", lambda case: _show(case.judgement.cosine_quantized, ".5f"), page_only=True),
    Column("max abs", lambda case: _show(case.judgement.max_abs, ".3g"), page_only=True),
    Column(
        "delegated",
        lambda case: show_share(case.program.delegated_nodes, case.program.fallback_nodes),
        lambda case: case.program.delegated_nodes,
        chart="nodes on the NPU",
        draw=bars.draw_delegation,
    ),
    Column(
        "operator types",
        lambda case: show_types(case, lambda outputs: outputs.operators),
        title="operators by bits",
    ),
    Column(
        "weight types",
        lambda case: show_types(case, lambda outputs: outputs.weight_bytes),
        title="weights by bits",
        on_terminal=False,
    ),
    Column("partitions", lambda case: _show(case.program.partitions, "d"), page_only=True),
    Column(
        "lower s",
        lambda case: show_seconds(case.program.lower_s),
        chart="lower, s",
        draw=lambda case, _: bars.draw_time(case.program.lower_s, cached=case.program.cached),
    ),
    Column(
        "run s",
        lambda case: show_seconds(case.run.wall_s),
        chart="run, s",
        draw=lambda case, _: bars.draw_time(case.run.wall_s),
    ),
    _figure("run ms", "run.ms", ".4g", hint=lambda case: case.run.options),
    Column(
        "estimate ms",
        show_estimate,
        lambda case: (
            case.program.estimate.times[0].ms
            if case.program.estimate and case.program.estimate.times
            else None
        ),
        hint=lambda case: case.program.estimate.unknown or RANGE if case.program.estimate else "",
    ),
    _make_time_column("first ms", lambda times: times.first_ms),
    _make_time_column("p50 ms", lambda times: times.p50_ms, lambda times: times.p50_spread_ms),
    _make_time_column("p90 ms", lambda times: times.p90_ms, lambda times: times.p90_spread_ms),
    _make_time_column("load ms", lambda times: times.load_ms, lambda times: times.load_spread_ms),
    _figure(
        "memory",
        lambda case: case.device.figures.peak_memory_bytes if case.device.figures else None,
        show_bytes,
        on_device=True,
        hint=lambda _: "memory of the runner's process, without the DSP's memory",
        title="peak memory",
    ),
    Column(
        "heat",
        show_heat,
        lambda case: case.device.figures and case.device.figures.after.hottest_c,
        on_device=True,
        hint=lambda case: (
            ", ".join(case.device.figures.after.slowed) if case.device.figures else ""
        ),
    ),
    _figure(
        "equal e",
        "device.equal_emulator",
        show_equal,
        on_device=True,
        hint=lambda case: (
            f"SQNR {show_decibels(case.device.sqnr_db_emulator)} dB"
            if case.device.sqnr_db_emulator
            else ""
        ),
        title="as the emulator",
    ),
    _figure(
        "SQNR e",
        "device.sqnr_db_emulator",
        show_decibels,
        title="SQNR to the emulator dB",
        on_device=True,
        on_terminal=False,
    ),
    _figure(
        ".pte",
        "program.pte_bytes",
        show_bytes,
        chart="program",
        draw=bars.draw_size,
        title="program size",  # a .pte, a .tflite or a context binary
    ),
    _figure(
        "DDR",
        lambda case: bars.sum_traffic(case.program.footprint),
        show_bytes,
        chart="DDR traffic",
        draw=bars.draw_traffic,
        page_only=True,
    ),
    *(_make_footprint_column(*row) for row in FOOTPRINT),
    Column("choices", lambda case: case.asked.choices, on_terminal=False),
    Column(
        "QNN ops",
        show_operators,
        lambda case: sum(op_count.count for op_count in case.program.qnn_ops) or None,
        hint=lambda case: show_operators(case, len(case.program.qnn_ops)),
        on_terminal=False,
    ),
    _figure("simulated cycles", _find_cycles, "d", on_terminal=False),
    _make_accelerator_column("cycles", lambda case: case.run.accelerator_cycles),
    _make_accelerator_column("accelerator us", lambda case: case.run.accelerator_us),
    Column("cached", lambda case: "yes" if case.program.cached else ""),
)


def columns_of(cases: Sequence[Case], names: Names = MappingProxyType({})) -> list[Column]:
    """Return the columns that identify a case or show its status, and those for which any case has
    a value; without cases, return all columns. ``names`` are the shown names of the models, by
    default those that are the shortest for ``cases``."""
    names = names or name_models(case.model for case in cases)
    model = replace(COLUMNS[0], show=lambda case: names[case.model], hint=lambda case: case.model)
    columns = [model, *COLUMNS[1:]]
    if not cases:
        return columns
    return [column for column in columns if not column.number or any(map(column.is_had, cases))]


def name_report(report: Report) -> dict[str, str]:
    """Return the shown names of the models of a report and of the base that it is compared with."""
    base = report.comparison
    absent_or_new = (*base.missing, *base.skipped, *base.new) if base else ()
    return name_models(case.model for case in (*report.cases, *absent_or_new))


def _limit(field: str, form: Form) -> Callable[[Threshold], str]:
    get = attrgetter(field)
    return lambda rule: _show(get(rule), form)


# The limits of a Threshold as text, by column, and those of its budget.
LIMITS = {
    "SQNR": _limit("min_sqnr_db", ".1f"),
    "SQNR q": _limit("min_sqnr_db_quantized", ".1f"),
    "SQNR all": _limit("min_sqnr_db_all", ".1f"),
    "noise": _limit("max_above_noise_db", "+.1f"),
    "equal": _limit("min_equal", show_equal),
    "equal q": _limit("min_equal_quantized", show_equal),
    "cosine": _limit("min_cosine", ".6g"),
    "cosine q": _limit("min_cosine_quantized", ".6g"),
    "metric drop": _limit("max_metric_drop", ".3g"),
    "metric": _limit("min_metric", ".3g"),
    "max abs": _limit("max_abs", ".3g"),
}
BUDGETS = {
    ".pte": _limit("budget.program_bytes", show_bytes),
    "partitions": _limit("budget.partitions", "d"),
    **{name: _limit(f"budget.{field}", form) for name, field, form in FOOTPRINT},
    **{f"{name} ms": _limit(f"budget.{name}_ms", ".4g") for name in ("p50", "p90", "load")},
    "memory": _limit("budget.device_memory_bytes", show_bytes),
    "estimate ms": _limit("budget.ms", ".4g"),
    "simulated cycles": _limit("budget.cycles", "d"),
}


def list_limits(report: Report) -> dict[str, Callable[[Threshold], str]]:
    """Return the limits, by column, that at least one of the thresholds of a report has."""
    return {
        name: show
        for name, show in LIMITS.items()
        if any(show(rule) != NOTHING for rule in report.thresholds)
    }


def show_limit(name: str, rule: Threshold) -> str:
    """Return the limit of the figure ``name`` as text, ``-`` if there is none.

    If there is no limit for the SQNR of single samples, the limit over all samples is shown
    instead.
    """
    min_db_all = rule.min_sqnr_db_all
    if name == "SQNR" and rule.min_sqnr_db is None and min_db_all is not None:
        return f"{min_db_all:.1f} over all samples"
    limit = LIMITS.get(name) or BUDGETS.get(name)
    return limit(rule) if limit else NOTHING


def list_charts(reports: Sequence[Report]) -> list[tuple[str, Draw]]:
    """Return the title of each chart, and what draws its bars: that of the SQNR, and others if a
    case has a value for them."""
    cases = [case for report in reports for case in report.cases]
    return [
        (column.chart, column.draw)
        for column in COLUMNS
        if column.draw and (column.draw is bars.draw_sqnr or any(map(column.is_had, cases)))
    ]


def find_margin(report: Report, case: Case) -> tuple[float, str, float] | None:
    """Return the smallest margin in dB between a figure and its limit, with that figure's name and
    value.

    The margin is negative if the limit is not met. None means that no figure has a limit. For a
    failed figure, the limit is the one that its finding states: a part of an output may be allowed
    more noise than the whole.
    """
    rule, noise = report.threshold_for(case), case.judgement.above_noise_db
    if rule is None:
        return None
    figures = (figure for finding in case.judgement.findings for figure in finding.figures)
    named = (figure for figure in figures if figure.name == "above_noise" and figure.value == noise)
    stated = (figure.allowed for figure in named if figure.allowed is not None)
    pairs = (
        (case.judgement.sqnr_db, rule.min_sqnr_db, 1, "SQNR"),
        (
            case.judgement.sqnr_db_quantized,
            rule.min_sqnr_db_quantized,
            1,
            "against the quantized model",
        ),
        (noise, next(stated, rule.max_above_noise_db), -1, "above the predicted noise"),
    )
    margins = [
        (sign * (now - limit), name, now)
        for now, limit, sign, name in pairs
        if now is not None and limit is not None
    ]
    return min(margins, default=None)
