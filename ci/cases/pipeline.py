"""One case from model to report row: compile, run, judge. It knows the two seams of
ci.cases.engine, and no engine."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from ci.cases.baselines import Baseline, find_changes, name_case
from ci.cases.cache import Artifact, CompileJob, CompileResult, programs_home
from ci.cases.engine import (
    FLOAT,
    INPUTS,
    SAVER,
    SAVER_CALLS,
    Compiled,
    Engine,
    Program,
    RunError,
    Runner,
    RunNotes,
    Sets,
)
from ci.cases.outputs import keep_outputs, read_inputs, read_references, stack_outputs
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Ended, Pool, read_tail
from ci.cases.qnn_files import PARAMS, count_operators
from ci.cases.runners import INPUT_LIST, OUTPUTS
from ci.cases.spec import CaseSpec
from ci.judging.details import describe_outputs
from ci.judging.figures import Array
from ci.judging.gate import Judgement, Reason, References, judge
from ci.judging.verdict import (
    MODEL,
    CaseFigures,
    ControlResult,
    forgive,
    judge_metric,
    judge_outputs,
    name_reasons,
)
from ci.models.source_lines import find_factory, find_places, find_suite_model
from ci.models.tensors import Loss
from ci.models.user_models import MetricJob, MetricResult
from ci.report.schema import (
    Case,
    Control,
    Digests,
    FallbackOp,
    OpCount,
    OutputFigures,
    Place,
    Question,
    Status,
)
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import StoreError, UnfitError
from provisioning.files import explain_no_room
from provisioning.manifest.targets import Backend

SHOWN_OPS = 4
ARTIFACT = "artifact"


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What a user may change about a run. What QNN writes about a case besides its outputs is kept
    in a directory per case below ``beside``; ``baselines`` is the folder of the figures recorded
    for models of the user's."""

    policy: EmulatorPolicy
    timeout_s: float
    jobs: int = 1
    use_cache: bool = True
    keep: Path | None = None
    beside: Path | None = None
    record: bool = False
    baselines: Path | None = None
    command: str = ""
    backend: Backend = Backend.HTP


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What all cases of a run share. ``work`` is a scratch directory, ``device`` what the programs
    need if neither this host nor the runner can run them."""

    options: SessionOptions
    engine: Engine
    runner: Runner
    pool: Pool
    work: Path
    cache: Path = field(default_factory=programs_home)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    device: str = ""


@dataclass(frozen=True)
class CaseResult:
    """A case's row, its controls, and a remark for the terminal."""

    case: Case
    controls: tuple[Control, ...] = ()
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of running a program: outputs, or a failure. ``used`` is whether its process had
    run other programs before."""

    outputs: Sets = ()
    failure: str = ""
    notes: RunNotes = field(default_factory=RunNotes)
    wall_s: float = 0.0
    used: bool = False


@dataclass(kw_only=True)
class Evidence:
    """What is known of a case so far; each field has its default until its step was taken."""

    artifact: Artifact | None = None
    cached: bool = False
    compiler: str = ""
    qnn_ops: tuple[OpCount, ...] = ()
    run: Run | None = None
    figures: CaseFigures = field(default_factory=CaseFigures)
    controls: tuple[ControlResult, ...] = ()
    metric: MetricResult | None = None
    question: Question | None = None
    warnings: tuple[str, ...] = ()
    baseline: Baseline | None = None
    lacks: str = ""
    outputs: tuple[OutputFigures, ...] = ()


class CaseRun:
    """One case, step by step; every step may end it with a reason."""

    def __init__(self, spec: CaseSpec, setup: RunSetup) -> None:
        self.spec, self.setup, self.options = spec, setup, setup.options
        self.directory = setup.work / spec.slug
        self.policy = self.options.policy
        self.limits = self.policy.limits_of(spec.model, spec.scheme)
        self.evidence = Evidence()
        self.remarks: list[str] = []

    def run(self) -> CaseResult:
        """Compile, run, judge: whatever is raised is the failure of this case.

        Except what the machine is to blame for: raises StoreError if there is no room, UnfitError
        if no process starts.
        """
        try:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            result = self._compile_and_run()
            if self.options.keep:
                keep_artifacts(self.directory, self.options.keep / self.spec.slug)
        except (StoreError, UnfitError):
            raise
        except Exception as error:
            no_room = explain_no_room(error)
            if no_room:
                raise no_room from error
            reason = f"{type(error).__name__}: {error}"
            return self.end(Status.FAILED, reason, traceback.format_exc())
        return result

    def _compile_and_run(self) -> CaseResult:
        ended = self.compile(self.spec, self.directory / "lower.log")
        if ended.failure:
            reason = ended.failure if ended.raised else f"lowering: {ended.failure}"
            return self.end(Status.FAILED, reason, ended.log_tail)
        made: CompileResult = ended.result
        if not made.artifact:
            return self.refuse(made.refused, ended.log_tail, is_ours=made.is_ours)
        directory, compiled = Path(made.directory), made.artifact.compiled
        self.note_compiled(directory, made)
        if not compiled.delegation.partitions:
            reasons = "; ".join(one.reason for one in compiled.delegation.fallback_ops)
            return self.refuse(f"QNN accepted no node: {reasons}", ended.log_tail)
        # Before the runner starts: what it writes later changes no verdict.
        references = read_references(directory, compiled)
        program = self.copy_program(self.spec, directory, compiled, self.directory)
        if self.setup.device:
            result = self.end_unrun(program)
        else:
            inputs = read_inputs(directory, compiled)
            result = self.run_and_judge(program, references, inputs)
        if self.options.keep:
            shutil.copytree(directory, self.directory / ARTIFACT, dirs_exist_ok=True)
        return result

    def compile(self, spec: CaseSpec, log: Path) -> Ended:
        """Find or compile a program in a worker. What layers give proves nothing and need not."""
        job = CompileJob(
            engine=self.setup.engine,
            spec=spec,
            cache=self.setup.cache,
            log=log,
            use_cache=self.options.use_cache,
            reference=None if spec.layers else self.policy.reference,
        )
        return self.setup.pool.run(job, job.log, self.options.timeout_s)

    def note_compiled(self, directory: Path, made: CompileResult) -> None:
        """Take down what is known of the program, and keep what QNN's Saver wrote.

        Saver takes and refuses what HTP does, so that its operators are the program's.
        """
        if made.repaired:
            self.remarks.append("a damaged cache entry was lowered again")
        if not made.artifact:
            return
        build = find_qnn_build(directory / made.artifact.compiled.binary)
        self.evidence.artifact, self.evidence.cached = made.artifact, made.cached
        self.evidence.compiler = build.text if build else ""
        calls = directory / SAVER / SAVER_CALLS
        if calls.is_file():
            self.leave(calls, calls.with_name(PARAMS))
            text = calls.read_text(encoding="utf-8", errors="replace")
            self.evidence.qnn_ops = count_operators(text)

    def copy_program(
        self, spec: CaseSpec, directory: Path, compiled: Compiled, place: Path
    ) -> Program:
        """Copy the program to where a runner finds it: a runner is shown no reference."""
        given = place / ARTIFACT
        given.mkdir()
        part = Path(compiled.program).parts[0]
        if (directory / part).is_dir():
            shutil.copytree(directory / part, given / part)
        else:
            shutil.copyfile(directory / part, given / part)
        return Program(spec, given / compiled.program, compiled, place, place / "run.log")

    def end_unrun(self, program: Program) -> CaseResult:
        """End a case that was lowered and cannot run here; the program stays near the report."""
        self.leave(program.path)
        faults = self.delegation_faults(program.compiled)
        if faults:
            return self.end(Status.FAILED, "; ".join(faults))
        self.evidence.lacks = self.setup.device
        reason = (
            f"lowered; cannot run here: it needs {self.setup.device}\n"
            "  fix: give --runner a program that runs it there; it is kept next to the report, in"
            f" qnn/{self.spec.slug}"
        )
        return self.end(Status.UNSUPPORTED, reason)

    def run_and_judge(self, program: Program, references: References, sets: Sets) -> CaseResult:
        """Run, and run again in a fresh process what failed in one that had run other programs:
        only what fails there is this program's fault."""
        before = copy(self.evidence)
        run = self.execute(program, sets)
        result = self.judge_run(program, references, run)
        if result.case.status is Status.PASSED or not run.used:
            return result
        self.evidence = before
        again = self.judge_run(program, references, self.execute(program, sets, fresh=True))
        if again.case.status is not Status.PASSED:
            return again
        seen = f"in a process that ran other programs before: {result.case.reason.splitlines()[0]}"
        return replace(again, remark="; ".join(filter(None, [again.remark, seen])))

    def execute(self, program: Program, sets: Sets, *, fresh: bool = False) -> Run:
        """Open the program and run every input set once."""
        began, used = time.monotonic(), False
        try:
            with self.setup.runner.open(program, self.options.timeout_s, fresh=fresh) as opened:
                used = opened.used
                outputs = opened.run(sets)
                wall_s = time.monotonic() - began
                notes = opened.finish()
        except RunError as error:
            wall_s = time.monotonic() - began
            return Run(failure=str(error), wall_s=wall_s, used=used or error.used)
        return Run(outputs=outputs, notes=notes, wall_s=wall_s, used=used)

    def judge_run(self, program: Program, references: References, run: Run) -> CaseResult:
        """Judge what a run gave, and check delegation."""
        compiled = program.compiled
        log_tail = read_tail(program.log)
        self.evidence.run = run
        try:
            outputs = [] if run.failure else stack_outputs(run.outputs, compiled)
        except ValueError as error:
            run = replace(run, failure=str(error))
        if run.failure:
            known = self.find_refusal(f"{run.failure}\n{log_tail}")
            if known:
                return self.end(Status.UNSUPPORTED, f"run: {known}", log_tail)
            faults = [f"run: {run.failure}", *self.delegation_faults(compiled)]
            return self.end(Status.FAILED, "; ".join(faults), log_tail)
        if self.options.keep:
            keep_outputs(self.directory / OUTPUTS, run.outputs)
        self.leave(*run.notes.files)
        verdict = judge_outputs(references, outputs, compiled.inputs, compiled.outputs, self.limits)
        self.evidence.figures, self.evidence.controls = verdict.figures, verdict.controls
        self.evidence.outputs = describe_outputs(references, outputs)
        entry = self.policy.models.get(self.spec.model)
        task = self.measure_metric(references, outputs)
        failing, forgiven = forgive([*verdict.reasons, *task], entry.metric if entry else None)
        self.evidence.question = failing[0].question if failing else None
        self.evidence.warnings = (*forgiven, *verdict.warnings)
        proofless = verdict.proofless
        if proofless and self.evidence.metric and not task:
            self.evidence.controls = tuple(one for one in verdict.controls if one.rejected)
            self.evidence.warnings += (f"{proofless} but what the metric says",)
            proofless = ""
        reasons = [
            *name_reasons(failing),
            *filter(None, [proofless]),
            *self.compare_baseline(),
            *run.notes.faults,
            *self.delegation_faults(compiled),
        ]
        if not reasons and (unmet := self.find_unmet()):
            return self.end(Status.FAILED, unmet, log_tail, remark=run.notes.remark)
        if not reasons:
            return self.end(Status.PASSED, remark=run.notes.remark)
        loss = compiled.loss if self.evidence.question is Question.QUANTIZED else None
        where = [describe_loss(loss)] if loss else []
        seen = any(line.startswith("  seen: ") for line in verdict.advice)
        if self.evidence.question is Question.FAITHFUL and not (seen or run.used):
            where += filter(None, [self.locate()])
        advice = MODEL if failing and failing[0].is_model else verdict.advice
        explained = "\n".join(["; ".join(reasons), *advice, *where])
        return self.end(Status.FAILED, explained, log_tail, remark=run.notes.remark)

    def locate(self) -> str:
        """Return at which layer a program departs from its model: by one more program that gives
        what its layers give, too. Empty for an engine that makes none."""
        spec = self.setup.engine.give_layers(self.spec)
        if not spec:
            return ""
        directory = self.directory / "layers"
        directory.mkdir()
        ended = self.compile(spec, directory / "lower.log")
        made = CompileResult(refused=ended.failure) if ended.failure else ended.result
        if not made.artifact:
            return f"  where: not located: {made.refused}"
        compiled, place = made.artifact.compiled, Path(made.directory)
        references = read_references(place, compiled)
        program = self.copy_program(spec, place, compiled, directory)
        run = self.execute(program, read_inputs(place, compiled))
        if run.failure:
            return f"  where: not located: {run.failure}"
        outputs = stack_outputs(run.outputs, compiled)
        limits = structs.replace(self.limits, outputs=())
        judgement = judge(references, outputs, compiled.outputs, limits)
        return describe_departure(judgement, compiled.layers)

    def compare_baseline(self) -> list[str]:
        """Say how the figures differ from those recorded for this toolchain, if there are any."""
        spec = self.spec
        baseline = self.setup.baselines.get(name_case(spec.model, spec.scheme.value, spec.soc))
        if baseline is None:
            return []
        self.evidence.baseline = baseline
        return list(find_changes(self.evidence.figures, baseline))

    def measure_metric(self, references: References, outputs: list[Array]) -> list[Reason]:
        """Return what the user's metric, if the model has one, has against the program."""
        entry = self.policy.models.get(self.spec.model)
        if entry is None or entry.metric is None:
            return []
        float32, quantized = (
            [one.values for one in models] if models else None
            for models in (references.float32, references.quantized)
        )
        job = MetricJob(entry.metric, outputs, float32 or [], quantized)
        log = self.directory / "metric.log"
        ended = self.setup.pool.run(job, log, self.options.timeout_s, fresh=True)
        if ended.failure:
            return [Reason(Question.TASK, f"metric: {ended.failure}", is_model=True)]
        result: MetricResult = ended.result
        self.evidence.metric = result
        return list(judge_metric(entry.metric, result))

    def delegation_faults(self, compiled: Compiled) -> list[str]:
        """Name what stays on the CPU although the policy asks for full delegation."""
        left = [one for one in compiled.delegation.fallback_ops if not one.asked]
        if not self.limits.full_delegation or not left:
            return []
        every = [*dict.fromkeys(f"{one.op}: {one.reason}" for one in left)]
        more = [f"and {len(every) - SHOWN_OPS} more"] if len(every) > SHOWN_OPS else []
        named = "; ".join([*every[:SHOWN_OPS], *more])
        many = "1 node falls" if len(left) == 1 else f"{len(left)} nodes fall"
        return [f"{many} back to the CPU ({named})"]

    def refuse(self, reason: str, log_tail: str, *, is_ours: bool = False) -> CaseResult:
        """A refusal that the policy knows is ``unsupported``; any other fails the case. What this
        project itself found is not called a refusal."""
        known = self.find_refusal(reason)
        if known:
            return self.end(Status.UNSUPPORTED, f"{reason} [{known}]", log_tail)
        return self.end(Status.FAILED, reason if is_ours else f"refused: {reason}", log_tail)

    def find_refusal(self, reason: str) -> str:
        """Return what the policy knows of a refusal of this case; empty for any other."""
        spec = self.spec
        choices = str(spec.source.choices)
        return self.policy.expects_refusal(spec.model, spec.scheme, spec.soc, reason, choices)

    def find_unmet(self) -> str:
        """Say which refusal the policy expects of this case, which passed; empty for none."""
        spec = self.spec
        choices = str(spec.source.choices)
        known = self.policy.find_unmet(spec.model, spec.scheme, spec.soc, choices)
        return known and (
            f"it passed, and the policy expects it to be unsupported: {known}\n"
            "  fix: remove that row of [[unsupported]] or narrow its globs; strict = false if only"
            " some of its cases are refused"
        )

    def leave(self, *files: Path) -> None:
        """Copy files of the case to where the report is."""
        if self.options.beside and files:
            kept = self.options.beside / self.spec.slug
            kept.mkdir(parents=True, exist_ok=True)
            for path in files:
                shutil.copyfile(path, kept / path.name)

    def end(
        self, status: Status, reason: str = "", log_tail: str = "", *, remark: str = ""
    ) -> CaseResult:
        """Make the case's row of everything that is known."""
        advice = self.policy.advise(reason) if status is Status.FAILED else ""
        spec, known = self.spec, self.evidence
        case = make_case(
            spec,
            known,
            status=status,
            reason=f"{reason}\n{advice}" if advice else reason,
            places=self.find_places(reason) if status is Status.FAILED else (),
            log_tail=log_tail,
            runner=self.setup.runner.name,
            metric_name=self.metric_name,
        )
        controls = tuple(
            Control(
                model=spec.model,
                scheme=spec.scheme.value,
                soc=spec.soc,
                kind=one.kind,
                rejected=one.rejected,
                sqnr_db=one.sqnr_db,
            )
            for one in known.controls
        )
        return CaseResult(case, controls, "; ".join(filter(None, [*self.remarks, remark])))

    @property
    def metric_name(self) -> str:
        """The name of the user's metric, if it was measured."""
        entry = self.policy.models.get(self.spec.model)
        return entry.metric.name if entry and entry.metric and self.evidence.metric else ""

    def find_places(self, reason: str) -> tuple[Place, ...]:
        """Return the lines of a repository's files that a failure is from, else its factory's."""
        if self.spec.is_file:
            return ()
        given = self.spec.source.reference
        reference = find_suite_model(given or self.spec.model) or given
        return tuple(find_places(reason) or [find_factory(reference)] if reference else [])


