"""Runs one decoder in one scheme, from its weights to a case in the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from ci.cases.engine import Program, RunError, RunNotes
from ci.cases.facts import CaseResult, Evidence, Run
from ci.cases.lowering_findings import find_lost_types
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.pool import read_tail
from ci.cases.row import make_case
from ci.cases.spec import CaseSpec
from ci.facts.finding import Advice, Figure, Finding, advise
from ci.facts.kinds import INCONCLUSIVE, INVALID, NO_OUTPUTS, QUANTIZED_BADLY, TOKENS
from ci.judging.figures import measure_pooled
from ci.judging.verdict import CaseFigures, ControlResult
from ci.llm.controls import MAKERS, Repeated, judge_control
from ci.llm.foreign import Foreign
from ci.llm.generation import (
    NAME,
    Generated,
    Loop,
    Step,
    count_same,
    program_step,
    run_decode,
    run_forced,
    run_free,
)
from ci.llm.interface import Interface
from ci.llm.lowering import ReferenceRuns, Subject, read_runs
from ci.llm.verdict import (
    LOCATE_DB,
    MEAN_MARGIN_DB,
    Verdict,
    compare_float,
    find_departure,
    judge_forced,
    judge_free,
)
from ci.models.user_models import MetricResult
from ci.report.schema import ControlKind, Status
from ci.report.text import count
from provisioning.errors import DefectError, UsageError

AGREEMENT = "top-1 agreement with float32"
LEAST_DECIDED = 0.9
LOUDER = (
    "use a --prompt after which such a fault changes the logits by more than the scheme's noise,"
    " or use a scheme with less noise"
)
Show = Callable[[tuple[int, ...]], str]  # from ids to text


class LlmRun(CaseRun):
    """The case of a decoder. Its program is opened once and generates text several times. It is
    judged by its tokens and logits."""

    def __init__(self, spec: CaseSpec, setup: Setup, subject: Subject, show: Show) -> None:
        super().__init__(spec, setup)
        self.subject, self.show, self.text = subject, show, ""

    def end(
        self,
        status: Status,
        findings: Sequence[Finding] = (),
        log_tail: str = "",
        *,
        remark: str = "",
    ) -> CaseResult:
        """Return the result of a case, with the agreement with float32 as its metric if it was
        measured."""
        result = super().end(status, findings, log_tail, remark=remark)
        if self.facts.evidence.metric is None:
            return result
        case = structs.replace(
            result.case,
            judgement=structs.replace(
                result.case.judgement,
                metric_name=AGREEMENT,
                metric=self.facts.evidence.metric.value,
            ),
        )
        return replace(result, case=case, noted=f"{self.text!r} ({result.remark})")

    def run_and_judge(self, program: Program, artifact: Path) -> CaseResult:
        """Generate text with the program, judge it, and try the faults that the verdict must
        reject. Return the result of the case. ``artifact`` is the directory of the compiled
        program, which also contains the reference runs."""
        try:
            runs = read_runs(artifact)
        except (OSError, ValueError) as error:
            text = f"the reference runs cannot be read: {error}"
            return self.end(Status.FAILED, [INVALID.find(text)])
        began = time.monotonic()
        try:
            with self.setup.runner.open(program, self.options.timeout_s) as opened:
                findings = self.judge_generation(program_step(opened, runs.borders), runs)
                notes = opened.finish()
        except RunError as error:
            wall_s = time.monotonic() - began
            self.facts.evidence.run = Run(failure=error.what, wall_s=wall_s)
            finding = NO_OUTPUTS.find(error.what, advice=error.advice)
            return self.end(Status.FAILED, [finding], read_tail(program.log))
        self.facts.evidence.run = Run(notes=notes, wall_s=time.monotonic() - began)
        with self.facts.notes.of("the speed of the program"):
            self.facts.remarks.append(describe_speed(notes))
        findings = [*find_lost_types(program.compiled.retyped), *findings]
        findings += self.judging.find_excesses(program.compiled)
        findings += self.judging.delegation_faults(program.compiled)
        return self.end(Status.FAILED if findings else Status.PASSED, findings)

    def judge_generation(self, step: Step, runs: ReferenceRuns) -> list[Finding]:
        """Return why to reject the program or its quantized model, or [] if there are none.
        Record the figures, the text and the controls."""
        interface = runs.interface
        model, prompt = runs.model.run, runs.prompt
        free = run_free(Loop(interface, step), prompt, self.subject.tokens, (self.subject.eos,))
        generated = model.fed[len(prompt) :]
        forced = free
        # With the model's tokens as inputs, a tie between two tokens does not change everything
        # after it. A free run with the same text was fed them already.
        if free.tokens != model.tokens:
            forced = run_forced(Loop(interface, step), prompt, generated)
        alone = run_decode(Loop(interface, step), runs.alone.run.fed)
        verdicts = {
            "free": judge_free(free, runs.model),
            "forced": judge_forced(forced, runs.model),
            "decode alone": judge_forced(alone, runs.alone),
        }
        faults = [
            f"{name}: {fault}" for name, verdict in verdicts.items() for fault in verdict.faults
        ]
        faults += self.judge_text(interface, step, runs.perplexity)
        mean_db = LOCATE_DB if faults else MEAN_MARGIN_DB
        departed, where = locate(forced, alone, runs, self.show, mean_db)
        # In 8a8w, tokens and logits pass even with RoPE that rotates the other half of each head.
        if departed and not faults:
            faults.append("the tokens and logits pass, but not all keys and values")
        findings = [TOKENS.find(fault, advice=Advice(where=where)) for fault in faults[:1]]
        findings += map(TOKENS.find, faults[1:])
        self.note_figures(verdicts["forced"], forced, runs)
        with self.facts.notes.of("the agreement with float32"):
            self.note_agreement(verdicts["forced"], forced, runs)
        findings += self.judge_quantized(runs.perplexity)
        with self.facts.notes.of("the text"):
            self.describe(free, runs)
        if faults:
            return findings
        return findings + self.judge_controls(interface, step, forced, runs)

    def judge_text(
        self, interface: Interface, step: Step, right: tuple[float, ...]
    ) -> Iterator[str]:
        """Yield a fault if the program's perplexity on the text exceeds the limit and the lowered
        model's does not. If both do, judge_quantized reports the model. Record all perplexities."""
        perplexity, most = self.subject.perplexity(interface, step), self.subject.max_perplexity
        if perplexity is None:
            return
        model, float32 = right
        quantized = f"{model:.3f} with the quantized model, " if self.spec.scheme.quantized else ""
        text = f"the perplexity is {perplexity:.3f}, {quantized}{float32:.3f} with float32"
        self.facts.remarks.append(text)
        if most is not None and perplexity > most >= model:
            yield f"{text}; the limit is {most:g}"

    def judge_quantized(self, perplexity: tuple[float, ...]) -> list[Finding]:
        """Return why to reject the model that was lowered, without regard to the program:
        its logits have too low an SQNR against float32, or its perplexity exceeds the limit."""
        required_db, most = self.facts.limits.min_sqnr_db_all, self.subject.max_perplexity
        reached = self.facts.evidence.figures.sqnr_db_scheme
        findings = []
        if (
            self.spec.scheme.quantized
            and required_db is not None
            and reached
            and reached < required_db
        ):
            text = (
                f"the logits have an SQNR of {reached:.1f} dB against float32,"
                f" not {required_db:g} dB"
            )
            figure = Figure(name="sqnr_all", value=reached, unit="dB", allowed=required_db)
            findings.append(QUANTIZED_BADLY.find(text, figures=[figure]))
        if perplexity and most is not None and perplexity[0] > most:
            text = f"the model's perplexity is {perplexity[0]:.3f}, but the limit is {most:g}"
            figure = Figure(name="perplexity", value=perplexity[0], allowed=most)
            findings.append(QUANTIZED_BADLY.find(text, figures=[figure]))
        return findings

    def note_figures(self, verdict: Verdict, forced: Generated, runs: ReferenceRuns) -> None:
        """Record the figures of the forced run, which has all steps of the reference."""
        model, float32 = runs.model.run, runs.float32
        self.facts.evidence.figures = CaseFigures(
            sqnr_db=measure_pooled(float32, forced.logits),
            sqnr_db_quantized=verdict.sqnr_db if self.spec.scheme.quantized else None,
            sqnr_db_scheme=measure_pooled(float32, model.logits)
            if self.spec.scheme.quantized
            else None,
            predicted_sqnr_db=verdict.predicted_db,
            equal_quantized=verdict.equal / verdict.steps,
            equal=(verdict.equal + verdict.tied) / verdict.steps,
        )

    def note_agreement(self, verdict: Verdict, forced: Generated, runs: ReferenceRuns) -> None:
        """Record how similar the program and its model are to the float32 model."""
        program = compare_float(forced.logits, runs.float32)
        quantized = compare_float(runs.model.run.logits, runs.float32)
        self.facts.evidence.metric = MetricResult(program.agreement, 1.0, 0.0, quantized.agreement)
        self.facts.remarks.append(
            f"{verdict.equal} of {verdict.steps} tokens equal the model's"
            + (f", {verdict.tied} ties" if verdict.tied else "")
            + f"; top-1 {program.agreement:.0%} and KL {program.divergence:.3f} against float32"
        )

    def describe(self, free: Generated, runs: ReferenceRuns) -> None:
        """Record the text, and how many of its first tokens equal the float32 model's. Warn if many
        steps have a margin within the noise."""
        self.text = self.show((*runs.prompt, *free.tokens))
        same_count = count_same(free.tokens, runs.text)
        if same_count < min(len(free.tokens), len(runs.text)):
            self.facts.remarks.append(
                f"the text differs from float32's after {count(same_count, 'token')}"
            )
        decided = float(np.mean(runs.model.decided()))
        if decided < LEAST_DECIDED:
            text = (
                f"only {decided:.0%} of the steps have a margin above the noise: in the others,"
                " two tokens are equally good, and a wrong one may go unnoticed"
            )
            self.facts.evidence.warnings += (text,)

    def judge_controls(
        self, interface: Interface, step: Step, forced: Generated, runs: ReferenceRuns
    ) -> list[Finding]:
        """Record whether the verdict rejects the controls. If it accepts any of them, the case
        proves nothing; return a list with this finding. Otherwise return an empty list."""
        subject = Repeated(interface, step, runs.prompt, forced, runs.model, self.subject.eos)
        results = []
        for kind, make in MAKERS.items():
            rejected, verdict = judge_control(make(subject), runs.model)
            if verdict is None and kind is ControlKind.ENDLESS:
                text = (
                    "there is no control with endless text,"
                    " because the correct text does not end either"
                )
                self.facts.evidence.warnings += (text,)
                continue
            results.append(ControlResult(kind, rejected, verdict.sqnr_db if verdict else None))
        self.facts.evidence.controls = tuple(results)
        accepted = ", ".join(result.kind.value for result in results if not result.rejected)
        if not accepted:
            return []
        text = f"the verdict accepts {accepted}: this case proves nothing"
        return [INCONCLUSIVE.find(text, advice=advise(fix=LOUDER))]


