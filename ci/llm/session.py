"""The session of test_llm. This module is imported only after the environment has been checked."""

from __future__ import annotations

import os

from ci.cases.engine import RunNotes
from ci.cases.judged import CaseResult, Evidence, Options, Run, make_case
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.pool import ScratchPool
from ci.cases.session import Phases, make_report, run_session
from ci.cases.spec import CaseSpec
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.facts.finding import NO_ADVICE, Advice
from ci.facts.kinds import NO_OUTPUTS, TOKENS
from ci.judging.verdict import CaseFigures
from ci.llm.case import LlmRun, Show, describe_speed
from ci.llm.foreign import Foreign, ForeignJob
from ci.llm.lowering import LlmEngine, Subject
from ci.llm.runtime import NAME, make_runner
from ci.report.schema import Report, Status
from provisioning.artifacts.environment import Environment
from provisioning.errors import DefectError, UsageError

IMPORTS = LlmEngine.imports


def run_specs(
    subject: Subject,
    show: Show,
    options: Options,
    *,
    plain: bool,
    environment: Environment,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Lower, run and judge a decoder for each case, and return the report. Raises
    StoreError if the disk is full."""
    parts = tuple(describe_toolchain(environment))
    pool = scratch.open(environment.apply(os.environ))

    def make_run(spec: CaseSpec, setup: Setup) -> CaseRun:
        return LlmRun(spec, setup, subject, show)

    setup = Setup(
        options=options,
        engine=LlmEngine(name_toolchain(parts, environment), subject, plain),
        runner=make_runner(pool),
        pool=pool,
        work=scratch.scratch,
        parts=parts,
    )
    return run_session(setup, phases, make_run)


def run_program(
    job: ForeignJob,
    options: Options,
    *,
    environment: Environment,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Run a foreign program, and return the report. Raises UsageError if program, tokenizer and
    weights do not match."""
    (spec,) = options.specs
    parts = tuple(describe_toolchain(environment))
    pool = scratch.open(environment.apply(os.environ))
    with phases.measure("cases"):
        ended = pool.run(job, scratch.scratch / "run.log", options.timeout_s)
    if isinstance(ended.error, UsageError):
        raise ended.error
    if ended.failure:
        failed = make_case(
            spec,
            Evidence(is_defect=isinstance(ended.error, DefectError)),
            status=Status.FAILED,
            findings=[ended.find(NO_OUTPUTS)],
            runner=NAME,
            log_tail=ended.log_tail,
        )
        result = CaseResult(failed)
    else:
        foreign, text = ended.result
        least = options.policy.limits_of(spec.model, spec.scheme).min_equal or 0.0
        result = judge_program(spec, foreign, text, least)
    return make_report(options, parts, [result], phases)


def judge_program(spec: CaseSpec, foreign: Foreign, text: str, least: float) -> CaseResult:
    """Return the result of a foreign program. ``least`` is the share of steps at which its token
    must equal the float32 model's after the same text."""
    likeness, faults = foreign.likeness, list(foreign.faults)
    if likeness and likeness.agreement < least:
        share = f"{likeness.agreement:.0%} of the program's tokens equal the float32 model's"
        faults.append(f"{share}, but at least {least:.0%} are required")
    notes = RunNotes(run_ms=foreign.step_s * 1000)
    known = Evidence(
        figures=CaseFigures(equal=likeness.agreement if likeness else None),
        run=Run(notes=notes),
        warnings=()
        if likeness
        else ("without --weights, only obvious faults in the tokens and logits are detected",),
    )
    status = Status.FAILED if faults else Status.PASSED
    advice = Advice(where=(foreign.where,)) if foreign.where else NO_ADVICE
    findings = [TOKENS.find(told, advice=advice) for told in faults[:1]]
    findings += map(TOKENS.find, faults[1:])
    case = make_case(spec, known, status=status, findings=findings, runner=NAME)
    told = [f"{len(foreign.tokens)} tokens", describe_speed(notes)]
    if likeness:
        told[1:1] = [
            f"the first {foreign.same} equal those of float32",
            f"top-1 {likeness.agreement:.0%} and KL {likeness.divergence:.3f} against float32",
        ]
    return CaseResult(case, noted=f"{text!r} ({'; '.join(told)})")
