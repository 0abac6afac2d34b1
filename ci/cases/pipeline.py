"""Compiles, runs and judges one case, and returns its report row. This module uses the two
protocols of ci.cases.engine, and imports no specific engine or runner."""

from __future__ import annotations

import math
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from ci.cases.cache import KEY, CompileJob, CompileResult, as_compiled
from ci.cases.engine import (
    CPU,
    STAGE,
    STAGES,
    Compiled,
    Engine,
    Program,
    RunError,
    Runner,
    Sets,
    needed,
)
from ci.cases.facts import UNCOMPARED, CaseFacts, CaseResult, Options, Run
from ci.cases.forked import LOWERING, DiedError
from ci.cases.judged import CaseJudge
from ci.cases.lowering_findings import find_no_node
from ci.cases.outputs import read_inputs, read_references, stack_outputs
from ci.cases.pool import Ended, Pool
from ci.cases.programs import programs_home
from ci.cases.reasons import UNTRIED
from ci.cases.runners import INPUT_LIST
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Diagnosis, Suspicion
from ci.facts.finding import STOPPING, Finding, Proof, Question, advise
from ci.facts.kinds import (
    BUG,
    INVALID,
    LACKING,
    METRIC_ERROR,
    NO_NODE,
    NO_OUTPUTS,
    OFF_GRID,
    ON_CPU,
    find_bug,
)
from ci.facts.known_fault import KnownFault
from ci.judging.causes import UNKNOWN, Departure
from ci.judging.figures import Array
from ci.judging.gate import Judgement, References, judge
from ci.judging.verdict import judge_metric, measure_outputs
from ci.latency.estimate import estimate_times
from ci.latency.simulation import choose_simulated
from ci.models.tensors import Layer
from ci.models.user_data import run_metric
from ci.models.user_models import MetricResult, ReferencePolicy
from ci.report.schema import Estimate, LayerFigures, NoiseNote, Status, Threshold, Tool
from provisioning.console.user_folder import owned_directory
from provisioning.documents import read_text, read_window
from provisioning.errors import DefectError, QnnCiError, StoreError, UnfitError
from provisioning.files import explain_no_room, explain_write

