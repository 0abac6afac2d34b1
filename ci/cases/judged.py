"""Judges one case: compares the outputs of a run with the program's references and makes the report
row. This module uses no engine and no runner, so it can also judge outputs from another machine."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import structs

from ci.analysis.steps import Step
from ci.cases.baselines import Baseline, find_changes
from ci.cases.cache import Artifact
from ci.cases.engine import (
    FLOAT,
    INPUTS,
    QUANTIZING,
    STATE_AS_INPUT,
    STEPS,
    Compiled,
    Fallback,
    Garbled,
    Notes,
    Program,
    RunNotes,
    Sets,
    list_places,
    name_buffers,
    read_steps,
)
from ci.cases.outputs import OUTPUT, OUTPUTS, stack_outputs
from ci.cases.policy import EmulatorPolicy, find_advice
from ci.cases.pool import read_tail
from ci.cases.qnn_files import PARAMS, SAVER, SAVER_CALLS, count_operators
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Diagnosis, Suspicion
from ci.diagnosis.experiments import Result
from ci.diagnosis.wording import advise_on_diagnosis, describe_cure, describe_proof
from ci.facts.finding import (
    HEADLINE_CHARS,
    NO_ADVICE,
    Advice,
    Certainty,
    Figure,
    Finding,
    Place,
    Proof,
    Question,
    advise,
    shorten,
)
from ci.facts.kinds import (
    CHANGED,
    INCONCLUSIVE,
    INDICES,
    LACKING,
    NO_NODE,
    NO_OUTPUTS,
    ON_CPU,
    PART,
    RETYPED,
    RUNNER,
    UNEXPECTED,
)
from ci.facts.known_fault import KnownFault
from ci.judging.budget import find_excesses, find_predicted_slow, find_slow, suggest_tighter
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
    join,
    order_faults,
    spans_more_than,
)
from ci.judging.details import describe_outputs
from ci.judging.error_patterns import blames_runner
from ci.judging.figures import Array, Nearness, find_nearness, measure_variation
from ci.judging.gate import References, find_drowned
from ci.judging.verdict import (
    CALIBRATE,
    MODEL,
    OF_MODEL,
    SCHEME,
    CaseFigures,
    ControlResult,
    Verdict,
    forgive,
    judge_outputs,
    keeps_metric,
)
from ci.latency.estimate import Line
from ci.models.schemes import Mixture, Scheme, find_alternatives
from ci.models.source_lines import find_factory, find_suite_model
from ci.models.tensors import FLOAT_BITS, WEIGHTS, Loss, Retyped, name_type, write_sets
from ci.models.user_models import MetricResult, is_suite
from ci.report.schema import (
    AskedFacts,
    Case,
    Clipped,
    Control,
    Digests,
    Estimate,
    FallbackOp,
    JudgementFacts,
    LayerFigures,
    NoiseNote,
    OnDeviceFacts,
    OpCount,
    OutputFigures,
    ProgramFacts,
    ProgramFile,
    RunFacts,
    Status,
)
from provisioning.console.user_folder import UserFolder
from provisioning.documents import CONTENT_BYTES, read_text
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import UsageError
from provisioning.manifest.targets import Backend

SHOWN_OPS = 4
# One case at a time writes the record of the files next to the report.
LEAVING = threading.Lock()
WEIGHTS_DB = 3.0  # if activations lose less than this, more bits for them help little
GUIDE = "docs/guides/precision.md"
# Measured with ExecuTorch 1.5.1 and QNN 2.49.40, see GUIDE.
ISLAND = advise(  # without an error number, for which manifests/policies/errors.toml has a cause
    "ExecuTorch 1.5.1 makes no float16 islands in a quantized model: most operators before a"
    " quantized one are quantized anyway, and of 18 operators at the end of a model, QNN 2.49.40"
    " takes only softmax in float",
    f"remove it from discard_nodes, and give it 16 bits as a part of a mixture ({GUIDE})",
)
ACCURACY = frozenset({Question.FAITHFUL, Question.QUANTIZED})
NAMED = frozenset({Certainty.PROVEN, Certainty.KNOWN, Certainty.LIKELY, Certainty.UNKNOWN})
UNTRIED = "no experiment was made to find the cause"
UNCOMPARED = "the outputs were not compared with the emulator's"
# To nodes on the CPU that read indices of QNN
CAST = advise(
    fix="cast the indices first: as they are, these nodes read garbled indices on the CPU"
)
NO_KERNEL = "error: 0x:14"  # ExecuTorch's OperatorMissing
NO_FLOAT = (
    "the quality of the quantization is not judged: to judge it, set `float_model` in the model's"
    " policy entry to the float model's file"
)


class Diagnoser(Protocol):
    """Finds causes by experiments, see ci.diagnosis."""

    def refuse(self, spec: CaseSpec) -> str:
        """Return why no experiment can be made with a case; empty if experiments can be."""

    def diagnose(self, run: Any, finding: Finding, suspicion: Suspicion) -> Diagnosis:
        """Return what experiments show of the cause of a finding of the CaseRun ``run``."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked of a run. ``session`` names the lane, such as test_emulator."""

    policy: EmulatorPolicy
    session: str = ""
    specs: Sequence[CaseSpec] = ()
    started: str = ""  # UTC, in ISO 8601
    timeout_s: float  # for each job: compiling, running, or measuring the metric
    jobs: int = 1  # cases that run in parallel
    use_cache: bool = True
    keep: Path | None = None  # gets a directory per case, with everything that belongs to it
    files_directory: Path | None = None  # gets a directory per case, with files such as profiles
    record: bool = False  # whether the run records baselines instead of comparing with them
    baselines: Path | None = None  # the directory of baselines for the user's models
    recorded: Mapping[str, Baseline] = field(default_factory=dict)  # baselines, keyed by case
    command: str = ""  # the start of the command that repeats a case, for the report
    backend: Backend = Backend.HTP
    estimate: bool = False  # whether the time of each case on a device is predicted
    own_lines: tuple[Line, ...] = ()  # of the user's devices
    # Takes a graph's steps, a scheme and a QNN version, and whether QNN compiled the whole graph.
    # Returns the known faults that the graph triggers.
    find_faults: Callable[..., Sequence[KnownFault]] = lambda *_, **__: ()
    # Takes a case and its known faults. Returns a job for a worker that measures the SQNR in dB of
    # the quantized model with their remedies, or None if they have no remedy that can be applied.
    make_remedy_job: Callable[..., Callable[[], float] | None] = lambda *_, **__: None
    # Does the experiments that show the cause of a red verdict; None if there are none.
    experiments: Diagnoser | None = None
    only_certain: bool = False  # whether causes that no experiment showed are left out
    locates: bool = True  # whether the first wrong layer of a program is looked for


