"""What became of a graph: how it ended, and how far its outputs are from what noise explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from ci.faults.known import CRASHED, REFUSED, RIGHT, WRONG
from ci.judging.figures import decibels
from ci.judging.noise import Prediction
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo

UNJUDGED, LATE = "unjudged", "late"
LEFT = " is left to the CPU"
SUSPECT = (WRONG, REFUSED, CRASHED, LATE)
# Beyond the gate's own margin: many thousand graphs are judged, and none may be noise. The row of a
# batch that is worst has to be so far below its prediction as well.
MARGIN_DB, EXTRA_DB, ROW_DB = 6.0, 3.0, 6.0
LEAST_PREDICTED_DB = 12.0
# An output in 8 bits may be a step off everywhere, and rows that reach so much are right.
MOST_STEPS = 1.05
GOOD_DB, GOOD_8_BITS_DB = 45.0, 33.0


class Item(Struct, frozen=True):
    """A graph to try, as text, with the seed of its constants and inputs."""

    text: str
    seed: int


class Result(Struct, frozen=True):
    """How a graph ended through a front end: the SQNR of the worst row of the worst output in dB,
    what is predicted for that row, how far its error is beyond what is allowed, and where. ``why``
    is what was said of a graph that was refused, crashed or cannot be judged. ``cpu_s`` is its
    share of the CPU time that its bundle took."""

    text: str
    seed: int
    end: str
    sqnr_db: float = math.inf
    predicted_db: float = math.inf
    over_db: float = -math.inf
    place: str = ""
    why: str = ""
    cpu_s: float = 0.0

    @property
    def is_suspect(self) -> bool:
        """Whether it did not end as a graph that is right does."""
        return self.end in SUSPECT

    @property
    def is_left(self) -> bool:
        """Whether a part is left to the CPU; the graphs next to it in a program are not."""
        return self.why.endswith(LEFT)


class Output(NamedTuple):
    """An output: the reference and what was made, [input set, *shape], the errors of disturbed
    runs, [run, input set, *shape], and the step of its 8-bit grid, 0 if it has none."""

    right: Any
    runs: Any
    made: Any
    step: float = 0.0


class Runs(NamedTuple):
    """What a program was given to be judged by: the reference and what was made, a list of outputs
    per input set; per output the errors of disturbed runs and the step of its 8-bit grid."""

    right: Sequence[Sequence[Any]]
    made: Sequence[Sequence[Any]]
    noise: Sequence[Any]
    steps: Sequence[float]


def judge_graphs(
    items: Sequence[Item],
    counts: Sequence[int],
    runs: Runs,
    left: Mapping[int, str],
    scheme: Scheme,
) -> list[Result]:
    """Return the results of graphs that ran as one program, in which graph n has ``counts[n]``
    outputs; ``left`` says of graphs, by number, why they are refused."""
    good_db = GOOD_8_BITS_DB if scheme.recipe.activation_bits == 8 else GOOD_DB
    results, first = [], 0
    for number, (item, count) in enumerate(zip(items, counts, strict=True)):
        places, first = range(first, first + count), first + count
        if number in left:
            results.append(Result(item.text, item.seed, REFUSED, why=left[number]))
            continue
        outputs = [
            Output(
                np.stack([one[n] for one in runs.right]),
                np.asarray(runs.noise[n]),
                np.stack([one[n] for one in runs.made]),
                runs.steps[n],
            )
            for n in places
        ]
        results.append(judge(item, outputs, good_db))
    return results


def judge(item: Item, outputs: Sequence[Output], good_db: float) -> Result:
    """Return the result of a graph; rows that reach ``good_db`` are right."""
    worst: Result | None = None
    for index, output in enumerate(outputs):
        one = _judge_output(item, index, output, good_db)
        if worst is None or _badness(one) > _badness(worst):
            worst = one
    return worst or Result(item.text, item.seed, UNJUDGED, why="it has no output")


def _badness(one: Result) -> tuple[bool, float]:
    return one.end == WRONG, one.over_db


def _judge_output(item: Item, index: int, output: Output, good_db: float) -> Result:
    text, seed = item.text, item.seed
    right, runs, made, step = output
    if made.shape != right.shape:
        why = f"output {index} has the shape {made.shape}, not {right.shape}"
        return Result(text, seed, WRONG, -math.inf, 0.0, math.inf, "shape", why)
    if not np.isfinite(made).all():
        return Result(text, seed, WRONG, -math.inf, 0.0, math.inf, f"output {index}", "NaN")
    info = TensorInfo("float32", tuple(right.shape[1:]))
    prediction = Prediction(right, runs, info)
    rows = (slice(None), slice(None)) if right.ndim > 1 else (slice(None),)
    keep = tuple(range(len(rows), right.ndim))
    signal = (right.astype(np.float64) ** 2).mean(keep)
    noise = (prediction.runs.astype(np.float64) ** 2).mean(0).mean(keep) + prediction.floor
    error = ((made.astype(np.float64) - right) ** 2).mean(keep)
    place = np.unravel_index(int((error / noise).argmax()), error.shape)
    reached, predicted = (
        decibels(float(signal[place]), float(one[place])) for one in (error, noise)
    )
    if prediction.sqnr_db < LEAST_PREDICTED_DB or not signal.min():
        return Result(text, seed, UNJUDGED, why="too little is left of the signal")
    excess = prediction.find_excesses(made, MARGIN_DB)[0]
    is_near = float(np.abs(made - right).max()) <= MOST_STEPS * step
    wrong = not is_near and excess.over_db > EXTRA_DB and reached < min(predicted - ROW_DB, good_db)
    where = f"output {index}, set {place[0]}" + (f", row {place[1]}" if len(place) > 1 else "")
    end = WRONG if wrong else RIGHT
    return Result(text, seed, end, reached, predicted, excess.over_db, f"{where}: {excess.place}")


class Finding(Struct, frozen=True, kw_only=True):
    """A fault: its smallest graph, what is seen, the variations that are right and those that are
    not, how many of ``repeats`` other seeds fail, how many suspects have its operators, the name of
    the known fault that it is, if it is one, and after how many ``seconds`` of its scheme's search
    its smallest graph was known."""

    graph: str
    end: str
    frontend: str
    scheme: str
    soc: str
    sqnr_db: float | None
    predicted_db: float | None
    place: str
    why: str
    operators: tuple[str, ...]
    relations: tuple[str, ...]
    right: tuple[str, ...] = ()
    also_wrong: tuple[str, ...] = ()
    failed: int = 0
    repeats: int = 0
    suspects: int = 1
    known: str = ""
    seed: int = 0
    number: int = 0
    seconds: float = 0.0


class Searched(Struct, frozen=True, kw_only=True):
    """What a search did in a scheme: graphs by how they ended, suspects by the known fault that
    they have, and further faults, the worst first. ``seconds`` and ``per_minute`` are of the graphs
    that were made, without shrinking; ``cpu_s`` is the CPU time that one of them took."""

    frontend: str
    scheme: str
    soc: str
    seed: int
    graphs: int
    seconds: float
    per_minute: float
    cpu_s: float
    ends: dict[str, int]
    unjudged: dict[str, int]
    unconfirmed: int
    unexamined: int
    findings: tuple[Finding, ...]
    known: dict[str, int] = {}
