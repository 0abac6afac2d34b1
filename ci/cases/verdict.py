"""What a case's outputs prove: read, judged, explained."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.cases.artifact import Lowered
from ci.cases.outputs import read_outputs, write_outputs
from ci.cases.policy import EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.judging.advice import advise_on_figures
from ci.judging.controls import is_rejected, make_control
from ci.judging.gate import Judgement, References, judge
from ci.report.schema import Control, ControlKind, Threshold


@dataclass(frozen=True)
class Verdict:
    """``reasons`` is empty for right outputs; ``figures`` are fields of a report's case."""

    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    figures: Mapping[str, object] = field(default_factory=dict)
    controls: tuple[Control, ...] = ()


def judge_case(
    spec: CaseSpec,
    references: References,
    directory: Path,
    lowered: Lowered,
    policy: EmulatorPolicy,
) -> Verdict:
    """Compare a runner's files, in ``outputs`` of the case's ``directory``, with both references,
    and feed the gate its controls."""
    try:
        made = read_outputs(directory / "outputs", lowered)
    except (OSError, ValueError) as error:
        return Verdict((f"run: {error}",))
    limits = policy.limits_of(spec.model, spec.scheme)
    judgement = judge(references, made, lowered.outputs, limits)
    scratch = directory / "controls"
    controls = tuple(feed_controls(spec, references, scratch, lowered, limits))
    shutil.rmtree(scratch, ignore_errors=True)
    passing = [control.kind.value for control in controls if not control.rejected]
    proof = [f"the gate accepts {', '.join(passing)}: this case proves nothing"] if passing else []
    return Verdict(
        (*judgement.reasons, *proof),
        tuple(advise_on_figures(judgement, references, made, lowered, limits)),
        note_figures(judgement),
        controls,
    )


def feed_controls(
    spec: CaseSpec, references: References, scratch: Path, lowered: Lowered, limits: Threshold
) -> Iterator[Control]:
    """Each kind of wrong outputs, made of the best that the gate could get, its reference, and
    read from files as a runner's are. The gate has to reject each output on its own."""
    right = [references.best(index)[0] for index in range(len(lowered.outputs))]
    scratch.mkdir()
    for kind in ControlKind:
        wrong = [make_control(kind, one, limits) for one in right]
        files = [one.values if bad is None else bad for one, bad in zip(right, wrong, strict=True)]
        write_outputs(scratch / kind.value, files)
        read = read_outputs(scratch / kind.value, lowered)
        results = [
            is_rejected(references, index, read[index], info, limits)
            for index, info in enumerate(lowered.outputs)
            if wrong[index] is not None
        ]
        if results:
            yield Control(
                model=spec.model,
                scheme=spec.scheme.value,
                soc=spec.soc,
                kind=kind,
                rejected=all(rejected for rejected, _ in results),
                sqnr_db=max((db for _, db in results if db is not None), default=None),
            )


def note_figures(judgement: Judgement) -> dict[str, object]:
    """The worst of every figure, as fields of a report's case; None where no output has it."""
    every = judgement.outputs
    channels = [one.channel for one in every if one.channel]
    channel = min(channels, key=lambda part: part.sqnr_db, default=None)
    index = next((n for n, one in enumerate(every) if one.channel is channel), 0)
    place = f"output {index}, {channel.place}" if channel and len(every) > 1 else ""
    fits = [one.fit for one in every if one.fit]
    noted: dict[str, object] = {
        "sqnr_db_channel": channel.sqnr_db if channel else None,
        "channel": place or (channel.place if channel else ""),
        "gain": max((1 + one.gain for one in fits), key=lambda gain: abs(gain - 1), default=None),
        "offset": max((one.offset for one in fits), key=abs, default=None),
        "equal": _least(one.equal for one in every),
        "equal_quantized": _least(one.equal_quantized for one in every),
    }
    against = {
        "": [one.float_figures for one in every if one.float_figures],
        "_quantized": [one.quantized_figures for one in every if one.quantized_figures],
    }
    for suffix, figures in against.items():
        noted[f"sqnr_db{suffix}"] = _least(one.sqnr_db for one in figures)
        noted[f"cosine{suffix}"] = _least(one.cosine for one in figures)
    noted["max_abs"] = max((one.max_abs for one in against[""]), default=None)
    return noted


def _least(figures: Iterable[float | None]) -> float | None:
    return min((one for one in figures if one is not None), default=None)
