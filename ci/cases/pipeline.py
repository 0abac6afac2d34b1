"""One case from model to verdict: lower, run, compare, and feed the gate its controls."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.cases.artifact import INPUTS, PROGRAM, SAVER, SAVER_CALLS, Lowered
from ci.cases.baselines import Baseline, find_changes, name_case
from ci.cases.engine import LowerJob, LowerResult
from ci.cases.memo import recall_lowering, remember_lowering
from ci.cases.outputs import read_outputs, read_references, write_input_list
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Ended, Pool
from ci.cases.qnn_files import PARAMS, count_operators
from ci.cases.run_job import RunJob
from ci.cases.runners import Runner
from ci.cases.spec import CaseSpec
from ci.cases.verdict import judge_case
from ci.executorch.tracing import trace_run
from ci.judging.gate import References
from ci.judging.metric import judge_metric
from ci.models.lowering_options import Choices
from ci.models.source_lines import find_factory, find_places, find_suite_model
from ci.models.user_models import MetricJob, MetricResult
from ci.report.schema import Case, Control, FallbackOp, Place, Status, Threshold
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import StoreError, UnfitError
from provisioning.files import explain_no_room
from provisioning.manifest.backends import Backend
from provisioning.store.store import store_home

SHOWN_OPS = 4
ARTIFACT, OUTPUTS = "artifact", "outputs"


def programs_home() -> Path:
    """Where lowered programs are kept."""
    return store_home() / "lowered"


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What a user may change about a run. What QNN writes of a case beside its outputs is left in a
    directory of its own in ``beside``."""

    policy: EmulatorPolicy
    timeout_s: float
    jobs: int = 1
    runner: str = "python"
    use_cache: bool = True
    keep: Path | None = None
    beside: Path | None = None
    record: bool = False
    command: str = ""
    backend: Backend = Backend.HTP
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What all cases of a run share. ``work`` is a scratch directory, ``device`` what runs the
    programs where neither this host nor the runner does."""

    options: SessionOptions
    pool: Pool
    runner: Runner
    toolchain: tuple[str, ...]
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


class CaseRun:
    """One case, step by step; every step may end it with a reason. ``lowers_by`` is the kind of job
    that lowers."""

    lowers_by = "lower"

    def __init__(self, spec: CaseSpec, setup: RunSetup) -> None:
        self.spec, self.setup, self.options = spec, setup, setup.options
        self.directory = setup.work / spec.slug
        self.limits = self.options.policy.limits_of(spec.model, spec.scheme)
        self.figures: dict[str, object] = {}

    def run(self) -> CaseResult:
        """Lower, run, judge: whatever is raised is the failure of this case.

        But what the machine is to blame for: raises StoreError where there is no room, UnfitError
        where no process starts.
        """
        try:
            shutil.rmtree(self.directory, ignore_errors=True)
            (self.directory / OUTPUTS).mkdir(parents=True)
            result = self._lower_and_run()
            if self.options.keep:
                keep_artifacts(self.directory, self.options.keep / self.spec.slug)
        except (StoreError, UnfitError):
            raise
        except Exception as error:
            no_room = explain_no_room(error)
            if no_room:
                raise no_room from error
            return self.end(
                Status.FAILED, f"{type(error).__name__}: {error}", traceback.format_exc()
            )
        return result

    def _lower_and_run(self) -> CaseResult:
        ended = self.lower()
        if ended.failure:
            return self.end(Status.FAILED, f"lowering: {ended.failure}", ended.log_tail)
        result: LowerResult = ended.result
        if result.refused or not result.directory or not result.lowered:
            return self.refuse(result.refused, ended.log_tail)
        artifact = Path(result.directory)
        self.note_lowered(result.lowered, cached=result.cached)
        remark = "a damaged cache entry was lowered again" if result.repaired else ""
        if not result.lowered.delegation.partitions:
            reasons = "; ".join(one.reason for one in result.lowered.delegation.fallback_ops)
            return self.refuse(f"QNN took no node: {reasons}", ended.log_tail)
        build = find_qnn_build(self.find_binary(artifact))
        self.figures["compiler"] = build.text if build else ""
        # Before the runner starts: what it writes there later changes no verdict.
        references = read_references(artifact, result.lowered)
        job = self.give(artifact, result.lowered)
        if self.setup.device:
            run = self.end_unrun(job, result.lowered, remark)
        else:
            run = self.run_and_judge(job, references, result.lowered, remark)
        if self.options.keep:
            shutil.copytree(artifact, self.directory / ARTIFACT, dirs_exist_ok=True)
        return run

    def lower(self) -> Ended:
        """Lower in a fork, unless it is known already; the log is beside the outputs."""
        log = self.directory / "lower.log"
        job = self.make_job(log)
        if known := recall_lowering(job):
            return Ended(known, "", "", 0.0)
        ended = self.setup.pool.run(self.lowers_by, job, log, self.options.timeout_s)
        if ended.result:
            remember_lowering(job, ended.result)
        return ended

    def make_job(self, log: Path) -> LowerJob:
        """What is to be lowered, and with what."""
        return LowerJob(
            model=self.spec.reference,
            source=self.spec.source,
            scheme=self.spec.scheme,
            soc=self.spec.soc,
            cache=str(self.setup.cache),
            toolchain=self.setup.toolchain,
            log=str(log),
            use_cache=self.options.use_cache,
            reference=self.options.policy.reference,
            backend=self.options.backend,
            plain=self.options.plain,
        )

    def give(self, artifact: Path, lowered: Lowered) -> RunJob:
        """A copy of the program and of all input sets: a runner is shown no reference."""
        given = self.directory / ARTIFACT
        given.mkdir()
        program = self.copy_program(artifact, given)
        shutil.copytree(artifact / INPUTS, given / INPUTS)
        if (artifact / SAVER).is_dir():
            self.note_operators(artifact / SAVER)
        input_list = write_input_list(self.directory / "input_list.txt", given, lowered)
        outputs = str(self.directory / OUTPUTS)
        self.job = RunJob(
            str(program),
            str(input_list),
            outputs,
            methods=lowered.methods,
            quantizes=self.options.backend.is_lpai,
        )
        return self.job

    def find_binary(self, artifact: Path) -> Path:
        """The file that holds what QNN compiled."""
        return artifact / PROGRAM

    def copy_program(self, artifact: Path, given: Path) -> Path:
        return shutil.copyfile(artifact / PROGRAM, given / PROGRAM)

    def end_unrun(self, job: RunJob, lowered: Lowered, remark: str) -> CaseResult:
        """A program that was lowered, and is left where the report is: nobody has seen outputs."""
        self.leave(Path(job.model))
        faults = self.delegation_faults(lowered)
        if faults:
            return self.end(Status.FAILED, "; ".join(faults), remark=remark)
        self.figures["lacks"] = self.setup.device
        reason = (
            f"lowered; cannot run here: it needs {self.setup.device}\n"
            "  fix: --runner with a program that runs it there; it is kept beside the report, in"
            f" qnn/{self.spec.slug}"
        )
        return self.end(Status.UNSUPPORTED, reason, remark=remark)

    def run_and_judge(
        self, job: RunJob, references: References, lowered: Lowered, remark: str
    ) -> CaseResult:
        """What fails in a process that ran other programs before is run again in a fresh one: only
        what fails there is this program's fault."""
        before = dict(self.figures)
        run = self.execute(job)
        result = self.judge_run(references, lowered, run, remark)
        if result.case.status is Status.PASSED or not run.used:
            return result
        self.figures = before
        shutil.rmtree(job.outputs)
        Path(job.outputs).mkdir()
        again = self.judge_run(references, lowered, self.execute(job, fresh=True), remark)
        if again.case.status is not Status.PASSED:
            return again
        seen = f"in a process that ran other programs before: {result.case.reason.splitlines()[0]}"
        return replace(again, remark="; ".join(filter(None, [remark, seen])))

    def execute(self, job: RunJob, *, fresh: bool = False) -> Ended:
        log = self.directory / "run.log"
        return self.setup.runner.execute(job, log, self.options.timeout_s, fresh=fresh)

    def judge_run(
        self, references: References, lowered: Lowered, run: Ended, remark: str
    ) -> CaseResult:
        """Judge how a run ended and what it wrote, and check delegation."""
        self.figures["run_s"] = round(run.wall_s, 3)
        if run.failure:
            known = self.find_refusal(f"{run.failure}\n{run.log_tail}")
            if known:
                return self.end(Status.UNSUPPORTED, f"run: {known}", run.log_tail, remark=remark)
            faults = [f"run: {run.failure}", *self.delegation_faults(lowered)]
            return self.end(Status.FAILED, "; ".join(faults), run.log_tail, remark=remark)
        verdict = judge_case(self.spec, references, self.directory, lowered, self.options.policy)
        self.figures |= verdict.figures
        traced = self.trace(lowered)
        changes = self.find_changes()
        measured = self.measure_metric(references, lowered) if verdict.figures else []
        left = self.delegation_faults(lowered)
        reasons = [*verdict.reasons, *changes, *measured, *traced, *left]
        if not reasons:
            return self.end(Status.PASSED, controls=verdict.controls, remark=remark)
        told = "\n".join(["; ".join(reasons), *verdict.advice])
        return self.end(Status.FAILED, told, run.log_tail, verdict.controls, remark)

    def trace(self, lowered: Lowered) -> tuple[str, ...]:
        """Leave the trace that the model's entry asks for; why there is none, where none is."""
        choices = self.spec.source.choices
        if not choices.traces:
            return ()
        dumped = choices.dump_intermediate_outputs
        limit_s = self.options.timeout_s
        traced = trace_run(self.job, lowered, self.setup.pool, limit_s, dumped=dumped)
        self.figures |= traced.figures
        self.leave(*traced.files)
        return traced.faults

    def leave(self, *files: Path) -> None:
        """Copy files of the case to where the report is."""
        if self.options.beside:
            own = self.options.beside / self.spec.slug
            own.mkdir(parents=True, exist_ok=True)
            for path in files:
                shutil.copyfile(path, own / path.name)

    def note_operators(self, saved: Path) -> None:
        """Saver takes and refuses what HTP does, so that these are the program's operators."""
        self.leave(saved / SAVER_CALLS, saved / PARAMS)
        calls = (saved / SAVER_CALLS).read_text(encoding="utf-8", errors="replace")
        self.figures["qnn_ops"] = count_operators(calls)

    def measure_metric(self, references: References, lowered: Lowered) -> list[str]:
        """What the user's metric, where the model has one, says against the program."""
        entry = self.options.policy.models.get(self.spec.model)
        if entry is None or entry.metric is None:
            return []
        job = MetricJob(
            metric=entry.metric,
            outputs=read_outputs(self.directory / "outputs", lowered),
            float32=[one.values for one in references.float32],
        )
        log = self.directory / "metric.log"
        ended = self.setup.pool.run("metric", job, log, self.options.timeout_s, fresh=True)
        if ended.failure:
            return [f"metric: {ended.failure}"]
        result: MetricResult = ended.result
        self.figures |= {
            "metric": result.value,
            "metric_float": result.float32,
            "metric_name": entry.metric.name,
        }
        return list(judge_metric(entry.metric, result.value, result.float32, result.shifted))

    def find_changes(self) -> list[str]:
        """How the figures differ from those recorded for this toolchain, where some are."""
        spec = self.spec
        name = name_case(spec.model, spec.scheme.value, spec.soc)
        baseline = self.setup.baselines.get(name)
        if baseline is None:
            return []
        changes = list(find_changes(self.figures, baseline))
        self.figures["recorded_sqnr_db"] = baseline.sqnr_db
        self.figures["recorded_sqnr_db_quantized"] = baseline.sqnr_db_quantized
        return changes

    def delegation_faults(self, lowered: Lowered) -> list[str]:
        """What stays on the CPU although the policy says full delegation."""
        left = [one for one in lowered.delegation.fallback_ops if not one.asked]
        if not self.limits.full_delegation or not left:
            return []
        every = [*dict.fromkeys(f"{one.op}: {one.reason}" for one in left)]
        more = [f"and {len(every) - SHOWN_OPS} more"] if len(every) > SHOWN_OPS else []
        named = "; ".join([*every[:SHOWN_OPS], *more])
        many = "1 node falls" if len(left) == 1 else f"{len(left)} nodes fall"
        return [f"{many} back to the CPU ({named})"]

    def note_lowered(self, lowered: Lowered, *, cached: bool) -> None:
        delegation = lowered.delegation
        self.figures |= {
            "delegated_nodes": delegation.delegated_nodes,
            "fallback_nodes": delegation.fallback_nodes,
            "partitions": delegation.partitions,
            "fallback_ops": tuple(
                FallbackOp(op=one.op, reason=one.reason) for one in delegation.fallback_ops
            ),
            "lower_s": lowered.lower_s,
            "pte_bytes": lowered.pte_bytes,
            "cached": cached,
            "inputs": lowered.sets,
            "choices": describe_choices(self.spec.source.choices, lowered),
        }

    def refuse(self, reason: str, log_tail: str) -> CaseResult:
        """A refusal that the policy knows is ``unsupported``; any other fails the case."""
        known = self.find_refusal(reason)
        if known:
            return self.end(Status.UNSUPPORTED, f"{reason} [{known}]", log_tail)
        return self.end(Status.FAILED, f"refused: {reason}", log_tail)

    def find_refusal(self, reason: str) -> str:
        """What the policy knows of a refusal of this case; empty for any other."""
        return self.options.policy.expects_refusal(
            self.spec.model,
            self.spec.scheme,
            self.spec.soc,
            reason,
            str(self.spec.source.choices),
        )

    def end(
        self,
        status: Status,
        reason: str = "",
        log_tail: str = "",
        controls: tuple[Control, ...] = (),
        remark: str = "",
    ) -> CaseResult:
        advice = self.options.policy.advise(reason) if status is Status.FAILED else ""
        case = Case(
            model=self.spec.model,
            scheme=self.spec.scheme.value,
            soc=self.spec.soc,
            status=status,
            reason=f"{reason}\n  fix: {advice}" if advice else reason,
            places=self.find_places(reason) if status is Status.FAILED else (),
            log_tail=log_tail,
            runner=self.setup.runner.name,
            **self.figures,  # type: ignore[arg-type]
        )
        return CaseResult(case, controls, remark)

    def find_places(self, reason: str) -> tuple[Place, ...]:
        """The lines of a repository's files that a failure is from; else of its factory."""
        given = self.spec.source.reference
        reference = find_suite_model(given or self.spec.model) or given
        return tuple(find_places(reason) or [find_factory(reference)] if reference else [])


