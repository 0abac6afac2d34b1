"""Says what a diagnosis showed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ci.diagnosis.diagnosis import Diagnosis, loses
from ci.diagnosis.experiments import SHRINK, TIME_IS_UP, RemedyChoice, Result, RunPart
from ci.facts.finding import ANSWERS, NO_ADVICE, Advice, Cause, Certainty, Proof, advise
from ci.facts.kinds import NOISE
from ci.models.rounding import FLOAT16_MAX
from ci.models.schemes import Scheme
from ci.report.text import count

PRECISION = "docs/guides/precision.md"
SHOWN = 4  # operators, or remedies that were tried
NO_REMEDY = "experiments found no remedy"
MORE_TIME = "a larger --diagnose, or `localise`, tries more"


def describe_proof(diagnosis: Diagnosis, verb: str = "proven") -> str:
    """Return both figures of the experiment that shows the cause, such as ``proven: the part (add,
    layer_norm) has 5.0 dB, and 68.4 with expand-constant``; empty if nothing is proven. ``verb`` is
    what the figures do."""
    if not diagnosis.is_proven:
        return ""
    change = " and ".join(remedy.name for remedy in diagnosis.cure)
    if change:
        change = f"with {change}"
    elif diagnosis.finer:
        change = describe_form(RunPart((), scheme=diagnosis.finer, operator=diagnosis.single))
    elif diagnosis.form:
        change = describe_form(diagnosis.form)
    elif diagnosis.change:
        change = f"with {diagnosis.change.title}"
    else:
        change = describe_form(RunPart((), returns_all=True))
    word = verb if diagnosis.after.is_right else f"in part, {verb}"
    proof = f"{word}: {name_subject(diagnosis)} has {show_pair(diagnosis.before, diagnosis.after)}"
    proof = f"{proof} {change}"
    if diagnosis.on_whole:
        before, after = diagnosis.on_whole
        if after.failure and before.reached_db is not None:  # the model has outputs without it
            return f"{proof}; the whole model has no outputs with it: {after.failure}"
        proof = f"{proof}; the whole model has {show_pair(before, after)} with it"
    # Of a model that is refused without the cure, the outputs are seen only with it.
    last_result = diagnosis.on_whole[1] if diagnosis.on_whole else diagnosis.after
    has_wrong_outputs = last_result.is_wrong and not diagnosis.before.cpu_nodes
    is_all = diagnosis.cures_whole and not has_wrong_outputs
    if second := diagnosis.second:
        causes = "; ".join(filter(None, (second.headline, second.cause)))
        return f"{proof}, so something else is wrong, too: {causes}"
    return proof if is_all else f"{proof}, so something else is wrong, too"


def describe_form(form: RunPart) -> str:
    """Return another form of a part in words, such as ``with softmax as its definition``."""
    if form.returns_all:
        return "if it returns the results inside of it"
    if form.scheme:
        subject = f"with {form.operator} " if form.operator else ""
        return f"{subject}in {form.scheme}"
    if form.doubled:
        return "with two samples as one input"
    if form.shrunk:
        return f"with the numbers that it reads divided by {SHRINK}"
    return f"with {form.decomposed} as its definition"


def show_pair(before: Result, after: Result) -> str:
    """Return the results without and with a change, such as ``5.0 dB, and 68.4 dB``. Of nodes on
    the CPU, with the accuracy that the change costs, if it costs any."""
    counts_nodes = bool(before.cpu_nodes)
    is_none = counts_nodes and not (after.cpu_nodes or after.is_wrong)
    shown_after = "none" if is_none else show_result(after, counts_nodes=counts_nodes)
    pair = f"{show_result(before, counts_nodes=counts_nodes)}, and {shown_after}"
    if before.cpu_nodes and loses(after, before):
        pair += f" ({after.reached_db:.1f} dB instead of {before.reached_db:.1f})"
    return pair


def prove_cure(diagnosis: Diagnosis) -> tuple[Proof, tuple[str, ...]]:
    """Return what shows that the remedies of the cure work, and their names for mend; neither if
    the whole model gains nothing by them."""
    if not diagnosis.cures_whole:
        return Proof.SUGGESTED, ()
    further = diagnosis.second.rewrites if diagnosis.second else ()
    return Proof.TRIED, (*(remedy.name for remedy in diagnosis.cure), *further)


def describe_cure(diagnosis: Diagnosis) -> str:
    """Return what to write instead, with the names of the rewrites, and what helps against what is
    wrong then; empty if none cures it."""
    titles = "; ".join(f"{remedy.title} ({remedy.name})" for remedy in diagnosis.cure)
    further = diagnosis.second.fix if diagnosis.second else ""
    return "; then ".join(filter(None, (f"write {titles}" if titles else "", further)))


def name_subject(diagnosis: Diagnosis) -> str:
    """Return what the experiments were made with."""
    if not diagnosis.part:
        return "the model"
    labels = [*dict.fromkeys(operator.label for operator in diagnosis.part)]
    shown = ", ".join(labels[:SHOWN]) + ("..." if len(labels) > SHOWN else "")
    return f"the part ({shown})"


def show_result(result: Result, *, counts_nodes: bool) -> str:
    """Return the SQNR of a result, how many nodes are on the CPU, or that there are no outputs.
    ``counts_nodes`` is whether nodes on the CPU are what the experiments are about."""
    if result.cpu_nodes:
        nodes = f"{count(result.cpu_nodes, 'node')} on the CPU"
        return f"{nodes} and wrong outputs" if result.is_wrong else nodes
    if counts_nodes and result.is_wrong:
        return "none, but wrong outputs"
    return "no outputs" if result.reached_db is None else f"{result.reached_db:.1f} dB"


def advise_on_diagnosis(diagnosis: Diagnosis, named: Collection[str] = ()) -> Advice:
    """Return the cause that experiments showed, or that it is unknown, with what was tried in vain.
    The known faults that are ``named`` state their cause and its remedy themselves, see
    KnownFault."""
    proof = describe_proof(diagnosis)
    if diagnosis.cure and not diagnosis.is_only_of_part:
        remedies = [remedy for remedy in diagnosis.cure if {*named}.isdisjoint(remedy.cures)]
        if not remedies:
            return NO_ADVICE
        reasons = "; ".join(dict.fromkeys(name_reason(remedy, diagnosis) for remedy in remedies))
        shown_by, rewrites = prove_cure(diagnosis)
        return advise(
            f"{reasons} ({proof})" if reasons else "",
            describe_cure(diagnosis),
            certainty=Certainty.PROVEN,
            proof=shown_by,
            rewrites=rewrites,
        )
    if cause := advise_on_forms(diagnosis, proof):
        return cause
    if diagnosis.change:
        return advise(f"{diagnosis.change.reason} ({proof})", certainty=Certainty.PROVEN)
    lead = "no experiment shows the cause"
    if diagnosis.before.cpu_nodes:
        lead = "no change that is known lets QNN take all operators"
    facts = "; ".join(list_facts(diagnosis))
    return advise(f"{lead}: {facts}", certainty=Certainty.UNKNOWN)


def advise_on_forms(diagnosis: Diagnosis, proof: str) -> Advice | None:
    """Return the cause that another form of the part, or other types in it, showed; None if none
    did."""
    is_untaken = bool(diagnosis.before.cpu_nodes or diagnosis.before.is_refused)
    form = diagnosis.form
    if diagnosis.is_fused:
        cause = "QNN computes these operators together, and each of them alone is right"
        fix = "return a result inside of the part as a further output, or write one of its"
        fix += " operators differently"
    elif diagnosis.finer:
        subject = diagnosis.single or "these operators"
        cause = f"QNN computes {subject} less accurately than the bits of the scheme allow"
        if is_untaken:
            cause = f"QNN does not take {subject} with the bits of the scheme"
        pronoun = "it" if diagnosis.single else "them"
        fix = f"give {pronoun} the bits of {diagnosis.finer}, as a part of a mixture ({PRECISION})"
        if diagnosis.finer == Scheme.FP16.value:
            fix = f"lower the model in {diagnosis.finer}"
    elif form and form.decomposed:
        cause = f"QNN computes {form.decomposed} wrongly as one operator"
        if is_untaken:
            cause = f"QNN does not take {form.decomposed} as one operator"
        fix = f"write {form.decomposed} with the operators of its definition"
    elif form and form.shrunk:
        cause = "QNN computes these operators wrongly with numbers as large as these: float16 holds"
        cause += f" numbers up to {FLOAT16_MAX:g}"
        fix = "scale what they read, as by a constant factor that a norm behind them removes again"
    elif form:
        cause = "QNN computes these operators wrongly in this size"
        if is_untaken:
            cause = "QNN does not take these operators in this size"
        fix = "give the model inputs of another size, such as another batch"
    else:
        return None
    return advise(f"{cause} ({proof})", fix, certainty=Certainty.PROVEN)


def name_reason(remedy: RemedyChoice, diagnosis: Diagnosis) -> str:
    """Return why a remedy of the cure helps. One that is known for wrong numbers may also replace
    operators that QNN does not take."""
    if remedy.is_for_finding:
        return remedy.reason
    if diagnosis.before.cpu_nodes:
        return "QNN does not take these operators as they are written"
    if diagnosis.before.is_refused and NOISE.id in remedy.cures:
        return "these operators are refused as they are written"
    return remedy.reason


def list_trials(diagnosis: Diagnosis) -> list[str]:
    """Return the remedies that did not help: those that were tried on the part, if there is one,
    and those that were tried on the whole model."""
    counts_nodes = bool(diagnosis.before.cpu_nodes)
    of_part: list[str] = []
    of_whole: list[str] = []
    for trial in diagnosis.tried:
        names = " and ".join(remedy.name for remedy in trial.remedies)
        shown = trial.result.failure or show_result(trial.result, counts_nodes=counts_nodes)
        (of_whole if trial.on_whole and diagnosis.part else of_part).append(f"{names} ({shown})")
    facts = [f"tried: {shorten_list(of_part)}"] if of_part else []
    if of_whole:
        facts.append(f"tried on the whole model: {shorten_list(of_whole)}")
    if not (facts or diagnosis.ended):
        facts.append("no known rewrite applies to it")
    return facts


def list_facts(diagnosis: Diagnosis) -> list[str]:
    """Return what is known of a cause that experiments did not show, and what was tried."""

    def show(result: Result) -> str:
        return show_result(result, counts_nodes=bool(diagnosis.before.cpu_nodes))

    facts = [f"{name_subject(diagnosis)} has {show(diagnosis.before)}"]
    if diagnosis.on_whole and diagnosis.is_only_of_part:
        names = " and ".join(remedy.name for remedy in diagnosis.cure)
        facts[0] += f", and {show(diagnosis.after)} with {names}"
        facts.append(f"the whole model has {show_pair(*diagnosis.on_whole)} with it")
    facts += list_trials(diagnosis)
    if diagnosis.examined:
        examined = [
            f"{describe_form(form)} ({result.failure or show(result)})"
            for form, result in diagnosis.examined
        ]
        facts.append(f"also run {', '.join(examined)}")
    if diagnosis.second and diagnosis.spoilt:
        names = " and ".join(remedy.name for remedy in diagnosis.spoilt)
        causes = filter(None, (diagnosis.second.headline, diagnosis.second.cause))
        facts.append(f"with {names}, the model is {': '.join(causes)}")
    if diagnosis.untried:
        left = [remedy.name for remedy in diagnosis.untried]
        facts.append(f"not tried: {shorten_list(left)}")
    if diagnosis.ended == TIME_IS_UP:
        facts.append(f"{TIME_IS_UP}: {MORE_TIME}")
    elif diagnosis.ended:
        facts.append(diagnosis.ended)
    facts += [f"reproducer: {diagnosis.reproducer}"] if diagnosis.reproducer else []
    return facts


def shorten_list(names: Sequence[str]) -> str:
    """Return the first SHOWN names, and how many follow."""
    further = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {further} more" if further > 0 else "")


def answer_once(causes: Sequence[Cause], diagnosis: Diagnosis | None) -> tuple[Cause, ...]:
    """Return the causes of a finding with one answer to why. Next to one that is likely or known,
    that the cause is unknown would be a second answer: what the experiments left open is said
    instead, if any were made; or nothing, next to a known one."""
    certainties = {cause.certainty for cause in causes}
    if certainties.isdisjoint(ANSWERS) or Certainty.UNKNOWN not in certainties:
        return tuple(causes)
    decided = tuple(cause for cause in causes if cause.certainty is not Certainty.UNKNOWN)
    is_known = Certainty.KNOWN in certainties
    if diagnosis is None or diagnosis.is_proven:
        return decided if is_known else tuple(causes)
    if is_known and not (diagnosis.tried or diagnosis.part or diagnosis.ended):
        return decided
    facts = "; ".join(list_facts(diagnosis))
    left_open = Cause(text=f"{NO_REMEDY}: {facts}", certainty=Certainty.UNKNOWN)
    return (*decided, left_open)