ARTIFACT = "artifact"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What was asked of a run, and the tools that do it. All cases of the run share it.

    ``parts`` are the packages and libraries of the toolchain. ``work`` is a scratch directory.
    ``device`` names the required hardware if neither this host nor the runner can run the programs.
    If there is an ``emulator``, the outputs of ``runner`` are compared with the emulator's.
    """

    options: Options
    engine: Engine
    runner: Runner
    pool: Pool
    work: Path
    parts: tuple[Tool, ...] = ()
    cache: Path = field(default_factory=programs_home)
    device: str = ""
    emulator: Runner | None = None

    def make_job(
        self, spec: CaseSpec, log: Path, reference: ReferencePolicy | None = None
    ) -> CompileJob:
        """Return the job that finds or compiles the program of a case. Without ``reference``,
        references are not checked."""
        return CompileJob(self.engine, spec, self.cache, log, self.options.use_cache, reference)


class CaseRun:
    """Compiles and runs one case, and has it judged. It is the Probes of its judge."""

    def __init__(self, spec: CaseSpec, setup: Setup) -> None:
        self.spec, self.setup, self.options = spec, setup, setup.options
        self.directory = setup.work / spec.slug
        self.facts = CaseFacts(spec, setup.options, self.directory, setup.runner.name)
        self.judging = CaseJudge(self.facts, self)
        self.stage = STAGES[0]
        self.experiment = ""  # of a diagnosis

    def describe_stage(self) -> str:
        """Return the stage that the case is in, and its number: ``quantize (2 of 6)``."""
        if self.experiment:
            return f"diagnose: {self.experiment}"
        stages = [name for name in STAGES if name != "quantize" or self.spec.scheme.quantized]
        stage = self.stage
        if stage == STAGES[0]:  # in a worker
            noted = read_window(self.directory / STAGE)
            stage = noted if noted in stages else stage
        return f"{stage} ({stages.index(stage) + 1} of {len(stages)})"

    def run(self) -> CaseResult:
        """Compile, run and judge the case. An exception fails only this case.

        Raises StoreError if the disk is full, and UnfitError if no process can be started, because
        these errors affect all cases.
        """
        try:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            result = self._compile_and_run()
            if self.options.keep:
                keep_artifacts(self.directory, self.options.keep / self.spec.slug)
        except (StoreError, UnfitError):
            raise
        except RunError as error:
            self.facts.evidence.lacks = error.lacks
            if error.lacks:
                return self.end(Status.UNSUPPORTED, [LACKING.from_error(error)])
            return self.end(Status.FAILED, [NO_OUTPUTS.from_error(error)])
        except Exception as error:
            if no_room := explain_no_room(error):
                raise no_room from error
            self.facts.evidence.is_defect = isinstance(error, DefectError)
            if isinstance(error, QnnCiError):
                kind = BUG if self.facts.evidence.is_defect else INVALID
                return self.end(Status.FAILED, [kind.from_error(error)])
            self.facts.evidence.is_defect = True
            return self.end(Status.FAILED, [find_bug(error)], traceback.format_exc())
        return result

    def end(
        self,
        status: Status,
        findings: Sequence[Finding] = (),
        log_tail: str = "",
        *,
        remark: str = "",
    ) -> CaseResult:
        """Return the result of the case, as CaseJudge.end does."""
        return self.judging.end(status, findings, log_tail, remark=remark)

    def _compile_and_run(self) -> CaseResult:
        ended = self.compile(self.spec, self.directory / "lower.log")
        # The job got no CPU time. That says nothing about the model, so it is not judged.
        if ended.starved:
            raise RunError(f"lowering: {ended.failure}", lacks=CPU)
        compile_result = as_compiled(ended)
        if compile_result.refused:
            noted_key = read_window(self.directory / KEY)
            self.facts.evidence.refused_key = compile_result.key or noted_key
            return self._end_refused(ended, compile_result)
        if not compile_result.artifact:
            raise DefectError("a program was neither compiled nor refused")
        directory, compiled = Path(compile_result.directory), compile_result.artifact.compiled
        self.judging.require_outputs(compiled.outputs)
        if compile_result.repaired:
            self.facts.remarks.append("a damaged cache entry was replaced")
        self.facts.note_program(directory, compile_result.artifact)
        self.facts.evidence.cached = compile_result.cached
        if not compiled.delegation.partitions:
            return self.judging.refuse(
                find_no_node(compiled.delegation.fallback_ops), ended.log_tail
            )
        if self.facts.estimates:
            subject = "the time on a device"
            with needed(subject) if self.facts.limits_time else self.facts.notes.of(subject):
                self.facts.evidence.estimate = self.estimate()
        # A copy: the directory of the artifact has the references, which a dishonest runner could
        # return.
        program = self.copy_program(self.spec, directory, compiled, self.directory)
        if self.setup.device:
            result = self.end_unrun(program)
        else:
            self.stage = "run"
            result = self.run_and_judge(program, directory)
        if self.options.keep:
            shutil.copytree(directory, self.directory / ARTIFACT, dirs_exist_ok=True)
        return result

    def _end_refused(self, ended: Ended, compile_result: CompileResult) -> CaseResult:
        """End a case without a program."""
        finding = compile_result.refused
        if finding is None:
            raise DefectError("a program was not compiled, and no reason is recorded")
        self.facts.evidence.is_defect = finding.id == BUG.id
        died, exceeded = compile_result.died, compile_result.exceeded
        if not ended.failure:
            return self.judging.refuse(finding, ended.log_tail, died=died, exceeded=exceeded)
        # No tool refused it. What dies while it compiles, or does not end, may be changed.
        if isinstance(ended.error, DiedError) and ended.error.doing == LOWERING:
            return self.judging.end_diagnosed(finding, ended.log_tail, died=True)
        if ended.exceeded and not ended.places:  # else the user's function did not end
            return self.judging.end_diagnosed(finding, ended.log_tail, exceeded=True)
        return self.end(Status.FAILED, [finding], ended.log_tail)

    def estimate(self) -> Estimate:
        """Predict the time of the case on devices. For this, the model is compiled again, for a SoC
        that QNN's simulator knows, so that the judged program does not change."""
        spec, own_lines = replace(self.spec, simulated=True), self.options.own_lines
        if not choose_simulated(spec.soc):
            return estimate_times(None, spec.scheme, spec.soc)
        compile_result = as_compiled(self.compile(spec, self.directory / "simulate.log"))
        if not compile_result.artifact:
            fault = compile_result.refused.headline if compile_result.refused else ""
            return estimate_times(None, spec.scheme, spec.soc, fault=fault)
        compiled = compile_result.artifact.compiled
        cpu_nodes = compiled.delegation.fallback_nodes
        return estimate_times(
            compiled.simulation, spec.scheme, spec.soc, cpu_nodes=cpu_nodes, user_lines=own_lines
        )

    def compile(self, spec: CaseSpec, log: Path) -> Ended:
        """Find or compile a program in a worker. References are not checked if they are results
        inside of a model, which may be zero or constant: those of a case with ``layers`` and of an
        experiment."""
        is_inside = bool(spec.layers) or self.options.is_experiment
        job = self.setup.make_job(spec, log, None if is_inside else self.facts.policy.reference)
        return self.setup.pool.run(
            job, log, self.options.timeout_s, max_bytes=self.facts.memory_bytes
        )

    def copy_program(
        self, spec: CaseSpec, directory: Path, compiled: Compiled, place: Path
    ) -> Program:
        """Return a copy of the program for the runner, which must not have access to the
        references."""
        target = place / ARTIFACT
        target.mkdir()
        part = Path(compiled.program).parts[0]
        if (directory / part).is_dir():
            shutil.copytree(directory / part, target / part)
        else:
            shutil.copyfile(directory / part, target / part)
        path, log = target / compiled.program, place / "run.log"
        return Program(spec, path, compiled, place, log, self.facts.memory_bytes)

    def end_unrun(self, program: Program) -> CaseResult:
        """End a case that was lowered but cannot run here, and keep its program next to the report.
        The case is unsupported; it fails if its delegation or its footprint violates the policy."""
        self.facts.leave(program.path)
        faults = self.judging.delegation_faults(program.compiled)
        over = self.judging.find_excesses(program.compiled)
        if faults or over:
            return self.end(Status.FAILED, [*over, *faults])
        self.facts.evidence.lacks = self.setup.device
        finding = LACKING.find(
            f"lowered; the program cannot run here: it needs {self.setup.device}",
            advice=advise(
                fix="set --runner to a command that runs it on such a device; the program is kept"
                f" next to the report, in qnn/{self.spec.slug}",
                proof=Proof.PROVEN,
            ),
        )
        return self.end(Status.UNSUPPORTED, [finding])

    def run_and_judge(self, program: Program, artifact: Path) -> CaseResult:
        """Run a program and judge it by the references in the directory ``artifact``. If it fails
        in a process that had run other programs before, run and judge it again in a new process.
        The second result counts."""
        # Read before the runner starts, so that nothing it writes can change the verdict.
        references = read_references(artifact, program.compiled)
        sets = read_inputs(artifact, program.compiled)
        self.facts.note_inputs(sets)
        before = copy(self.facts.evidence)
        run = self.execute(program, sets)
        if self.setup.emulator and not run.failure:
            self.run_emulator(self.setup.emulator, program, sets, run)
        self.stage = "judge"
        result = self.judging.judge_run(program, references, run)
        # A pass needs no second run: freed memory is overwritten, so no program can see another's
        # outputs.
        if result.case.judgement.status is Status.PASSED or not run.used:
            return result
        self.facts.evidence = before
        second = self.judging.judge_run(
            program, references, self.execute(program, sets, fresh=True)
        )
        if second.case.judgement.status is not Status.PASSED:
            return second
        remark = (
            "the program failed in a process that had run other programs before:"
            f" {result.case.headline}"
        )
        return replace(second, remark="; ".join(filter(None, [second.remark, remark])))

    def run_emulator(self, emulator: Runner, program: Program, sets: Sets, run: Run) -> None:
        """Run the program on the emulator and record how close the outputs of ``run`` are to the
        emulator's. If the emulator fails, add a remark."""
        place = self.directory / "emulator"
        place.mkdir()
        emulator_program = replace(program, directory=place, log=place / "run.log")
        emulated = self.execute(emulator_program, sets, runner=emulator)
        if emulated.failure:
            self.facts.remarks.append(f"{UNCOMPARED}: {emulated.failure}")
        else:
            self.facts.compare_emulator(run.outputs, emulated.outputs, program.compiled)

    def execute(
        self, program: Program, sets: Sets, *, fresh: bool = False, runner: Runner | None = None
    ) -> Run:
        """Open the program with ``runner``, by default the session's, and run each sample
        once."""
        began, used = time.monotonic(), False
        runner = runner or self.setup.runner
        try:
            with runner.open(program, self.options.timeout_s, fresh=fresh) as opened:
                used = opened.used
                outputs = opened.run(sets)
                wall_s = time.monotonic() - began
                notes = opened.finish()
        except RunError as error:
            wall_s = time.monotonic() - began
            used = used or error.used
            return Run(
                failure=error.what,
                advice=error.advice,
                lacks=error.lacks,
                by_runtime=error.by_runtime,
                died=error.died,
                exceeded=error.exceeded,
                wall_s=wall_s,
                used=used,
            )
        return Run(outputs=outputs, inputs=sets, notes=notes, wall_s=wall_s, used=used)

    def run_again(self, program: Program, run: Run) -> Sets:
        """Return the outputs of another run of a program on the same inputs, empty if it
        fails."""
        return self.execute(program, run.inputs).outputs

    def measure_remedy(
        self, faults: Sequence[KnownFault], *, approximate: bool = False
    ) -> float | None:
        """Return the SQNR in dB of the quantized model with the remedies of known faults, or None
        if they cannot be applied, or do not apply. ``approximate`` also allows remedies that change
        the model's function."""
        job = self.options.make_remedy_job(self.spec, faults, approximate=approximate)
        if job is None:
            return None
        log = self.directory / "remedy.log"
        ended = self.setup.pool.run(job, log, self.options.timeout_s, fresh=True)
        return None if ended.failure else float(ended.result)

    def diagnose(self, finding: Finding, suspicion: Suspicion) -> Diagnosis | str:
        """Return what experiments show of the cause of a finding, or why none are made: of a model
        with several methods, of a program that runs elsewhere, or of another question.

        Experiments are judged by their gain in dB, which says nothing of indices or booleans."""
        experiments = self.setup.options.experiments
        if experiments is None or self.spec.source.choices.methods or self.setup.device:
            return UNTRIED
        if reason := experiments.refuse(self.spec):
            return f"{UNTRIED}: {reason}"
        if finding.question in {Question.FAITHFUL, Question.QUANTIZED}:
            if not any(figure.unit == "dB" or "sqnr" in figure.name for figure in finding.figures):
                return UNTRIED
        elif finding.id == ON_CPU.id:
            artifact = self.facts.evidence.artifact
            if artifact and artifact.compiled.delegation.garbled:  # to be taken is no remedy
                return UNTRIED
        elif finding.question not in STOPPING or finding.id == NO_NODE.id:
            return UNTRIED
        return experiments.diagnose(self, finding, suspicion)

    def locate(self) -> Departure:
        """Return the layer at which a program starts to differ from its model, or the reason why it
        is unknown. Return nothing if the engine or the model does not support a program that
        returns its layers."""
        if self.setup.options.is_experiment:
            return UNKNOWN
        judged = self.judge_layers(self.facts.limits)
        if isinstance(judged, str):
            return Departure(text=judged)
        judgement, layers = judged
        text, layer = describe_departure(judgement, layers), find_departure(judgement, layers)
        self.facts.evidence.layers = tuple(describe_layers(judgement, layers, layer))
        self.facts.evidence.layer_places = [
            {place.node, str(place.origin) if place.origin.line else ""} - {""} for place in layers
        ]
        if layer is None:
            return Departure(text=text)
        place = layers.index(layer)
        figures = judgement.outputs[len(judgement.outputs) - len(layers) + place].nearest
        reached_db = figures.sqnr_db if figures else None
        worst = find_worst(judgement, layers)
        return Departure(
            layer, tuple(layers[:place]), text, reached_db, worst if worst is not layer else None
        )

    def name_operators(self, notes: tuple[NoiseNote, ...]) -> tuple[NoiseNote, ...]:
        """Return the notes with the first layer that has errors above the predicted noise. If it is
        unknown, return them unchanged."""
        if self.setup.options.is_experiment:
            return notes
        judged = self.judge_layers(structs.replace(self.facts.limits, strict_noise=True))
        layer = None if isinstance(judged, str) else find_departure(*judged)
        if layer is None:
            return notes
        names = {"operator": layer.operator, "label": layer.label}
        return tuple(structs.replace(note, **names) for note in notes)

    def judge_layers(self, limits: Threshold) -> tuple[Judgement, Sequence[Layer]] | str:
        """Return the judgement of a second program that also returns the outputs of its layers, and
        these layers. If there is no such program, return the reason, or "" if the engine or the
        model does not support it."""
        if self.spec.source.choices.methods:
            return ""
        spec = replace(self.spec, layers=True)
        directory = self.directory / "layers"
        directory.mkdir()
        compile_result = as_compiled(self.compile(spec, directory / "lower.log"))
        if not compile_result.artifact:
            return (
                f"not located: {compile_result.refused.headline if compile_result.refused else ''}"
            )
        compiled, place = compile_result.artifact.compiled, Path(compile_result.directory)
        if not compiled.layers:
            return ""
        references = read_references(place, compiled)
        program = self.copy_program(spec, place, compiled, directory)
        run = self.execute(program, read_inputs(place, compiled))
        if run.failure:
            return f"not located: {run.failure}"
        try:
            outputs = stack_outputs(run.outputs, compiled)
        except ValueError as error:
            return f"not located: {error}"
        limits = structs.replace(limits, outputs=())
        return judge(references, outputs, compiled.outputs, limits), compiled.layers

    def measure_metric(self, references: References, outputs: list[Array]) -> list[Finding]:
        """Measure the user's metric, if the model has one, and return why it rejects the
        program."""
        if self.facts.metric is None:
            return []
        float32 = [expected.values for expected in references.float32]
        quantized = None
        if references.quantized:
            quantized = [expected.values for expected in references.quantized]
        arrays = self.spec.is_file
        job = partial(run_metric, self.facts.metric, outputs, float32, quantized, arrays=arrays)
        log = self.directory / "metric.log"
        ended = self.setup.pool.run(
            job, log, self.options.timeout_s, fresh=True, max_bytes=self.facts.memory_bytes
        )
        if ended.starved:
            raise RunError(f"metric: {ended.failure}", lacks=CPU)
        if ended.failure:
            return [ended.find(METRIC_ERROR)]
        result: MetricResult = ended.result
        self.facts.evidence.metric = result
        outputs_vary = measure_outputs(references)
        return list(judge_metric(self.facts.metric, result, self.facts.inputs_vary, outputs_vary))


