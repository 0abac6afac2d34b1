"""Explains the findings of a case: where its program is wrong, why, and what to try."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from msgspec import structs

from ci.cases.engine import (
    STATE_AS_INPUT,
    Compiled,
    Delegation,
    Fallback,
    Program,
    Sets,
    name_buffers,
)
from ci.cases.facts import CaseFacts, Run
from ci.cases.lowering_findings import GUIDE, find_garbled, is_quantizing
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Diagnosis, Suspicion
from ci.diagnosis.experiments import Operator, Result
from ci.diagnosis.wording import (
    advise_on_diagnosis,
    answer_once,
    describe_cure,
    describe_proof,
    prove_cure,
)
from ci.facts.finding import (
    NO_ADVICE,
    STOPPING,
    Advice,
    Certainty,
    Finding,
    Proof,
    Question,
    advise,
)
from ci.facts.kinds import CLIPPED, LOST, METRIC_ERROR, ON_CPU, PART
from ci.facts.known_fault import KnownFault
from ci.judging.causes import (
    FLOAT16_BITS,
    MASKS,
    UNKNOWN,
    Departure,
    advise_on_decisions,
    advise_on_fusions,
    advise_on_numbers,
    advise_on_range,
    advise_on_reciprocals,
    advise_on_rounding,
    advise_on_softmax,
    is_likely,
    is_misfit,
    join,
    order_faults,
    spans_more_than,
)
from ci.judging.error_patterns import blames_runner
from ci.judging.figures import Array
from ci.judging.gate import References
from ci.judging.verdict import MODEL, OF_MODEL, SCHEME, Verdict
from ci.models.schemes import Mixture, Scheme, find_alternatives
from ci.models.tensors import Layer, Loss
from ci.report.schema import LayerFigures, NoiseNote

WEIGHTS_DB = 3.0  # if activations lose less than this, more bits for them help little
ACCURACY = frozenset({Question.FAITHFUL, Question.QUANTIZED})
NAMED = frozenset({Certainty.PROVEN, Certainty.KNOWN, Certainty.LIKELY, Certainty.UNKNOWN})
DECOMPOSED = re.compile(r"\(in (\w+)\)")  # in the reason of a node on the CPU
RAISED = re.compile(r" raised \w+")  # by the function of a user
OVERLOAD = re.compile(r"^aten\.|(?<=\w)\.\w+$")  # what PyTorch's name has besides the user's
UNTRIED = "no experiment was made to find the cause"
UNTRIED_FAULT = "not tried"
JUDGE_FLOAT = (
    "judge the float model from which the file was quantized, in the same types: the rewrites that"
    " experiments try change float models"
)
CONSTANTS_ONLY = "QNN1338"  # the rule for a part of a model without inputs


class Probes(Protocol):
    """What only a run of the case shows: of its program, its model or the user's code."""

    def locate(self) -> Departure:
        """Return the layer at which the program starts to differ from its model."""

    def diagnose(self, finding: Finding, suspicion: Suspicion) -> Diagnosis | str:
        """Return what experiments show of the cause of a finding, or why none are made."""

    def run_again(self, program: Program, run: Run) -> Sets:
        """Return the outputs of another run of a program, empty if it fails."""

    def name_operators(self, notes: tuple[NoiseNote, ...]) -> tuple[NoiseNote, ...]:
        """Return the notes with the operator that causes the errors."""

    def measure_metric(self, references: References, outputs: list[Array]) -> list[Finding]:
        """Return why the user's metric rejects the program."""

    def measure_remedy(
        self, faults: Sequence[KnownFault], *, approximate: bool = False
    ) -> float | None:
        """Return the SQNR in dB of the quantized model with the remedies of known faults, or None
        if they cannot be applied, or do not apply."""


