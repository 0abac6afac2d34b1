"""The search for a recipe, and for the operators that need a higher precision, with answers from
tables instead of programs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ci.facts.finding import Finding, Proof, advise
from ci.facts.kinds import (
    ELEMENTS,
    METRIC_DROP,
    NOISE,
    NOT_LOWERED,
    ON_CPU,
    OVER_BUDGET,
    QUANTIZED_BADLY,
    FindingId,
)
from ci.graphs.graph import EXECUTORCH, ONNXRUNTIME, Graph, Node
from ci.mend.mixture_search import MOST_TRIALS, Unit, choose_mixtures, count_products
from ci.mend.search import Judge, Mix, Recipe, Search, Survey, advance, is_better
from ci.mend.table import Rewrite
from ci.mend.trials import Attempt
from ci.models.lowering_options import Part
from ci.models.schemes import Scheme
from ci.report.schema import (
    Case,
    ChannelFigures,
    JudgementFacts,
    OutputFigures,
    ProgramFacts,
    Status,
)

PARTS = (Part(Scheme.A16W8, node="add"),)
ROWS = {"helps": (), "cures": ("QNN2001",), "breaks": (), "absent": (), "mask": ()}
Verdicts = Mapping[str, float]


def judged(sqnr_db: float, finding: Finding) -> Case:
    red = sqnr_db < 40
    status = Status.FAILED if red else Status.PASSED
    return Case(
        model="net",
        scheme="8a8w",
        soc="SM8650",
        judgement=JudgementFacts(
            status=status, sqnr_db=sqnr_db, findings=(finding,) if red else ()
        ),
    )


def search(verdicts: Verdicts, kind: Finding, **options: object) -> tuple[list[str], Search]:
    """The recipes that were judged in a search in which each has the SQNR of a table, in dB; 40 is
    green."""
    rows = [
        Rewrite(name=name, title="", lanes=("torch",), schemes=(), cures=cures, proof="", reason="")
        for name, cures in ROWS.items()
    ]
    unchanged_db = verdicts.get("unchanged", 10)
    finished = Search(judged(unchanged_db, kind), rows, **options)  # type: ignore[arg-type]
    running, answer, tried = finished.run(), None, []
    while question := advance(running, answer):
        if isinstance(question, Survey):
            answer = [
                Attempt(
                    names=recipe,
                    fault="differs" * ("breaks" in recipe),
                    applies="absent" not in recipe,
                )
                for recipe in question.recipes
            ]
        elif isinstance(question, Mix):
            answer = (PARTS,)
        else:
            assert isinstance(question, Judge)
            tried.append(str(question.recipe))
            answer = judged(verdicts.get(str(question.recipe), 10), kind)
    return tried, finished


BOTH = ["helps", "helps, cures", "helps, mask"]
MIXED = {"mixes": True, "schemes": ["16a8w"]}
BY, OBSERVED = "calibration by histogram", {"observers": ["histogram"]}
LAST = f"{BY}, add 16a8w"
MIXED_FIRST = ["add 16a8w", "cures"]
UNFAITHFUL = NOISE.find("not faithful")
LOSSY = QUANTIZED_BADLY.find("not quantized well")


@pytest.mark.parametrize(
    ("verdicts", "finding", "options", "tried", "best"),
    [
        ({"cures": 50}, UNFAITHFUL, {}, ["cures"], "cures"),
        ({"helps": 20, "helps, mask": 45}, LOSSY, {}, BOTH, "helps, mask"),
        (
            {"cures, helps, mask": 45, "cures, mask": 44},
            UNFAITHFUL,
            {},
            ["cures", "helps", "mask", "cures, helps, mask", "helps, mask", "cures, mask", "cures"],
            "cures, mask",
        ),
        ({"add 16a8w": 41}, LOSSY, MIXED, [..., "add 16a8w"], "add 16a8w"),
        ({"add 16a8w": 41}, UNFAITHFUL, {"faults": True}, [..., "add 16a8w"], "add 16a8w"),
        ({"16a8w": 41}, UNFAITHFUL, MIXED, [..., "16a8w"], "16a8w"),
        ({"16a8w": 41}, LOSSY, {"schemes": ["16a8w"], "floor_db": 42}, [..., "16a8w"], "unchanged"),
        ({"unchanged": 39, "16a8w": 41}, LOSSY, MIXED, [..., "16a8w"], "16a8w"),
        ({"add 16a8w": 39}, LOSSY, {"mixes": True}, [..., "add 16a8w"], "add 16a8w"),
        ({"cures": 50}, UNFAITHFUL, {"faults": True, "rewrites_last": True}, MIXED_FIRST, "cures"),
        ({BY: 41}, LOSSY, {**MIXED, **OBSERVED}, [..., BY], BY),
        ({BY: 20}, LOSSY, OBSERVED, [..., BY], BY),
        ({LAST: 41, BY: 20}, LOSSY, {**MIXED, **OBSERVED}, [..., LAST], LAST),
        ({BY: 41}, UNFAITHFUL, OBSERVED, [..., BY], "unchanged"),
        ({}, LOSSY, {}, [..., "cures, mask"], "unchanged"),
    ],
)
def test_a_search_tries_the_cheapest_rewrite_first_and_keeps_what_helps(
    verdicts: Verdicts, finding: Finding, options: dict[str, object], tried: list[object], best: str
) -> None:
    judged_recipes, finished = search(verdicts, finding, **options)
    assert str(finished.best.recipe) == best
    if ... in tried:
        assert judged_recipes[-1:] == tried[1:] or best == "unchanged"
    else:
        assert judged_recipes == tried
    assert finished.refused == {"breaks": "differs"}


CURE = advise(fix="write it", proof=Proof.TRIED, rewrites=("helps", "mask"))


@pytest.mark.parametrize(
    ("verdicts", "tried", "best"),
    [
        ({"helps, mask": 50}, ["helps, mask"], "helps, mask"),
        # If it does not suffice, the search goes on from it.
        ({"helps, mask": 20, "helps, mask, cures": 45}, [..., "helps, mask, cures"], None),
        # It gains nothing: the search begins as usual.
        ({"cures": 50}, ["helps, mask", "cures"], "cures"),
    ],
)
def test_a_search_begins_with_what_experiments_showed(
    verdicts: Verdicts, tried: list[object], best: str | None
) -> None:
    judged_recipes, finished = search(verdicts, UNFAITHFUL.explained(CURE))
    assert judged_recipes[:1] == ["helps, mask"]
    if ... in tried:
        assert judged_recipes[-1:] == tried[1:]
        assert judged_recipes[-1] == str(finished.best.recipe)
    else:
        assert judged_recipes == tried
        assert str(finished.best.recipe) == best


def test_another_scheme_than_the_rewrites_of_the_lane_is_no_cure_to_begin_with() -> None:
    cure = advise(fix="write it", proof=Proof.TRIED, rewrites=("of another lane",))
    judged_recipes, _ = search({"cures": 50}, UNFAITHFUL.explained(cure))
    assert judged_recipes == ["cures"]


WORST = ChannelFigures(axis=0, index=1, sqnr_db=3.0)
OUTPUT = OutputFigures(dtype="float32", shape=(2,), channels=(WORST,), max_error=1.0)
BETTER = replace(WORST, sqnr_db=20.0)


@pytest.mark.parametrize(
    ("figures", "kind", "is_cured"),
    [
        ({"sqnr_db": 42.7}, NOISE, False),  # seen: green without any gain
        ({"sqnr_db": 43.7}, NOISE, True),
        ({"sqnr_db_quantized": 52.0}, NOISE, True),
        ({"outputs": (replace(OUTPUT, channels=(BETTER,)),)}, NOISE, True),
        ({"outputs": (replace(OUTPUT, max_error=0.01),)}, NOISE, False),
        ({"outputs": (replace(OUTPUT, max_error=0.01),)}, ELEMENTS, True),
        ({"metric": 0.9}, METRIC_DROP, True),
        ({"metric": 0.505}, METRIC_DROP, False),
    ],
)
def test_a_case_that_turns_green_is_better_only_if_its_outputs_have_gained(
    figures: dict[str, Any], kind: FindingId, is_cured: bool
) -> None:
    before = JudgementFacts(
        status=Status.FAILED,
        sqnr_db=42.7,
        sqnr_db_quantized=50.0,
        metric=0.5,
        outputs=(OUTPUT,),
        findings=(kind.find("it is wrong"),),
    )
    red = Case(model="net", scheme="fp16", soc="SM8650", judgement=before)
    after = replace(before, status=Status.PASSED, findings=(), **figures)
    assert is_better(replace(red, judgement=after), red) is is_cured


def make_case(
    sqnr_db: float | None, findings: tuple[FindingId, ...], cpu_nodes: int | None = None
) -> Case:
    status = Status.FAILED if findings else Status.PASSED
    texts = tuple(kind.find("it is wrong") for kind in findings)
    judgement = JudgementFacts(status=status, sqnr_db=sqnr_db, findings=texts)
    program = ProgramFacts(fallback_nodes=cpu_nodes)
    return Case(model="net", scheme="fp16", soc="SM8650", judgement=judgement, program=program)


# The best one first
ORDER = (
    make_case(60.0, ()),
    make_case(60.0, (ON_CPU,), 1),
    make_case(61.5, (OVER_BUDGET, ON_CPU), 3),
    make_case(60.0, (ON_CPU,), 3),
    make_case(20.0, (NOISE,), 0),
    make_case(10.0, (METRIC_DROP,), 0),
    make_case(30.0, (ON_CPU, NOISE), 1),
    make_case(30.0, (ON_CPU, QUANTIZED_BADLY), 3),
    make_case(None, (NOT_LOWERED,)),
)


@pytest.mark.parametrize("place", range(len(ORDER) - 1))
def test_right_outputs_are_better_than_fewer_nodes_on_the_cpu(place: int) -> None:
    better, *worse_cases = ORDER[place:]
    for worse in worse_cases:
        assert is_better(better, worse)
        assert not is_better(worse, better)


def test_outputs_that_are_no_longer_called_wrong_must_have_gained() -> None:
    wrong = make_case(42.7, (ON_CPU, NOISE), 3)
    assert not is_better(make_case(42.7, (ON_CPU,), 3), wrong)
    assert is_better(make_case(43.7, (ON_CPU,), 3), wrong)


def test_without_figures_the_verdict_decides_whether_a_case_is_better() -> None:
    red = JudgementFacts(status=Status.FAILED, findings=(NOISE.find("it is wrong"),))
    case = Case(model="net", scheme="fp16", soc="SM8650", judgement=red)
    assert is_better(replace(case, judgement=JudgementFacts(status=Status.PASSED)), case)


def test_a_rewrite_that_changes_the_function_is_tried_only_on_request() -> None:
    row = Rewrite(
        name="mask",
        title="",
        lanes=("torch",),
        schemes=(),
        cures=(),
        proof="",
        reason="",
        approximate=True,
    )
    for allowed in (False, True):
        finished = Search(judged(10, LOSSY), [row], allowed)
        running = finished.run()
        assert isinstance(advance(running, None), Survey)
        question = advance(running, [Attempt(names=("mask",))])
        assert question == (Judge(Recipe(rewrites=("mask",))) if allowed else None)
        assert bool(finished.refused) is not allowed


def measure_with(noise: Mapping[str, float], floor: float = 1e-6, trials: list[int] | None = None):  # type: ignore[no-untyped-def]
    """The SQNR of a model in which the noise of operators in low precision adds up."""

    def measure(high: Collection[Unit]) -> float:
        names = {unit.nodes[0] for unit in high}
        if trials is not None:
            trials.append(len(names))
        total = floor + sum(loss for name, loss in noise.items() if name not in names)
        return -10 * math.log10(total)

    return measure


@pytest.mark.parametrize("count", [1, 7, 100, 400])
def test_the_operators_that_add_the_noise_stay_in_the_higher_precision(count: int) -> None:
    noise = {f"n{number}": 1e-7 for number in range(count)}
    noise[f"n{count // 2}"] = 0.1
    units = [Unit((name,), 1.0, f"layer{int(name[1:]) // 10}.x") for name in noise]
    trials: list[int] = []
    chosen = choose_mixtures(units, measure_with(noise, trials=trials), 35)
    if count == 1:
        assert chosen == []  # that is the whole model
        return
    assert len(trials) <= MOST_TRIALS
    first = {unit.nodes[0] for unit in chosen[0]}
    assert f"n{count // 2}" in first
    assert len(first) <= max(1, count // 20)


def test_there_is_no_mixture_if_the_higher_precision_does_not_suffice_everywhere() -> None:
    units = [Unit((name,)) for name in "abc"]
    assert choose_mixtures(units, measure_with({"a": 0.1}, floor=0.01), 35) == []


def test_an_expensive_operator_is_lowered_before_a_cheap_one() -> None:
    units = [Unit(("a",), 1000), Unit(("b",), 1)]
    chosen = choose_mixtures(units, measure_with({"a": 1e-4, "b": 1e-4}), 37)
    assert [unit.nodes for unit in chosen[0]] == [("b",)]


@pytest.mark.parametrize(
    ("front_end", "operator", "numbers", "constant", "result", "count"),
    [
        (EXECUTORCH, "linear", {}, (5, 7), (2, 5), 2 * 5 * 7),
        (ONNXRUNTIME, "linear", {}, (7, 5), (2, 5), 2 * 5 * 7),
        (ONNXRUNTIME, "linear", {"transB": (1.0,)}, (5, 7), (2, 5), 2 * 5 * 7),
        (ONNXRUNTIME, "matmul", {}, (7, 5), (2, 5), 2 * 5 * 7),
        (EXECUTORCH, "conv2d", {}, (8, 4, 3, 3), (1, 8, 5, 5), 200 * 4 * 9),
        (EXECUTORCH, "conv_transpose2d", {}, (4, 8, 2, 2), (1, 8, 5, 5), 200 * 4 * 4),
        (ONNXRUNTIME, "conv_transpose2d", {}, (4, 8, 2, 2), (1, 8, 5, 5), 200 * 4 * 4),
        (ONNXRUNTIME, "gru", {}, (1, 24, 6), (3, 1, 2, 8), 48 * 6),
        (EXECUTORCH, "mul", {}, (5, 7), (5, 7), 35),
        (EXECUTORCH, "linear", {}, (), (), 1),
    ],
)
def test_the_multiplications_of_a_call_are_those_by_its_weights(
    front_end: str,
    operator: str,
    numbers: Mapping[str, tuple[float, ...]],
    constant: tuple[int, ...],
    result: tuple[int, ...],
    count: int,
) -> None:
    node = Node(operator, ("x", "w", "r"), ("y",), None, operator, None, "y", numbers)
    graph = Graph(
        [node],
        ["y"],
        {"x": (2, 7), "w": constant, "y": result},
        {"w": lambda: np.zeros(constant)},
        front_end=front_end,
    )
    assert count_products(graph) == {"y": count}
