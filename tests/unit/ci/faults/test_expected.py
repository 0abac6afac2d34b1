"""Known faults that are run again, and the matrix of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

from msgspec.structs import replace

from ci.faults.expected import GRAPH, MENDED, Rerun, make_matrix, render_matrix, rerun
from ci.faults.graph import parse_graph
from ci.faults.known import CRASHED, REFUSED, RIGHT, WRONG, describe, find_pattern, read_faults
from ci.faults.results import LATE, Item, Result
from tests.stand_ins.snapshots import check_snapshot

PLANTED = replace(read_faults()[0], mended="x = input(2)\ny = relu(x)\nreturn y\n")


def try_items(scheme: str, items: Iterable[Item]) -> Iterator[Result]:
    """The planted fault is there, and nothing else."""
    for item in items:
        bad = bool(find_pattern(PLANTED.pattern, describe(parse_graph(item.text))))
        yield Result(item.text, item.seed, WRONG if bad else RIGHT, 2.0 if bad else 61.0, 60.0)


def end_all(end: str) -> Callable[[str, Iterable[Item]], Iterator[Result]]:
    return lambda _, items: (Result(item.text, item.seed, end, 2.0, 60.0) for item in items)


@pytest.mark.parametrize(
    ("attempt", "qnn", "problems"),
    [
        (try_items, "2.49.40", ["", ""]),
        (end_all(RIGHT), "2.49.40", ["the fault is gone", ""]),
        (end_all(WRONG), "2.49.40", ["", "the mended graph is wrong"]),
        (try_items, "9.0.0", ["", ""]),
    ],
)
def test_a_known_fault_with_an_unexpected_outcome_is_a_problem(
    attempt: Any, qnn: str, problems: list[str]
) -> None:
    runs = list(rerun([PLANTED], "onnx", qnn, attempt))
    assert [run.form for run in runs] == [GRAPH, MENDED]
    for run, problem in zip(runs, problems, strict=True):
        assert run.problem.startswith(problem)
        assert bool(run.problem) == bool(problem)
    assert runs[0].expected == (WRONG if qnn == "2.49.40" else "")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"end": WRONG}, ""),
        ({"end": REFUSED, "expected": ""}, ""),
        ({"end": REFUSED}, "the result differs: refused instead of wrong"),
        ({"end": REFUSED, "why": "no"}, "the result differs: refused instead of wrong (no)"),
        (
            {"end": RIGHT, "sqnr_db": 0.0, "predicted_db": 60.04},
            "the fault is gone: right instead of wrong (0.0 dB, 60.0 dB predicted)",
        ),
        (
            {"end": CRASHED, "expected": RIGHT},
            "the fault is new in QNN 2.50: crashed instead of right",
        ),
        (
            {"end": WRONG, "form": MENDED, "expected": RIGHT, "why": "no"},
            "the mended graph is wrong, not right (no)",
        ),
    ],
)
def test_the_text_of_a_result_states_the_difference_from_the_expected_one(
    fields: dict[str, Any], problem: str
) -> None:
    usual = {"fault": "a", "form": GRAPH, "frontend": "onnx", "scheme": "u8", "qnn": "2.50"}
    assert Rerun(**{"expected": WRONG, **usual, **fields}).problem == problem


@pytest.mark.parametrize(
    ("right", "mended_runs"),
    [
        ("one", [(MENDED, "one", RIGHT)]),
        ("two", [(MENDED, "two", RIGHT)]),
        ("", [(MENDED, "", RIGHT)]),  # the one in the table
        ("three", [(MENDED, "one", WRONG)]),
    ],
)
def test_a_graph_is_mended_by_the_first_rewrite_that_makes_it_right(
    right: str, mended_runs: list[tuple[str, str, str]]
) -> None:
    def attempt(_: str, items: Sequence[Item]) -> Iterator[Result]:
        for item in items:
            is_right = item.rewrite == right and (right or item.text != PLANTED.graph)
            yield Result(item.text, item.seed, RIGHT if is_right else WRONG, 2.0, 60.0)

    runs = list(rerun([PLANTED], "onnx", "2.49.40", attempt, lambda *_: ["one", "two"]))
    assert [(run.form, run.rewrite, run.end) for run in runs] == [(GRAPH, "", WRONG), *mended_runs]


@pytest.mark.parametrize(
    ("qnn", "ends", "end"),
    [
        ("2.49.40", (WRONG, RIGHT, CRASHED), RIGHT),  # wrong is expected
        ("2.49.40", (WRONG, WRONG, CRASHED), CRASHED),
        ("2.49.40", (WRONG, WRONG, WRONG), WRONG),
        ("9.0.0", (WRONG, RIGHT, CRASHED), WRONG),  # nothing is expected
        ("9.0.0", (RIGHT, WRONG, WRONG), RIGHT),
    ],
)
def test_the_outcome_of_a_graph_is_its_first_unexpected_seed_or_else_its_first(
    qnn: str, ends: tuple[str, str, str], end: str
) -> None:
    def attempt(_: str, items: Sequence[Item]) -> Iterator[Result]:
        for item, ended in zip(items, ends, strict=True):
            yield Result(item.text, item.seed, ended, float(item.seed), 60.0 + item.seed)

    graph, _ = rerun([PLANTED], "onnx", qnn, attempt)
    seed = 21 + ends.index(end)
    figures = (None, None) if end == CRASHED else (float(seed), 60.0 + seed)
    assert (graph.end, graph.sqnr_db, graph.predicted_db) == (end, *figures)


def test_a_worse_outcome_is_a_regression_and_a_better_one_a_fix() -> None:
    order = [RIGHT, REFUSED, CRASHED, WRONG]
    run = Rerun(
        fault="a", form=GRAPH, frontend="onnx", scheme="u8", qnn="1", end=RIGHT, expected=""
    )
    for before, was in enumerate(order):
        for after, now in enumerate(order):
            runs = [replace(run, end=was), replace(run, end=now, qnn="2")]
            matrix = make_matrix(["1", "2"], runs)
            assert bool(matrix.regressions) is (after > before)
            assert bool(matrix.fixes) is (after < before)
    late = [replace(run, qnn=f"1.{n}", end=end) for n, end in enumerate((WRONG, LATE, RIGHT))]
    matrix = make_matrix(["1.0", "1.1", "1.2"], late)  # a version that says nothing is left out
    assert (matrix.regressions, len(matrix.fixes)) == ((), 1)


def test_a_matrix_of_known_faults_has_a_row_per_form_and_scheme() -> None:
    def run(fault: str, form: str, scheme: str, qnn: str, end: str, db: float | None) -> Rerun:
        return Rerun(
            fault=fault,
            form=form,
            frontend="onnx",
            scheme=scheme,
            qnn=qnn,
            end=end,
            expected="",
            sqnr_db=db,
        )

    runs = [
        run("a", GRAPH, "fp16", "1.0", RIGHT, 60.0),
        run("a", GRAPH, "fp16", "1.1", RIGHT, 61.0),
        run("b", GRAPH, "u8", "1.0", WRONG, 2.0),
        run("b", GRAPH, "u8", "1.1", RIGHT, 62.0),
        run("b", MENDED, "u8", "1.0", RIGHT, 63.0),
        run("b", MENDED, "u8", "1.1", CRASHED, None),
        run("b", GRAPH, "fp16", "1.1", REFUSED, None),
        run("c", GRAPH, "u8", "1.0", WRONG, 3.0),
        run("c", GRAPH, "u8", "1.1", RIGHT, 64.0),
        replace(run("c", MENDED, "u8", "1.0", RIGHT, 66.0), rewrite="expand-constant"),
        run("c", MENDED, "u8", "1.1", RIGHT, 66.0),
        run("d", GRAPH, "u8", "1.0", RIGHT, 65.0),
        run("d", GRAPH, "u8", "1.1", WRONG, 0.0),
    ]
    text = render_matrix(make_matrix(["1.0", "1.1"], runs, ["why 1.2", "why 1.3"]))
    check_snapshot(Path(__file__).parent / "snapshots" / "matrix.txt", text)