@dataclass(frozen=True)
class CaseResult:
    """The report row of a case, its controls, a remark to print on the terminal, a note for the
    report, and claims of the known faults."""

    case: Case
    controls: tuple[Control, ...] = ()
    remark: str = ""
    noted: str = ""
    # For each known fault that is a cause: what it says of other schemes, and the schemes with it.
    claims: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of running a program: outputs, or a failure. ``used`` is true if the program's
    process had run other programs before. If a device was lost during the run, ``lacks`` names
    it. ``advice`` is what is known about the cause of a failure."""

    outputs: Sets = ()
    failure: str = ""
    advice: Advice = NO_ADVICE
    lacks: str = ""
    notes: RunNotes = field(default_factory=RunNotes)
    wall_s: float = 0.0
    used: bool = False


@dataclass(kw_only=True)
class Evidence:
    """The facts known about a case so far. A field keeps its default until the step that sets it
    has run."""

    artifact: Artifact | None = None
    cached: bool = False
    compiler: str = ""
    qnn_ops: tuple[OpCount, ...] = ()
    run: Run | None = None
    figures: CaseFigures = field(default_factory=CaseFigures)
    controls: tuple[ControlResult, ...] = ()
    metric: MetricResult | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[NoiseNote, ...] = ()
    baseline: Baseline | None = None
    culprit: str = ""  # the layer from which on the program differs from its model
    lacks: str = ""
    is_defect: bool = False
    outputs: tuple[OutputFigures, ...] = ()
    layers: tuple[LayerFigures, ...] = ()
    estimate: Estimate | None = None
    nearness: Nearness | None = None  # how close a device's outputs are to the emulator's


class CaseJudge:
    """Judges one case, step by step. Any step can end the case with a status and findings.
    ``directory`` is a scratch directory, and ``runner`` the name of what computed the outputs."""

    def __init__(self, spec: CaseSpec, options: Options, directory: Path, runner: str) -> None:
        self.spec, self.options, self.directory, self.runner = spec, options, directory, runner
        self.policy = self.options.policy
        self.limits = self.policy.limits_of(spec.model, spec.scheme)
        self.budget = self.policy.budget_of(spec.model, spec.scheme)
        self.memory_bytes = self.policy.memory_of(spec.model)
        entry = self.policy.find_entry(spec.model)
        self.metric = entry.metric
        self.limits_time = {self.budget.cycles, self.budget.ms} != {None}
        is_asked = self.options.estimate or self.limits_time or entry.estimate
        self.estimates = is_asked and self.options.backend is Backend.HTP
        self.inputs_vary: float | None = None  # see judge_outputs; None if it is not known
        self.evidence = Evidence()
        self.departure = UNKNOWN
        self.layer_places: Sequence[Collection[str]] = ()  # node and line of each of the layers
        self.diagnosis: Diagnosis | None = None
        self.diagnosed: Question | None = None  # of the finding that the diagnosis is for
        self.untried = UNTRIED  # with the reason, if the lane cannot make experiments
        self.remarks: list[str] = []
        self.notes = Notes()  # become warnings

    def compare_emulator(self, outputs: Sets, emulated: Sets, compiled: Compiled) -> None:
        """Record how close a device's outputs are to the emulator's outputs for the same program.
        If they cannot be compared, add a remark."""
        try:
            stacked = [stack_outputs(result, compiled) for result in (emulated, outputs)]
        except ValueError as error:
            self.remarks.append(f"{UNCOMPARED}: {error}")
        else:
            self.evidence.nearness = find_nearness(zip(*stacked, strict=True))

    def note_inputs(self, sets: Sets) -> None:
        """Record how much the inputs differ between samples."""
        with self.notes.of("how much the inputs differ"):
            columns = zip(*sets, strict=True)
            self.inputs_vary = measure_variation(np.stack(column) for column in columns)

    def note_program(self, directory: Path, artifact: Artifact) -> None:
        """Record facts about a program, and keep the files that QNN's Saver wrote.

        Saver is a QNN backend that records API calls. It supports the same operators as HTP, so it
        lists exactly the program's operators.
        """
        self.evidence.artifact = artifact
        with self.notes.of("the version of QNN that compiled the program"):
            # Known faults belong to the build of QNN that compiled the program, so the program is
            # asked.
            binary = directory / artifact.compiled.binary  # missing if QNN took no operator
            build = find_qnn_build(binary) if binary.is_file() else None
            self.evidence.compiler = build.text if build else ""
        calls = directory / SAVER / SAVER_CALLS
        if calls.is_file():
            self.leave(calls, calls.with_name(PARAMS))
            with self.notes.of("the operators passed to QNN"):
                # The names in it need not be UTF-8.
                text = read_text(calls, "replace", CONTENT_BYTES)
                self.evidence.qnn_ops = count_operators(text)

    def judge_run(self, program: Program, references: References, run: Run) -> CaseResult:
        """Judge the result of a run by all limits of the case: accuracy, the user's metric,
        budgets, baselines and the delegation of nodes to QNN."""
        compiled = program.compiled
        log_tail = read_tail(program.log)
        self.evidence.run = run
        try:
            outputs = [] if run.failure else stack_outputs(run.outputs, compiled)
        except ValueError as error:
            run = replace(run, failure=str(error))
        if run.failure:
            return self.end_failed(run, compiled, log_tail)
        if self.options.keep:  # replaces the outputs of an earlier run
            shutil.rmtree(self.directory / OUTPUTS, ignore_errors=True)
            write_sets(self.directory / OUTPUTS, run.outputs, OUTPUT)
        self.leave(*run.notes.files)
        with self.notes.of("the details of the outputs"):
            self.evidence.outputs = describe_outputs(references, outputs)
        verdict = judge_outputs(
            references,
            outputs,
            compiled.inputs,
            compiled.outputs,
            self.limits,
            inputs_vary=self.inputs_vary,
            made_inputs=compiled.made_inputs,
        )
        self.evidence.figures, self.evidence.controls = verdict.figures, verdict.controls
        task = self.measure_metric(references, outputs)
        slow, nearly = find_slow(run.notes.device, self.limits.budget)
        late, nearly_late = find_predicted_slow(
            self.evidence.estimate, self.limits.budget, self.budget
        )
        all_findings = [*verdict.findings, *task, *self.find_excesses(compiled), *slow, *late]
        keeps_task = (
            keeps_metric(self.metric, self.evidence.metric) and not self.limits.strict_noise
        )
        failing, forgiven = forgive(all_findings, self.metric, keeps_task=keeps_task)
        self.evidence.notes = (*verdict.notes, *(verdict.element_notes if keeps_task else ()))
        warnings = [*forgiven, *verdict.warnings]
        if self.spec.scheme is Scheme.ASIS and verdict.figures.sqnr_db_scheme == math.inf:
            warnings.append(NO_FLOAT)  # the file is its own reference
        with self.notes.of("tighter budgets"):
            warnings += [*suggest_tighter(compiled.footprint, self.budget)]
        self.evidence.warnings = (*warnings, *nearly, *nearly_late)
        inconclusive = verdict.inconclusive
        # Where rounding hides wrong outputs, the metric alone decides. A control that the gate
        # accepts would otherwise fail the session, so only the rejected ones stay in the report.
        if inconclusive and self.evidence.metric and not task:
            self.evidence.controls = tuple(
                control for control in verdict.controls if control.rejected
            )
            self.evidence.warnings += (f"{inconclusive}, except for the metric",)
            inconclusive = ""
        findings = [
            *failing,
            *([INCONCLUSIVE.find(inconclusive)] if inconclusive else []),
            *self.compare_baseline(),
            *(RUNNER.find(fault) for fault in run.notes.faults),
            *self.delegation_faults(compiled),
        ]
        if not findings:
            findings += self.find_drowned(references, outputs)
        # A type that was requested and not compiled fails the case, even if its outputs are good.
        lost = find_lost_types(compiled.retyped)
        if not findings and not lost:
            return self.end_passed(compiled, log_tail)
        # Outputs that explain themselves, such as those of another sample, are not lowered again:
        # no layer is guilty. Nor may it be what an earlier program left in the process.
        is_traceable = not verdict.is_placed and not run.used
        for finding in findings[:1]:
            findings[0] = self.explain(finding, verdict, compiled, is_traceable=is_traceable)
        return self.end(Status.FAILED, [*lost, *findings], log_tail, remark=run.notes.remark)

    def end_passed(self, compiled: Compiled, log_tail: str) -> CaseResult:
        """End a case whose outputs are good, unless something that it requires is not proven."""
        remark = self.evidence.run.notes.remark if self.evidence.run else ""
        if unmet := self.find_unmet():
            return self.end(Status.FAILED, [unmet], log_tail, remark=remark)
        if notes := self.evidence.notes:
            with self.notes.of("the operators that cause errors above the predicted noise"):
                self.evidence.notes = self.name_operators(notes)
        self.evidence.warnings += self.warn_of_loss(compiled.loss)
        self.evidence.warnings += self.warn_of_clipping(compiled.clipped)
        self.evidence.warnings += (*self.warn_of_faults(), *find_floats(compiled, self.spec))
        if compiled.frozen:
            advice = advise_on_frozen(compiled.frozen)
            self.evidence.warnings += (f"{advice.causes[0].text}; {advice.remedies[0].text}",)
        return self.end(Status.PASSED, remark=remark)

    def explain(
        self, finding: Finding, verdict: Verdict, compiled: Compiled, *, is_traceable: bool
    ) -> Finding:
        """Return the first finding of a failed case with its causes, with the place where the
        accuracy is lost, and with what to try. ``is_traceable`` is whether a layer can be
        guilty."""
        if finding.id in OF_MODEL:
            return finding if finding.causes else finding.explained(MODEL)
        question, departure = finding.question, UNKNOWN
        if indices := self.find_garbled(compiled, question):
            return indices
        # Nothing else explains what the second call returns: it needs no experiment.
        if question is Question.QUANTIZED and compiled.frozen:
            name = name_buffers(compiled.frozen)
            return finding.renamed(f"quantization freezes {name}").explained(
                advise_on_frozen(compiled.frozen)
            )
        if question is Question.FAITHFUL and is_traceable:
            with self.notes.of("the layer at which accuracy is lost"):
                departure = self.locate()
        self.departure = departure
        # A process that ran other programs is left first: the case is judged again.
        is_used = bool(self.evidence.run and self.evidence.run.used)
        if not is_used and (is_traceable or question is Question.QUANTIZED):
            with self.notes.of("the cause, by experiments"):
                self.diagnosis, self.diagnosed = self.diagnose(finding), question
        if self.diagnosis:
            part = {place for operator in self.diagnosis.part for place in operator.places}
            self.evidence.layers = mark_part(self.evidence.layers, self.layer_places, part)
        faults = self.choose_causes(finding)
        advice = self.advise_on_accuracy(verdict, compiled.loss, question, faults)
        layer = departure.layer
        if layer and not (faults and self.is_proven(question)):
            self.evidence.culprit = f"wrong from {layer.label} on"
        places = layer.origin.places if layer else ()
        where = Advice(where=tuple(filter(None, [departure.text])), places=places)
        with self.notes.of("the place where the model loses accuracy"):
            loss = compiled.loss
            # The loss is that of the whole output: where a part is lost, it names another layer.
            is_whole = question in {Question.QUANTIZED, Question.PROOF} and finding.id != PART.id
            if loss and loss.name and is_whole:
                where += Advice(where=(describe_loss(loss),), places=loss.origin.places)
                where += suggest_mixture(self.spec, loss)
        return self.name_culprit(finding, faults).explained(advice + where)

    def advise_on_accuracy(
        self,
        verdict: Verdict,
        loss: Loss | None,
        question: Question,
        faults: Sequence[KnownFault],
    ) -> Advice:
        """Return what explains a finding besides the known faults: the cause that experiments
        showed, or else that it is unknown, with what numbers and patterns make likely."""
        numbers = join(self.find_numbers(loss, question, faults))
        if self.diagnosis and self.is_proven(question):
            shown = advise_on_diagnosis(self.diagnosis, [fault.fault for fault in faults])
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
            advice += advise_on_diagnosis(self.diagnosis)
        if self.options.only_certain:
            certain = [cause for cause in advice.causes if cause.certainty is not Certainty.LIKELY]
            advice = replace(advice, causes=tuple(certain))
        is_named = any(cause.certainty in NAMED for cause in advice.causes)
        if question in ACCURACY and not is_named and not faults:
            advice += advise(self.untried, certainty=Certainty.UNKNOWN)
        return advice

    def is_proven(self, question: Question) -> bool:
        """Return whether experiments showed the cause of the finding on a question."""
        return bool(self.diagnosis and self.diagnosis.is_proven and question is self.diagnosed)

    def find_numbers(
        self, loss: Loss | None, question: Question, faults: Sequence[KnownFault]
    ) -> tuple[Advice, ...]:
        """Return the causes of a lost accuracy that lie in the numbers of the model."""
        scheme = self.spec.scheme
        sqnr_db = self.evidence.figures.sqnr_db
        is_accuracy = question in ACCURACY and not faults
        if is_accuracy and (range_ := advise_on_range(loss, self.departure, sqnr_db)):
            return range_
        # Rewrites cure these two: where they were tried in vain, something else is the cause.
        was_tried = bool(self.diagnosis and self.diagnosis.tried)
        if question is Question.FAITHFUL and scheme.quantized:
            gain, bits = self.evidence.figures.gain, scheme.base.recipe.activation_bits
            softmax = advise_on_softmax(self.read_steps(), self.departure, gain, bits)
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
        if not scheme.quantized or named or self.is_proven(question):
            return named
        return advise_on_rounding(loss, self.evidence.figures.sqnr_db_scheme)

    def find_garbled(self, compiled: Compiled, question: Question) -> Finding | None:
        """Return the finding that nodes on the CPU read the indices of another operator with the
        wrong type, if the outputs are wrong and there are such nodes."""
        garbled = compiled.delegation.garbled
        if not garbled or question not in {Question.FAITHFUL, Question.QUANTIZED, Question.TASK}:
            return None
        return find_garbled(garbled)

    def diagnose(self, finding: Finding) -> Diagnosis | None:
        """Return what experiments show of the cause of a finding. This class returns nothing,
        because it runs no program. CaseRun overrides this."""
        del finding
        return None

    def describe_suspicion(self, finding: Finding) -> Suspicion:
        """Return what is known of a finding before experiments."""
        figures, layer, steps = self.evidence.figures, self.departure.layer, self.read_steps()
        reached = self.reached_db
        is_quantization = finding.question is Question.QUANTIZED
        if is_quantization and self.spec.scheme.quantized:
            reached = figures.sqnr_db_scheme
        finer = find_alternatives(self.spec.scheme.base).finer
        line = str(layer.origin) if layer and layer.origin.line else ""
        faults = dict.fromkeys(fault.fault for fault in self.suspect_faults(finding))
        return Suspicion(
            whole=Result(reached_db=reached, predicted_db=figures.predicted_sqnr_db),
            first=(layer.node, layer.name.partition(" ")[0], line) if layer else ("", "", ""),
            faults=tuple(faults),
            count=len(steps),
            divides=finding.question is Question.FAITHFUL,
            finer=finer.value if finer else "",
        )

    def choose_causes(self, finding: Finding) -> list[KnownFault]:
        """Return the known fault that causes a finding, with all of its places: the one that
        experiments showed, or else the likeliest of those that no experiment could try."""
        faults, question = self.suspect_faults(finding), finding.question
        diagnosis = self.diagnosis if question is self.diagnosed else None
        if question not in ACCURACY and not (diagnosis and diagnosis.is_proven):
            return [
                fault for fault in faults if not (diagnosis and diagnosis.excludes(fault.fault))
            ]
        if diagnosis and diagnosis.is_proven:
            # What was shown may be a known fault that nothing else suspected.
            suspects = list(dict.fromkeys((*faults, *self.list_faults())))
            shown = [fault for fault in suspects if diagnosis.shows(fault.fault)]
            # A lane may name nodes otherwise than the file that it rewrites.
            causes = [
                fault for fault in shown if diagnosis.shows(fault.fault, list_marks(fault))
            ] or shown
        elif self.options.only_certain:
            return []
        else:
            causes = [
                fault
                for fault in faults
                if not (diagnosis and diagnosis.excludes(fault.fault))
                and is_likely(
                    fault,
                    question,
                    self.read_steps(),
                    self.departure,
                    self.reached_db,
                    predicted_db=self.evidence.figures.predicted_sqnr_db,
                )
            ]
        return [fault for fault in causes if fault.fault == causes[0].fault]

    def suspect_faults(self, finding: Finding) -> list[KnownFault]:
        """Return the known faults of the graph that can cause a finding, the likeliest first."""
        refused = finding.question in {Question.LOWERED, Question.RUN}
        return order_faults(
            self.list_faults(refused=refused),
            finding.question,
            self.read_steps(),
            self.departure,
            self.reached_db,
            is_float16=not self.spec.scheme.quantized,
        )

    @property
    def reached_db(self) -> float | None:
        """The SQNR of the outputs in dB: against the quantized model, if there is one."""
        figures = self.evidence.figures
        quantized_db = figures.sqnr_db_quantized
        return figures.sqnr_db if quantized_db is None else quantized_db

    def warn_of_loss(self, loss: Loss | None) -> tuple[str, ...]:
        """Return where a quantized model that is just above its limit loses its accuracy, as a
        warning, unless the user's metric judges the model."""
        required_db, db = self.limits.min_sqnr_db_all, self.evidence.figures.sqnr_db_scheme
        if (
            not (loss and loss.name)
            or self.metric
            or required_db is None
            or db is None
            or db > required_db + NEAR_DB
        ):
            return ()
        near = (
            f"the quantized model has only {db - required_db:.1f} dB more than the"
            f" {required_db:g} dB required"
            if db >= required_db
            else f"on one of the samples, the quantized model has only {db:.1f} dB; over all "
            f"samples together, {required_db:g} dB are required"
        )
        return (f"{near}; {describe_loss(loss)}",)

    def warn_of_clipping(self, clipped: Sequence[Clipped]) -> tuple[str, ...]:
        """Return which tensors leave their calibrated ranges, as a warning, if the quantized model
        is near a limit or below one that does not fail the case, or if the user's metric has
        lost some of its allowed drop. Clipping is then the likely cause, and easily mended."""
        if not clipped:
            return ()
        reached = self.evidence.figures.sqnr_db_scheme
        near = False
        if reached is not None:
            limits = (self.limits.min_sqnr_db_all, self.limits.min_sqnr_db)
            near = any(
                limit_db is not None and reached <= limit_db + NEAR_DB for limit_db in limits
            )
        has_dropped = self.evidence.metric and not keeps_metric(self.metric, self.evidence.metric)
        if not near and not has_dropped:
            return ()
        first, *further = clipped
        also = f" (also clipped: {', '.join(tensor.name for tensor in further)})" if further else ""
        return (f"{first}{also}; {CALIBRATE}",)

    @cached_property
    def costs_of_model(self) -> tuple[str, ...]:
        """What known faults cost the quantized model, measured with their remedies; empty if that
        is less than COSTLY_DB."""
        faults = [fault for fault in self.list_faults() if fault.is_scheme]
        reached = self.evidence.figures.sqnr_db_scheme
        if not faults or reached is None or not math.isfinite(reached):
            return ()
        with self.notes.of("the cost of the known faults"):
            cured = self.measure_remedy(faults)
            if cured is not None and cured - reached >= COSTLY_DB:
                cost = describe_cost(faults, "the quantized model", reached, cured, "measured")
                return (cost,)
        return ()

    def find_drowned(self, references: References, outputs: Sequence[Array]) -> Iterator[Finding]:
        """Yield the channel that loses most to a known fault of the quantized model, if its errors
        are larger than its values, unless a metric judges the model. Without the fault, the scheme
        is known to do better."""
        if self.metric or not self.costs_of_model:
            return
        channels = [
            (db, name, f"output {index}" if len(outputs) > 1 else "")
            for index, pair in enumerate(zip(references.float32, outputs, strict=True))
            for name, db in find_drowned(pair[0].values, pair[1])
        ]
        if channels:
            db, name, subject = min(channels)
            yield PART.find(
                f"SQNR {db:.1f} dB in {name}: zeros would be nearer",
                subject=subject,
                details=list(self.costs_of_model),
                figures=(Figure(name="sqnr_all", value=db, unit="dB", allowed=0.0),),
            )

    def warn_of_faults(self) -> Iterator[str]:
        """Yield what a known fault costs a passed case, if that is COSTLY_DB or more: compared with
        the predicted rounding or, if the quantized model itself is wrong, with the quantized model
        that has the fault's remedy."""
        figures = self.evidence.figures
        faults = self.list_faults()
        of_program = [fault for fault in faults if not fault.is_scheme]
        reached, predicted = figures.sqnr_db_quantized, figures.predicted_sqnr_db
        reached = figures.sqnr_db if reached is None else reached
        lost = predicted - reached if predicted is not None and reached is not None else 0.0
        if of_program and lost >= COSTLY_DB:
            yield describe_cost(
                of_program, "the program", reached or 0.0, predicted or 0.0, "predicted"
            )
        yield from self.costs_of_model

    def measure_remedy(
        self, faults: Sequence[KnownFault], *, approximate: bool = False
    ) -> float | None:
        """Return the SQNR in dB of the quantized model with the remedies of known faults. This
        class returns None, because it runs no model. CaseRun overrides this."""
        del faults, approximate
        return None

    def name_culprit(self, finding: Finding, faults: Sequence[KnownFault]) -> Finding:
        """Return a finding on a program that is not faithful with the known fault or the layer that
        causes the error in its headline, if the one is proven, or the other known."""
        if finding.question is not Question.FAITHFUL:
            return finding
        if self.is_proven(finding.question) and (fault := next(iter(faults), None)):
            names = (fault.label, *(cause.name for cause in fault.advice.causes))
            return finding.renamed(*(f"known fault {name}" for name in names))
        return finding.renamed(self.evidence.culprit) if self.evidence.culprit else finding

    def end_failed(self, run: Run, compiled: Compiled, log_tail: str) -> CaseResult:
        """End a case whose program returned no outputs."""
        self.evidence.lacks = run.lacks
        finding = NO_OUTPUTS.find(run.failure, advice=run.advice)
        if run.lacks:
            return self.end(Status.UNSUPPORTED, [LACKING.find(run.failure)], log_tail)
        if reason := self.find_refusal(finding, log_tail):
            return self.end(Status.UNSUPPORTED, [expect(finding, reason)], log_tail)
        findings = [finding, *self.delegation_faults(compiled)]
        if NO_KERNEL in run.failure:  # of a node on the CPU, which explains the failure
            findings.reverse()
        return self.end(Status.FAILED, [*findings, *self.find_excesses(compiled)], log_tail)

    def locate(self) -> Departure:
        """Return the layer at which a program starts to differ from its model. This class returns
        nothing, because it runs no program. CaseRun overrides this."""
        return UNKNOWN

    def name_operators(self, notes: tuple[NoiseNote, ...]) -> tuple[NoiseNote, ...]:
        """Return the notes with the operator that causes the errors. This class returns them
        unchanged, because it runs no program. CaseRun overrides this."""
        return notes

    def measure_metric(self, references: References, outputs: list[Array]) -> list[Finding]:
        """Return why the user's metric rejects the program. This class returns nothing, because it
        runs no user code. CaseRun overrides this."""
        del references, outputs
        return []

    def compare_baseline(self) -> list[Finding]:
        """Return a finding for each SQNR that differs too much from this toolchain's baseline. The
        list is empty if the case has no baseline."""
        baseline = self.options.recorded.get(str(self.spec.name))
        if baseline is None:
            return []
        self.evidence.baseline = baseline
        return [CHANGED.find(change) for change in find_changes(self.evidence.figures, baseline)]

    def delegation_faults(self, compiled: Compiled) -> list[Finding]:
        """Return a finding that lists the nodes on the CPU, if the policy requires full delegation.
        Nodes for which the model's entry requests the CPU are not listed."""
        left = [fallback for fallback in compiled.delegation.fallback_ops if not fallback.asked]
        if not self.limits.full_delegation or not left:
            return []
        scheme, soc = self.spec.scheme.base.value, self.spec.soc
        # QNN writes indices, as of topk and sort, as int32, and nodes on the CPU read them as
        # int64.
        if compiled.delegation.garbled:  # to let the CPU compute these nodes is no remedy
            return [find_fallbacks(left).explained(CAST)]
        advice_of_nodes = (find_advice(fallback, scheme, soc, self.policy) for fallback in left)
        islands = ISLAND if self.spec.source.choices.discard_nodes else NO_ADVICE
        return [find_fallbacks(left).explained(sum(advice_of_nodes, islands))]

    def require_outputs(self, count: int) -> None:
        """Raise UsageError if the model's entry has limits for an output beyond its ``count``."""
        if unused := self.policy.find_unused_limits(self.spec.model, self.spec.scheme, count):
            raise UsageError(
                f"{unused}: the model's last output is number {count - 1}",
                why="outputs are counted from 0, so these limits have no effect",
                fix="correct the number, or remove the table",
            )

    def find_excesses(self, compiled: Compiled) -> tuple[Finding, ...]:
        """Return each limit of the case's budget that the program or its lowering exceeds, or that
        cannot be checked."""
        return tuple(find_excesses(compiled.footprint, self.limits.budget, self.budget))

    def refuse(self, finding: Finding, log_tail: str) -> CaseResult:
        """End a case that was not lowered. Its status is ``unsupported`` if the policy expects the
        refusal, else ``failed``."""
        if reason := self.find_refusal(finding):
            return self.end(Status.UNSUPPORTED, [expect(finding, reason)], log_tail)
        with self.notes.of("the cause, by experiments"):
            self.diagnosis, self.diagnosed = self.diagnose(finding), finding.question
        return self.end(Status.FAILED, [finding], log_tail)

    def find_refusal(self, finding: Finding, log_tail: str = "") -> str:
        """Return the policy's explanation if it expects this case to be refused with this finding
        or message, or "" if it does not."""
        spec, choices = self.spec, str(self.spec.source.choices)
        return self.policy.expects_refusal(
            spec.model, spec.scheme, spec.soc, [finding], choices=choices, log=log_tail
        )

    def find_unmet(self) -> Finding | None:
        """Return why this case should not have passed, if a strict row of the policy expects its
        refusal."""
        spec, choices = self.spec, str(self.spec.source.choices)
        expected = self.policy.find_unmet(spec.model, spec.scheme, spec.soc, choices)
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

    def leave(self, *files: Path) -> None:
        """Copy files of the case to its directory in ``Options.files_directory``, if that is set.
        A file of the user's with such a name is renamed."""
        if self.options.files_directory and files:
            folder = UserFolder(self.options.files_directory)
            with LEAVING, folder.stage() as scratch:
                case_folder = scratch / self.spec.slug
                case_folder.mkdir()
                for path in files:
                    shutil.copyfile(path, case_folder / path.name)
                folder.publish(scratch, force=True)

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
        spec, evidence = self.spec, self.evidence
        question = findings[0].question if findings else None
        # Without a program, only a fault that keeps QNN from making or loading one is a cause.
        refused = question in {Question.LOWERED, Question.RUN}
        faults = [] if status is Status.UNSUPPORTED else self.list_faults(refused=refused)
        causes: list[KnownFault] = []
        causes_by_finding: dict[int, list[KnownFault]] = {}
        if status is Status.FAILED and findings:
            # Garbled indices are the cause, whatever known faults the graph has as well.
            is_garbled = findings[0].id == INDICES.id
            for number, finding in enumerate([] if is_garbled else findings):
                # The quantized model may have its own fault if the program is not faithful to it.
                if number == 0 or finding.question is Question.QUANTIZED:
                    faults_of_finding = self.choose_causes(finding)
                    causes_by_finding[number] = [
                        fault for fault in faults_of_finding if fault not in causes
                    ]
                    causes += causes_by_finding[number]
            faults = [fault for fault in faults if not fault.only_stops]
        noted = [fault for fault in faults if fault not in causes]
        evidence.warnings += tuple(describe_fault(advice) for advice in join_faults(noted))
        if status is Status.FAILED and findings:
            # Often only the log shows why a process died or why an operator was refused.
            log = log_tail if findings[0].question in {Question.RUN, Question.LOWERED} else ""
            findings = [
                explain(failure, self.advise_by_rules(failure, "" if number else log))
                for number, failure in enumerate(findings)
            ]
            for number, causes_of_finding in causes_by_finding.items():
                advice = self.advise_on_faults(findings[number], causes_of_finding)
                findings[number] = findings[number].explained(advice)
            if causes and question is Question.LOWERED:
                labels = (causes[0].label, causes[0].fault)
                findings[0] = findings[0].renamed(*(f"known fault {label}" for label in labels))
            if not any(finding.places for finding in findings):
                with self.notes.of("the line of the model's code"):
                    findings[0] = structs.replace(findings[0], places=self.find_factory())
        compile_warnings = evidence.artifact.compiled.warnings if evidence.artifact else ()
        evidence.warnings += tuple(dict.fromkeys((*compile_warnings, *self.notes)))
        case = make_case(
            spec,
            evidence,
            status=status,
            findings=tuple(findings),
            log_tail=log_tail,
            runner=self.runner,
            metric_name=self.metric.name if self.metric and evidence.metric else "",
        )
        names = structs.asdict(spec.name)
        controls = tuple(Control(**names, **vars(control)) for control in evidence.controls)
        remarks = "; ".join(filter(None, [*self.remarks, remark]))
        claims = {fault.fault: (fault.elsewhere, fault.schemes) for fault in causes}
        return CaseResult(case, controls, remarks, claims=claims)

    def advise_on_faults(self, finding: Finding, faults: Sequence[KnownFault]) -> Advice:
        """Return the advice for the known faults that cause a finding, with how certain that is.
        Of a refusal, what experiments showed comes with it; ``explain`` has it for others."""
        advice = sum(join_faults(faults), NO_ADVICE)
        is_accuracy = finding.question in ACCURACY
        if self.diagnosis and self.is_proven(finding.question):
            advice = prove(advice, self.diagnosis)
            if not is_accuracy:
                advice += advise_on_diagnosis(self.diagnosis, [fault.fault for fault in faults])
            return advice
        return doubt(advice) if is_accuracy else advice

    def advise_by_rules(self, finding: Finding, log: str) -> Advice:
        """Return what the rules for messages say about a finding. To nodes on the CPU that read
        garbled indices, they do not apply: to let the CPU compute these is no remedy."""
        artifact = self.evidence.artifact
        is_garbled = bool(artifact and artifact.compiled.delegation.garbled)
        if is_garbled and finding.id == ON_CPU.id:
            return NO_ADVICE
        advice = self.policy.advise([finding], log)
        # A user's own row has no name. A rule knows a pattern, which no experiment decided.
        is_rule = any(cause.name for cause in advice.causes)
        if is_rule and self.diagnosis and finding.question is self.diagnosed is Question.LOWERED:
            # Messages are often those of what follows: a weight that is computed from constants was
            # refused as a layer norm of more axes, and as an input that is changed in place.
            cure = self.diagnosis.cure
            if cure and not any(remedy.is_for_finding for remedy in cure):
                names = " and ".join(remedy.name for remedy in cure)
                return Advice(title=f"it is lowered with {names}")
        if not is_rule or finding.question not in ACCURACY:
            return advice
        return NO_ADVICE if self.options.only_certain else replace(doubt(advice), title="")

    def read_steps(self) -> Sequence[Step]:
        """Return the operators of the float32 model, or nothing if they are unknown."""
        artifact = self.evidence.artifact
        return artifact.compiled.steps if artifact else read_steps(self.directory / STEPS)

    def find_faults(self, *, refused: bool = False) -> list[KnownFault]:
        """Return the known faults that the model's graph triggers with the scheme of the case and
        the version of QNN that compiled it. If the model was ``refused``, those that only make
        values wrong are left out."""
        artifact = self.evidence.artifact
        steps = self.read_steps()
        scheme, qnn = self.spec.scheme.base.value, self.evidence.compiler
        compiled = bool(artifact and not artifact.compiled.delegation.fallback_nodes)
        ends = {"compiled": compiled and not refused, "refused": refused}
        if not refused:  # what the CPU computes, no compiler of QNN gets wrong
            on_cpu = self.list_on_cpu(steps)
            steps = [step for step in steps if step.name not in on_cpu]
        return [*self.options.find_faults(steps, scheme, qnn, **ends)]

    def list_on_cpu(self, steps: Sequence[Step]) -> set[str]:
        """Return the names of the steps that stay on the CPU in the program, if there is one and
        its nodes have names, as those of an .onnx file."""
        artifact = self.evidence.artifact
        fallbacks = artifact.compiled.delegation.fallback_ops if artifact else ()
        labels = {
            f"{fallback.op.rpartition(':')[2]} '{fallback.name}'"  # as readers of graphs name it
            for fallback in fallbacks
            if fallback.name
        }
        return {step.name for step in steps if step.label in labels}

    def list_faults(self, *, refused: bool = False) -> list[KnownFault]:
        """Return the result of find_faults. If it raises an exception, add a warning and return an
        empty list."""
        faults: list[KnownFault] = []
        with self.notes.of("the known faults"):
            faults += self.find_faults(refused=refused)
        return faults

    def find_factory(self) -> tuple[Place, ...]:
        """Return the line of the model's factory, or nothing for an ONNX file."""
        reference = self.spec.source.reference
        if is_suite(self.spec.reference):
            reference = find_suite_model(self.spec.reference)
        return (find_factory(reference),) if reference and not self.spec.is_file else ()


