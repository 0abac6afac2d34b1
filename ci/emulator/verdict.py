"""What a case's outputs prove: read, judged, explained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.emulator.judging.advice import advise_on_figures
from ci.emulator.judging.controls import is_rejected, make_controls
from ci.emulator.judging.figures import Outputs
from ci.emulator.judging.gate import Judgement, judge
from ci.emulator.outputs import References, read_outputs
from ci.emulator.policy import EmulatorPolicy
from ci.lowering.artifact import Lowered
from ci.lowering.cases import CaseSpec
from ci.report.schema import Control, Threshold


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
    judgement = judge(references.float32, references.quantized, made, limits)
    controls = tuple(feed_controls(spec, references.float32, references.quantized, limits))
    reasons = [*judgement.reasons]
    passing = [control.kind.value for control in controls if not control.rejected]
    if passing:
        reasons.append(f"the gate accepts {', '.join(passing)}: this case proves nothing")
    return Verdict(
        tuple(reasons),
        tuple(advise_on_figures(judgement, limits, lowered)),
        note_figures(judgement),
        controls,
    )


def feed_controls(
    spec: CaseSpec, reference: Outputs, quantized: Outputs | None, limits: Threshold
) -> Iterable[Control]:
    """The wrong outputs, made of the best that the gate could get: its reference."""
    right = quantized if quantized is not None else reference
    for kind, wrong in make_controls(right).items():
        rejected, sqnr_db = is_rejected(reference, quantized, wrong, limits)
        yield Control(
            model=spec.model,
            scheme=spec.scheme.value,
            soc=spec.soc,
            kind=kind,
            rejected=rejected,
            sqnr_db=round(sqnr_db, 2),
        )


def note_figures(judgement: Judgement) -> dict[str, object]:
    noted: dict[str, object] = {}
    against = {"": judgement.float_figures, "_quantized": judgement.quantized_figures}
    for suffix, figures in against.items():
        if figures:
            noted |= {
                f"sqnr_db{suffix}": figures.sqnr_db,
                f"cosine{suffix}": figures.cosine,
                f"max_abs{suffix}": figures.max_abs,
            }
    return noted
