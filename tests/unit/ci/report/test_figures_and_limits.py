"""Each figure and limit under its own name, in its own unit, and what the smallest margin is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as change

from ci.facts.finding import Figure, Place
from ci.facts.kinds import NOISE
from ci.report.annotation import make_annotations
from ci.report.columns import (
    BUDGETS,
    COLUMNS,
    LIMITS,
    describe_timing,
    find_margin,
    show_heat,
    show_limit,
)
from ci.report.schema import (
    Budget,
    Case,
    DeviceFigures,
    Estimate,
    Footprint,
    Heat,
    JudgementFacts,
    OpCount,
    PredictedTime,
    Simulation,
    Status,
    Threshold,
)
from tests.stand_ins.reports import change_case, make_report, say
from tests.stand_ins.snapshots import check_snapshot

SIZES = ("read_bytes", "write_bytes", "spill_bytes", "fill_bytes", "context_bytes")
NOISY = NOISE.find("too far", figures=[Figure(name="above_noise", value=18.5, allowed=15.0)])
CASE = Case(model="m", scheme="8a8w", soc="SM8650", judgement=JudgementFacts(status=Status.PASSED))


NAMES = (
    *("sqnr_db", "sqnr_db_quantized", "predicted_sqnr_db", "above_noise_db", "sqnr_db_scheme"),
    *("equal", "equal_quantized", "metric", "gain", "offset", "cosine", "cosine_quantized"),
    *("max_abs", "partitions", "lower_s", "wall_s", "ms", "pte_bytes", "equal_emulator"),
    *("sqnr_db_emulator", "accelerator_cycles", "accelerator_us"),
)
FIGURES: dict[str, Any] = {
    name: number / 100 if name.startswith(("equal", "cosine")) else number
    for number, name in enumerate(NAMES, 1)
} | {"pte_bytes": 18 << 10, "delegated_nodes": 40, "fallback_nodes": 2}
SIMULATION = Simulation(
    soc="QCS9100",
    graphs=1,
    clock_mhz=1500.0,
    cycles=23,
    lower_cycles=22,
    upper_cycles=24,
    **dict.fromkeys(("read_bytes", "fill_bytes", "spill_bytes", "write_bytes", "missing_ops"), 0),
    **dict.fromkeys(("hmx_cycles", "hvx_cycles", "dma_cycles"), 0),
)
FIGURES["estimate"] = Estimate(
    simulation=SIMULATION,
    times=(PredictedTime(device="d", ms=24.0, low_ms=23.0, high_ms=25.0, median_error=0.1),),
)


def test_each_figure_and_limit_is_shown_under_its_own_name() -> None:
    """The text, the sort key, the tooltip and the limit of each figure."""
    sizes: dict[str, Any] = {name: (n + 1) << 10 for n, name in enumerate(SIZES)}
    other_sizes = {"vtcm_mb": 8, "segment_align": 64, "lowering_memory_bytes": 1 << 30}
    footprint = Footprint(**sizes, **other_sizes)
    times = {"first_ms": 1.5, "p50_ms": 2.5, "p90_ms": 3.5, "load_ms": 4.5}
    spreads = {"p50_spread_ms": 0.25, "p90_spread_ms": 0.35, "load_spread_ms": 0.45}
    case = change_case(
        CASE,
        **FIGURES,
        figures=DeviceFigures(
            starts=3,
            runs=30,
            **(times | spreads),  # type: ignore[arg-type]
            peak_memory_bytes=512,
            after=Heat(hottest_c=45.5, slowed=("cpu", "gpu")),
        ),
        footprint=footprint,
        recorded_footprint=Footprint(
            **{name: 2 * size for name, size in sizes.items()}, **other_sizes
        ),
        qnn_ops=(OpCount(op="Conv2d", count=4), OpCount(op="Relu", count=2)),
        above_noise_place="output 1",
        metric_name="top1",
        metric_float=0.8,
        metric_quantized=0.7,
        options="on LPAI",
        made_inputs="random inputs",
    )
    budget = Budget(
        program_bytes=1 << 20,
        partitions=2,
        **{name: size + 512 for name, size in sizes.items()},
        vtcm_mb=8,
        segment_align=64,
        lowering_memory_bytes=3 << 30,
        p50_ms=1.25,
        p90_ms=2.25,
        load_ms=3.25,
        device_memory_bytes=5 << 20,
        cycles=31,
        ms=4.25,
    )
    figures = [
        limit_name
        for limit_name in Threshold.__struct_fields__
        if limit_name.startswith(("min_", "max_"))
    ]
    rule = Threshold(
        scheme="8a8w",
        budget=budget,
        **{name: n + 0.5 for n, name in enumerate(figures)},  # type: ignore[arg-type]
    )
    columns = {column_row.name: column_row for column_row in COLUMNS}
    rows = []
    for name in [*columns, *({*LIMITS, *BUDGETS} - columns.keys())]:
        column = columns.get(name)
        shown = (
            (column.show(case), column.value(case), column.hint(case) if column.hint else "")
            if column
            else ()
        )
        rows.append(" | ".join((name, *shown, f"limit {show_limit(name, rule)}")) + "\n")
    rows.append(f"without SQNR of sets: {show_limit('SQNR', change(rule, min_sqnr_db=None))}\n")
    check_snapshot(Path(__file__).with_name("snapshots") / "columns.txt", "".join(sorted(rows)))
    assert {columns[name].show(CASE) for name in columns.keys() & {*LIMITS, *BUDGETS}} == {"-"}


def test_temperature_and_number_of_runs_of_a_device_are_shown() -> None:
    device = DeviceFigures(
        starts=2, runs=30, before=Heat(hottest_c=31.4), after=Heat(hottest_c=45.0)
    )
    runs, hot = "30 runs in 2 starts", change(device, throttled=True)
    host = f"{runs}; times of a host"
    for figures, heat, timing in (
        (device, "31 -> 45 C", runs),
        (change(hot, emulated=True), "31 -> 45 C, throttled", host),
        (change(hot, before=Heat()), "throttled", runs),
        (change(device, after=Heat()), "-", runs),
        (None, "-", ""),
    ):
        case = change_case(CASE, figures=figures)
        assert show_heat(case) == heat
        assert describe_timing(case).startswith(timing)
        assert describe_timing(case).endswith("; throttled") is ("throttled" in heat)


@pytest.mark.parametrize(
    ("figures", "limits", "margin"),
    [
        ({}, {}, None),
        ({"sqnr_db": 40.0}, {}, None),
        ({"sqnr_db": 40.0}, {"min_sqnr_db": 30}, (10, "SQNR", 40)),
        ({"sqnr_db": 30.0}, {"min_sqnr_db": 30}, (0, "SQNR", 30)),
        (
            {"sqnr_db": 40.0, "sqnr_db_quantized": 35.0},
            {"min_sqnr_db": 30, "min_sqnr_db_quantized": 38},
            (-3, "against the quantized model", 35),
        ),
        (
            {"sqnr_db": 40.0, "above_noise_db": 1.0},
            {"min_sqnr_db": 30, "max_above_noise_db": 3},
            (2, "above the predicted noise", 1),
        ),
        (
            {"above_noise_db": 18.5, "findings": (NOISY,)},
            {"max_above_noise_db": 10},
            (-3.5, "above the predicted noise", 18.5),
        ),
    ],
)
def test_the_smallest_margin_names_the_limit_that_it_belongs_to(
    figures: dict[str, Any], limits: dict[str, float], margin: tuple[float, str, float] | None
) -> None:
    rule = Threshold(scheme="8a8w", **limits)  # type: ignore[arg-type]
    case = change_case(CASE, **figures)
    report = change(make_report([case]), thresholds=(rule,))
    assert find_margin(report, case) == margin


def test_each_place_of_a_failure_and_each_reason_is_an_annotation() -> None:
    places = tuple(Place(file=f"{stem}.py", line=line) for stem, line in (("a", 7), ("b", 9)))
    failed = change_case(CASE, status=Status.FAILED, findings=say("no", *places))
    cases = [
        failed,
        change_case(failed, scheme="fp16"),
        change_case(failed, scheme="16a8w", findings=say("other", *places[1:])),
        change_case(CASE, model="right", findings=say("no", *places)),
        change_case(failed, model="not run", status=Status.UNSUPPORTED),
        change_case(failed, model="other", findings=say("no", *places[1:])),
    ]
    annotations = make_annotations(make_report(cases))
    assert [
        (annotation.path, annotation.line, annotation.message) for annotation in annotations
    ] == [
        ("a.py", 7, "no [QNN2705] (8a8w SM8650, fp16 SM8650)"),
        ("b.py", 9, "no [QNN2705] (8a8w SM8650, fp16 SM8650)"),
        ("b.py", 9, "other [QNN2705] (16a8w SM8650)"),
        ("b.py", 9, "no [QNN2705] (8a8w SM8650)"),
    ]
    assert [annotation.title for annotation in annotations] == [
        *["test_emulator: m"] * 3,
        "test_emulator: other",
    ]
    assert [annotation.plain().split(" [")[0] for annotation in annotations[:1]] == [
        "a.py:7: error: no"
    ]