COSTLY_DB = 10.0  # what a known fault may cost a passed case without a warning
MOST_FLOAT = 0.5  # the share of a quantized program's operators that may be float


def describe_cost(
    faults: Sequence[KnownFault], subject: str, reached_db: float, without_db: float, source: str
) -> str:
    """Return what known faults cost, as a warning with both figures."""
    names = ", ".join(dict.fromkeys(fault.label for fault in faults))
    return (
        f"{subject} has {reached_db:.1f} dB of SQNR with the known fault {names}, and"
        f" {without_db:.1f} dB without it ({source})"
    )


def find_floats(compiled: Compiled, spec: CaseSpec) -> Iterator[str]:
    """Yield a warning if most operators of a quantized program have floating-point results."""
    total = sum(share.operators for share in compiled.types)
    floats = sum(share.operators for share in compiled.types if share.type == name_type(FLOAT_BITS))
    # A file that is run as it is has the types that its author chose.
    is_quantized = spec.scheme.quantized and spec.scheme is not Scheme.ASIS
    if is_quantized and total and floats / total > MOST_FLOAT:
        yield (
            f"{floats / total:.0%} of the operators are computed in float16, although the scheme"
            f" is {spec.scheme}: the quantizer left them out"
        )


NEAR_DB = 3.0  # a passed case this close to its limit has a warning
CPU = (
    "use operators that QNN supports, leave them out of the model, or allow the CPU:"
    " full_delegation = false in [models.NAME.limits.SCHEME]"
)
# The first words of a headline on nodes on the CPU, if all of them have such a reason.
REASONS = (
    (re.compile(r"has incorrect Rank (\d+)"), "QNN does not take rank {}"),
    (re.compile(r"(?:input/output|mismatching) datatypes"), "QNN does not take these types"),
    # Its validation failed, for any reason: a repeat that adds axes has this number, too.
    (re.compile(r"failed 3110|error 3110"), "QNN does not take these types, shapes or attributes"),
    (re.compile(r"No node visitor"), "ExecuTorch has no QNN builder"),
)  # fmt: skip