def make_case(
    spec: CaseSpec,
    known: Evidence,
    *,
    status: Status,
    reason: str,
    runner: str,
    places: tuple[Place, ...] = (),
    log_tail: str = "",
    metric_name: str = "",
) -> Case:
    """Return a case's row of the report: everything that is known, figure by figure."""
    artifact, run, figures = known.artifact, known.run, known.figures
    compiled = artifact.compiled if artifact else None
    delegation = compiled.delegation if compiled else None
    accelerator = run.notes.accelerator if run else {}
    return Case(
        model=spec.model,
        scheme=spec.scheme.value,
        soc=spec.soc,
        status=status,
        sqnr_db=figures.sqnr_db,
        sqnr_db_quantized=figures.sqnr_db_quantized,
        cosine=figures.cosine,
        cosine_quantized=figures.cosine_quantized,
        max_abs=figures.max_abs,
        sqnr_db_scheme=figures.sqnr_db_scheme,
        predicted_sqnr_db=figures.predicted_sqnr_db,
        above_noise_db=figures.above_noise_db,
        above_noise_place=figures.above_noise_place,
        gain=figures.gain,
        offset=figures.offset,
        equal=figures.equal,
        equal_quantized=figures.equal_quantized,
        equal_exact=figures.equal_exact,
        metric=known.metric.value if known.metric else None,
        metric_float=known.metric.float32 if known.metric else None,
        metric_quantized=known.metric.quantized if known.metric else None,
        metric_name=metric_name,
        question=known.question if status is Status.FAILED else None,
        warnings=known.warnings,
        recorded_sqnr_db=known.baseline.sqnr_db if known.baseline else None,
        recorded_sqnr_db_quantized=known.baseline.sqnr_db_quantized if known.baseline else None,
        delegated_nodes=delegation.delegated_nodes if delegation else None,
        fallback_nodes=delegation.fallback_nodes if delegation else None,
        partitions=delegation.partitions if delegation else None,
        lower_s=artifact.lower_s if artifact else None,
        run_s=round(run.wall_s, 3) if run else None,
        pte_bytes=compiled.size_bytes if compiled else None,
        compiler=known.compiler,
        choices=describe_choices(spec, compiled),
        cached=known.cached,
        reason=reason,
        places=places,
        fallback_ops=tuple(
            FallbackOp(op=one.op, reason=one.reason)
            for one in (delegation.fallback_ops if delegation else ())
        ),
        log_tail=log_tail,
        runner=runner,
        inputs=compiled.sets if compiled else 0,
        made_inputs=compiled.made_inputs if compiled else "",
        qnn_ops=known.qnn_ops,
        accelerator_cycles=accelerator.get("accelerator_cycles"),
        accelerator_us=accelerator.get("accelerator_us"),
        lacks=known.lacks,
        digests=name_digests(artifact) if artifact else Digests(),
        outputs=known.outputs,
    )