SIMILAR_DB = 3.0  # an SQNR of a layer that is not further below its prediction explains nothing


def find_departure(judgement: Judgement, layers: Sequence[Layer]) -> Layer | None:
    """Return the first layer whose output is not faithful. ``layers`` are the layers that belong to
    the program's last outputs."""
    judged = judgement.outputs[len(judgement.outputs) - len(layers) :]
    for layer, result in zip(layers, judged, strict=True):
        # QNN does not clip every value that the quantized model clips: inside of a model, a few
        # such elements are no reason for wrong outputs.
        faults = [finding for finding in result.findings if finding.id != OFF_GRID.id]
        if any(finding.question is Question.FAITHFUL for finding in faults):
            return layer
    return None


def describe_layers(
    judgement: Judgement, layers: Sequence[Layer], first: Layer | None
) -> Iterator[LayerFigures]:
    """Yield the figures of each layer; ``first`` is the first wrong one. The arguments are those of
    find_departure."""
    judged = judgement.outputs[len(judgement.outputs) - len(layers) :]
    for layer, result in zip(layers, judged, strict=True):
        figures = result.nearest
        yield LayerFigures(
            label=layer.label,
            sqnr_db=figures.sqnr_db if figures else None,
            predicted_db=result.predicted_db,
            is_first=layer is first,
        )


