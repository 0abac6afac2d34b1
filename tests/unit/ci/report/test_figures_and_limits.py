"""Each figure and limit under its own name, in its own unit, and what the smallest margin is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace as change

from ci.facts.finding import Place
from ci.report.annotation import make_annotations
from ci.report.columns import (
    BUDGETS,
    COLUMNS,
    LIMITS,
    columns_of,
    describe_timing,
    find_margin,
    list_charts,
    show_heat,
    show_limit,
    show_operators,
    show_shares,
)
from ci.report.schema import (
    Budget,
    Case,
    DeviceFigures,
    Estimate,
    Footprint,
    Heat,
    OpCount,
    PredictedTime,
    Simulation,
    Status,
    Threshold,
)
from ci.report.table import render_table
from ci.report.text import (
    clean_name,
    keep_end,
    name_models,
    name_some,
    show_bytes,
    show_seconds,
)
from tests.stand_ins.reports import make_report, say

CASE = Case(model="m", scheme="8a8w", soc="SM8650", status=Status.PASSED)
SIZES = ("read_bytes", "write_bytes", "spill_bytes", "fill_bytes", "context_bytes")
RULE = Threshold(
    scheme="8a8w",
    min_sqnr_db=11,
    min_sqnr_db_quantized=12,
    min_sqnr_db_all=13,
    max_above_noise_db=1.5,
    min_equal=0.91,
    min_equal_quantized=0.92,
    min_cosine=0.81,
    min_cosine_quantized=0.82,
    max_metric_drop=0.03,
    min_metric=0.7,
    max_abs=0.5,
    budget=Budget(
        program_bytes=1 << 20,
        partitions=2,
        **{name: (n + 1) << 10 for n, name in enumerate(SIZES)},
        vtcm_mb=8,
        segment_align=64,
        lowering_memory_bytes=3 << 30,
        p50_ms=1.25,
        p90_ms=2.25,
        load_ms=3.25,
        device_memory_bytes=5 << 20,
        cycles=31,
        ms=4.25,
    ),
)
SHOWN = {
    "SQNR": "11.0",
    "SQNR q": "12.0",
    "SQNR all": "13.0",
    "noise": "+1.5",
    "equal": "91.00 %",
    "equal q": "92.00 %",
    "cosine": "0.81",
    "cosine q": "0.82",
    "metric drop": "0.03",
    "metric": "0.7",
    "max abs": "0.5",
    ".pte": "1.00 MiB",
    "parts": "2",
    "DDR read": "1.00 KiB",
    "DDR write": "2.00 KiB",
    "spill": "3.00 KiB",
    "fill": "4.00 KiB",
    "largest context": "5.00 KiB",
    "VTCM MB": "8",
    "segment alignment": "64",
    "lowering memory": "3.00 GiB",
    "p50 ms": "1.25",
    "p90 ms": "2.25",
    "load ms": "3.25",
    "memory": "5.00 MiB",
    "estimate ms": "4.25",
    "simulated cycles": "31",
}


def test_each_limit_is_shown_under_its_own_name() -> None:
    assert {*SHOWN} == LIMITS.keys() | BUDGETS.keys()
    assert {name: show_limit(name, RULE) for name in SHOWN} == SHOWN
    none = Threshold(scheme="8a8w", max_above_noise_db=0)
    assert {show_limit(name, none) for name in SHOWN} == {"-", "+0.0"}
    assert show_limit("SQNR", change(RULE, min_sqnr_db=None)) == "13.0 over all sets"
    assert show_limit("cached", RULE) == "-"


FIGURES: dict[str, Any] = {
    "sqnr_db": 1.0,
    "sqnr_db_quantized": 2.0,
    "predicted_sqnr_db": 3.0,
    "above_noise_db": 4.0,
    "sqnr_db_scheme": 5.0,
    "equal": 0.06,
    "equal_quantized": 0.07,
    "metric": 8.0,
    "gain": 9.0,
    "offset": 10.0,
    "cosine": 0.11,
    "cosine_quantized": 0.12,
    "max_abs": 13.0,
    "partitions": 14,
    "lower_s": 15.0,
    "run_s": 16.0,
    "run_ms": 17.0,
    "pte_bytes": 18 << 10,
    "equal_emulator": 0.19,
    "sqnr_db_emulator": 20.0,
    "accelerator_cycles": 21,
    "accelerator_us": 22,
    "delegated_nodes": 40,
    "fallback_nodes": 2,
}
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
TIMES = {"first_ms": 1.5, "p50_ms": 2.5, "p90_ms": 3.5, "load_ms": 4.5, "peak_memory_bytes": 512}
SPREADS = {"p50_spread_ms": 0.25, "p90_spread_ms": 0.35, "load_spread_ms": 0.45}
NAMES = {
    "SQNR": "1.0",
    "SQNR q": "2.0",
    "predicted": "3.0",
    "noise": "+4.0",
    "scheme SQNR": "5.0",
    "equal": "6.00 %",
    "equal q": "7.00 %",
    "metric": "8",
    "gain": "9.0000",
    "offset": "10.0000",
    "cosine": "0.11000",
    "cosine q": "0.12000",
    "max abs": "13",
    "delegated": "40/42",
    "parts": "14",
    "lower s": "15.0",
    "run s": "16.0",
    "run ms": "17",
    "first ms": "1.5",
    "p50 ms": "2.5 ±0.25",
    "p90 ms": "3.5 ±0.35",
    "load ms": "4.5 ±0.45",
    "memory": "512 B",
    ".pte": "18.0 KiB",
    "equal e": "19.00 %",
    "SQNR e": "20.0",
    "DDR read": "1.00 KiB",
    "DDR write": "2.00 KiB",
    "spill": "3.00 KiB",
    "fill": "4.00 KiB",
    "largest context": "5.00 KiB",
    "VTCM MB": "8",
    "segment alignment": "64",
    "lowering memory": "1.00 GiB",
    "cycles": "21",
    "accelerator us": "22",
    "estimate ms": "24 (23 to 25)",
    "simulated cycles": "23",
}
# What has no key here is sorted by its text.
SORTED = {
    "SQNR": "1.0",
    "noise": "4.0",
    "first ms": "1.5",
    "p50 ms": "2.5",
    "p90 ms": "3.5",
    "load ms": "4.5",
    "memory": "512",
    "run ms": "17.0",
    "heat": "45.5",
    "delegated": "40",
    "spill": "3072",
    "fill": "4096",
    "largest context": "5120",
    "VTCM MB": "8",
    "segment alignment": "64",
    "lowering memory": "1073741824",
    "equal e": "0.19",
    "SQNR e": "20.0",
    "equal": "0.06",
    "equal q": "0.07",
    "metric": "8.0",
    "DDR": "3072",
    "DDR read": "1024",
    "DDR write": "2048",
    ".pte": "18432",
    "QNN ops": "6",
    "estimate ms": "24.0",
    "simulated cycles": "23",
}


def test_each_figure_is_shown_and_sorted_under_its_own_name() -> None:
    sizes: dict[str, Any] = {name: (n + 1) << 10 for n, name in enumerate(SIZES)}
    more = {"vtcm_mb": 8, "segment_align": 64, "lowering_memory_bytes": 1 << 30}
    device = DeviceFigures(starts=3, runs=30, **TIMES, **SPREADS)  # type: ignore[arg-type]
    device = change(device, after=Heat(hottest_c=45.5))
    operators = (OpCount(op="Conv2d", count=4), OpCount(op="Relu", count=2))
    footprint = Footprint(**sizes, **more)
    case = change(CASE, **FIGURES, device=device, footprint=footprint, qnn_ops=operators)
    columns = {one.name: one for one in COLUMNS}
    assert {name: columns[name].show(case) for name in NAMES} == NAMES
    values = {name: column.value(case) for name, column in columns.items()}
    assert {name: value for name, value in values.items() if value} == SORTED
    assert {columns[name].value(CASE) for name in SORTED} == {"-"}
    assert {columns[name].show(CASE) for name in NAMES} == {"-"}
    without = change(case, device=DeviceFigures(starts=1, runs=1, p90_ms=2.0))
    assert [columns[name].show(without) for name in ("p50 ms", "p90 ms")] == ["-", "2"]


def test_what_a_tooltip_adds_to_a_figure() -> None:
    device = DeviceFigures(starts=3, runs=30, after=Heat(hottest_c=50.0, slowed=("cpu", "gpu")))
    sizes = dict.fromkeys((*SIZES, "vtcm_mb", "segment_align", "lowering_memory_bytes"), 4096)
    recorded = {name: 2 * size for name, size in sizes.items()}
    case = change(
        CASE,
        device=device,
        made_inputs="random inputs",
        sqnr_db_emulator=20.0,
        above_noise_place="output 1",
        qnn_ops=(OpCount(op="Conv2d", count=4), OpCount(op="Relu", count=2)),
        metric_name="top1",
        metric_float=0.8,
        metric_quantized=0.7,
        run_options="on LPAI",
        footprint=Footprint(**sizes),
        recorded_footprint=Footprint(**recorded),
        estimate=Estimate(unknown="why"),
    )
    full = {one.name: one.hint(case) for one in COLUMNS if one.hint}
    empty = {one.name: one.hint(CASE) for one in COLUMNS if one.hint}
    assert [name for name, text in full.items() if not text] == []
    always = {"memory", "cycles", "accelerator us", "metric", "QNN ops"}
    assert {name for name, text in empty.items() if text} <= always
    assert (full["heat"], full["equal e"]) == ("cpu, gpu", "SQNR 20.0 dB")
    assert full["first ms"] == full["p50 ms"] == full["p90 ms"] == describe_timing(case)
    assert full["noise"] == "output 1"
    assert full["estimate ms"] == "why"
    assert all(one in full["metric"] for one in ("top1", "0.8", "0.7"))
    assert full["QNN ops"] == "6: Conv2d 4, Relu 2"
    assert full["spill"] == full["DDR read"] == "8.00 KiB recorded"


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [(None, 2048, ""), (2048, 2048, ""), (1024, 2048, "1.00 KiB recorded"), (0, 1, "0 B recorded")],
)
def test_a_recorded_figure_is_told_if_it_differs(before: int | None, now: int, told: str) -> None:
    column = next(one for one in COLUMNS if one.name == "spill")
    case = change(
        CASE,
        footprint=Footprint(spill_bytes=now, fill_bytes=7),
        recorded_footprint=Footprint(spill_bytes=before, fill_bytes=9),
    )
    assert column.hint
    assert column.hint(case) == told


def test_heat_and_timing_of_a_device() -> None:
    device = DeviceFigures(
        starts=2, runs=30, before=Heat(hottest_c=31.4), after=Heat(hottest_c=45.0)
    )
    case = change(CASE, device=device)
    assert (show_heat(case), describe_timing(case)) == ("31 -> 45 C", "30 runs in 2 starts")
    hot = change(device, throttled=True, emulated=True)
    case = change(CASE, device=hot)
    assert show_heat(case) == "31 -> 45 C, throttled"
    assert describe_timing(case).startswith("30 runs in 2 starts; times of a host")
    assert describe_timing(case).endswith("; throttled")
    assert show_heat(change(CASE, device=change(hot, before=Heat()))) == "throttled"
    assert show_heat(change(CASE, device=change(device, after=Heat()))) == "-"
    assert (show_heat(CASE), describe_timing(CASE)) == ("-", "")


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
    ],
)
def test_the_smallest_margin_is_that_of_its_own_limit(
    figures: dict[str, float], limits: dict[str, float], margin: tuple[float, str, float] | None
) -> None:
    rule = Threshold(scheme="8a8w", **limits)  # type: ignore[arg-type]
    case = change(CASE, **figures)  # type: ignore[arg-type]
    report = change(make_report([case]), thresholds=(rule,))
    assert find_margin(report, case) == margin


@pytest.mark.parametrize(
    ("read", "drawn"), [((None, None), False), ((None, 5), True), ((5, None), True), ((5, 6), True)]
)
def test_traffic_is_drawn_if_a_case_has_it(read: tuple[int | None, ...], drawn: bool) -> None:
    """Every other chart is drawn, even if no case has a figure for it."""
    cases = [change(CASE, footprint=Footprint(read_bytes=r, write_bytes=r)) for r in read]
    names = [one.name for one in COLUMNS if one.draw and one.name != "DDR"]
    for reports in ([make_report(cases)], [make_report([case]) for case in cases]):
        assert [one.name for one in list_charts(reports)] == names + ["DDR"] * drawn


def test_words_for_several_things() -> None:
    assert clean_name("::a::b::\nc") == ": :a: :b: : c"
    names = "abc"
    assert [name_some(names[:n], 2) for n in range(4)] == ["", "a", "a, b", "a, b and 1 more"]
    assert [keep_end("abcd", most) for most in (5, 4, 3)] == ["abcd", "abcd", "…cd"]
    operators = tuple(OpCount(op=one, count=n) for n, one in enumerate("abcd", 1))
    shown = [show_operators(change(CASE, qnn_ops=operators[:n])) for n in (0, 1, 3, 4)]
    assert shown == ["-", "1: a 1", "6: a 1, b 2, c 3", "10: a 1, b 2, c 3 ..."]
    assert show_shares(1.0, 0.97) == "100 % (97.00 % exact)"


@pytest.mark.parametrize(
    "shown",
    [
        {"zoo/resnet/model.onnx": "resnet/model.onnx", "zoo/vit/model.onnx": "vit/model.onnx"},
        {"a/net.py:f": "a/net.py:f", "b/net.py:f": "b/net.py:f", "b/net.py:g": "net.py:g"},
        {"a/b/x": "a/b/x", "c/b/x": "c/b/x", "x": "x", "mlp": "mlp"},
        {"/far/nets/x": "far/nets/x", "nets/x": "nets/x"},
        {
            "zoo/resnet50_quantized_w8a8/model.onnx": "resnet50_q…tized_w8a8/model.onnx",
            "zoo/vit/model.onnx": "vit/model.onnx",
        },
        {f"{'x' * 10}{one}{'y' * 40}": f"{'x' * 10}{one}{'y' * 40}" for one in "ab"},
    ],
)
def test_a_model_is_shown_by_its_shortest_path_without_its_middle(shown: dict[str, str]) -> None:
    assert name_models(shown) == shown


def test_the_columns_of_cases_are_those_that_any_of_them_has() -> None:
    onnx = [change(CASE, runner="onnxruntime", pte_bytes=1), change(CASE, runner="onnxruntime-x")]
    mixed = [onnx[0], change(CASE, runner="python")]
    for cases, heading in ((onnx, "context size"), (mixed, ".pte")):
        columns = {one.name: one for one in columns_of(cases)}
        found = columns[".pte"]
        assert found.summary == heading
        assert (found.terminal == "context\nsize") is (heading == "context size")
        assert [one.summary for one in columns.values()].count("context size") == (
            heading == "context size"
        )
        assert "run ms" not in columns
    assert "run ms" in {one.name for one in columns_of([CASE, change(CASE, run_ms=1.0)])}
    assert len(columns_of([])) == len(COLUMNS)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (10 << 10, "10.0 KiB"),
        (100 << 10, "100 KiB"),
        (999 << 10, "999 KiB"),
        (1000 << 10, "0.98 MiB"),
        (2000 << 30, "2000 GiB"),
    ],
)
def test_units_change_at_a_thousand(value: int, shown: str) -> None:
    assert show_bytes(value) == shown


def test_seconds_have_about_three_digits() -> None:
    values = (0.0, 0.0999, 0.1, 9.99, 10.0, 99.9, 100.0)
    shown = ["0.000", "0.100", "0.10", "9.99", "10.0", "99.9", "100"]
    assert [show_seconds(one) for one in values] == shown


def test_each_place_of_a_failure_and_each_reason_is_an_annotation() -> None:
    places = tuple(Place(file=f"{one}.py", line=line) for one, line in (("a", 7), ("b", 9)))
    failed = change(CASE, status=Status.FAILED, findings=say("no", *places))
    cases = [
        failed,
        change(failed, scheme="fp16"),
        change(failed, scheme="16a8w", findings=say("other", *places[1:])),
        change(CASE, model="right", findings=say("no", *places)),
        change(failed, model="not run", status=Status.UNSUPPORTED),
        change(failed, model="other", findings=say("no", *places[1:])),
    ]
    found = make_annotations(make_report(cases))
    assert [(one.path, one.line, one.message) for one in found] == [
        ("a.py", 7, "no [QNN2705] (8a8w SM8650, fp16 SM8650)"),
        ("b.py", 9, "no [QNN2705] (8a8w SM8650, fp16 SM8650)"),
        ("b.py", 9, "other [QNN2705] (16a8w SM8650)"),
        ("b.py", 9, "no [QNN2705] (8a8w SM8650)"),
    ]
    assert [one.title for one in found] == [*["test_emulator: m"] * 3, "test_emulator: other"]
    assert [one.plain().split(" [")[0] for one in found[:1]] == ["a.py:7: error: no"]


@pytest.mark.parametrize(
    ("simulation", "shown"), [(SIMULATION, f"{SIMULATION.cycles:,} cycles"), (None, "cannot tell")]
)
def test_an_estimate_without_a_time_shows_what_is_known_and_why(
    simulation: Simulation | None, shown: str
) -> None:
    case = change(CASE, estimate=Estimate(simulation=simulation, unknown="out of range"))
    text = render_table(make_report([case]), colour=False, width=120)
    assert shown in text
    assert "no time is estimated: out of range" in text
