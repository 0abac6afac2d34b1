"""Says what a diagnosis showed."""

from __future__ import annotations

from ci.diagnosis.diagnosis import Diagnosis
from ci.diagnosis.experiments import Result
from ci.facts.finding import NO_ADVICE, Advice, Certainty, Proof, advise

SHOWN = 4  # operators, or remedies that were tried


def describe_proof(diagnosis: Diagnosis) -> str:
    """Return both figures of the experiment that shows the cause, such as ``proven: the part (add,
    layer_norm) has 5.0 dB, and 68.4 with expand-constant``; empty if nothing is proven."""
    if not diagnosis.is_proven:
        return ""
    change = " and ".join(remedy.name for remedy in diagnosis.cure)
    change = f"with {change}" if change else "if it returns the results inside of it"
    word = "proven" if diagnosis.after.is_right else "in part, proven"
    subject = f"{name_subject(diagnosis)} has {show_db(diagnosis.before)}"
    return f"{word}: {subject}, and {show_db(diagnosis.after)} {change}"


def name_subject(diagnosis: Diagnosis) -> str:
    """Return what the experiments were made with."""
    if not diagnosis.part:
        return "the model"
    labels = [*dict.fromkeys(operator.label for operator in diagnosis.part)]
    shown = ", ".join(labels[:SHOWN]) + ("..." if len(labels) > SHOWN else "")
    return f"the part ({shown})"


def show_db(result: Result) -> str:
    """Return the SQNR of a result, or that there are no outputs."""
    return "no outputs" if result.reached_db is None else f"{result.reached_db:.1f} dB"


def advise_on_diagnosis(diagnosis: Diagnosis) -> Advice:
    """Return the cause that experiments showed, or what was tried in vain. A known fault states its
    cause itself, see KnownFault.proof."""
    proof = describe_proof(diagnosis)
    if diagnosis.cure:
        reasons = "; ".join(dict.fromkeys(remedy.reason for remedy in diagnosis.cure))
        titles = "; ".join(f"{remedy.title} ({remedy.name})" for remedy in diagnosis.cure)
        return advise(
            f"{reasons} ({proof})",
            f"write {titles}",
            certainty=Certainty.MEASURED,
            proof=Proof.TRIED,
        )
    if diagnosis.is_fused:
        return advise(
            f"QNN computes these operators together, and each of them alone is right ({proof})",
            "return a result inside of the part as a further output, or write one of its operators"
            " differently",
        )
    if not diagnosis.part and not diagnosis.tried:
        return NO_ADVICE
    tried = [
        f"{' and '.join(remedy.name for remedy in trial.remedies)}"
        f" ({trial.result.failure or show_db(trial.result)})"
        for trial in diagnosis.tried
    ]
    shown = ", ".join(tried[:SHOWN]) + (f" and {len(tried) - SHOWN} more" * (len(tried) > SHOWN))
    attempts = f"; tried: {shown}" if tried else ""
    subject = f"{name_subject(diagnosis)} has {show_db(diagnosis.before)}"
    ended = f"; {diagnosis.ended}" if diagnosis.ended else ""
    kept = f"; kept as {diagnosis.reproducer}" if diagnosis.reproducer else ""
    return Advice(where=(f"the cause is unknown: {subject}{attempts}{ended}{kept}",))
