"""Finds the cause of a red graph by the experiments of a diagnosis: the rewrite that makes it
right. The graph is small, so no part of it is tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from ci.diagnosis import experiments
from ci.diagnosis.diagnosis import Diagnosis, Suspicion, advance, diagnose
from ci.diagnosis.experiments import Answer, ListRemedies, RemedyChoice, RunPart
from ci.faults.known import REFUSED, RIGHT, WRONG
from ci.faults.results import Result

MOST_DB = 999.0  # stands for an infinite SQNR, which JSON does not have


def diagnose_graph(
    red: Result,
    size: int,
    faults: Sequence[str],
    remedies: Sequence[RemedyChoice],
    run: Callable[[str], Result],
) -> Diagnosis:
    """Return what experiments show of a red graph with ``size`` operators. ``faults`` are the known
    faults whose pattern it has, and ``remedies`` change it. ``run`` returns the result with
    remedies, whose names it gets with spaces between."""
    suspicion = Suspicion(read_result(red), faults=tuple(faults), count=size, divides=False)
    steps, answer = diagnose(suspicion), cast(Answer, None)
    while True:
        experiment, diagnosis = advance(steps, answer)
        if experiment is None:
            return diagnosis or Diagnosis(suspicion.whole_result)
        answer = None
        if isinstance(experiment, ListRemedies):
            answer = [*remedies]
        elif isinstance(experiment, RunPart):
            answer = read_result(run(" ".join(experiment.remedies)))


def read_result(result: Result) -> experiments.Result:
    """Return the result of a graph as that of an experiment."""
    if result.end not in {RIGHT, WRONG}:
        return experiments.Result(
            failure=result.why or result.end, is_refused=result.end == REFUSED
        )
    return experiments.Result(
        reached_db=limit(result.sqnr_db),
        predicted_db=limit(result.predicted_db),
        is_right=result.end == RIGHT,
    )


def limit(sqnr_db: float) -> float:
    """Return an SQNR in dB that is finite."""
    return math.copysign(MOST_DB, sqnr_db) if math.isinf(sqnr_db) else sqnr_db
