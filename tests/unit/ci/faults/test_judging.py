"""How the outputs of graphs are judged, and each graph of a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")


from ci.faults.known import REFUSED, RIGHT, WRONG
from ci.faults.results import Item, Output, Runs, judge, judge_graphs
from ci.models.schemes import Scheme
from tests.stand_ins.snapshots import check_snapshot


def make_output(error: float, row: int | None = None, step: float = 0.0) -> Output:
    dice = np.random.default_rng(0)
    right = dice.standard_normal((2, 3, 8, 16)).astype(np.float32)
    runs = (dice.standard_normal((8, *right.shape)) * 1e-3).astype(np.float32)
    off = dice.standard_normal(right.shape) * error
    if row is not None:
        other_rows = [index for index in range(3) if index != row]
        off[:, other_rows] *= 1e-3
    return Output(right, runs, (right + off).astype(np.float32), step)


def change(output: Output, place: Any, value: float, *, right: bool = False) -> Output:
    """The output with a value at a place of the actual output, and with ``right`` of both."""
    actual, expected = output.actual.copy(), output.right.copy()
    actual[place] = value
    if right:
        expected[place] = value
    return output._replace(actual=actual, right=expected)


def point(shape: tuple[int, ...], place: tuple[int, ...]) -> list[Output]:
    """Two outputs of ones, of which the second is wrong at a place."""
    right = np.ones(shape, np.float32)
    good = Output(right, np.full((8, *shape), 1e-3, np.float32), right)
    return [good, change(good, place, 9.0)]


def differ(shape: tuple[int, ...]) -> Output:
    """60 dB are predicted for the first set, and 40 dB for the second, whose error is larger."""
    right = np.full(shape, 2.0, np.float32)
    runs, actual = np.full((8, *shape), 2e-3, np.float32), right.copy()
    runs[:, 1] = 2e-2
    actual[1] += 0.5
    actual[0] += 0.3
    return Output(right, runs, actual)


def list_outputs() -> Iterator[tuple[str, list[Output], float]]:
    good, near, wrong = make_output(1e-3), make_output(2.4e-3), make_output(9e-3)
    for error in (1e-3, 3e-3, 4e-3, 9e-3, 0.5):
        yield f"an error of {error}", [make_output(error)], 45.0
    for error in (2.4e-3, 5e-3):
        yield f"an error of {error}, 90 dB are good enough", [make_output(error)], 90.0
    yield "an error in row 2", [make_output(0.5, row=2)], 45.0
    yield "less than a step of 8 bits", [make_output(0.02, step=0.5)], 45.0
    for error in (1.04, 1.06):
        plain = np.full((2, 3, 4), 100.0, np.float32)
        runs = np.full((8, 2, 3, 4), 1e-2, np.float32)
        for step in (1.0, 0.0):
            output = Output(plain, runs, plain + np.float32(error), step)
            yield f"off by {error}, a step of {step}", [output], 90.0
    hard = make_output(2e-3, row=2)
    off = hard.actual - hard.right
    hard.right[:, 2] *= 1e-3
    yield "row 2 is hard to predict", [hard._replace(actual=hard.right + off)], 45.0
    for shape, place in (((2, 3, 8), (1, 2)), ((3, 2, 8), (2, 1)), ((2,), (1,))):
        yield f"wrong at {place} of {shape}", point(shape, place), 45.0
    for shape in ((2, 3, 4), (2, 4)):
        yield f"two predictions, {shape}", [differ(shape)], 45.0
    nan = good._replace(actual=np.full_like(good.actual, np.nan))
    zero = good._replace(right=np.zeros_like(good.right), actual=np.zeros_like(good.actual))
    yield "not a number", [good, nan], 45.0
    yield "one element is infinite", [good, change(good, (1, 2, 3, 4), np.inf), good], 45.0
    yield "zeros", [zero], 45.0
    yield "zeros, then a good one", [zero, good], 45.0
    yield "a good one, then zeros", [good, zero], 45.0
    yield "a row of zeros", [change(good, (0, 1), 0.0, right=True)], 45.0
    yield "another shape", [good._replace(actual=good.actual[:, :1])], 45.0
    yield "no output", [], 45.0
    yield "the worst is second", [good, near], 45.0
    yield "the worst is first", [near, good], 45.0
    step = make_output(0.02, step=0.5)
    yield "a step off and a wrong one", [step, wrong], 45.0
    yield "a wrong one and a step off", [wrong, step], 45.0
    ruined = make_output(0.5)
    yield "rounding ruins it", [ruined._replace(runs=ruined.runs * 1e3)], 45.0
    runs, actual = good.runs.copy(), good.actual.copy()
    runs[:, :, 0] *= 100
    actual[:, 0] = good.right[:, 0] + runs[0, :, 0]
    yield "a row as far off as is predicted for it", [Output(good.right, runs, actual)], 45.0
    actual = actual.copy()
    actual[:, 1] += (runs[1, :, 1] * 300).astype(np.float32)
    yield "another row is as far off", [Output(good.right, runs, actual)], 45.0
    plain = make_output(6e-3)
    single = change(plain, (0, 1, 3, 3), plain.right[0, 1, 3, 3] + 0.085)
    yield "one element alone is off", [single._replace(runs=plain.runs * 6)], 45.0


def test_outputs_are_judged_as_their_snapshot() -> None:
    lines = []
    for name, outputs, good_db in list_outputs():
        result = judge(Item("text", 3), outputs, good_db)
        assert (result.text, result.seed) == ("text", 3)
        figures = [result.sqnr_db, result.predicted_db, result.over_db]
        shown = ", ".join("-" if value is None else f"{value:.2f}" for value in figures)
        words = filter(None, [result.place, result.why])
        lines.append(f"{name}\n  {result.end} {shown} {'; '.join(words)}".rstrip())
    check_snapshot(Path(__file__).parent / "snapshots" / "judged.txt", "\n".join(lines) + "\n")


def make_runs(*outputs: Output) -> Runs:
    right_sets, actual_sets = [], []
    for number in range(2):
        right_sets.append([output.right[number] for output in outputs])
        actual_sets.append([output.actual[number] for output in outputs])
    runs = [output.runs for output in outputs]
    return Runs(right_sets, actual_sets, runs, [output.step for output in outputs])


def test_each_graph_of_a_program_is_judged_by_its_own_outputs() -> None:
    """Graphs with 1, 2, 1, 1, 1 and 3 outputs; the second is refused, the third and the last are
    wrong, and an 8-bit step or its own prediction excuses the others."""
    good, bad, coarse = make_output(1e-3), make_output(0.5), make_output(0.02)
    excused = [make_output(0.02, step=0.5), coarse._replace(runs=coarse.runs * 30)]
    for last in ([good, bad, good], [good, good, bad]):
        runs = make_runs(good, good, good, bad, *excused, *last)
        items = [Item(str(number), number) for number in range(6)]
        left = {1: "erf is left to the CPU"}
        results = judge_graphs(items, (1, 2, 1, 1, 1, 3), runs, left, Scheme.FP16)
        ends = [RIGHT, REFUSED, WRONG, RIGHT, RIGHT, WRONG]
        assert [result.end for result in results] == ends
        assert [(result.text, result.seed) for result in results] == [(str(n), n) for n in range(6)]
        assert [result.stops for result in results] == [False] * 6
        place = next(n for n, output in enumerate(last) if output is bad)
        assert results[-1].place.startswith(f"output {place}")


def test_the_required_accuracy_of_a_graph_depends_on_the_bits_of_its_scheme() -> None:
    """The output has 38 dB, and hardly any noise is predicted."""
    near = make_runs(make_output(1.3e-2))
    ends = {
        scheme: judge_graphs([Item("", 0)], (1,), near, {}, scheme)[0].end
        for scheme in (Scheme.A8W8, Scheme.A16W8, Scheme.FP16)
    }
    assert ends == {Scheme.A8W8: RIGHT, Scheme.A16W8: WRONG, Scheme.FP16: WRONG}