def advise_on_frozen(names: Sequence[str]) -> Advice:
    """Return the cause that the quantized model has only the first values of buffers, and what
    helps. It was shown by an experiment: ci.models.eager.find_frozen."""
    return advise(
        f"ExecuTorch's quantizer makes a constant of what reads {name_buffers(names)}, which each"
        " call changes in place: with other values there, the float32 model returns other outputs,"
        " and the quantized one the same",
        f"{STATE_AS_INPUT}; or write the buffer with copy_, as"
        f" self.{names[0]}.copy_(self.{names[0]} + 1), which is not frozen",
        certainty=Certainty.MEASURED,
        proof=Proof.PROVEN,
    )


def is_quantizing(node: Fallback) -> bool:
    """Return whether a node only converts the format of numbers."""
    return node.op.rpartition(":")[2] in QUANTIZING


def find_fallbacks(left: Sequence[Fallback]) -> Finding:
    """Return the finding that nodes stay on the CPU, although the policy requires the NPU."""
    # What computes comes first: quantizers only follow it.
    computing = [node for node in left if not is_quantizing(node)]
    left = [*computing, *(node for node in left if is_quantizing(node))]
    alike = {(node.label, str(node.origin) or node.reason): node for node in left[::-1]}
    lines = [f"{node.label}: {node.text}" for node in alike.values()][::-1]  # each line once
    and_more = [f"and {len(lines) - SHOWN_OPS} more"] if len(lines) > SHOWN_OPS else []
    many = "1 node falls" if len(left) == 1 else f"{len(left)} nodes fall"
    names = ", ".join(dict.fromkeys(fallback.label for fallback in left))
    reason, named = name_fallbacks(left)
    return ON_CPU.find(
        f"{reason or f'{many} back to the CPU'}: {named}",
        details=[f"{many} back to the CPU ({names})"] if reason else [],
        evidence="\n".join([*lines[:SHOWN_OPS], *and_more]),
        places=list_places(left),
    )