class Reasons:
    """Explains the findings of one case. ``departure`` is the layer at which its program is wrong,
    ``diagnosis`` what experiments showed, and ``diagnosed`` the question of the finding that the
    diagnosis is for, and ``exceeded`` whether that is on a limit. ``untried`` is why there is none.
    Without ``probes``, no layer is located and no experiment made."""

    def __init__(self, facts: CaseFacts, probes: Probes | None) -> None:
        self.facts, self.probes = facts, probes
        self.departure = UNKNOWN
        self.diagnosis: Diagnosis | None = None
        self.diagnosed: Question | None = None
        self.exceeded = False
        self.untried = UNTRIED

    def explain(
        self, finding: Finding, verdict: Verdict, compiled: Compiled, *, is_traceable: bool
    ) -> Finding:
        """Return the first finding of a failed case with its causes, with the place where the
        accuracy is lost, and with what to try. ``is_traceable`` is whether a layer can be
        guilty."""
        explained_at_once = explain_at_once(
            finding, verdict, compiled, is_quantized=self.facts.spec.scheme.quantized
        )
        if explained_at_once:
            return explained_at_once
        question, departure = finding.question, UNKNOWN
        if self.probes and question is Question.FAITHFUL and is_traceable:
            with self.facts.notes.of("the layer at which accuracy is lost"):
                departure = self.probes.locate()
        self.departure = departure
        # A process that ran other programs is left first: the case is judged again.
        is_used = bool(self.facts.evidence.run and self.facts.evidence.run.used)
        if not is_used and (is_traceable or question is Question.QUANTIZED):
            with self.facts.notes.of("the cause, by experiments"):
                self.diagnose(finding)
        if self.diagnosis:
            self.facts.evidence.layers = mark_part(
                self.facts.evidence.layers,
                self.facts.evidence.layer_places,
                self.diagnosis.part,
            )
        faults = self.choose_causes(finding)
        is_part = finding.id == PART.id
        advice = self.advise_on_accuracy(verdict, compiled.loss, question, faults, is_part=is_part)
        layer = departure.layer
        if layer and not (faults and self.names_cause(question)):
            self.facts.evidence.culprit = f"wrong from {layer.label} on"
        places = layer.origin.places if layer else ()
        where = Advice(where=tuple(filter(None, [departure.text])), places=places)
        with self.facts.notes.of("the place where the model loses accuracy"):
            loss = compiled.loss
            # The loss is that of the whole output: where a part is lost, it names another layer.
            is_whole = question in {Question.QUANTIZED, Question.PROOF} and not is_part
            if loss and loss.name and is_whole:
                where += Advice(where=(describe_loss(loss),), places=loss.origin.places)
                finer = find_alternatives(self.facts.spec.scheme.base).finer
                # More bits keep the ranges.
                has_range = is_misfit(loss) or (compiled.clipped and not loss.coarse)
                if finer and not has_range and not self.facts.gains_faults(finer):
                    where += suggest_mixture(self.facts.spec, loss)
        return self.name_culprit(finding, faults).explained(advice + where)

    def advise_on_accuracy(
        self,
        verdict: Verdict,
        loss: Loss | None,
        question: Question,
        faults: Sequence[KnownFault],
        *,
        is_part: bool = False,
    ) -> Advice:
        """Return what explains a finding besides the known faults: the cause that experiments
        showed, or else that it is unknown, with what numbers and patterns make likely. ``is_part``
        is whether the finding is on a part of an output."""
        numbers = self.advise_on_numbers(loss, question, faults, is_part=is_part)
        if self.diagnosis and self.is_proven(question):
            shown = advise_on_diagnosis(self.diagnosis, [fault.fault for fault in faults])
            if faults and not self.names_cause(question):  # the fault says what is wrong
                shown = replace(shown, causes=())
            return verdict.explained_advice + shown + numbers
        advice = verdict.advice
        if faults or numbers.causes:
            advice = verdict.explained_advice
        elif question is Question.QUANTIZED and verdict.advice == NO_ADVICE:
            advice = SCHEME
        causes = advice.causes
        if self.departure.layer:  # the program is wrong inside, so what runs it is innocent
            causes = tuple(cause for cause in causes if not blames_runner(cause.text))
        if self.diagnosis:  # what experiments leave is more than a pattern of the outputs
            causes = tuple(cause for cause in causes if cause.certainty is not Certainty.LIKELY)
        advice = replace(advice, causes=causes) + numbers
        if self.diagnosis:
            advice += self.advise_on_vain(self.diagnosis)
        if self.facts.options.only_certain:
            certain = [cause for cause in advice.causes if cause.certainty is not Certainty.LIKELY]
            advice = replace(advice, causes=tuple(certain))
        is_named = any(cause.certainty in NAMED for cause in advice.causes)
        if question in ACCURACY and not is_named and not faults:
            advice += advise(self.untried, certainty=Certainty.UNKNOWN)
        return advice

    def advise_on_vain(self, diagnosis: Diagnosis) -> Advice:
        """Return what experiments say that showed no cause."""
        advice = advise_on_diagnosis(diagnosis)
        if self.facts.spec.scheme.base is Scheme.ASIS:
            advice += advise(fix=JUDGE_FLOAT)
        return advice

    def advise_on_numbers(
        self,
        loss: Loss | None,
        question: Question,
        faults: Sequence[KnownFault],
        *,
        is_part: bool,
    ) -> Advice:
        """Return what the numbers of the model explain. Where causes that are only likely are left
        out, what to do about them is, too."""
        advices = self.find_numbers(loss, question, faults, is_part=is_part)
        if self.facts.options.only_certain or self.is_proven(question):
            return join([advice for advice in advices if not is_only_likely(advice)])
        return join(advices)

    def is_proven(self, question: Question) -> bool:
        """Return whether experiments showed the cause of the finding on a question."""
        return bool(self.diagnosis and self.diagnosis.is_proven and question is self.diagnosed)

    def names_cause(self, question: Question) -> bool:
        """Return whether they showed what is wrong, and not only that more bits help."""
        return bool(self.diagnosis and self.diagnosis.names_cause and question is self.diagnosed)

    def leave_tried(self, finding: Finding) -> Finding:
        """Return a finding on nodes on the CPU without what is known to help elsewhere, if
        experiments found what makes the whole model right: that was tried with it."""
        diagnosis = self.diagnosis
        is_cured = self.is_proven(finding.question) and diagnosis and diagnosis.after.is_right
        is_tried = any(remedy.proof is Proof.TRIED for remedy in finding.remedies)
        if finding.id != ON_CPU.id or not is_cured or not is_tried:
            return finding
        remedies = [remedy for remedy in finding.remedies if remedy.proof is not Proof.PROVEN]
        return structs.replace(finding, remedies=tuple(remedies))

    def answer_once(self, finding: Finding) -> Finding:
        """Return a finding with one answer to why: next to a likely or a known cause, what
        experiments left open, and not that the cause is unknown."""
        diagnosis = self.diagnosis if finding.question is self.diagnosed else None
        return structs.replace(finding, causes=answer_once(finding.causes, diagnosis))

    def find_numbers(
        self,
        loss: Loss | None,
        question: Question,
        faults: Sequence[KnownFault],
        *,
        is_part: bool = False,
    ) -> tuple[Advice, ...]:
        """Return the causes of a lost accuracy that lie in the numbers of the model."""
        scheme = self.facts.spec.scheme
        sqnr_db = self.facts.evidence.figures.sqnr_db
        # A cause that a part shows may not be the only one: the range may lose as much elsewhere.
        range_ = advise_on_range(loss, self.departure, sqnr_db) if question in ACCURACY else ()
        certainties = [cause.certainty for advice in range_ for cause in advice.causes]
        is_named = bool(faults) or self.is_proven(question)
        if Certainty.PROVEN in certainties or (certainties and not is_named):
            return range_
        # Rewrites cure these two: where they were tried in vain, something else is the cause.
        was_tried = bool(self.diagnosis and self.diagnosis.tried)
        if question is Question.FAITHFUL and scheme.quantized:
            gain, bits = self.facts.evidence.figures.gain, scheme.base.recipe.activation_bits
            softmax = advise_on_softmax(self.facts.read_steps(), self.departure, gain, bits)
            reciprocals = () if was_tried else advise_on_reciprocals(loss, self.departure)
            return (*reciprocals, *(() if faults else softmax))
        decisions = advise_on_decisions(loss)
        if question is Question.PROOF:  # the decisions make the gate vague
            return decisions
        if question is not Question.QUANTIZED:
            return ()
        bits = scheme.base.recipe.activation_bits
        bits = FLOAT16_BITS if not scheme.quantized else bits if bits in MASKS else 0
        causes = advise_on_numbers(loss, bits, [fault.fault for fault in faults])
        named = (*decisions, *causes, *(() if was_tried else advise_on_fusions(loss)))
        # Constants that are no weights, such as the positions of large angles, are quantized, too:
        # the numbers say more than that quantized weights lose as much.
        # The figures are those of whole outputs: a part that the steps of its output lose was once
        # put down to the weights, which lost the most of the whole.
        if not scheme.quantized or named or self.is_proven(question) or is_part:
            return named
        return advise_on_rounding(loss, self.facts.evidence.figures.sqnr_db_scheme)

    def describe_suspicion(self, finding: Finding) -> Suspicion:
        """Return what is known of a finding before experiments."""
        figures, layer, steps = (
            self.facts.evidence.figures,
            self.departure.layer,
            self.facts.read_steps(),
        )
        reached = self.facts.reached_db
        is_quantization = finding.question is Question.QUANTIZED
        if is_quantization and self.facts.spec.scheme.quantized:
            reached = figures.sqnr_db_scheme
        finer = find_alternatives(self.facts.spec.scheme.base).finer
        if finding.id == ON_CPU.id:
            return self.suspect_cpu()
        line, worst = "", self.departure.worst
        case_result = Result(reached_db=reached, predicted_db=figures.predicted_sqnr_db)
        is_refused = finding.question in STOPPING
        if is_refused:
            case_result = Result(failure=finding.headline, is_refused=True)
            # A program that does not run because of its nodes on the CPU names no place.
            places = finding.places or self.find_first_on_cpu().origin.places
            line = f"{places[0].file}:{places[0].line}" if places else ""
        faults = dict.fromkeys(fault.fault for fault in self.suspect_faults(finding))
        return Suspicion(
            whole_result=case_result,
            first=name_layer(layer) if layer else ("", "", line),
            worst=name_layer(worst) if worst else ("", "", ""),
            faults=tuple(faults),
            count=len(steps),
            divides=is_refused or finding.question is Question.FAITHFUL,
            finer=finer.value if finer else "",
            wider=self.name_wider(),
            in_float16=not (is_refused or self.facts.spec.scheme.quantized),
        )

    def name_wider(self) -> str:
        """Return the float scheme that a user may choose instead, or "". A file that is quantized
        already has no other one."""
        scheme = self.facts.spec.scheme
        has_choice = scheme.quantized and scheme.base is not Scheme.ASIS
        return Scheme.FP16.value if has_choice else ""

    def suspect_cpu(self) -> Suspicion:
        """Return what is known of nodes on the CPU: how many there are, and the first one that the
        model's entry does not request."""
        first, left = self.find_first_on_cpu(), self.list_on_cpu()
        artifact = self.facts.evidence.artifact
        delegation = artifact.compiled.delegation if artifact else Delegation(0, 0, 0)
        line = str(first.origin) if first.origin.line else ""
        finer = find_alternatives(self.facts.spec.scheme.base).finer
        return Suspicion(
            whole_result=Result(
                reached_db=self.facts.reached_db,
                cpu_nodes=max(delegation.fallback_nodes, len(left)),
            ),
            first=(first.name, name_fallback(first), line),
            count=len(self.facts.read_steps()),
            finer=finer.value if finer else "",
            wider=self.name_wider(),
        )

    def list_on_cpu(self) -> list[Fallback]:
        """Return the nodes on the CPU that the model's entry does not request."""
        artifact = self.facts.evidence.artifact
        nodes = artifact.compiled.delegation.fallback_ops if artifact else ()
        return [node for node in nodes if not node.asked]

    def find_first_on_cpu(self) -> Fallback:
        """Return the first of these that does not only convert numbers, if there is one."""
        return min(self.list_on_cpu(), key=is_quantizing, default=Fallback("", ""))

    def choose_causes(self, finding: Finding) -> list[KnownFault]:
        """Return the known fault that causes a finding, with all of its places: the one that
        experiments showed, or else the likeliest of those that no experiment could try."""
        faults, question = self.suspect_faults(finding), finding.question
        # In float16, there is a single model: what was tried for one of these questions was tried
        # for the other one.
        is_shared = not self.facts.spec.scheme.quantized and {question, self.diagnosed} <= ACCURACY
        diagnosis = self.diagnosis if question is self.diagnosed or is_shared else None
        if question not in ACCURACY and not (diagnosis and diagnosis.names_cause):
            return [
                fault for fault in faults if not (diagnosis and diagnosis.excludes(fault.fault))
            ]
        if diagnosis and diagnosis.names_cause:
            # What was shown may be a known fault that nothing else suspected.
            suspects = list(dict.fromkeys((*faults, *self.facts.list_faults())))
            causes = diagnosis.choose_shown(suspects)
        elif self.facts.options.only_certain:
            return []
        else:
            causes = [
                fault
                for fault in faults
                if not (diagnosis and diagnosis.excludes(fault.fault))
                and not (diagnosis and diagnosis.finer in fault.schemes)
                and is_likely(
                    fault,
                    question,
                    self.facts.read_steps(),
                    self.departure,
                    self.facts.reached_db,
                    predicted_db=self.facts.evidence.figures.predicted_sqnr_db,
                )
            ]
        return [fault for fault in causes if fault.fault == causes[0].fault]

    def suspect_faults(self, finding: Finding) -> list[KnownFault]:
        """Return the known faults of the graph that can cause a finding, the likeliest first."""
        refused = finding.question in STOPPING
        return order_faults(
            self.facts.list_faults(refused=refused),
            finding.question,
            self.facts.read_steps(),
            self.departure,
            self.facts.reached_db,
            is_float16=not self.facts.spec.scheme.quantized,
        )

    def name_culprit(self, finding: Finding, faults: Sequence[KnownFault]) -> Finding:
        """Return a finding on a program that is not faithful with the known fault or the layer that
        causes the error in its headline, if the one is proven, or the other known."""
        if finding.question is not Question.FAITHFUL:
            return finding
        if self.names_cause(finding.question) and (fault := next(iter(faults), None)):
            names = (fault.label, *(cause.name for cause in fault.advice.causes))
            return finding.renamed(*(f"known fault {name}" for name in names))
        return (
            finding.renamed(self.facts.evidence.culprit) if self.facts.evidence.culprit else finding
        )

    def advise_on_faults(self, finding: Finding, faults: Sequence[KnownFault]) -> Advice:
        """Return the advice for the known faults that cause a finding, with how certain that is.
        Of a refusal, what experiments showed comes with it; ``explain`` has it for others."""
        advice = sum(join_faults(faults), NO_ADVICE)
        is_accuracy = finding.question in ACCURACY
        if self.diagnosis and self.names_cause(finding.question):
            advice = prove(advice, self.diagnosis)
            if not is_accuracy:
                advice += advise_on_diagnosis(self.diagnosis, [fault.fault for fault in faults])
            return advice
        if self.diagnosis and finding.question is self.diagnosed and self.diagnosed in STOPPING:
            advice += advise_on_diagnosis(self.diagnosis)  # unknown, with what was tried
        # What no rewrite cures, more bits may: what was shown agrees with the fault.
        agrees = is_accuracy and self.diagnosis and self.is_proven(finding.question)
        proof = (
            describe_proof(self.diagnosis, "tried") if agrees and self.diagnosis else UNTRIED_FAULT
        )
        return doubt(advice, proof) if is_accuracy else advice

    def advise_by_rules(self, finding: Finding, log: str) -> Advice:
        """Return what the rules for messages say about a finding. To nodes on the CPU that read
        garbled indices, they do not apply: to let the CPU compute these is no remedy."""
        artifact = self.facts.evidence.artifact
        is_garbled = bool(artifact and artifact.compiled.delegation.garbled)
        if is_garbled and finding.id == ON_CPU.id:
            return NO_ADVICE
        advice = self.facts.policy.advise([finding], log)
        # Rules know what tools say of a model, and not what a user's metric says of its arrays.
        is_raised = finding.id == METRIC_ERROR.id and RAISED.search(finding.headline)
        if is_raised and any(cause.name for cause in advice.causes):
            return NO_ADVICE
        if self.is_frozen(advice):
            frozen = self.facts.read_frozen()
            title = f"quantization freezes {name_buffers(frozen)}"
            return replace(advise_on_frozen(frozen), title=title)
        # A user's own row has no name. A rule knows a pattern, which no experiment decided.
        is_rule = any(cause.name for cause in advice.causes)
        # Those of limits only say that one was exceeded, as certain as that is: what was tried to
        # find out why would be left out beside them.
        if is_rule and self.diagnosis and self.exceeded and finding.question is self.diagnosed:
            return replace(advice, causes=())
        if is_rule and self.diagnosis and finding.question is self.diagnosed is Question.LOWERED:
            # Messages are often those of what follows: a weight that is computed from constants was
            # refused as a layer norm of more axes, and as an input that is changed in place.
            cure = self.diagnosis.cure
            if cure and not any(remedy.is_for_finding for remedy in cure):
                names = " and ".join(remedy.name for remedy in cure)
                return Advice(title=f"it is lowered with {names}")
        if not is_rule or finding.question not in ACCURACY:
            return advice
        # What the program with its layers is refused for says nothing against a proven cause.
        is_superfluous = self.facts.options.only_certain or self.names_cause(finding.question)
        return NO_ADVICE if is_superfluous else replace(doubt(advice), title="")

    def is_frozen(self, advice: Advice) -> bool:
        """Return whether what rules say about a refusal is due to state that quantization freezes:
        what computes the next state has no input then."""
        has_only_constants = any(cause.name == CONSTANTS_ONLY for cause in advice.causes)
        return has_only_constants and bool(self.facts.read_frozen())

    def diagnose(self, finding: Finding, *, repeats: bool = False, exceeded: bool = False) -> None:
        """Have experiments made for a finding, and record what they show. ``repeats`` is whether it
        must occur again first, and ``exceeded`` whether the case exceeded a limit."""
        if self.probes is None:
            return
        self.diagnosis, self.diagnosed, self.exceeded = None, finding.question, exceeded
        suspicion = self.describe_suspicion(finding)
        suspicion = replace(suspicion, repeats=repeats, exceeded=exceeded)
        shown = self.probes.diagnose(finding, suspicion)
        if isinstance(shown, Diagnosis):
            self.diagnosis = shown
        else:
            self.untried = shown


