"""The result of a test: upstream's verdict and this project's, for the same outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from msgspec import structs

from ci.judging.figures import Array
from ci.judging.gate import Expected, References, judge
from ci.judging.noise import Prediction
from ci.judging.verdict import CaseFigures, name_reasons, summarize_figures
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold
from ci.upstream.journal import Entry, Ran
from ci.upstream.kept import Arrays, Comparison, Member
from ci.upstream.stubs import LACKS, NEEDS

MIXED = "mixed"
Limits = Callable[[Scheme], Threshold]
Wrong = Callable[[Array], Array]


class Ending(str, Enum):
    """The result of a test. ``ONE_SIDED`` shows that upstream's tolerances are too wide."""

    PASSED = "passed by both"
    ONE_SIDED = "passed by theirs, failed by ours"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    LATE = "timed out"


@dataclass(frozen=True)
class Ours:
    """The verdict of this project's gate on a comparison. ``reasons`` is empty if it accepts the
    outputs. ``accepts_zeros`` is true if it would also accept zeros."""

    scheme: str
    reasons: tuple[str, ...]
    figures: CaseFigures
    accepts_zeros: bool
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A test with both verdicts. ``reason`` is why it did not pass both."""

    test: str
    outcome: Ending
    reason: str = ""
    ours: tuple[Ours, ...] = ()
    entry: Entry | None = None

    @property
    def scheme(self) -> str:
        return self.ours[0].scheme if self.ours else "-"


def judge_comparison(
    record: Comparison, arrays: Arrays, limits: Limits, wrong: Wrong | None = None
) -> Ours:
    """Judge one comparison. ``wrong`` is an optional function that first falsifies the outputs."""
    rule = limits(Scheme(record.scheme)) if record.scheme else Threshold(scheme=MIXED)
    infos = tuple(replace_bool(one) for one in record.outputs)
    outputs = stack(arrays[Member.OUTPUT], infos)
    references = make_references(record, arrays, infos)
    zeros = judge(references, [np.zeros_like(one) for one in outputs], infos, rule)
    given = [wrong(one) for one in outputs] if wrong else outputs
    judgement = judge(references, given, infos, rule)
    reasons = [*name_reasons(judgement.reasons), *(record.lacks if judgement.reasons else ())]
    if zeros.accepted:
        reasons.append("proves nothing: our gate accepts zeros instead of the outputs")
    return Ours(
        record.scheme or MIXED,
        tuple(reasons),
        summarize_figures(judgement),
        zeros.accepted,
        record.lacks,
    )


def make_references(record: Comparison, arrays: Arrays, infos: Sequence[TensorInfo]) -> References:
    """Return both models' outputs and the prediction. If a model's outputs could not be computed,
    the values with which upstream compares are used."""
    own = Member.FLOAT if record.scheme == Scheme.FP16.value else Member.QUANTIZED
    wanted = arrays.get(own) or arrays[Member.UPSTREAM]
    low, high = (arrays.get(bound) or wanted for bound in (Member.LOW, Member.HIGH))
    bounds = (stack(one, infos) for one in (wanted, low, high))
    best = [Expected(*one) for one in zip(*bounds, strict=True)]
    noise = [
        Prediction(one.values, finite(runs.reshape(-1, *one.values.shape)), info)
        if len(runs)
        else None
        for one, runs, info in zip(
            best, arrays.get(Member.NOISE) or [np.empty(0)] * len(best), infos, strict=True
        )
    ]
    if own is Member.FLOAT:
        return References(best, None, noise)
    eager = stack(arrays.get(Member.FLOAT) or wanted, infos)
    return References([Expected(one, one, one) for one in eager], best, noise)


def finite(runs: Array) -> Array:
    """Return the disturbed runs without NaN and infinity; if fewer than two remain, two zero
    runs."""
    kept: Array = runs[np.isfinite(runs).reshape(len(runs), -1).all(1)]
    return kept if len(kept) > 1 else np.zeros((2, *runs.shape[1:]), np.float32)


def stack(arrays: Sequence[Array], infos: Sequence[TensorInfo]) -> list[Array]:
    """Return arrays as [input set, *shape] with one set; booleans become bytes. A quantized model
    may return a scalar as [1]."""
    return [
        (one.view(np.uint8) if one.dtype == bool else one).reshape(1, *info.shape)
        for one, info in zip(arrays, infos, strict=True)
    ]


def replace_bool(info: TensorInfo) -> TensorInfo:
    return structs.replace(info, dtype="uint8") if info.dtype == "bool" else info


def judge_test(
    entry: Entry,
    comparisons: Sequence[tuple[Comparison, Arrays]],
    limits: Limits,
    wrong: Wrong | None = None,
) -> Judged:
    """Judge a run of a test according to its comparisons."""
    with np.errstate(all="ignore"):
        ours = tuple(judge_comparison(*one, limits, wrong) for one in comparisons)
    outcome, reason = name_outcome(entry, ours)
    return Judged(entry.test, outcome, reason, ours, entry)


def name_outcome(entry: Entry, ours: Sequence[Ours]) -> tuple[Ending, str]:
    """Return a test's result and the reason."""
    told = entry.told.strip()
    last = told.splitlines()[-1] if told else ""
    if entry.ran is Ran.LATE:
        return Ending.LATE, last
    if entry.ran is Ran.SKIPPED or entry.refusal:
        return Ending.UNSUPPORTED, entry.refusal or f"skipped by upstream: {last}"
    if lacking := next((line for line in told.splitlines() if NEEDS in line or LACKS in line), ""):
        return Ending.UNSUPPORTED, lacking.strip()
    rejected = [one for one in ours if one.reasons]
    if entry.ran is not Ran.PASSED:
        accepted = "; our gate accepts what it compared" if ours and not rejected else ""
        why = " ".join(told.split()) if entry.ran is Ran.DIED else summarize_told(told)
        return Ending.FAILED, f"{why}{accepted}"
    if not ours:
        return Ending.ONE_SIDED, "upstream compares no outputs"
    if rejected:
        place = f"comparison {ours.index(rejected[0])}: " if len(ours) > 1 else ""
        return Ending.ONE_SIDED, f"{place}{'; '.join(rejected[0].reasons)}"
    return Ending.PASSED, ""


def summarize_told(told: str) -> str:
    """Return the line of a traceback that has the error, or else the last line."""
    lines = [line for line in told.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or [line.strip() for line in lines[-1:]] or ["no reason was given"])[0][:500]


def merge_repeats(every: Sequence[Judged]) -> Judged:
    """Return one result for several runs of a test with the same inputs. If their results differ,
    the test is flaky and has failed."""
    first = every[0]
    outcomes = list(dict.fromkeys(one.outcome for one in every))
    if len(outcomes) == 1:
        return first
    counts = ", ".join(
        f"{one.value} {sum(other.outcome is one for other in every)} times" for one in outcomes
    )
    worst = next(one for one in every if one.outcome is not Ending.PASSED)
    return replace(worst, outcome=Ending.FAILED, reason=f"flaky: {counts}; {worst.reason}")