def find_lost_types(retyped: Sequence[Retyped]) -> list[Finding]:
    """Return the finding that tensors have fewer bits than requested, or [] if there are none."""
    if not retyped:
        return []
    first = retyped[0]
    and_more = f", and {len(retyped) - 1} more" if len(retyped) > 1 else ""
    compiled = f"{first.kind} {'are' if first.kind == WEIGHTS else 'is'} {first.compiled}"
    finding = RETYPED.find(
        f"{first.node} was requested in {first.asked}, but its {compiled}{and_more}",
        evidence="\n".join(map(str, retyped[:SHOWN_OPS])),
        places=first.origin.places,
        advice=ISLAND
        if first.asked == name_type(FLOAT_BITS)
        else advise(
            "a quantizer, a pass of the tool that lowers the model or an annotation function"
            " dropped the type",
            "request the type for the operators next to it, too, or leave this operator out of the"
            " part, recipe or annotation",
        ),
    )
    return [finding]


def find_garbled(garbled: Sequence[Garbled]) -> Finding:
    """Return the finding that nodes on the CPU read indices that QNN wrote as another type."""
    first = garbled[0]
    reader = f"{first.reader}{first.reader_origin.mark}"
    return INDICES.find(
        f"the indices of {first.operator}{first.origin.mark} reach {reader} on the CPU as int32",
        places=[*dict.fromkeys((*first.origin.places, *first.reader_origin.places))],
        advice=advise(
            "QNN writes indices as int32, and the program reads them as int64 on the CPU, in every"
            " scheme: the rows that they select are garbled, and letting the CPU compute them is"
            " what makes them wrong",
            "cast the indices directly behind the operator: indices.to(torch.int32), and back to"
            " int64 where they are read, as mend's narrow-indices does",
            certainty=Certainty.KNOWN,
            proof=Proof.PROVEN,
            name=INDICES.id,
        ),
    )