# An error of the program that is put down to a coarse quantization.
OF_PROGRAM = {LOST.id, CLIPPED.id}


def is_only_likely(advice: Advice) -> bool:
    """Return whether nothing shows the cause that an advice names."""
    certainties = {cause.certainty for cause in advice.causes}
    return certainties == {Certainty.LIKELY}


def explain_at_once(
    finding: Finding, verdict: Verdict, compiled: Compiled, *, is_quantized: bool
) -> Finding | None:
    """Return a finding with its cause if that needs no experiment, or None. ``is_quantized`` is
    whether the program has a quantized model."""
    question, garbled = finding.question, compiled.delegation.garbled
    if finding.id in OF_MODEL:
        return finding if finding.causes else finding.explained(MODEL)
    # What a quantized model lost, it has lost without the program.
    is_of_program = question in {Question.FAITHFUL, Question.TASK} or finding.id in OF_PROGRAM
    if garbled and (is_of_program or (question is Question.QUANTIZED and not is_quantized)):
        return find_garbled(garbled)
    # Nothing else explains what the second call returns.
    if question is Question.QUANTIZED and compiled.frozen:
        name = name_buffers(compiled.frozen)
        advice = advise_on_frozen(compiled.frozen)
        return finding.renamed(f"quantization freezes {name}").explained(advice)
    # The numbers of the outputs showed it.
    if any(cause.certainty is Certainty.PROVEN for cause in finding.causes):
        return finding.explained(verdict.advice)
    return None