def keep_artifacts(directory: Path, target: Path) -> None:
    """Copy a case's program, inputs, references, outputs and logs to ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, symlinks=True, ignore=list_special)
    rows = target / "input_list.txt"
    if rows.is_file():  # it names files by their whole paths, and the run's own go
        text = rows.read_text(encoding="utf-8")
        rows.write_text(text.replace(f"{directory}/", f"{target.resolve()}/"), encoding="utf-8")


def list_special(directory: str, names: list[str]) -> set[str]:
    """What a runner left that is neither a file, a directory nor a link, such as a pipe."""
    paths = {name: Path(directory, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if not (path.is_symlink() or path.is_file() or path.is_dir())
    }


def describe_choices(choices: Choices, lowered: Lowered) -> str:
    """The choices of the model's entry, and what they came to."""
    if not lowered.unshared_bytes:
        return str(choices)
    return f"{choices} ({lowered.pte_bytes} bytes, {lowered.unshared_bytes} without)"


def describe_limits(policy: EmulatorPolicy, specs: Iterable[CaseSpec]) -> tuple[Threshold, ...]:
    """The limits that a run used, each once."""
    limits = [policy.limits_of(spec.model, spec.scheme) for spec in specs]
    return tuple({(one.scheme, one.model): one for one in limits}.values())
