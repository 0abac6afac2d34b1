"""Judges what an upstream test compared by this project's gate, and makes the report's case of
upstream's result and ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct, structs

from ci.cases.pool import clean_tail
from ci.facts.finding import Finding
from ci.facts.kinds import INCONCLUSIVE, UNRECORDED
from ci.judging.figures import Array
from ci.judging.gate import Expected, References, judge
from ci.judging.noise import Prediction
from ci.judging.verdict import CaseFigures, summarize_figures
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import (
    AskedFacts,
    Case,
    Control,
    ControlKind,
    JudgementFacts,
    RunFacts,
    Status,
    Threshold,
)
from ci.upstream.comparison import Arrays, Comparison, Member

MIXED = "mixed"
Limits = Callable[[Scheme], Threshold]
# The outcomes that the report shows.
BOTH, THEIRS, FAILED, UNSUPPORTED = "both", "theirs only", "failed", "unsupported"


@dataclass(frozen=True)
class Ours:
    """The verdict of this project's gate on a comparison. ``accepts_zeros`` is true if the gate
    would accept zeros instead of the outputs. ``findings`` state why the gate rejects the outputs,
    and whether it accepts zeros; they are empty if the comparison passed. ``lacks`` lists what
    could not be computed for the gate, and why."""

    scheme: str
    findings: tuple[Finding, ...]
    figures: CaseFigures
    accepts_zeros: bool
    lacks: tuple[str, ...] = ()


class Result(Struct, frozen=True, kw_only=True):
    """The case of a test and, if the test passed both verdicts, the control with zeros."""

    case: Case
    control: Control | None = None


def judge_comparison(record: Comparison, arrays: Arrays, limits: Limits) -> Ours:
    """Return the gate's verdict on a comparison, with the limits that ``limits`` returns for its
    scheme."""
    # Noise is judged strictly: these suites search for faults of QNN.
    rule = (
        limits(Scheme(record.scheme))
        if record.scheme
        else Threshold(scheme=MIXED, strict_noise=True)
    )
    infos = list(record.outputs)
    for index, info in enumerate(infos):
        if info.dtype == "bool":  # ``stack`` returns bytes
            infos[index] = structs.replace(info, dtype="uint8")
    outputs = stack(arrays[Member.OUTPUT], infos)
    references = make_references(record, arrays, infos)
    # Upstream's tolerance for quantized operators (atol 0.1, rtol 1) accepts zeros.
    zeros = judge(references, [np.zeros_like(output) for output in outputs], infos, rule)
    judgement = judge(references, outputs, infos, rule)
    findings = [
        structs.replace(finding, details=(*finding.details, *record.lacks))
        for finding in judgement.findings
    ]
    if zeros.accepted:
        findings.append(INCONCLUSIVE.find("the gate accepts zeros: the test proves nothing"))
    return Ours(
        record.scheme or MIXED,
        tuple(findings),
        summarize_figures(judgement),
        zeros.accepted,
        record.lacks,
    )


def make_references(record: Comparison, arrays: Arrays, infos: Sequence[TensorInfo]) -> References:
    """Return the outputs of the float32 model and, except in fp16, of the quantized model, with the
    predicted noise. If the outputs of the model that was lowered could not be computed, the values
    with which upstream compares the outputs are used. If the outputs of the float32 model could not
    be computed, the quantized model's outputs are used."""
    member = Member.FLOAT if record.scheme == Scheme.FP16.value else Member.QUANTIZED
    values = arrays.get(member) or arrays[Member.UPSTREAM]
    low, high = arrays.get(Member.LOW) or values, arrays.get(Member.HIGH) or values
    bounds = (stack(values, infos), stack(low, infos), stack(high, infos))
    best = [Expected(*of_output) for of_output in zip(*bounds, strict=True)]
    disturbed = arrays.get(Member.NOISE) or [np.empty(0)] * len(best)
    noise: list[Prediction | None] = []
    for expected, runs, info in zip(best, disturbed, infos, strict=True):
        if len(runs):
            finite_runs = finite(runs.reshape(-1, *expected.values.shape))
            noise.append(Prediction(expected.values, finite_runs, info))
        else:
            noise.append(None)
    if member is Member.FLOAT:
        return References(best, None, noise)
    eager = stack(arrays.get(Member.FLOAT) or values, infos)
    return References([Expected(array, array, array) for array in eager], best, noise)