def advise_on_frozen(names: Sequence[str]) -> Advice:
    """Return the cause that the quantized model has only the first values of buffers, and what
    helps. It was shown by an experiment: ci.models.eager.find_frozen."""
    return advise(
        f"the quantized model has only the first values of {name_buffers(names)}, which each call"
        " of the float32 model changes: ExecuTorch's quantizer makes a constant of what reads a"
        " buffer that is changed in place, or lets the change go to a copy",
        f"{STATE_AS_INPUT}; or write its new value with a single copy_, which is not frozen, as"
        f" self.{names[0]}.copy_(self.{names[0]} + 1), instead of +=, add_ or mul_",
        certainty=Certainty.MEASURED,
        proof=Proof.PROVEN,
    )


MOST_PLACES = 3  # of a known fault, besides the first


def join_faults(faults: Sequence[KnownFault]) -> Iterator[Advice]:
    """Yield the advice for each known fault once, with all of its places."""
    # A line in a loop, or a layer that is shared, has the fault at each of its calls.
    groups: dict[str, list[KnownFault]] = {}
    for fault in faults:
        groups.setdefault(fault.fault, []).append(fault)
    for first, *further_faults in groups.values():
        names = [further.place for further in further_faults]
        if len(names) > MOST_PLACES:
            names[MOST_PLACES:] = [f"and {len(names) - MOST_PLACES} more"]
        also = f"; also at {', '.join(names)}" if names else ""
        combined = sum((further.advice for further in further_faults), first.advice)
        causes = (structs.replace(cause, text=cause.text + also) for cause in first.advice.causes)
        yield replace(first.advice, causes=tuple(causes), places=combined.places)