def find_no_node(left: Sequence[Fallback]) -> Finding:
    """Return the finding that QNN took no node of a model."""
    if not left:
        return NO_NODE.find("the model computes nothing: its graph has no operators")
    names = ", ".join(dict.fromkeys(fallback.label for fallback in left))
    reasons = dict.fromkeys(fallback.text for fallback in left)
    text = f"QNN accepted no node: {names}"
    return NO_NODE.find(text, evidence="\n".join(reasons), places=list_places(left))


def name_fallbacks(left: Sequence[Fallback]) -> tuple[str, str]:
    """Return the common reason of nodes that stay on the CPU, such as ``QNN does not take rank 6``,
    with their operators and places, such as ``view, permute in zoo.py:40``. The reason is empty if
    they have none. Quantizers are left out if there are other operators."""
    names = [*dict.fromkeys(name_operator(fallback.op) for fallback in left)]
    operators = ", ".join([name for name in names if name not in QUANTIZING] or names)
    lines: dict[str, list[str]] = {}
    for origin in dict.fromkeys(fallback.origin for fallback in left):
        if origin.line:
            lines.setdefault(f"{Path(origin.file).name}:", []).append(str(origin.line))
        elif origin.module:
            lines.setdefault("module ", []).append(origin.module)
    spots = [f"{start}{', '.join(names)}" for start, names in lines.items()]
    where = f" in {', '.join(spots)}" if spots else ""
    for pattern, words in REASONS:
        matches = [pattern.search(fallback.reason) for fallback in left]
        numbers = {match.groups() for match in matches if match}
        if all(matches) and len(numbers) == 1:
            return words.format(*min(numbers)), f"{operators}{where}"
    return "", f"{operators}{where}"


