"""Judges graphs by how much their errors exceed the error that rounding explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from ci.faults.known import CRASHED, REFUSED, RIGHT, WRONG
from ci.judging.figures import decibels
from ci.judging.noise import Prediction
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo

UNJUDGED, LATE, UNTRIED = "unjudged", "late", "untried"
LEFT = " is left to the CPU"
SUSPECT = (WRONG, REFUSED, CRASHED, LATE)
# EXTRA_DB is added to the gate's margin, MARGIN_DB, because thousands of graphs are judged and
# noise must never be reported as a fault. In addition, the SQNR of the worst row must be ROW_DB
# below its prediction.
MARGIN_DB, EXTRA_DB, ROW_DB = 6.0, 3.0, 6.0
LEAST_PREDICTED_DB = 12.0
# An output is right if no element differs by more than this many of its quantization steps, or if
# the SQNR of its worst row is at least GOOD_DB (with 8-bit activations, GOOD_8_BITS_DB).
MOST_STEPS = 1.05
GOOD_DB, GOOD_8_BITS_DB = 45.0, 33.0

# Applies the rewrite with a name to a torch module, or to the .onnx file with a path, and returns
# the result. It also gets the samples. Raises ValueError if there is nothing to change.
Edit = Callable[[str, Any, Sequence[Sequence[Any]]], Any]


class Item(Struct, frozen=True):
    """A graph to try, as text, with the seed for its constants and inputs. ``rewrite`` is the name
    of a rewrite that is applied to the graph's model first, several names with spaces between, or
    ""."""

    text: str
    seed: int
    rewrite: str = ""


class Result(Struct, frozen=True):
    """The result of a graph in a front end. ``sqnr_db`` is the SQNR of the worst row of the worst
    output, and ``predicted_db`` is the prediction for that row. ``over_db`` is how far the error
    exceeds the limit at ``place``, in dB. ``why`` is the reason for an ``end`` other than ``right``
    and ``wrong``. It is also set if an output has a wrong shape or an element that is NaN or
    infinite. ``cpu_s`` is the graph's share of the CPU time for all graphs that were compiled with
    it. ``faults`` are the known faults whose patterns are in the file that was compiled, if other
    operators than the graph's were written there."""

    text: str
    seed: int
    end: str
    sqnr_db: float = math.inf
    predicted_db: float = math.inf
    over_db: float = -math.inf
    place: str = ""
    why: str = ""
    cpu_s: float = 0.0
    stops: bool = False  # whether no graph that is compiled with it has a result
    faults: tuple[str, ...] = ()

    @property
    def is_suspect(self) -> bool:
        """Return whether the graph may have a fault."""
        return self.end in SUSPECT


class Output(NamedTuple):
    """An output of a graph. ``right`` is the output of the reference and ``actual`` that of the
    program, both [sample, *shape]. ``runs`` contains the errors of disturbed runs, [run,
    sample, *shape]. ``step`` is the output's quantization step, or 0 if it is not used for the
    verdict."""

    right: Any
    runs: Any
    actual: Any
    step: float = 0.0