def prove(advice: Advice, diagnosis: Diagnosis) -> Advice:
    """Return the advice for known faults whose remedy was tried as rewrites of mend, with both
    figures of the experiment."""
    proof = describe_proof(diagnosis)
    causes = []
    for cause in advice.causes:
        text = f"{cause.text} ({proof})"
        causes.append(structs.replace(cause, text=text, certainty=Certainty.PROVEN))
    remedies = advice.remedies or advise(fix=describe_cure(diagnosis)).remedies
    if diagnosis.cure:
        shown_by, rewrites = prove_cure(diagnosis)
        first = structs.replace(remedies[0], proof=shown_by, rewrites=rewrites)
        remedies = (first, *remedies[1:])
    return replace(advice, causes=tuple(causes), remedies=remedies)


def doubt(advice: Advice, proof: str = UNTRIED_FAULT) -> Advice:
    """Return the advice for known faults whose remedy was not tried. ``proof`` is what experiments
    showed that agrees with them."""
    causes = []
    for cause in advice.causes:
        text = f"{cause.text} ({proof})"
        causes.append(structs.replace(cause, text=text, certainty=Certainty.LIKELY))
    remedies = (structs.replace(remedy, proof=Proof.SUGGESTED) for remedy in advice.remedies)
    return replace(advice, causes=tuple(causes), remedies=tuple(remedies))


