"""Combines upstream's verdict on a test with this project's verdict on the same outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from msgspec import structs

from ci.facts.finding import Finding
from ci.facts.kinds import INCONCLUSIVE
from ci.judging.figures import Array
from ci.judging.gate import Expected, References, judge
from ci.judging.noise import Prediction
from ci.judging.verdict import CaseFigures, summarize_figures
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold
from ci.upstream.journal import Arrays, Comparison, Entry, Member, Ran

MIXED = "mixed"
Limits = Callable[[Scheme], Threshold]
Wrong = Callable[[Array], Array]


class Ending(str, Enum):
    """The result of a test. ``ONE_SIDED`` means that the test passed upstream, but not here: this
    project's gate rejects the outputs, would accept zeros instead of them, or has nothing to judge
    because the test compares no outputs."""

    PASSED = "passed by both"
    ONE_SIDED = "passed by theirs, failed by ours"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    LATE = "timed out"


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


@dataclass(frozen=True)
class Judged:
    """The result of a test. If ``outcome`` is not PASSED, ``reason`` is upstream's message, or the
    comparison that this project's gate rejects with ``findings``. ``ours`` holds the gate's verdict
    on each comparison, and ``entry`` is upstream's result."""

    test: str
    outcome: Ending
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    ours: tuple[Ours, ...] = ()
    entry: Entry | None = None

    @property
    def scheme(self) -> str:
        """The scheme of the first comparison, or ``-`` if the test made none."""
        return self.ours[0].scheme if self.ours else "-"


def judge_comparison(
    record: Comparison, arrays: Arrays, limits: Limits, wrong: Wrong | None = None
) -> Ours:
    """Return the gate's verdict on a comparison, with the limits that ``limits`` returns for its
    scheme. If ``wrong`` is given, judge ``wrong(output)`` instead of each output, to find out
    whether the gate rejects it."""
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
    judged_outputs = [wrong(output) for output in outputs] if wrong else outputs
    judgement = judge(references, judged_outputs, infos, rule)
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


def judge_test(
    entry: Entry,
    comparisons: Sequence[tuple[Comparison, Arrays]],
    limits: Limits,
    wrong: Wrong | None = None,
) -> Judged:
    """Return the result of one run of a test, from its journal entry and its comparisons."""
    with np.errstate(all="ignore"):
        ours = tuple(judge_comparison(*comparison, limits, wrong) for comparison in comparisons)
    rejected = [our for our in ours if our.findings]
    ending, reason = find_ending(entry, accepted=bool(ours) and not rejected)
    findings: tuple[Finding, ...] = ()
    if ending is Ending.PASSED and not ours:
        ending = Ending.ONE_SIDED
        findings = (INCONCLUSIVE.find("upstream compares no outputs: the test proves nothing"),)
    elif ending is Ending.PASSED and rejected:
        ending, findings = Ending.ONE_SIDED, rejected[0].findings
        reason = f"comparison {ours.index(rejected[0])}" if len(ours) > 1 else ""
    return Judged(entry.test, ending, reason, findings, ours, entry)


def find_ending(entry: Entry, *, accepted: bool) -> tuple[Ending, str]:
    """Return the result of a test according to upstream, and upstream's message if it did not pass.
    ``accepted`` states whether this project's gate accepts the outputs."""
    message = entry.message.strip() or "no reason was given"
    if entry.ran is Ran.LATE:
        return Ending.LATE, message
    if entry.ran is Ran.SKIPPED or entry.refusal:
        return Ending.UNSUPPORTED, entry.refusal or f"skipped by upstream: {message}"
    if entry.ran is Ran.LACKING:
        return Ending.UNSUPPORTED, message
    if entry.ran is Ran.PASSED:
        return Ending.PASSED, ""
    if entry.ran is Ran.DIED:
        return Ending.FAILED, " ".join(message.split())
    return Ending.FAILED, f"our gate accepts the outputs; {message}" if accepted else message


def merge_repeats(repeats: Sequence[Judged]) -> Judged:
    """Return one result for several runs of a test with the same inputs: the first if all have the
    same outcome. If the outcomes differ, the test is flaky, and the result is FAILED."""
    first = repeats[0]
    outcomes = Counter(judged.outcome for judged in repeats)
    if len(outcomes) == 1:
        return first
    counts = "; ".join(
        f"{outcome.value} in {number} of {len(repeats)} runs"
        for outcome, number in outcomes.items()
    )
    worst = next(judged for judged in repeats if judged.outcome is not Ending.PASSED)
    reason = "; ".join(filter(None, (f"flaky: {counts}", worst.reason)))
    return replace(worst, outcome=Ending.FAILED, reason=reason)