def name_operator(op: str) -> str:
    """Return the short name of an operator: ``view`` for ``aten.view_copy.default``, or ``Inverse``
    for ``com.microsoft:Inverse``."""
    kind = op.rpartition(":")[2]
    return kind.split(".")[1].removesuffix("_copy") if kind.count(".") > 1 else kind


def explain(finding: Finding, advice: Advice) -> Finding:
    """Return a finding with advice. A known cause becomes the headline of a failed run, and that of
    a refusal if its remedy is proven, if QNN took no node, or if the message is that of an
    exception or was too long."""
    if finding.id == ON_CPU.id:  # what is known of its operators says more than a rule for messages
        is_rule = any(cause.name for cause in advice.causes)
        own_advice = NO_ADVICE if is_rule else advice
        return finding.explained(
            own_advice if own_advice != NO_ADVICE or finding.remedies else advise(fix=CPU)
        )
    vague = finding.is_cut or finding.id == NO_NODE.id or bool(EXCEPTION.match(finding.headline))
    vague = vague or any(remedy.proof is Proof.PROVEN for remedy in advice.remedies)
    refused = finding.question is Question.LOWERED and vague
    if advice.title and (refused or finding.question is Question.RUN):
        spots = [f" [{Path(place.file).name}:{place.line}]" for place in finding.places[:1]]
        finding = finding.renamed(*(f"{advice.title}{spot}" for spot in (*spots, "")))
    return finding.explained(advice)


