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


def test_times_of_a_real_dump() -> None:
    load_ms, runs_ms = read_times(DUMP)
    assert load_ms == 63.276186
    assert (len(runs_ms), runs_ms[0], runs_ms[-1]) == (16, 4.855012, 5.355488)


def test_what_is_no_dump_has_no_times() -> None:
    for damaged in (b"", b"text", DUMP[:40], DUMP[4:], bytes(100)):
        assert read_times(damaged) == (None, ())
    chance = random.Random(1)
    for _ in range(300):  # whatever a device sends, nothing is raised
        bytes_ = bytearray(DUMP)
        for _ in range(chance.randrange(1, 20)):
            bytes_[chance.randrange(12, len(bytes_))] = chance.randrange(256)
        read_times(bytes(bytes_))


def test_times_since_a_phone_started_have_64_bits() -> None:
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
    other = bytes(4) + make_flatbuffer({1: Vector(blocks)}, b"ED01")
    assert read_times(other) == (None, ())
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


def test_heat_of_a_phone() -> None:
    heat = parse_heat(HOT)
    assert heat == Heat(status=0, hottest_c=55.4, zone="cpu-1-7", slowed=("thermal-cpufreq-0",))
    assert heat.throttled
    assert parse_heat("status of_system 2\n").throttled
    assert not parse_heat(HOT.replace("cpufreq-0 2", "cpufreq-0 0")).throttled
    assert parse_heat("cooling cdsp 1\n").slowed == ("cdsp",)
    assert parse_heat("") == Heat()


def test_the_first_run_and_warm_up_do_not_count() -> None:
    runs = (90.0, 50.0, 1.0, 2.0, 50.0, 50.0, 3.0, 4.0)  # two sets of 2 + 2
    figures = summarize_starts([Start(9.0, runs)], warm_up=2, iteration=2, emulated=False)
    assert (figures.runs, figures.first_ms, figures.p50_ms) == (4, 90, 2.5)
    assert figures.p90_ms == pytest.approx(3.7)
    assert (figures.load_ms, figures.load_spread_ms) == (9, None)
    figures = summarize_starts([Start(None, runs)], warm_up=0, iteration=4, emulated=True)
    assert (figures.runs, figures.load_ms, figures.emulated) == (7, None, True)
    one = summarize_starts([Start(1.0, (5.0,))], warm_up=0, iteration=1, emulated=False)
    assert (one.first_ms, one.p50_ms, one.p50_spread_ms, one.runs) == (5, 5, 0, 1)
    two = summarize_starts([Start(1.0, (5.0, 1.0, 3.0))], warm_up=0, iteration=3, emulated=False)
    assert (two.p50_ms, two.p90_ms, two.p50_spread_ms, two.runs) == (2, 2.8, 0.5, 2)


def test_spread_is_that_of_the_starts() -> None:
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
    assert (figures.before, figures.after, figures.throttled) == (cool, hot, True)
    single = summarize_starts(starts[:1], warm_up=0, iteration=4, emulated=False)
    assert (single.p50_spread_ms, single.throttled) == (0, True)
    warm = summarize_starts(starts[1:], warm_up=0, iteration=4, emulated=False)
    assert warm.throttled  # before a start counts, too
    assert not summarize_starts(starts[2:], warm_up=0, iteration=4, emulated=False).throttled
    quartiles = Start(None, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0))
    single = summarize_starts([quartiles], warm_up=0, iteration=6, emulated=False)
    assert (single.p50_ms, single.p50_spread_ms) == (3, 1)


def test_how_near_outputs_are_to_the_emulators() -> None:
    reference = np.array([[1, 2], [3, 4]], np.float32)
    same = find_nearness([(reference, reference.copy())])
    assert (same.sqnr_db, same.equal) == (np.inf, 1)
    other = reference.copy()
    other[1, 1] += 0.5
    near = find_nearness([(reference, reference), (reference, other)])
    assert near.equal == 7 / 8
    assert near.sqnr_db == pytest.approx(10 * np.log10(25 / 0.25))
    zeros = np.zeros((1, 2), np.float32)
    assert find_nearness([(zeros, -zeros)]).equal == 0  # bits, not values
    assert find_nearness([(reference, reference * np.nan)]).sqnr_db == -np.inf