def locate(
    forced: Generated,
    alone: Generated,
    runs: ReferenceRuns,
    show: Show,
    mean_db: float = MEAN_MARGIN_DB,
) -> tuple[bool, tuple[str, ...]]:
    """Return whether keys or values depart from those of the model that was lowered, and for each
    of the ways in which tokens are processed, what departs first: the hidden state, keys or values
    of a layer. All of them are compared, because each layer returns its keys and values. The error
    of the mean of many tokens may exceed its prediction by ``mean_db``."""
    prompt, heads = len(runs.prompt), runs.interface.kv_heads
    ways = {
        "prefill": (forced, runs.model, slice(prompt)),
        "decode after prefill": (forced, runs.model, slice(prompt, None)),
        "decode alone": (alone, runs.alone, slice(None)),
    }
    departures = {name: find_departure(*way, mean_db) for name, way in ways.items()}
    if not any(departures.values()):
        text = "no keys or values differ by more than noise: the last layer is wrong after them, or"
        return False, (f"{text} the norm or the output layer behind it",)
    texts = []
    for name, departure in departures.items():
        text = "all keys and values are right"
        if departure is not None:
            token = () if departure.token is None else (ways[name][0].fed[departure.token],)
            text = departure.describe(heads, show(token))
        texts.append(f"{name}: {text}")
    return True, tuple(texts)