def finite(runs: Array) -> Array:
    """Return the disturbed runs that have neither NaN nor infinity. If fewer than two remain,
    return two runs of zeros."""
    finite_runs: Array = runs[np.isfinite(runs).reshape(len(runs), -1).all(1)]
    return finite_runs if len(finite_runs) > 1 else np.zeros((2, *runs.shape[1:]), np.float32)


def stack(arrays: Sequence[Array], infos: Sequence[TensorInfo]) -> list[Array]:
    """Return the arrays as [sample, *shape] with a single sample and the shapes in ``infos``.
    Booleans become bytes. The arrays are reshaped because a quantized model may return a scalar as
    [1]."""
    samples = []
    for array, info in zip(arrays, infos, strict=True):
        values = array.view(np.uint8) if array.dtype == bool else array
        samples.append(values.reshape(1, *info.shape))
    return samples


def make_result(
    test: str, soc: str, ran: str, message: str, ours: Sequence[Ours], *, printed: str = ""
) -> Result:
    """Return the case of a test. ``ran`` is upstream's result: ``passed``, ``failed``, ``skipped``,
    or ``lacking`` a package or a flag of the runner. ``message`` is the reason if the test did not
    pass. A test passes if upstream and this project's gate accept what it compared. If upstream's
    test failed, the case has the end of ``printed``, which it and its packages printed."""
    rejected = [our for our in ours if our.findings]
    status, outcome, findings = Status.PASSED, BOTH, tuple[Finding, ...]()
    message = message.strip() or "no reason was given"
    if ran in {"skipped", "lacking"}:
        status, outcome = Status.UNSUPPORTED, UNSUPPORTED
        findings = (UNRECORDED.find(message),)
    elif ran != "passed":
        accepted = "our gate accepts the outputs; " if ours and not rejected else ""
        status, outcome = Status.FAILED, FAILED
        findings = (UNRECORDED.find(f"{accepted}{message}"),)
    elif not ours:
        text = "upstream compares no outputs: the test proves nothing"
        status, outcome, findings = Status.FAILED, THEIRS, (INCONCLUSIVE.find(text),)
    elif rejected:
        status, outcome, findings = Status.FAILED, THEIRS, rejected[0].findings
        if len(ours) > 1:
            details = (*findings[0].details, f"comparison {ours.index(rejected[0])}")
            findings = (structs.replace(findings[0], details=details), *findings[1:])
    scheme = ours[0].scheme if ours else "-"
    lacks = tuple(dict.fromkeys(lack for verdict in ours for lack in verdict.lacks))
    case = Case(
        model=test,
        scheme=scheme,
        soc=soc,
        judgement=JudgementFacts(
            status=status,
            outcome=outcome,
            findings=findings,
            warnings=lacks if outcome == BOTH else (),
            **worst_figures(ours),
        ),
        asked=AskedFacts(inputs=len(ours)),
        run=RunFacts(log_tail=clean_tail(printed) if outcome == FAILED else ""),
    )
    control = None
    if outcome == BOTH:
        # Zeros, because upstream's tolerance in quantized tests (atol 0.1, rtol 1) accepts them.
        control = Control(
            model=test,
            scheme=scheme,
            soc=soc,
            kind=ControlKind.ZEROS,
            rejected=not any(verdict.accepts_zeros for verdict in ours),
        )
    return Result(case=case, control=control)


def worst_figures(ours: Sequence[Ours]) -> dict[str, Any]:
    """Return the figures of the comparison whose error exceeds its prediction by the most. If there
    is no prediction, return those with the lowest SQNR; if there is no comparison, return an empty
    dict."""
    if not ours:
        return {}

    def rank(figures: CaseFigures) -> tuple[float, float]:
        excess_db = -math.inf if figures.above_noise_db is None else figures.above_noise_db
        loss_db = math.inf if figures.sqnr_db is None else -figures.sqnr_db
        return excess_db, loss_db

    return vars(max((verdict.figures for verdict in ours), key=rank))
