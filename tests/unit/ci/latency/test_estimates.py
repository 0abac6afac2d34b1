"""Times are predicted from the data in manifests/latency, or there is a reason why not."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ci.__main__ import main
from ci.judging.budget import find_predicted_slow
from ci.latency.calibrate import (
    Point,
    calibrate,
    find_interval,
    fit_line,
    make_line,
    read_own,
    write_own,
)
from ci.latency.estimate import (
    DEVICES,
    FIGURES,
    Device,
    Figure,
    estimate_times,
    find_device,
    find_range,
    read_lines,
    read_rows,
)
from ci.models.schemes import Scheme
from ci.report.schema import (
    Budget,
    Case,
    DeviceFigures,
    Estimate,
    JudgementFacts,
    OnDeviceFacts,
    ProgramFacts,
    Simulation,
    Status,
)
from ci.report.write import encode_report
from ci.verbs.estimate import EstimatedCase, choose_socs, render_estimates
from provisioning.errors import ExitCode, ManifestError, UsageError
from tests.bench.latency import PROGRAMS, SimulatedProgram, fit_lines
from tests.stand_ins.reports import change_case, make_report

FIGURE = {
    "cycles": 3_000_000,
    "lower_cycles": 2_700_000,
    "upper_cycles": 3_400_000,
    **dict.fromkeys(("read_bytes", "fill_bytes", "spill_bytes", "write_bytes"), 1000),
    **dict.fromkeys(("hmx_cycles", "hvx_cycles", "dma_cycles"), 1_000_000),
    "missing_ops": 0,
}


def make_simulation(**changed_figures: Any) -> Simulation:
    return Simulation(
        **{"soc": "QCS9100", "graphs": 1, "clock_mhz": 1497.6, **FIGURE, **changed_figures}
    )


def test_the_committed_latency_lines_are_refitted_from_the_committed_data() -> None:
    """A wrong unit in one of the three files, or an edited line, fails here."""
    devices, figures = read_rows(DEVICES, Device), read_rows(FIGURES, Figure)
    programs = read_rows(PROGRAMS, SimulatedProgram)
    assert tuple(fit_lines(devices, figures, programs)) == read_lines()
    jobs = {figure.job for figure in figures}
    for line in read_lines():
        assert line.low <= 1 <= line.high
        assert set(line.jobs) <= jobs
        assert not {program.model for program in programs if program.held_out} & {*line.models}
    for program in programs:
        assert 0 < program.lower_cycles <= program.cycles, program.model
        assert program.cycles <= program.upper_cycles < 1e9, program.model
        assert 0.05 < program.simulated_ms < 500, program.model


def off_by_a_thousand(figure: Figure) -> Figure:
    return (
        msgspec.structs.replace(figure, ms=figure.ms * 1000)
        if figure.model == "resnet18"
        else figure
    )


def of_the_other_soc(program: SimulatedProgram) -> SimulatedProgram:
    other_soc = {"QCS9100": "SA8797", "SA8797": "QCS9100"}[program.soc]
    return msgspec.structs.replace(program, soc=other_soc)


def ignoring_missing_ops(program: SimulatedProgram) -> SimulatedProgram:
    return msgspec.structs.replace(program, missing_ops=0)


@pytest.mark.parametrize("fault", [off_by_a_thousand, of_the_other_soc, ignoring_missing_ops])
def test_a_fault_in_the_latency_data_changes_the_fitted_lines(fault: Any) -> None:
    (device,) = (row for row in read_rows(DEVICES, Device) if row.soc == "SM8650")
    figures, programs = read_rows(FIGURES, Figure), read_rows(PROGRAMS, SimulatedProgram)
    if fault is off_by_a_thousand:
        figures = tuple(map(fault, figures))
    else:
        programs = tuple(map(fault, programs))
    right = [line for line in read_lines() if line.device == device.device]
    assert [*fit_lines([device], figures, programs)] != right


def test_an_estimated_time_is_on_its_line_and_names_the_neighbouring_models() -> None:
    (line,) = (
        row
        for row in read_lines()
        if (row.device, row.precision) == ("Samsung Galaxy S24", "float")
    )
    estimate = estimate_times(make_simulation(), Scheme.FP16, "SM8650")
    (time,) = estimate.times
    assert (time.device, estimate.unknown) == ("Samsung Galaxy S24", "")
    assert time.ms == pytest.approx(line.base_ms + line.factor * 3_000_000 / 1497600)
    assert time.low_ms < time.ms < time.high_ms
    assert time.below
    assert time.above
    assert time.below.model not in {"", time.above.model}
    text = render_estimates([EstimatedCase("net", "fp16", "SM8650", estimate=estimate)])
    assert f"{time.ms:.3g} ms ({time.low_ms:.3g} to {time.high_ms:.3g})" in text
    assert f"between {time.below.model}" in text


@pytest.mark.parametrize(
    ("times_least", "wider", "is_bound"),
    [(1.01, 1.0, False), (0.99, 1 / 0.99, False), (0.51, 1 / 0.51, False), (0.4, None, True)],
)
def test_an_estimate_near_the_measured_range_is_wider_and_one_far_below_it_is_a_bound(
    times_least: float, wider: float | None, is_bound: bool
) -> None:
    (line,) = (
        row
        for row in read_lines()
        if (row.device, row.precision) == ("Samsung Galaxy S24", "float")
    )
    lowest_ms, most = find_range([line])
    simulation = make_simulation()
    cycles = round(times_least * lowest_ms * simulation.clock_mhz * 1000)
    estimate = estimate_times(make_simulation(cycles=cycles), Scheme.FP16, "SM8650")
    (time,) = estimate.times
    assert (time.is_bound, bool(time.outside)) == (is_bound, times_least < 1)
    text = render_estimates([EstimatedCase("net", "fp16", "SM8650", estimate=estimate)])
    assert time.outside in text
    if wider:
        assert time.low_ms == pytest.approx(time.ms * line.low / wider, rel=0.01)
        assert time.high_ms == pytest.approx(time.ms * line.high * wider, rel=0.01)
        assert times_least > 1 or f"{wider:.3g} times wider" in time.outside
    else:
        lowest = round(lowest_ms * simulation.clock_mhz * 1000) + 1
        (edge,) = estimate_times(make_simulation(cycles=lowest), Scheme.FP16, "SM8650").times
        assert time.ms == time.high_ms == pytest.approx(edge.high_ms, rel=0.01)
        assert f"0 to {time.high_ms:.3g} ms" in text
    above = round(1.9 * most * simulation.clock_mhz * 1000)
    (long,) = estimate_times(make_simulation(cycles=above), Scheme.FP16, "SM8650").times
    assert long.high_ms == pytest.approx(long.ms * line.high * 1.9, rel=0.01)


UNKNOWN: dict[str, tuple[dict[str, Any], Scheme, str, int, str]] = {
    "Missing Ops": ({"missing_ops": 96}, Scheme.FP16, "SM8650", 0, "no costs for 96 operators"),
    "a Missing Op": (
        {"missing_ops": 1},
        Scheme.FP16,
        "SM8650",
        0,
        "1 operator; QNN does not name it",
    ),
    "implausible": ({"implausible_cycles": 400_000}, Scheme.FP16, "SM8650", 0, "implausible"),
    "CPU": ({}, Scheme.FP16, "SM8650", 2, "2 nodes run on the CPU"),
    "scheme": ({}, Scheme.A16W4, "SM8650", 0, "no measurements are published for 16a4w"),
    "SoC": (
        {},
        Scheme.FP16,
        "SSG2115P",
        0,
        "too few measurements in fp16 on devices with SSG2115P",
    ),
    "long": ({"cycles": 10**12}, Scheme.FP16, "SM8650", 0, "2 times above the range"),
    "another simulator": ({"soc": "SA8797"}, Scheme.FP16, "SM8650", 0, "too few measurements"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_estimate_without_a_time_states_the_reason(name: str) -> None:
    changed_figures, scheme, soc, cpu_nodes, text = UNKNOWN[name]
    simulation = make_simulation(**changed_figures)
    estimate = estimate_times(simulation, scheme, soc, cpu_nodes=cpu_nodes)
    assert (estimate.simulation, estimate.times) == (simulation, ())
    assert text in estimate.unknown


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("Snapdragon 8 Gen 3", "pass --soc SM8650, or --device 'Samsung Galaxy S24'"),
        ("sm8450", "pass --soc SM8450"),
    ],
)
def test_an_soc_is_no_device_and_the_error_names_the_option_that_takes_it(
    name: str, fix: str
) -> None:
    with pytest.raises(UsageError, match="is an SoC, and not a device") as refused:
        find_device(name)
    assert refused.value.fix == fix


def test_a_line_with_large_errors_gives_no_time() -> None:
    device = find_device("q-6690")
    estimate = estimate_times(make_simulation(), Scheme.U8_CHANNEL, "SM8550", device=device)
    assert estimate.times == ()
    assert (
        "the fit for Dragonwing Q-6690 MTP is not usable: its median error is" in estimate.unknown
    )


@pytest.mark.parametrize(
    ("limit", "failed", "warned"),
    [
        ({"cycles": 3_000_000}, 0, 0),
        ({"cycles": 2_999_999}, 0, 1),  # within the simulator's own range
        ({"cycles": 2_699_999}, 1, 0),
        ({"ms": 10.0}, 0, 0),
        ({"ms": 0.94}, 0, 1),
        ({"ms": 0.5}, 1, 0),
    ],
)
def test_a_budget_fails_only_beyond_the_range_of_the_estimate(
    limit: dict[str, Any], failed: int, warned: int
) -> None:
    estimate = estimate_times(make_simulation(), Scheme.FP16, "SM8650")
    budget = Budget(**limit)
    excesses, warnings = find_predicted_slow(estimate, budget, budget)
    assert (len(excesses), len(warnings)) == (failed, warned), estimate.times
    assert find_predicted_slow(None, budget, budget) == ((), ())


def test_an_unknown_time_exceeds_a_limit_only_if_the_model_sets_it() -> None:
    budget = Budget(ms=1.0)
    unknown = Estimate(simulation=make_simulation(), unknown="why")
    assert find_predicted_slow(unknown, budget, Budget()) == ((), ())
    (excess,) = find_predicted_slow(unknown, budget, budget)[0]
    assert "why" in excess.text


def test_without_a_simulation_the_reason_is_the_hexagon_version_or_the_fault() -> None:
    assert estimate_times(None, Scheme.FP16, "SM8450").unknown == (
        "QNN simulates no SoC with Hexagon V69"
    )
    assert estimate_times(None, Scheme.FP16, "QCM2290").unknown == (
        "QNN simulates no SoC without an HTP"
    )
    assert estimate_times(None, Scheme.FP16, "SM8650", fault="it broke").unknown == "it broke"


@pytest.mark.parametrize(("text", "count"), [("galaxy", "3 devices"), ("Pixel 9", "0 devices")])
def test_a_device_name_must_match_exactly_one_device(text: str, count: str) -> None:
    assert find_device("galaxy s24").soc == "SM8650"
    with pytest.raises(UsageError, match=count):
        find_device(text)


@pytest.mark.parametrize(
    ("name", "given_socs", "chosen"),
    [
        ("s24", [], ["SM8650"]),
        ("s24", ["sm865*"], ["sm865*"]),
        ("s24", ["SM8550"], "Samsung Galaxy S24 has SM8650, and not SM8550"),
        ("x2 elite", ["SM8850"], ["SM8850"]),
        ("x2 elite", ["SM8*"], "Hexagon V81, and not SM8350"),
    ],
)
def test_a_device_chooses_the_soc_and_contradicts_others(
    name: str, given_socs: list[str], chosen: list[str] | str
) -> None:
    device = find_device(name)
    if isinstance(chosen, list):
        assert choose_socs(given_socs, device) == tuple(chosen)
        return
    with pytest.raises(UsageError, match=chosen):
        choose_socs(given_socs, device)


@given(
    some.floats(0, 5),
    some.floats(0.1, 10),
    some.lists(some.floats(0.1, 50), min_size=3, max_size=12, unique=True),
)
def test_a_line_fitted_to_points_on_a_line_is_that_line(
    base: float, factor: float, places: list[float]
) -> None:
    points = [Point(str(x), "", x, base + factor * x) for x in places]
    expected = pytest.approx(base, abs=1e-6), pytest.approx(factor, rel=1e-5), 0
    assert fit_line(points) == expected


def test_one_outlier_does_not_move_the_fitted_line() -> None:
    points = [Point(str(x), "", x, 0.2 + 2 * x) for x in range(1, 12)]
    points[5] = replace(points[5], measured_ms=90.0)
    assert fit_line(points) == (pytest.approx(0.2), pytest.approx(2), 0)


@given(some.lists(some.floats(0.2, 5), min_size=9, max_size=60))
def test_an_interval_contains_at_least_80_percent_of_the_ratios(ratios: list[float]) -> None:
    low, high = find_interval(ratios)
    assert sum(low <= ratio <= high for ratio in ratios) >= 0.8 * len(ratios)


def make_cases(number: int, **device: Any) -> list[Case]:
    """Cases on a device that is three times as slow as the simulated SoC."""
    return [
        Case(
            model=f"net{index}",
            scheme="fp16",
            soc="SM8450",
            judgement=JudgementFacts(status=Status.PASSED),
            program=ProgramFacts(
                estimate=Estimate(simulation=make_simulation(cycles=1_000_000 * (index + 1)))
            ),
            device=OnDeviceFacts(
                figures=DeviceFigures(
                    starts=1, runs=9, p50_ms=3 * 1_000_000 * (index + 1) / 1497600, **device
                )
            ),
        )
        for index in range(number)
    ]


def test_a_device_measured_by_the_user_gets_a_latency_line(tmp_path: Any) -> None:
    cases = make_cases(6)
    estimates = [change_case(case, figures=None) for case in cases]
    times = [change_case(case, estimate=None) for case in cases]
    (line,) = calibrate([make_report(estimates), make_report(times)])
    assert (line.device, line.base_ms, line.factor) == ("SM8450", 0, pytest.approx(3))
    path = write_own((line,), tmp_path / "qnn.toml")
    user_lines = read_own(tmp_path / "qnn.toml")
    assert user_lines == (line,)
    (time,) = estimate_times(make_simulation(), Scheme.FP16, "SM8450", user_lines=user_lines).times
    assert time.ms == pytest.approx(9_000_000 / 1497600)
    assert write_own((line,), tmp_path / "qnn.toml") == path
    path.write_text("{}")
    with pytest.raises(ManifestError):
        read_own(tmp_path / "qnn.toml")
    with pytest.raises(UsageError, match=r"qnn-latency\.json"):
        write_own((line,), tmp_path / "qnn.toml")
    assert path.read_text() == "{}"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ManifestError, match=r"qnn-latency\.json"):
        read_own(tmp_path / "qnn.toml")


@pytest.mark.parametrize(
    "cases", [make_cases(4), make_cases(6, emulated=True), make_cases(6, throttled=True)]
)
def test_a_line_needs_five_cases_with_real_times(cases: list[Case]) -> None:
    with pytest.raises(UsageError, match="5 are needed"):
        calibrate([make_report(cases)])


def test_a_fit_of_many_models_ends_and_equals_that_of_few() -> None:
    random = np.random.default_rng(1)
    simulated = random.uniform(0.1, 10, 120)
    measured = 0.5 + 2 * simulated * random.uniform(0.9, 1.1, 120)
    rows = zip(simulated.tolist(), measured.tolist(), strict=True)
    points = [Point(f"m{number}", f"m{number}", *row) for number, row in enumerate(rows)]
    line = make_line(points, "SM8650", "fp16", "SM8650")
    assert line.base_ms == pytest.approx(0.5, abs=0.1)
    assert line.factor == pytest.approx(2, abs=0.05)
    assert line.low < 1 < line.high


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cycles", "0"),
        ("clock_mhz", "0"),
        ("clock_mhz", "1e-320"),
        ("p50_ms", "-1"),
        ("p50_ms", "1e-320"),
        ("p50_ms", "1e308"),
        ("p50_ms", "1" + "0" * 400),
        ("cycles", "1" + "0" * 400),
        ("read_bytes", "1" + "0" * 400),
    ],
)
def test_a_number_that_no_run_has_is_refused_by_every_reader_of_reports(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = encode_report(make_report(make_cases(6))).decode()
    path = tmp_path / "report.json"
    path.write_text(re.sub(rf'"{key}": [0-9.e-]+', f'"{key}": {value}', text))
    assert path.read_text() != text
    call = ["estimate", "--calibrate", str(path), "--policy", str(tmp_path / "qnn.toml")]
    assert main(call) == ExitCode.USAGE
    assert main(["report", str(path)]) in {ExitCode.OK, ExitCode.USAGE}
    assert "Traceback" not in capsys.readouterr().err