def describe_speed(notes: RunNotes) -> str:
    """Return a text with the decoding speed on the emulator, or "" if it was not measured. This
    does not predict the speed on a phone."""
    return f"{1000 / notes.run_ms:.1f} tokens/s on the emulator" if notes.run_ms else ""


class ForeignRun(CaseRun):
    """The case of a program that was lowered elsewhere. ``job`` runs it."""

    def __init__(self, spec: CaseSpec, setup: Setup, job: Callable[[], Any]) -> None:
        super().__init__(spec, setup)
        self.job = job

    def run(self) -> CaseResult:
        """Run and judge the program. Raises UsageError if program, tokenizer and weights do not
        match."""
        self.stage = "run"
        log = self.setup.work / "run.log"
        ended = self.setup.pool.run(
            self.job, log, self.options.timeout_s, max_bytes=self.facts.memory_bytes
        )
        if isinstance(ended.error, UsageError):
            raise ended.error
        if ended.failure:
            self.facts.evidence.is_defect = isinstance(ended.error, DefectError)
            return self.end(Status.FAILED, [ended.find(NO_OUTPUTS)], ended.log_tail)
        foreign, text = ended.result
        return judge_program(self.spec, foreign, text, self.facts.limits.min_equal or 0.0)


def judge_program(spec: CaseSpec, foreign: Foreign, text: str, min_equal: float) -> CaseResult:
    """Return the result of a foreign program. ``min_equal`` is the share of steps at which its
    token must equal the float32 model's after the same text."""
    likeness, faults = foreign.likeness, list(foreign.faults)
    if likeness and likeness.agreement < min_equal:
        share = f"{likeness.agreement:.0%} of the program's tokens equal the float32 model's"
        faults.append(f"{share}, but at least {min_equal:.0%} are required")
    notes = RunNotes(run_ms=foreign.step_s * 1000)
    # A layer that departs is no fault of a program whose tokens are right.
    warnings = () if faults else foreign.where
    where = foreign.where
    if not likeness:
        warnings = ("without --weights, only obvious faults in the tokens and logits are detected",)
    elif not where:
        where = ("no keys or values are far worse than those of float32 with coarse rounding",)
    evidence = Evidence(
        figures=CaseFigures(equal=likeness.agreement if likeness else None),
        run=Run(notes=notes),
        warnings=warnings,
    )
    status = Status.FAILED if faults else Status.PASSED
    advice = Advice(where=where)  # one is enough
    findings = [TOKENS.find(fault, advice=advice) for fault in faults[:1]]
    findings += map(TOKENS.find, faults[1:])
    case = make_case(spec, evidence, status=status, findings=findings, runner=NAME)
    remarks = [count(len(foreign.tokens), "token")]
    if likeness:
        remarks += [
            f"the first {foreign.same_count} equal those of float32",
            f"top-1 {likeness.agreement:.0%} and KL {likeness.divergence:.3f} against float32",
        ]
    remarks.append(describe_speed(notes))
    return CaseResult(case, noted=f"{text!r} ({'; '.join(remarks)})")
