from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.device.figures import Start, parse_heat, read_times, summarize_starts
from ci.judging.figures import find_nearness
from ci.report.schema import Heat
from tests.stand_ins.lowered import Number, Vector, make_flatbuffer

DUMP = (Path(__file__).parents[3] / "artifacts/device/mlp.etdp").read_bytes()


def test_load_and_run_times_are_read_from_a_real_etdump() -> None:
    load_ms, runs_ms = read_times(DUMP)
    assert load_ms == 63.276186
    assert (len(runs_ms), runs_ms[0], runs_ms[-1]) == (16, 4.855012, 5.355488)


def test_a_damaged_etdump_has_no_times_and_raises_nothing() -> None:
    for damaged in (b"", b"text", DUMP[:40], DUMP[4:], bytes(100)):
        assert read_times(damaged) == (None, ())
    chance = random.Random(1)
    for _ in range(300):  # whatever a device sends, nothing is raised
        bytes_ = bytearray(DUMP)
        for _ in range(chance.randrange(1, 20)):
            bytes_[chance.randrange(12, len(bytes_))] = chance.randrange(256)
        read_times(bytes(bytes_))


def test_times_since_boot_are_read_as_64_bits() -> None:
    def event(name: str, began: int, ended: int) -> dict[int, Any]:
        return {0: {0: name, 6: Number("Q", began), 7: Number("Q", ended)}}

    start, step = 1 << 40, 1 << 33
    rows = [
        event("Method::execute", start, start + step),
        event("Method::execute", start + 5, start + 5 + 2 * step),
        event("Program::load_method", 0, 3_000_000),
        event("Program::load_method", start, start + 4_000_000),
        event("Method::other", 0, 1),
        {},
    ]
    blocks = [{0: "Default", 3: Vector(rows[:3])}, {0: "Execute", 3: Vector(rows[3:])}, {}]
    dump = bytes(4) + make_flatbuffer({1: Vector(blocks)}, b"ED00")
    assert read_times(dump) == (7.0, (step / 1e6, 2 * step / 1e6))
    other_dump = bytes(4) + make_flatbuffer({1: Vector(blocks)}, b"ED01")
    assert read_times(other_dump) == (None, ())
    alone = make_flatbuffer({1: Vector([{3: Vector(rows[:1])}])}, b"ED00")
    assert read_times(bytes(4) + alone) == (None, (step / 1e6,))
    assert read_times(dump[: dump.rindex(b"Method::other")]) == (None, ()), "not the first events"


HOT = """\
zone cpu-0-0 41200
zone cpu-1-7 55400
zone modem -273000
zone battery
cooling thermal-cpufreq-0 2
cooling panel0-backlight 1
cooling cdsp 0
status of_system 0
"""


def test_temperature_and_throttling_of_a_phone_are_parsed() -> None:
    heat = parse_heat(HOT)
    assert heat == Heat(status=0, hottest_c=55.4, zone="cpu-1-7", slowed=("thermal-cpufreq-0",))
    assert heat.throttled
    assert parse_heat("status of_system 2\n").throttled
    assert not parse_heat(HOT.replace("cpufreq-0 2", "cpufreq-0 0")).throttled
    assert parse_heat("cooling cdsp 1\n").slowed == ("cdsp",)
    assert parse_heat("") == Heat()


RUNS = (90.0, 50.0, 1.0, 2.0, 50.0, 50.0, 3.0, 4.0)  # two sets of 2 + 2


@pytest.mark.parametrize(
    ("start", "warm_up", "iteration", "figures"),
    [
        (Start(9.0, RUNS), 2, 2, {"runs": 4, "first_ms": 90, "p50_ms": 2.5, "p90_ms": 3.7}),
        (Start(9.0, RUNS), 2, 2, {"load_ms": 9, "load_spread_ms": None}),
        (Start(None, RUNS), 0, 4, {"runs": 7, "load_ms": None}),
        (Start(1.0, (5.0,)), 0, 1, {"first_ms": 5, "p50_ms": 5, "p50_spread_ms": 0, "runs": 1}),
        (Start(1.0, (5.0, 1.0, 3.0)), 0, 3, {"p50_ms": 2, "p90_ms": 2.8, "p50_spread_ms": 0.5}),
        (Start(None, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)), 0, 6, {"p50_ms": 3, "p50_spread_ms": 1}),
    ],
)
def test_the_first_run_and_warm_up_runs_are_left_out_of_the_times(
    start: Start, warm_up: int, iteration: int, figures: dict[str, Any]
) -> None:
    summary = summarize_starts([start], warm_up=warm_up, iteration=iteration, emulated=True)
    assert summary.emulated
    assert {name: getattr(summary, name) for name in figures} == {
        name: value if value is None else pytest.approx(value) for name, value in figures.items()
    }


def test_device_figures_have_the_median_and_spread_over_starts() -> None:
    cool, hot = Heat(hottest_c=30.0), Heat(hottest_c=60.0, status=1)
    starts = [
        Start(10.0, (99.0, 4.0, 4.0, 4.0), 100, cool, hot),
        Start(12.0, (99.0, 6.0, 6.0, 6.0), 300, hot, cool),
        Start(20.0, (99.0, 5.0, 5.0, 5.0), None),
    ]
    figures = summarize_starts(starts, warm_up=0, iteration=4, emulated=False)
    assert (figures.p50_ms, figures.p50_spread_ms) == (5, 1)
    assert (figures.load_ms, figures.load_spread_ms, figures.loads_ms) == (12, 5, (10, 12, 20))
    assert figures.peak_memory_bytes == 300
    assert (figures.before, figures.after) == (cool, hot)
    for some, throttled in ((starts[:1], True), (starts[1:], True), (starts[2:], False)):
        summary = summarize_starts(some, warm_up=0, iteration=4, emulated=False)
        assert summary.throttled is throttled  # before a start counts, too


def test_the_nearness_to_emulator_outputs_is_sqnr_and_share_of_equal_bits() -> None:
    reference = np.array([[1, 2], [3, 4]], np.float32)
    nearness = find_nearness([(reference, reference.copy())])
    assert (nearness.sqnr_db, nearness.equal) == (np.inf, 1)
    other_outputs = reference.copy()
    other_outputs[1, 1] += 0.5
    near = find_nearness([(reference, reference), (reference, other_outputs)])
    assert near.equal == 7 / 8
    assert near.sqnr_db == pytest.approx(10 * np.log10(25 / 0.25))
    zeros = np.zeros((1, 2), np.float32)
    assert find_nearness([(zeros, -zeros)]).equal == 0  # bits, not values
    assert find_nearness([(reference, reference * np.nan)]).sqnr_db == -np.inf
