"""Judges one case: compares the outputs of a run with the program's references. This module uses no
engine and no runner, so it can also judge outputs from another machine."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from ci.cases.baselines import find_changes
from ci.cases.costs import FaultCosts, warn_of_clipping, warn_of_loss
from ci.cases.engine import Compiled, Program
from ci.cases.facts import CaseFacts, CaseResult, Run
from ci.cases.lowering_findings import (
    CAST,
    ISLAND,
    expect,
    explain,
    find_fallbacks,
    find_floats,
    find_garbled,
    find_lost_types,
)
from ci.cases.outputs import OUTPUT, OUTPUTS, stack_outputs
from ci.cases.policy import find_advice
from ci.cases.pool import read_tail
from ci.cases.reasons import Probes, Reasons, advise_on_frozen, describe_fault, join_faults
from ci.cases.row import make_case
from ci.facts.finding import NO_ADVICE, STOPPING, Finding, Proof, Question, advise
from ci.facts.kinds import CHANGED, INCONCLUSIVE, INDICES, LACKING, NO_OUTPUTS, RUNNER, UNEXPECTED
from ci.facts.known_fault import KnownFault
from ci.judging.budget import find_excesses, find_predicted_slow, find_slow, suggest_tighter
from ci.judging.details import describe_outputs
from ci.judging.gate import References
from ci.judging.repeats import find_varied
from ci.judging.verdict import forgive, judge_outputs, keeps_metric
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo, write_sets
from ci.report.schema import Control, Status

NO_KERNEL = "error: 0x:14"  # ExecuTorch's OperatorMissing
NO_FLOAT = (
    "the quality of the quantization is not judged: to judge it, set `float_model` in the model's"
    " policy entry to the float model's file"
)


class CaseJudge:
    """Decides whether one case passes. Any step can end the case with a status and findings. What
    only a run shows is asked of ``probes``; without them, as for kept outputs, it stays unknown."""

    def __init__(self, facts: CaseFacts, probes: Probes | None = None) -> None:
        self.facts, self.probes = facts, probes
        self.reasons = Reasons(facts, probes)
        self.costs = FaultCosts(facts, probes)

    def judge_run(self, program: Program, references: References, run: Run) -> CaseResult:
        """Judge the result of a run by all limits of the case: accuracy, the user's metric,
        budgets, baselines and the delegation of nodes to QNN."""
        compiled = program.compiled
        log_tail = read_tail(program.log)
        self.facts.evidence.run = run
        try:
            outputs = [] if run.failure else stack_outputs(run.outputs, compiled)
        except ValueError as error:
            run = replace(run, failure=str(error))
        if run.failure:
            return self.end_failed(run, compiled, log_tail)
        if self.facts.options.keep:  # replaces the outputs of an earlier run
            shutil.rmtree(self.facts.directory / OUTPUTS, ignore_errors=True)
            write_sets(self.facts.directory / OUTPUTS, run.outputs, OUTPUT)
        self.facts.leave(*run.notes.files)
        with self.facts.notes.of("the details of the outputs"):
            self.facts.evidence.outputs = describe_outputs(references, outputs)
        verdict = judge_outputs(
            references,
            outputs,
            compiled.inputs,
            compiled.outputs,
            self.facts.limits,
            inputs_vary=self.facts.inputs_vary,
            made_inputs=compiled.made_inputs,
        )
        self.facts.evidence.figures, self.facts.evidence.controls = (
            verdict.figures,
            verdict.controls,
        )
        task = self.probes.measure_metric(references, outputs) if self.probes else []
        slow, nearly = find_slow(run.notes.device, self.facts.limits.budget)
        late, nearly_late = find_predicted_slow(
            self.facts.evidence.estimate, self.facts.limits.budget, self.facts.budget
        )
        all_findings = [*verdict.findings, *task, *self.find_excesses(compiled), *slow, *late]
        keeps_task = (
            keeps_metric(self.facts.metric, self.facts.evidence.metric)
            and not self.facts.limits.strict_noise
        )
        failing, forgiven = forgive(all_findings, self.facts.metric, keeps_task=keeps_task)
        self.facts.evidence.notes = (*verdict.notes, *(verdict.element_notes if keeps_task else ()))
        warnings = [*forgiven, *verdict.warnings]
        if self.facts.spec.scheme is Scheme.ASIS and verdict.figures.sqnr_db_scheme == math.inf:
            warnings.append(NO_FLOAT)  # the file is its own reference
        with self.facts.notes.of("tighter budgets"):
            warnings += [*suggest_tighter(compiled.footprint, self.facts.budget)]
        self.facts.evidence.warnings = (*warnings, *nearly, *nearly_late)
        inconclusive = verdict.inconclusive
        # Where rounding hides wrong outputs, the metric alone decides. A control that the gate
        # accepts would otherwise fail the session, so only the rejected ones stay in the report.
        if inconclusive and self.facts.evidence.metric and not task:
            self.facts.evidence.controls = tuple(
                control for control in verdict.controls if control.rejected
            )
            self.facts.evidence.warnings += (f"{inconclusive}, except for the metric",)
            inconclusive = ""
        findings = [
            *failing,
            *([INCONCLUSIVE.find(inconclusive)] if inconclusive else []),
            *self.compare_baseline(),
            *(RUNNER.find(fault) for fault in run.notes.faults),
            *self.delegation_faults(compiled),
        ]
        if not findings:
            findings += self.costs.find_drowned(references, outputs)
        # A type that was requested and not compiled fails the case, even if its outputs are good.
        lost = find_lost_types(compiled.retyped)
        if not findings and not lost:
            return self.end_passed(compiled, log_tail)
        findings += self.find_varied(program, run, findings)
        # Outputs that explain themselves, such as those of another sample, are not lowered again:
        # no layer is guilty. Nor may it be what an earlier program left in the process.
        is_traceable = not verdict.is_placed and not run.used
        for finding in findings[:1]:
            findings[0] = self.reasons.explain(
                finding, verdict, compiled, is_traceable=is_traceable
            )
        # Outputs show garbled indices, unless rounding has as large an effect on them.
        garbled = compiled.delegation.garbled
        if garbled and inconclusive and all(finding.id != INDICES.id for finding in findings):
            findings.insert(0, find_garbled(garbled))
        return self.end(Status.FAILED, [*lost, *findings], log_tail, remark=run.notes.remark)

    def find_varied(self, program: Program, run: Run, findings: Sequence[Finding]) -> list[Finding]:
        """Return the finding that a program that is not faithful has other outputs when it runs
        again; nothing if they are the same, or if it is not run again. If other programs ran in its
        process before, the case is judged again anyway."""
        is_wrong = any(finding.question is Question.FAITHFUL for finding in findings)
        if not self.probes or run.used or not is_wrong:
            return []
        return find_varied(run.outputs, self.probes.run_again(program, run))

    def end_passed(self, compiled: Compiled, log_tail: str) -> CaseResult:
        """End a case whose outputs are good, unless something that it requires is not proven."""
        remark = self.facts.evidence.run.notes.remark if self.facts.evidence.run else ""
        if unmet := self.find_unmet():
            return self.end(Status.FAILED, [unmet], log_tail, remark=remark)
        notes = self.facts.evidence.notes
        if notes and self.probes:
            with self.facts.notes.of("the operators that cause errors above the predicted noise"):
                self.facts.evidence.notes = self.probes.name_operators(notes)
        self.facts.evidence.warnings += warn_of_loss(self.facts, compiled.loss)
        self.facts.evidence.warnings += warn_of_clipping(self.facts, compiled.clipped)
        self.facts.evidence.warnings += (
            *self.costs.warn_of_faults(),
            *find_floats(compiled, self.facts.spec),
        )
        if compiled.frozen:
            advice = advise_on_frozen(compiled.frozen)
            self.facts.evidence.warnings += (f"{advice.causes[0].text}; {advice.remedies[0].text}",)
        return self.end(Status.PASSED, remark=remark)

    def end_failed(self, run: Run, compiled: Compiled, log_tail: str) -> CaseResult:
        """End a case whose program returned no outputs."""
        self.facts.evidence.lacks = run.lacks
        finding = NO_OUTPUTS.find(run.failure, advice=run.advice)
        if run.lacks:
            return self.end(Status.UNSUPPORTED, [LACKING.find(run.failure)], log_tail)
        if reason := self.find_refusal(finding, log_tail):
            return self.end(Status.UNSUPPORTED, [expect(finding, reason)], log_tail)
        if (run.by_runtime or run.died or run.exceeded) and not run.used:
            with self.facts.notes.of("the cause, by experiments"):
                self.reasons.diagnose(finding, repeats=run.died, exceeded=run.exceeded)
        findings = [finding, *self.delegation_faults(compiled)]
        if NO_KERNEL in run.failure:  # of a node on the CPU, which explains the failure
            findings.reverse()
        return self.end(Status.FAILED, [*findings, *self.find_excesses(compiled)], log_tail)

    def refuse(
        self, finding: Finding, log_tail: str, *, died: bool = False, exceeded: bool = False
    ) -> CaseResult:
        """End a case that was not lowered. Its status is ``unsupported`` if the policy expects the
        refusal, else ``failed``. ``died`` and ``exceeded`` are those of end_diagnosed."""
        if reason := self.find_refusal(finding):
            return self.end(Status.UNSUPPORTED, [expect(finding, reason)], log_tail)
        return self.end_diagnosed(finding, log_tail, died=died, exceeded=exceeded)

    def end_diagnosed(
        self, finding: Finding, log_tail: str, *, died: bool = False, exceeded: bool = False
    ) -> CaseResult:
        """End a case without a program, after experiments. ``died`` is whether the process that
        compiled it died, and ``exceeded`` whether a limit of time or memory ended it."""
        if not self.reasons.is_frozen(self.facts.policy.advise([finding], log_tail)):
            with self.facts.notes.of("the cause, by experiments"):
                self.reasons.diagnose(finding, repeats=died, exceeded=exceeded)
        return self.end(Status.FAILED, [finding], log_tail)

    def end(
        self,
        status: Status,
        findings: Sequence[Finding] = (),
        log_tail: str = "",
        *,
        remark: str = "",
    ) -> CaseResult:
        """Return the result of the case, with all known facts in its report row. The first finding
        of a failure, and that of a poor quantized model, get the known faults that the graph
        triggers and that can cause them. All other known faults are warnings."""
        spec, evidence = self.facts.spec, self.facts.evidence
        question = findings[0].question if findings else None
        # Without a program, only a fault that keeps QNN from making or loading one is a cause.
        refused = question in STOPPING
        faults = [] if status is Status.UNSUPPORTED else self.facts.list_faults(refused=refused)
        causes: list[KnownFault] = []
        causes_by_finding: dict[int, list[KnownFault]] = {}
        if status is Status.FAILED and findings:
            # Garbled indices are the cause, whatever known faults the graph has as well.
            is_garbled = findings[0].id == INDICES.id
            for number, finding in enumerate(findings):
                # The quantized model may have its own fault if the program is not faithful to it.
                is_own = finding.question is Question.QUANTIZED and (
                    self.facts.spec.scheme.quantized or not is_garbled
                )
                if is_own or (number == 0 and not is_garbled):
                    faults_of_finding = self.reasons.choose_causes(finding)
                    causes_by_finding[number] = [
                        fault for fault in faults_of_finding if fault not in causes
                    ]
                    causes += causes_by_finding[number]
            faults = [fault for fault in faults if not fault.only_stops]
        noted = [fault for fault in faults if fault not in causes]
        evidence.warnings += tuple(describe_fault(advice) for advice in join_faults(noted))
        if status is Status.FAILED and findings:
            # Often only the log shows why a process died or why an operator was refused.
            log = log_tail if findings[0].question in STOPPING else ""
            findings = [
                explain(failure, self.reasons.advise_by_rules(failure, "" if number else log))
                for number, failure in enumerate(findings)
            ]
            for number, causes_of_finding in causes_by_finding.items():
                advice = self.reasons.advise_on_faults(findings[number], causes_of_finding)
                findings[number] = findings[number].explained(advice)
            findings = [self.reasons.leave_tried(finding) for finding in findings]
            findings[0] = self.reasons.answer_once(findings[0])
            if causes and question is Question.LOWERED:
                labels = (causes[0].label, causes[0].fault)
                findings[0] = findings[0].renamed(*(f"known fault {label}" for label in labels))
            if not any(finding.places for finding in findings):
                with self.facts.notes.of("the line of the model's code"):
                    findings[0] = structs.replace(findings[0], places=self.facts.find_factory())
        compile_warnings = evidence.artifact.compiled.warnings if evidence.artifact else ()
        evidence.warnings += tuple(dict.fromkeys((*compile_warnings, *self.facts.notes)))
        case = make_case(
            spec,
            evidence,
            status=status,
            findings=tuple(findings),
            log_tail=log_tail,
            runner=self.facts.runner,
            metric_name=self.facts.metric.name if self.facts.metric and evidence.metric else "",
        )
        names = structs.asdict(spec.name)
        controls = tuple(Control(**names, **vars(control)) for control in evidence.controls)
        remarks = "; ".join(filter(None, [*self.facts.remarks, remark]))
        claims = {fault.fault: (fault.elsewhere, fault.schemes) for fault in causes}
        return CaseResult(case, controls, remarks, claims=claims)

    def compare_baseline(self) -> list[Finding]:
        """Return a finding for each SQNR that differs too much from this toolchain's baseline. The
        list is empty if the case has no baseline."""
        baseline = self.facts.options.recorded.get(str(self.facts.spec.name))
        if baseline is None:
            return []
        self.facts.evidence.baseline = baseline
        return [
            CHANGED.find(change) for change in find_changes(self.facts.evidence.figures, baseline)
        ]

    def delegation_faults(self, compiled: Compiled) -> list[Finding]:
        """Return a finding that lists the nodes on the CPU, if the policy requires full delegation.
        Nodes for which the model's entry requests the CPU are not listed."""
        left = [fallback for fallback in compiled.delegation.fallback_ops if not fallback.asked]
        if not self.facts.limits.full_delegation or not left:
            return []
        scheme, soc = self.facts.spec.scheme.base.value, self.facts.spec.soc
        # QNN writes indices, as of topk and sort, as int32, and nodes on the CPU read them as
        # int64.
        if compiled.delegation.garbled:  # to let the CPU compute these nodes is no remedy
            return [find_fallbacks(left).explained(CAST)]
        advice_of_nodes = (
            find_advice(fallback, scheme, soc, self.facts.policy) for fallback in left
        )
        islands = ISLAND if self.facts.spec.source.choices.discard_nodes else NO_ADVICE
        return [find_fallbacks(left).explained(sum(advice_of_nodes, islands))]

    def require_outputs(self, outputs: Sequence[TensorInfo]) -> None:
        """Raise UsageError if the model's entry has limits without an effect for its outputs."""
        model, scheme = self.facts.spec.model, self.facts.spec.scheme
        for error in self.facts.policy.find_unused_limits(model, scheme, outputs):
            raise error

    def find_excesses(self, compiled: Compiled) -> tuple[Finding, ...]:
        """Return each limit of the case's budget that the program or its lowering exceeds, or that
        cannot be checked."""
        return tuple(find_excesses(compiled.footprint, self.facts.limits.budget, self.facts.budget))

    def find_refusal(self, finding: Finding, log_tail: str = "") -> str:
        """Return the policy's explanation if it expects this case to be refused with this finding
        or message, or "" if it does not."""
        spec, choices = self.facts.spec, str(self.facts.spec.source.choices)
        return self.facts.policy.expects_refusal(
            spec.model, spec.scheme, spec.soc, [finding], choices=choices, log=log_tail
        )

    def find_unmet(self) -> Finding | None:
        """Return why this case should not have passed, if a strict row of the policy expects its
        refusal."""
        spec, choices = self.facts.spec, str(self.facts.spec.source.choices)
        expected = self.facts.policy.find_unmet(spec.model, spec.scheme, spec.soc, choices)
        if not expected:
            return None
        fix = (
            "remove that row from [[unsupported]] or narrow its globs; set strict = false if only"
            " some of its cases are refused"
        )
        return UNEXPECTED.find(
            "the case passed, but the policy expects it to be unsupported",
            details=(expected,),
            advice=advise(fix=fix, proof=Proof.PROVEN),
        )