def name_layer(layer: Layer) -> tuple[str, str, str]:
    """Return a layer as a Suspicion has it: its node, what users call it, and its line."""
    return layer.node, layer.name.partition(" ")[0], str(layer.origin) if layer.origin.line else ""


def name_fallback(node: Fallback) -> str:
    """Return what users call the operator of a node on the CPU: the one that torch decomposed into
    it, or its own name, such as ``logsumexp`` of ``aten.logsumexp.default``."""
    call = DECOMPOSED.search(node.reason)
    return call[1] if call else OVERLOAD.sub("", node.op)


def mark_part(
    figures: Sequence[LayerFigures],
    places: Sequence[Collection[str]],
    part: Sequence[Operator],
) -> tuple[LayerFigures, ...]:
    """Return the figures of layers, of which those of a part's operators are marked. ``places`` are
    the node and the line of each layer. A line in a loop has many layers: lines count only if no
    layer has the node of an operator, because another graph has other names."""
    by_node: set[int] = set()
    by_line: set[int] = set()
    for operator in part:
        on_line = {number for number, names in enumerate(places) if operator.line in names}
        nodes = {operator.node, operator.name} - {""}
        named = {number for number, names in enumerate(places) if not nodes.isdisjoint(names)}
        by_node |= named & on_line if on_line else named
        by_line |= on_line
    marked = by_node or by_line
    return tuple(
        structs.replace(layer, in_part=number in marked) for number, layer in enumerate(figures)
    )