# The headline of an error that Python code raised, which names no cause.
EXCEPTION = re.compile(r"refused: \w+(Error|Exception): ")


def expect(finding: Finding, reason: str) -> Finding:
    """Return a refusal that the policy expects. The policy's explanation becomes its headline."""
    details = (
        finding.headline,
        *finding.details,
        *([reason] if len(reason) > HEADLINE_CHARS else []),
    )
    return structs.replace(finding, headline=shorten(reason, HEADLINE_CHARS), details=details)


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
        rewrites = tuple(remedy.name for remedy in diagnosis.cure)
        first = structs.replace(remedies[0], proof=Proof.TRIED, rewrites=rewrites)
        remedies = (first, *remedies[1:])
    return replace(advice, causes=tuple(causes), remedies=remedies)


def doubt(advice: Advice) -> Advice:
    """Return the advice for known faults whose remedy was not tried."""
    causes = []
    for cause in advice.causes:
        text = f"{cause.text} (not tried)"
        causes.append(structs.replace(cause, text=text, certainty=Certainty.LIKELY))
    remedies = (structs.replace(remedy, proof=Proof.SUGGESTED) for remedy in advice.remedies)
    return replace(advice, causes=tuple(causes), remedies=tuple(remedies))


def mark_part(
    figures: Sequence[LayerFigures], places: Sequence[Collection[str]], part: Collection[str]
) -> tuple[LayerFigures, ...]:
    """Return the figures of layers, of which those with a place in a part are marked."""
    return tuple(
        structs.replace(layer, in_part=not {*names}.isdisjoint(part))
        for layer, names in zip(figures, places, strict=True)
    )


def list_marks(fault: KnownFault) -> list[str]:
    """Return what a rewrite may name the places of a known fault by: lines, and names of nodes."""
    lines = [str(fault.origin)] if fault.line else []
    return [*lines, *itertools.chain(fault.nodes, *fault.repeated)]


def describe_fault(advice: Advice) -> str:
    """Return a known fault and its remedy in one line."""
    fixes = (f"fix: {remedy.text}" for remedy in advice.remedies)
    return "; ".join([*(cause.text for cause in advice.causes), *fixes])


def make_case(
    spec: CaseSpec,
    evidence: Evidence,
    *,
    status: Status,
    findings: Sequence[Finding],
    runner: str,
    log_tail: str = "",
    metric_name: str = "",
) -> Case:
    """Return the report row of a case, with every known figure."""
    return Case(
        model=spec.model,
        scheme=spec.scheme.value,
        soc=spec.soc,
        asked=describe_asked(spec, evidence.artifact),
        program=describe_program(evidence),
        run=describe_run(spec, evidence, runner, log_tail),
        judgement=describe_judgement(evidence, status, findings, metric_name),
        device=describe_device(evidence),
    )


def describe_asked(spec: CaseSpec, artifact: Artifact | None) -> AskedFacts:
    """Return what was asked of a case. Its inputs are known if there is a program."""
    if artifact is None:
        return AskedFacts(choices=describe_choices(spec, None))
    compiled = artifact.compiled
    return AskedFacts(
        choices=describe_choices(spec, compiled),
        inputs=compiled.sets,
        made_inputs=compiled.made_inputs,
        digests=Digests(
            weights=compiled.weights or None,
            inputs=artifact.digest_sets(INPUTS),
            calibration=compiled.calibration or None,
            float_outputs=artifact.digest_sets(FLOAT),
        ),
    )


def describe_program(evidence: Evidence) -> ProgramFacts:
    """Return what is known of the program and its lowering."""
    facts = ProgramFacts(
        cached=evidence.cached,
        compiler=evidence.compiler,
        qnn_ops=evidence.qnn_ops,
        estimate=evidence.estimate,
    )
    artifact = evidence.artifact
    if artifact is None:
        return facts
    compiled, delegation = artifact.compiled, artifact.compiled.delegation
    return structs.replace(
        facts,
        lower_s=artifact.lower_s,
        pte_bytes=compiled.size_bytes,
        files=list_program(artifact),
        delegated_nodes=delegation.delegated_nodes,
        fallback_nodes=delegation.fallback_nodes,
        partitions=delegation.partitions,
        fallback_ops=tuple(
            FallbackOp(op=node.label, reason=node.text) for node in delegation.fallback_ops
        ),
        types=compiled.types,
        clipped=compiled.clipped,
        footprint=compiled.footprint,
    )


def describe_run(spec: CaseSpec, evidence: Evidence, runner: str, log_tail: str) -> RunFacts:
    """Return what is known of the program's run."""
    facts = RunFacts(
        runner=runner, options=str(spec.source.run), lacks=evidence.lacks, log_tail=log_tail
    )
    run = evidence.run
    if run is None:
        return facts
    return structs.replace(
        facts,
        wall_s=round(run.wall_s, 3),
        ms=round(run.notes.run_ms, 4) if run.notes.run_ms else None,
        **run.notes.accelerator,
    )


def describe_judgement(
    evidence: Evidence, status: Status, findings: Sequence[Finding], metric_name: str
) -> JudgementFacts:
    """Return what was judged of a case, with every figure."""
    facts: dict[str, Any] = vars(evidence.figures)
    if metric := evidence.metric:
        facts = {**facts, "metric": metric.value, "metric_float": metric.float32}
        facts["metric_quantized"] = metric.quantized
    if evidence.baseline:
        recorded = structs.asdict(evidence.baseline)
        facts = facts | {f"recorded_{key}": figure for key, figure in recorded.items()}
    return JudgementFacts(
        status=status,
        findings=tuple(findings),
        warnings=evidence.warnings,
        noise_notes=evidence.notes,
        is_defect=evidence.is_defect,
        metric_name=metric_name,
        outputs=evidence.outputs,
        layers=evidence.layers,
        **facts,
    )


def describe_device(evidence: Evidence) -> OnDeviceFacts:
    """Return what is known of a run on a device."""
    nearness = evidence.nearness
    return OnDeviceFacts(
        figures=evidence.run.notes.device if evidence.run else None,
        sqnr_db_emulator=nearness.sqnr_db if nearness else None,
        equal_emulator=nearness.equal if nearness else None,
    )


def list_program(artifact: Artifact) -> tuple[ProgramFile, ...]:
    """Return the files of a program with their SHA-256. The file that a runner opens comes
    first."""
    first = artifact.compiled.program
    folder = f"{first.rpartition('/')[0]}/"
    names = [name for name in artifact.files if name.startswith(folder)]
    files = [name for name in dict.fromkeys([first, *sorted(names)]) if name in artifact.files]
    return tuple(ProgramFile(name=Path(file).name, sha256=artifact.files[file]) for file in files)


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


def describe_choices(spec: CaseSpec, compiled: Compiled | None) -> str:
    """Return the lowering options in the model's policy entry. If the program shares weights, its
    size with and without sharing follows, in bytes."""
    choices = str(spec.source.choices)
    if not compiled or not compiled.unshared_bytes:
        return choices
    return (
        f"{choices} ({compiled.size_bytes} bytes, {compiled.unshared_bytes} without shared weights)"
    )