def name_digests(artifact: Artifact) -> Digests:
    """Return the digests of what a case was made from."""
    return Digests(
        weights=artifact.compiled.weights or None,
        inputs=artifact.digest_sets(INPUTS),
        calibration=artifact.compiled.calibration or None,
        float_outputs=artifact.digest_sets(FLOAT),
    )


def describe_departure(judgement: Judgement, layers: Sequence[str]) -> str:
    """Return at which of its ``layers``, the last outputs, a program departs from its model."""
    outputs = judgement.outputs
    first = len(outputs) - len(layers)
    wrong = [index for index, one in enumerate(outputs) if one.fails(Question.FAITHFUL)]
    behind = [index for index in wrong if index >= first]
    if not wrong:
        return (
            "  where: a program that returns what its layers give, too, is right: QNN computes this"
            " model wrongly only by how it joins layers or outputs"
        )
    if not behind:
        return f"  where: right up to {layers[-1]}, wrong after it" if layers else ""
    index = behind[0]
    before = f"right up to {layers[index - first - 1]}, " if index > first else ""
    figures = outputs[index].quantized_figures or outputs[index].float_figures
    reached = ""
    if figures:
        predicted = outputs[index].predicted_db
        reached = f" (SQNR {figures.sqnr_db:.1f} dB, {predicted:.1f} dB predicted)"
    return f"  where: {before}wrong from {layers[index - first]} on{reached}"


