"""What a program takes against what it may take: figures, limits, a case that exceeds one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.cases.engine import RunNotes
from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.qnn_files import Peak, make_footprint, read_traffic
from ci.facts.finding import Question
from ci.judging.budget import find_excesses, find_slow, read_figures, suggest_tighter
from ci.models.schemes import Scheme
from ci.models.user_models import ModelBudget, ModelEntry, Source
from ci.report.schema import Budget, DeviceFigures, Footprint, OperatorCount, Status
from provisioning.doctor.survey.programs import parse_program
from provisioning.manifest.targets import Backend
from tests.stand_ins.lanes import COARSE, LABELLER, SPEC, EchoRunner, run_case
from tests.stand_ins.lowered import make_binary, make_program
from tests.stand_ins.snapshots import check_snapshot

# Written by QNN 2.49.40 for a graph each; in between there are its progress bars.
SUMMARY = """Starting stage: Finalizing Graph Sequence

====== DDR bandwidth summary ======
spill_bytes={0}
fill_bytes={1}
write_total_bytes=2048
read_total_bytes=26624

Completed stage: Finalizing Graph Sequence (106 us)
"""
TAKEN = Footprint(
    program_bytes=1000,
    context_bytes=900,
    spill_bytes=40,
    fill_bytes=50,
    read_bytes=600,
    write_bytes=70,
    vtcm_mb=8,
    partitions=2,
    segment_align=128,
    lowering_memory_bytes=5000,
    operators=(
        OperatorCount(op="aten.permute_copy.default", npu=2, cpu=1),
        OperatorCount(op="aten.linear.default", npu=4),
    ),
)
NONE = Budget()


def make_policy(**limits: float) -> EmulatorPolicy:
    entry = ModelEntry("/net.py:f", (Scheme.A8W8,), budget=ModelBudget(**limits))  # type: ignore[arg-type]
    return msgspec.structs.replace(read_emulator_policy(), models={"net": entry})


@pytest.mark.parametrize(
    ("log", "graphs"),
    [
        ("", 0),
        ("", 1),
        (SUMMARY.format(1, 2), 2),
        (SUMMARY.format(1, 2) * 2, 1),
        (SUMMARY.format(1, 2), 0),
        ("====== DDR bandwidth summary ======\n", 1),
    ],
)
def test_traffic_is_unknown_if_a_graph_may_be_missing_from_the_log(log: str, graphs: int) -> None:
    assert read_traffic(log, graphs) == {}


def test_traffic_figures_are_summed_over_graphs_and_unknown_if_one_graph_lacks_them() -> None:
    log = SUMMARY.format(1, 2) + "[###    ] 30%\r" + SUMMARY.format(30, 40)
    traffic = {"spill_bytes": 31, "fill_bytes": 42, "read_bytes": 53248, "write_bytes": 4096}
    assert read_traffic(log, 2) == traffic
    del traffic["fill_bytes"]
    assert read_traffic(log.replace("fill_bytes=2\n", ""), 2) == traffic


def test_a_footprint_is_read_from_the_program_and_its_log() -> None:
    binary = make_binary(graphs=("prefill", "decode", "embed"), vtcm_mb=4)
    data = make_program(binary)
    program = parse_program(memoryview(data), "net.pte")
    assert program
    footprint = make_footprint(
        program_bytes=len(data),
        partitions=3,
        contexts=program.contexts,
        segments=program.segments,
        log=SUMMARY.format(5, 6) * 3,
        operators=[OperatorCount(op="b", npu=1), OperatorCount(op="a", cpu=2)],
        peak=Peak(77),
    )
    assert [graph.name for graph in footprint.graphs] == ["prefill", "decode", "embed"]
    assert (
        {graph.context_bytes for graph in footprint.graphs}
        == {footprint.context_bytes}
        == {len(binary)}
    )
    assert (footprint.vtcm_mb, footprint.partitions, footprint.lowering_memory_bytes) == (4, 3, 77)
    assert (footprint.program_bytes, footprint.spill_bytes) == (len(data), 15)
    assert footprint.segment_align == min(segment.align for segment in program.segments)
    assert [operator.op for operator in footprint.operators] == ["a", "b"]


@pytest.mark.parametrize("name", read_figures().program)
def test_each_budget_figure_may_equal_its_limit_and_not_exceed_it(name: str) -> None:
    reached = getattr(TAKEN, name)
    step = -1 if read_figures().program[name].least else 1
    (excess,) = find_excesses(TAKEN, Budget(**{name: reached - step}), NONE)
    (figure,) = excess.figures
    assert (figure.name, figure.value, figure.allowed) == (name, reached, reached - step)
    assert "or raise the budget" in excess.remedies[0].text
    for limit in (reached, reached + 9 * step):
        assert not list(find_excesses(TAKEN, Budget(**{name: limit}), NONE))


def test_nodes_of_an_operator_are_counted_on_both_processors() -> None:
    several = Footprint(
        operators=(
            OperatorCount(op="conv1d", npu=2, cpu=1),
            OperatorCount(op="conv2d", npu=3),
            OperatorCount(op="mul", npu=9),
        )
    )
    budget = Budget(operators={"conv*": 5, "mul": 8, "*1d": 3})
    assert [excess.headline for excess in find_excesses(several, budget, NONE)] == [
        "over its budget: the program has 6 conv* nodes, 1 more than the limit of 5",
        "over its budget: the program has 9 mul nodes, 1 more than the limit of 8",
    ]


def test_an_unknown_figure_exceeds_the_budget_only_if_the_model_sets_the_limit() -> None:
    budget = Budget(spill_bytes=9, context_bytes=9)
    for footprint in (None, Footprint(context_bytes=9)):
        assert not list(find_excesses(footprint, Budget(spill_bytes=9), NONE))
        texts = [
            excess.headline for excess in find_excesses(footprint, budget, Budget(spill_bytes=9))
        ]
        (text,) = texts
        assert text == "over its budget: spill_bytes = 9 cannot be checked"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"read_bytes": 667}, "read from DDR is 600 bytes, 10 % below its budget: set "),
        ({"read_bytes": 666}, ""),
        ({"spill_bytes": 0}, ""),
        ({"segment_align": 4096}, ""),
    ],
)
def test_a_figure_far_below_its_limit_suggests_a_tighter_one(
    limits: dict[str, int], words: str
) -> None:
    suggestion = "".join(suggest_tighter(TAKEN, Budget(**limits)))
    assert (words in suggestion, bool(suggestion)) == (True, bool(words))
    assert not list(suggest_tighter(None, Budget(**limits)))


RUN_HERE: dict[str, Any] = {}
ELSEWHERE = {"device": "a phone"}


@pytest.mark.parametrize(
    ("limits", "setup", "status", "pattern"),
    [
        ({"program_bytes": 1000}, RUN_HERE, Status.PASSED, ""),
        (
            {"program_bytes": 800, "partitions": 0},
            RUN_HERE,
            Status.FAILED,
            (
                "over its budget: program_bytes is 1,000 bytes, 800 allowed \\[QNN2301]\n"
                "  the size of the program is 200 bytes .25 %. above its limit\n"
                "  try: use fewer bits for the weights.*partitions is 2, 0 allowed"
            ),
        ),
        ({"partitions": 1}, ELSEWHERE, Status.FAILED, "partitions is 2, 1 allowed.*\n  try: "),
        ({"partitions": 2}, ELSEWHERE, Status.UNSUPPORTED, "a phone"),
        ({"p50_ms": 9.0}, RUN_HERE, Status.FAILED, "is 10.0 ±0.5 ms, above p50_ms = 9.0"),
        ({"p50_ms": 9.7}, RUN_HERE, Status.PASSED, "no more than its spread"),
        (
            {"program_bytes": 2000, "partitions": 9},
            RUN_HERE,
            Status.PASSED,
            "below its budget: set program_bytes = 1000 .*below its budget: set partitions = 2",
        ),
    ],
)
def test_a_case_is_judged_by_its_budget(
    limits: dict[str, float], setup: dict[str, Any], status: Status, pattern: str, tmp_path: Path
) -> None:
    engine = replace(LABELLER, footprint=TAKEN)
    runner = EchoRunner(
        lambda sets: [LABELLER.quantized(*inputs) for inputs in sets],  # type: ignore[misc]
        notes=RunNotes(device=PHONE),
    )
    spec = replace(SPEC, model="net", source=Source("/net.py:f"))
    policy = make_policy(**limits)
    for _ in range(2):  # lowered, and from the cache
        case = run_case(tmp_path, engine, runner, policy, spec, **setup).case
        assert (case.judgement.status, case.program.footprint) == (status, TAKEN)
        assert (case.question is Question.BUDGET) is (status is Status.FAILED)
        text = " ".join((case.reason, *case.judgement.warnings))
        assert re.search(pattern, text, re.DOTALL), text
    lpai = run_case(tmp_path, engine, runner, policy.for_backend(Backend.LPAI), spec).case
    assert lpai.judgement.status is Status.PASSED  # budgets are those of HTP


def test_a_budget_of_the_policy_is_that_of_every_model(tmp_path: Path) -> None:
    runner = EchoRunner(
        lambda _: [[coarse_output] for coarse_output in COARSE], notes=RunNotes(device=PHONE)
    )
    budget_for_all = msgspec.structs.replace(read_emulator_policy(), budget=Budget(p50_ms=9.0))
    case = run_case(tmp_path, LABELLER, runner, budget_for_all).case
    assert (case.judgement.status, case.question, case.device.figures) == (
        Status.FAILED,
        Question.BUDGET,
        PHONE,
    )


PHONE = DeviceFigures(
    starts=3,
    runs=30,
    p50_ms=10.0,
    p50_spread_ms=0.5,
    p90_ms=12.0,
    p90_spread_ms=1.0,
    load_ms=100.0,
    load_spread_ms=10.0,
    peak_memory_bytes=2000,
)


def test_time_budgets_ignore_emulated_figures_and_fail_for_unknown_device_figures() -> None:
    budget = Budget(**dict.fromkeys(read_figures().device, 1))
    emulated = msgspec.structs.replace(PHONE, emulated=True)
    assert find_slow(emulated, budget) == find_slow(None, budget) == ((), ())
    unknown, _ = find_slow(DeviceFigures(starts=1, runs=0), budget)
    assert len(unknown) == len(read_figures().device)
    assert all("cannot be checked" in finding.headline for finding in unknown)
    for finding in unknown:  # only times are from the runner's trace
        assert ("EVENT_TRACER" in finding.text) is ("device_memory_bytes" not in finding.headline)
    hot = msgspec.structs.replace(PHONE, throttled=True)
    (excess,), _ = find_slow(hot, Budget(p50_ms=1.0))
    assert excess.details == ("the device was throttled",)
    assert "cool" in excess.text
    (excess,), _ = find_slow(hot, Budget(device_memory_bytes=1))  # heat takes no memory
    assert excess.headline.endswith("device_memory_bytes = 1")
    assert "smaller inputs" in excess.text


def test_each_limit_that_is_exceeded_unknown_or_loose_reads_as_its_snapshot() -> None:
    """Each figure has its own number."""
    limits = {name: 100 + number for number, name in enumerate(read_figures().program)}
    budget = Budget(**limits, operators={"conv*": 2})  # type: ignore[arg-type]
    above = {name: 2 * limit for name, limit in limits.items()} | {"segment_align": 64}
    below = {name: limit // 2 for name, limit in limits.items()}
    operators = (OperatorCount(op="conv2d", npu=2, cpu=3),)
    slow = Budget(**{name: 10 + number for number, name in enumerate(read_figures().device)})  # type: ignore[arg-type]
    device = DeviceFigures(
        starts=3,
        runs=30,
        p50_ms=50.0,
        p50_spread_ms=1.5,
        p90_ms=90.0,
        p90_spread_ms=2.5,
        load_ms=12.5,
        load_spread_ms=3.5,
        peak_memory_bytes=4000,
    )
    hot = msgspec.structs.replace(device, throttled=True)
    rows = [
        ("above", find_excesses(Footprint(**above, operators=operators), budget, NONE)),
        ("unknown", find_excesses(None, budget, budget)),
        *(
            (name, find_slow(figures, slow)[0])
            for name, figures in (("slow", device), ("hot", hot))
        ),
        ("no time", find_slow(DeviceFigures(starts=1, runs=0), slow)[0]),
    ]
    lines = [f"{name}: {excess.text}\n" for name, excesses in rows for excess in excesses]
    lines += [f"warning: {warning}\n" for warning in find_slow(device, slow)[1]]
    lines += [
        f"loose: {suggestion}\n" for suggestion in suggest_tighter(Footprint(**below), budget)
    ]
    check_snapshot(Path(__file__).parent / "snapshots" / "budget.txt", "".join(lines))