class Runs(NamedTuple):
    """The data for judging a program. ``right`` and ``actual`` are the outputs of the reference and
    of the program, per sample. ``noise`` contains the errors of disturbed runs, and ``steps``
    the quantization steps, both per output."""

    right: Sequence[Sequence[Any]]
    actual: Sequence[Sequence[Any]]
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
    outputs. ``left`` maps the number of each graph that QNN refused to the reason."""
    good_db = GOOD_8_BITS_DB if scheme.recipe.activation_bits == 8 else GOOD_DB
    results, first = [], 0
    for number, (item, count) in enumerate(zip(items, counts, strict=True)):
        places, first = range(first, first + count), first + count
        if number in left:
            results.append(Result(item.text, item.seed, REFUSED, why=left[number]))
            continue
        outputs = []
        for n in places:
            right = np.stack([sample[n] for sample in runs.right])
            actual = np.stack([sample[n] for sample in runs.actual])
            outputs.append(Output(right, np.asarray(runs.noise[n]), actual, runs.steps[n]))
        results.append(judge(item, outputs, good_db))
    return results


def judge(item: Item, outputs: Sequence[Output], good_db: float) -> Result:
    """Return the result of the worst output of a graph. An output that can be judged is right if
    the SQNR of its worst row is at least ``good_db``."""
    results = [_judge_output(item, index, output, good_db) for index, output in enumerate(outputs)]
    empty = Result(item.text, item.seed, UNJUDGED, why="the graph has no output")
    return max(results, key=lambda result: (result.end == WRONG, result.over_db), default=empty)


def _judge_output(item: Item, index: int, output: Output, good_db: float) -> Result:
    text, seed = item.text, item.seed
    right, runs, actual, step = output
    if actual.shape != right.shape:
        why = f"output {index} has the shape {actual.shape}, not {right.shape}"
        return Result(text, seed, WRONG, -math.inf, 0.0, math.inf, "shape", why)
    if not np.isfinite(actual).all():
        why = "an element is NaN or infinite"
        return Result(text, seed, WRONG, -math.inf, 0.0, math.inf, f"output {index}", why)
    prediction = Prediction(right, runs, TensorInfo("float32", tuple(right.shape[1:])))
    keep = tuple(range(2, right.ndim))
    signal = (right.astype(np.float64) ** 2).mean(keep)
    noise = (prediction.runs.astype(np.float64) ** 2).mean(0).mean(keep) + prediction.floor
    error = ((actual.astype(np.float64) - right) ** 2).mean(keep)
    place = np.unravel_index(int((error / noise).argmax()), error.shape)
    reached = decibels(float(signal[place]), float(error[place]))
    predicted = decibels(float(signal[place]), float(noise[place]))
    # Next to zeros, any error would look like a fault.
    why = "" if signal.min() else "a row of the correct output is all zeros"
    if prediction.sqnr_db < LEAST_PREDICTED_DB:
        why = f"the predicted SQNR is below {LEAST_PREDICTED_DB:g} dB"
    if why:
        return Result(text, seed, UNJUDGED, why=why)
    excess = prediction.find_excesses(actual, MARGIN_DB)[0]
    is_near = float(np.abs(actual - right).max()) <= MOST_STEPS * step
    wrong = not is_near and excess.over_db > EXTRA_DB and reached < min(predicted - ROW_DB, good_db)
    where = f"output {index}, set {place[0]}" + (f", row {place[1]}" if len(place) > 1 else "")
    end = WRONG if wrong else RIGHT
    return Result(text, seed, end, reached, predicted, excess.over_db, f"{where}: {excess.place}")


class Finding(Struct, frozen=True, kw_only=True):
    """A fault that a search found. ``graph`` is the smallest graph with the fault, and ``end`` is
    its result. ``right`` describes variations of the graph that are right, and ``also_wrong`` those
    that are not. The result is the same with ``failed`` of the ``repeats`` other seeds.
    ``suspects`` is the number of suspects with this result and these operators. ``known`` is the
    name of the known fault that is its cause; it is empty if the cause is new. ``cause`` is what
    experiments show of the cause, in words, and ``mended_by`` are all rewrites with which the graph
    is right. ``seconds`` is the time from the start of the search until the fault was found.
    ``block`` names the block and the size class from which the graph comes; it is empty for a
    random graph. ``shrunk`` is false if a smaller graph may have the fault, because there was no
    time to try."""

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
    cause: str = ""
    mended_by: tuple[str, ...] = ()
    seed: int = 0
    number: int = 0
    seconds: float = 0.0
    block: str = ""
    shrunk: bool = True


class Searched(Struct, frozen=True, kw_only=True):
    """The results of a search in a scheme. ``ends`` counts the graphs per result, ``unjudged`` the
    graphs per reason why they cannot be judged, and ``known`` the suspects per known fault.
    ``findings`` are sorted: unknown faults come first, then wrong results, then a low SQNR.
    ``unconfirmed`` suspects did not fail again, and ``unexamined`` ones were not tried again;
    ``unexamined_ends`` counts the latter per result.
    ``seconds`` and ``per_minute`` refer to trying the generated graphs, without shrinking.
    ``cpu_s`` is the CPU time per graph. ``cells`` counts the results of the graphs from blocks, per
    block, size class and result; a size class without results was not tried."""

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
    unexamined_ends: dict[str, int] = {}
    known: dict[str, int] = {}
    cells: dict[str, dict[str, dict[str, int]]] = {}