# Of the largest error of a layer, in dB below its prediction. With half of it, a sum that is 27 dB
# below was chosen, and not the reciprocal that is 49 dB below, behind which the outputs are lost.
MOST = 0.75


def find_worst(judgement: Judgement, layers: Sequence[Layer]) -> Layer | None:
    """Return the first layer with most of the error: at least MOST of the dB that the worst one is
    below its prediction. The arguments are those of find_departure."""
    judged = judgement.outputs[len(judgement.outputs) - len(layers) :]
    losses = [
        result.predicted_db - result.nearest.sqnr_db
        if result.nearest and result.predicted_db is not None
        else 0.0
        for result in judged
    ]
    largest = max((loss for loss in losses if math.isfinite(loss)), default=0.0)
    if largest <= 0:
        return None
    return next(layer for layer, loss in zip(layers, losses, strict=True) if loss >= MOST * largest)


def describe_departure(judgement: Judgement, layers: Sequence[Layer]) -> str:
    """Return the layer at which a program starts to differ from its model. The arguments are those
    of find_departure."""
    outputs = judgement.outputs
    if not any(output.fails(Question.FAITHFUL) for output in outputs):
        return (
            "the program is correct if it also returns the outputs of its layers, so the"
            " cause is how QNN combines layers or outputs"
        )
    layer = find_departure(judgement, layers)
    if layer is None:
        return f"correct up to {layers[-1].label}, wrong after it"
    place = layers.index(layer)
    before = f"correct up to {layers[place - 1].label}, " if place else ""
    first_wrong = outputs[len(outputs) - len(layers) + place]
    reached = ""
    figures = first_wrong.nearest
    if figures and first_wrong.predicted_db is not None:
        reached = f"SQNR {figures.sqnr_db:.1f} dB, {first_wrong.predicted_db:.1f} dB predicted"
        worst = next((excess for excess in first_wrong.excesses if excess.fails), None)
        # Such as a gain: the SQNR alone would say that the layer is right.
        if worst and figures.sqnr_db > first_wrong.predicted_db - SIMILAR_DB:
            reached += f"; {worst.above_db:.1f} dB above the predicted noise in {worst.place}"
        reached = f" ({reached})"
    return f"{before}wrong from {layer.label} on{reached}"


KEEP_FIX = "move the directory away, or pass another one to --keep-artifacts"


def keep_artifacts(directory: Path, target: Path) -> None:
    """Copy the directory of a case to ``target``: program, inputs, references, outputs and logs.
    Raises StoreError if it cannot be written."""
    try:
        with owned_directory(target, KEEP_FIX) as fresh:
            ignore = list_special
            shutil.copytree(directory, fresh, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            rows = fresh / INPUT_LIST
            if rows.is_file():  # it contains absolute paths of a directory that will be removed
                place = target.parent.resolve() / target.name
                text = read_text(rows).replace(f"{directory}/", f"{place}/")
                rows.write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "choose another directory for --keep-artifacts, on a disk with enough free space"
        raise explain_write(target, error, fix) from error


def list_special(directory: str, names: list[str]) -> set[str]:
    """Return the names of special entries, such as pipes and sockets: everything except files,
    directories and links."""
    paths = {name: Path(directory, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if not (path.is_symlink() or path.is_file() or path.is_dir())
    }