FIX = "fix: "  # before the remedy in a warning of a fault


def describe_fault(advice: Advice) -> str:
    """Return a known fault and its remedy in one line."""
    fixes = (f"{FIX}{remedy.text}" for remedy in advice.remedies)
    return "; ".join([*(cause.text for cause in advice.causes), *fixes])


def describe_loss(loss: Loss) -> str:
    """Return the layer at which the quantized model loses the most accuracy compared to the float32
    model."""
    reads = f"; it reads numbers up to {loss.largest:.4g}" if loss.largest else ""
    place = (
        f"the most accuracy is lost at {loss.name}{loss.origin.mark}: the SQNR is"
        f" {loss.before_db:.1f} dB before it and {loss.behind_db:.1f} dB after it"
    )
    if loss.is_float16:
        return f"{place}, if each result is rounded to float16{reads}"
    if loss.includes_weights:
        return f"{place}{reads}"
    return (
        f"{place}{reads}; with only the"
        f" weights quantized, the SQNR of the outputs is {loss.weights_db:.1f} dB"
    )


def suggest_mixture(spec: CaseSpec, loss: Loss) -> Advice:
    """Return the remedy to give more bits to the operators that lose the most, as a mixture to
    paste. There is none if the weights lose the most and a finer scheme has no finer weights, and
    for a scheme without a finer one."""
    base, choices = spec.scheme.base, spec.source.choices
    finer = find_alternatives(base).finer
    if not finer or not loss.nodes or choices.recipe:
        return NO_ADVICE
    if spans_more_than(loss, finer.recipe.activation_bits):
        return NO_ADVICE
    if finer.weight_bits == base.weight_bits and loss.weights_db < loss.behind_db + WEIGHTS_DB:
        return NO_ADVICE
    selector = "tensor" if base.recipe.activations else "node"
    parts = ", ".join(
        f'{{ {selector} = {json.dumps(name)}, scheme = "{finer.value}" }}' for name in loss.nodes
    )
    command = (
        f"put in front of the parts of {spec.scheme}: {parts}"
        if isinstance(spec.scheme, Mixture)
        else "add to [models.NAME]:"
        f' mixtures.finer = {{ base = "{base.value}", parts = [{parts}] }}'
    )
    return advise(fix=f"give the operators that lose the most more bits ({GUIDE}): {command}")