def describe_loss(loss: Loss) -> str:
    """Return where between the layers a quantized model departs from the float32 one."""
    return (
        f"  where: most is lost at {loss.name}: {loss.before_db:.1f} dB before it,"
        f" {loss.behind_db:.1f} dB after it; with only the weights quantized, the outputs have"
        f" {loss.weights_db:.1f} dB"
    )


def describe_choices(spec: CaseSpec, compiled: Compiled | None) -> str:
    """Return the options of the model's entry, and what sharing weights saved."""
    choices = str(spec.source.choices)
    if not compiled or not compiled.unshared_bytes:
        return choices
    return f"{choices} ({compiled.size_bytes} bytes, {compiled.unshared_bytes} without)"


def keep_artifacts(directory: Path, target: Path) -> None:
    """Copy a case's program, inputs, references, outputs and logs to ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, symlinks=True, ignore=list_special)
    rows = target / INPUT_LIST
    if rows.is_file():  # it names files by their whole paths, and the run's own go
        text = rows.read_text(encoding="utf-8")
        rows.write_text(text.replace(f"{directory}/", f"{target.resolve()}/"), encoding="utf-8")


def list_special(directory: str, names: list[str]) -> set[str]:
    """Return what a runner left that is neither a file, a directory nor a link, such as a pipe."""
    paths = {name: Path(directory, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if not (path.is_symlink() or path.is_file() or path.is_dir())
    }
