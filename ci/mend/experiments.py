"""Answers the questions of a diagnosis: compiles, runs and judges parts of a case's model, with and
without rewrites. A part is a case like any other, so that its program is in the cache."""

from __future__ import annotations

import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from ci.audit.localise_search import EXCEEDED, name_refusal
from ci.cases.facts import Options
from ci.cases.pipeline import CaseRun
from ci.cases.pool import ABORTED
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Diagnosis, Suspicion, advance, diagnose
from ci.diagnosis.experiments import (
    NO_PART,
    TIME_IS_UP,
    UNCHANGED,
    WHOLE,
    Answer,
    ExamineCured,
    Experiment,
    FindSmallest,
    KeepPart,
    ListOperators,
    ListRemedies,
    Operator,
    RemedyChoice,
    Result,
    RunPart,
    Second,
    Smallest,
)
from ci.diagnosis.wording import describe_form
from ci.facts.finding import STOPPING, Finding, Proof, Question, show_cause
from ci.facts.kinds import NO_NODE, NOISE, QUANTIZED_BADLY
from ci.faults.known import Frontend
from ci.mend.answers import Answers, answers_home
from ci.mend.remedies import OnnxRemedyTrial, TorchRemedyTrial
from ci.mend.source import Factory, make_source
from ci.mend.subjects import CALIBRATION, INPUTS, Subjects
from ci.mend.table import Rewrite, RewriteLane, read_rewrites
from ci.mend.trials import Attempt, Trials, choose_lane
from ci.models.lowering_options import Part
from ci.models.schemes import LITERT, ONNX, Mixture, Scheme
from ci.models.source_lines import find_suite_model
from ci.models.user_models import Source
from ci.report.schema import Case, Status
from ci.report.text import count
from provisioning.console.terminal import clean
from provisioning.errors import QnnCiError
from provisioning.files import write_whole

NET = "net"
OF_ACCURACY = frozenset({Question.FAITHFUL, Question.QUANTIZED, Question.TASK})
CASES = 4  # of which a run may have the seconds
MOST_SLOW = 4.0  # times as long as their work experiments may take by the clock
LEAST_S = 1.0  # that an experiment needs
KEEP_S = 6.0  # to write a reproducer, also when the time for experiments is up
# What says nothing of the model: the run was stopped, or something outside of a process ended it,
# as the kernel does if memory runs out. A process ends itself by the other signals.
ENDED_FROM_OUTSIDE = re.compile(
    rf"{ABORTED}|closed its pipe|was killed by (?!SIG(?:SEGV|FPE|ABRT|ILL|BUS|TRAP)\b)"
)
# Of the seconds of a case that exceeded a limit: what one experiment may take, which may not end.
SHARE_OF_ENDLESS = 0.25
NOT_CHANGED = (
    "they change PyTorch models, .onnx files and float .tflite files, and no quantized .tflite"
    " file; judge the float model from which it was made"
)


@dataclass
class KnownModel:
    """What the experiments of a run know about a float model, which is the same in all schemes: its
    operators, and what each rewrite does to it. The case that finds out more holds ``guard``."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    operators: list[Operator] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)


@contextmanager
def held(guard: threading.Lock, limit_s: float) -> Iterator[bool]:
    """Hold a lock during the block, and give whether it was to be had within ``limit_s``
    seconds."""
    is_held = guard.acquire(timeout=max(limit_s, 0.0))
    try:
        yield is_held
    finally:
        if is_held:
            guard.release()


@dataclass
class Budget:
    """The time of experiments: ``work_s`` seconds of work, which is the time that passes except
    what their jobs wait for a processor or a disk. ``read_waited`` returns how long that was until
    now. By the clock, ``slowest`` times as many seconds may pass. With a limit by the clock alone,
    a cause that takes 9 seconds on an idle machine was not named in 30 where two jobs shared it."""

    work_s: float
    read_waited: Callable[[], float]
    slowest: float = 1.0

    def __post_init__(self) -> None:
        self.began, self.waited_before_s = time.monotonic(), self.read_waited()
        self.most_s = self.work_s * self.slowest

    @property
    def passed_s(self) -> float:
        """Return how many seconds have passed."""
        return time.monotonic() - self.began

    @property
    def spent_s(self) -> float:
        """Return how many seconds of work were spent."""
        return self.passed_s - (self.read_waited() - self.waited_before_s)

    @property
    def left_s(self) -> float:
        """Return for how many seconds work may go on."""
        return min(self.work_s - self.spent_s, self.most_s - self.passed_s)

    def extend_to(self, seconds: float) -> None:
        """Allow work to go on for so many seconds, if fewer are left."""
        missing_s = max(seconds - self.left_s, 0.0)
        self.work_s += missing_s
        self.most_s += missing_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what is done during the block."""
        spent_s, passed_s = self.spent_s, self.passed_s
        try:
            yield
        finally:
            self.work_s += self.spent_s - spent_s
            self.most_s += self.passed_s - passed_s


@dataclass
class Experiments:
    """Answers the diagnoses of a run: each case may take ``case_s`` seconds, and all together
    ``run_s``. Programs of parts are in the cache, and answers in the store, so that a rerun
    repeats no experiment. These are seconds of work: by the clock, ``slowest`` times as many may
    pass, see Budget. With ``only_float``, quantized files have none.

    ``front_end`` compiles the programs, if another one does than usual for the lane: the reasons of
    its rewrites are shown. ``search`` finds the smallest wrong part, and takes the operators of the
    float model and those that it begins with; None if only few programs may be compiled for a part.
    ``note`` gets each experiment in words. ``changeable`` is whether a rewrite applies to the model
    of a case, as far as that was asked."""

    lane: RewriteLane
    case_s: float
    run_s: float
    slowest: float = MOST_SLOW
    only_float: bool = False
    front_end: Frontend | None = None
    search: Callable[[list[Operator], tuple[str, ...]], Smallest | None] | None = None
    note: Callable[[str], None] = lambda _: None
    spent_s: float = 0.0
    guard: threading.Lock = field(default_factory=threading.Lock)
    models: dict[tuple[str, Source], KnownModel] = field(default_factory=dict)
    changeable: dict[CaseSpec, bool] = field(default_factory=dict)

    def refuse(self, spec: CaseSpec) -> str:
        """Return why no experiment can be made with a case; empty if experiments can be."""
        is_quantized_file = spec.is_file and spec.scheme is Scheme.ASIS
        return NOT_CHANGED if self.only_float and is_quantized_file else ""

    def know(self, spec: CaseSpec) -> KnownModel:
        """Return what is known about the float model of a case, for all cases of that model."""
        with self.guard:
            return self.models.setdefault((spec.reference, spec.source), KnownModel())

    def diagnose(self, run: CaseRun, finding: Finding, suspicion: Suspicion) -> Diagnosis:
        """Return what experiments show of the cause of a finding."""
        with self.guard:
            left_s = min(self.case_s, self.run_s - self.spent_s)
        budget = Budget(left_s, run.setup.pool.read_waited, self.slowest)
        laboratory = Laboratory(run, self, finding, budget)
        # Only a program that is wrong, or that does not exist, has a smallest part.
        is_searched = finding.question in {Question.FAITHFUL, Question.LOWERED}
        searches = self.search is not None and is_searched
        try:
            return laboratory.run_all(replace(suspicion, searches=searches))
        finally:
            run.experiment = ""
            shutil.rmtree(laboratory.work, ignore_errors=True)
            with self.guard:
                self.spent_s += budget.spent_s


def make_experiments(
    lane: RewriteLane,
    case_s: float | None,
    *,
    only_float: bool = False,
    front_end: Frontend | None = None,
) -> dict[str, Any]:
    """Return the fields of Options for a request to a lane that gives each red case ``case_s``
    seconds of experiments. With 0, only certain causes are named; with None, the verb makes
    none. See Experiments for the others."""
    if case_s is None:
        return {}
    if not case_s:
        return {"only_certain": True}
    experiments = Experiments(
        lane, case_s, CASES * case_s, only_float=only_float, front_end=front_end
    )
    return {"experiments": experiments}


class Laboratory:
    """Does the experiments of one case within a ``budget``."""

    def __init__(self, run: CaseRun, shared: Experiments, finding: Finding, budget: Budget) -> None:
        self.case_run, self.finding, self.budget = run, finding, budget
        self.shared, self.spec = shared, run.spec
        # A lane of files may take PyTorch models, too, which have other rewrites.
        lane = choose_lane(self.spec.reference) if self.spec.is_file else shared.lane
        self.lane, self.is_onnx = lane, lane == "onnx"
        self.work = run.directory / "diagnosis"
        self.subjects = Subjects(self.spec, self.is_onnx, self.work / "model")
        self.opened: CaseSpec | None = None  # see open_subject
        self.answers = open_answers(run, lane, finding)
        self.written: dict[RunPart, str] = {}  # references of parts in their forms
        self.attempts: dict[tuple[str, ...], list[Attempt] | None] = {}  # with each remedy, by part
        self.count = 0
        self.refusal = ""  # what the last job raised
        self.endless_s = math.inf  # see SHARE_OF_ENDLESS
        self.is_quantization = finding.question is Question.QUANTIZED and self.spec.scheme.quantized

    @property
    def left_s(self) -> float:
        """Return for how many seconds an experiment may run."""
        timeout_s = self.case_run.setup.options.timeout_s
        return min(self.budget.left_s, timeout_s)

    @property
    def most_s(self) -> float:
        """Return for how many seconds a program may be compiled, or run."""
        return max(min(self.left_s, self.endless_s), LEAST_S)

    def run_all(self, suspicion: Suspicion) -> Diagnosis:
        """Answer all questions of a diagnosis, and return it."""
        if suspicion.exceeded:
            self.endless_s = SHARE_OF_ENDLESS * self.left_s
        steps = diagnose(suspicion)
        answer: Answer = None
        while True:
            experiment, diagnosis = advance(steps, answer)
            if experiment is None:
                return diagnosis or Diagnosis(suspicion.whole_result)
            answer = self.answers.read(experiment) if self.answers else None
            if answer is None:
                answer = self.answer(experiment)
                if self.answers and is_lasting(answer):
                    self.answers.write(experiment, answer)
            if experiment == ListRemedies(WHOLE) and answer is not None:
                has_remedies = bool(answer) and not isinstance(answer, Result)
                self.shared.changeable[self.spec] = has_remedies

    def answer(self, experiment: Experiment) -> Answer:
        """Do an experiment, and return its answer. One that fails is answered with the reason."""
        if self.left_s < LEAST_S and not isinstance(experiment, KeepPart):
            return Result(failure=TIME_IS_UP) if isinstance(experiment, RunPart) else None
        if isinstance(experiment, ListRemedies):
            self.show("find what can be changed")
            return self.list_remedies(experiment.part)
        if isinstance(experiment, ListOperators):
            self.show("list the operators")
            return self.list_operators()
        if isinstance(experiment, FindSmallest):
            return self.find_smallest(experiment)
        if isinstance(experiment, ExamineCured):
            self.show(f"find what is wrong with {' and '.join(experiment.remedies)}")
            return self.examine_cured(experiment.remedies)
        if isinstance(experiment, KeepPart):
            return self.keep(experiment.part)
        self.show(describe(experiment))
        return self.run_part(experiment)

    def show(self, text: str) -> None:
        """Show what is done now."""
        self.case_run.experiment = text
        self.shared.note(text)

    def list_operators(self) -> list[Operator]:
        """Return the operators of the float model; none if it cannot be divided."""
        knowledge = self.shared.know(self.spec)
        with held(knowledge.guard, self.left_s) as is_held:
            if is_held and not knowledge.operators:
                knowledge.operators = self.call(self.subjects.list_operators) or []
            return knowledge.operators

    def find_smallest(self, experiment: FindSmallest) -> Smallest | None:
        """Return the smallest part that is wrong by itself, or None if there is none. The search
        has a limit of programs, and not of time."""
        if self.shared.search is None:
            return None
        with self.budget.paused():
            return self.shared.search(self.list_operators(), experiment.part)

    def call(self, job: Callable[[], Any]) -> Any:
        """Return the result of a job in a new worker, or None if it fails."""
        self.count += 1
        self.work.mkdir(parents=True, exist_ok=True)
        log = self.work / f"job-{self.count}.log"
        pool, memory = self.case_run.setup.pool, self.case_run.facts.memory_bytes
        ended = pool.run(job, log, max(self.left_s, LEAST_S), fresh=True, max_bytes=memory)
        # The exporter's messages have pages, and those of a case have them already.
        what = clean(ended.error.what).strip() if ended.error else ""
        self.refusal = what.partition("\n")[0]
        return None if ended.failure else ended.result

    def list_remedies(self, part: tuple[str, ...]) -> list[RemedyChoice] | Result | None:
        """Return the rewrites that apply to a part or the whole model and keep its function; the
        reason if no rewrite can be applied to the whole model, or None if it cannot be rewritten in
        the time that is left. If the quantized model is wrong, one that changes the function may
        help, such as a smaller number in a mask: its outputs are compared with those of the
        original model."""
        self.refusal = ""
        rows = self.read_rows()
        attempts = self.try_on_model([*rows]) if part == WHOLE else self.try_on_part(part)
        if attempts is None:
            return Result(failure=self.refusal) if self.refusal and part == WHOLE else None
        return [
            make_choice(rows[attempt.names[0]], attempt, self.list_findings())
            for attempt in attempts
            if attempt.applies and not attempt.fault
        ]

    def read_rows(self) -> dict[str, Rewrite]:
        """Return the rewrites that may be tried, by name."""
        scheme = self.spec.scheme.base
        return {
            row.name: row
            for row in read_rewrites(self.lane, front_end=self.shared.front_end)
            if row.helps_in(scheme) and (self.is_quantization or not row.approximate)
        }

    def list_findings(self) -> list[Finding]:
        """Return the finding, with one that what cures it cures, too: in float16, a model that is
        not accurate enough has only its program, whose numbers may be wrong."""
        is_inaccurate = self.finding.id == QUANTIZED_BADLY.id and not self.spec.scheme.quantized
        return [self.finding, *([NOISE.find(self.finding.headline)] if is_inaccurate else [])]

    def try_on_model(self, names: Sequence[str]) -> list[Attempt] | None:
        """Return what rewrites do to the whole model. What another case of the model has tried is
        not tried again."""
        knowledge = self.shared.know(self.spec)
        with held(knowledge.guard, self.left_s) as is_held:
            if not is_held:
                return None
            missing = [name for name in names if name not in knowledge.attempts]
            attempts = self.try_rewrites(self.open_subject(), missing) if missing else []
            if attempts is None:
                return None
            knowledge.attempts |= {attempt.names[0]: attempt for attempt in attempts}
            return [knowledge.attempts[name] for name in names]

    def try_on_part(self, part: tuple[str, ...]) -> list[Attempt] | None:
        """Return what rewrites do to a part, or None if they cannot be tried."""
        if part not in self.attempts:
            names = [*self.read_rows()]
            self.attempts[part] = self.try_rewrites(self.open_part(RunPart(part)), names)
        return self.attempts[part]

    def changes_nothing(self, experiment: RunPart) -> bool:
        """Return whether the only remedy of an experiment finds nothing to change in a part. All
        are tried together, without a program."""
        if experiment.part == WHOLE or len(experiment.remedies) != 1:
            return False
        attempts = self.try_on_part(experiment.part) or []
        return any(
            attempt.names == experiment.remedies and not attempt.applies for attempt in attempts
        )

    def try_rewrites(self, subject: CaseSpec | None, names: Sequence[str]) -> list[Attempt] | None:
        """Return what each rewrite does to a model, or None if they cannot be tried."""
        if subject is None:
            return None
        recipes = tuple((name,) for name in names)
        attempts: list[Attempt] | None = self.call(
            Trials(subject.reference, subject.source, recipes)
        )
        return attempts

    def open_subject(self) -> CaseSpec | None:
        """Return the case with the whole model as rewrites of the lane take it, which is written
        for the first experiment that needs it; None if it cannot be written."""
        if self.opened is None:
            reference = self.call(self.subjects.write_model)
            if reference == self.spec.reference:
                self.opened = self.spec
            elif reference is not None:
                source = structs.replace(
                    self.spec.source,
                    reference=reference,
                    inputs=str(self.subjects.work / INPUTS),
                    calibration=str(self.subjects.work / CALIBRATION),
                )
                self.opened = replace(self.spec, source=source)
        return self.opened

    def run_part(self, experiment: RunPart) -> Result:
        """Return the result of a part, or of the whole model."""
        is_whole = experiment.part == WHOLE
        spec = self.open_subject() if is_whole else self.open_part(experiment)
        if spec is None:
            return Result(failure="the model cannot be written" if is_whole else NO_PART)
        if is_whole and self.is_quantization:
            return self.measure_quantized(spec, experiment.remedies)
        if self.changes_nothing(experiment):
            return Result(failure=UNCHANGED)
        if experiment.remedies:
            try:
                spec = self.rewrite(spec, experiment.remedies)
            except QnnCiError as error:
                return Result(failure=error.what)
        if experiment.operator:
            spec = mix(spec, experiment.operator, Scheme(experiment.scheme))
        elif experiment.scheme:
            spec = replace(spec, scheme=Scheme(experiment.scheme))
        return self.judge(spec, is_changed=bool(experiment.remedies), is_whole=is_whole)

    def open_part(self, experiment: RunPart) -> CaseSpec | None:
        """Return the case with a part as its model, or None if it cannot be cut out."""
        reference = self.write_part(experiment)
        if not reference:
            return None
        source = structs.replace(
            self.spec.source, reference=reference, inputs="", calibration="", shapes=()
        )
        return replace(self.spec, model=f"{self.spec.model} part {self.count}", source=source)

    def write_part(self, experiment: RunPart) -> str:
        """Return the reference of a part in the form of an experiment, or "" if it cannot be cut
        out, or has no such form."""
        form = replace(experiment, remedies=(), scheme="", operator="")
        if form not in self.written:
            folder = self.work / f"part-{len(self.written)}"
            self.written[form] = self.call(partial(self.subjects.write_part, form, folder)) or ""
        return self.written[form]

    def rewrite(self, spec: CaseSpec, names: tuple[str, ...]) -> CaseSpec:
        """Return a case whose model has rewrites applied."""
        self.count += 1
        folder = self.work / f"net-{self.count}"
        folder.mkdir(parents=True, exist_ok=True)
        if self.is_onnx or spec.is_file:
            path = folder / f"net{LITERT.suffix if self.lane == 'litert' else ONNX.suffix}"
            if not self.call(partial(rewrite_file, spec, names, path)):
                is_unchanged = NOTHING in self.refusal
                raise QnnCiError(UNCHANGED if is_unchanged else self.refusal or NOT_WRITTEN)
            reference = str(path)
        else:
            path = folder / "net.py"
            origin = find_suite_model(spec.reference) if spec.is_ours else spec.reference
            write_whole(path, make_source(folder, [Factory(NET, origin, names)]).encode())
            reference = f"{path}:{NET}"
        return replace(
            spec,
            model=f"{spec.model} {'-'.join(names)}",
            source=structs.replace(spec.source, reference=reference),
        )

    def judge(self, spec: CaseSpec, *, is_changed: bool, is_whole: bool = False) -> Result:
        """Compile, run and judge a case without locating anything in it. A part that is not
        changed, and that is refused for another reason than the model, is no smaller case of it."""
        self.count += 1
        setup = self.case_run.setup
        options: Options = replace(
            setup.options,
            timeout_s=self.most_s,
            keep=None,
            files_directory=None,
            recorded={},
            estimate=False,
            experiments=None,
            is_experiment=True,
            find_faults=lambda *_, **__: (),
            make_remedy_job=lambda *_, **__: None,
        )
        inner = replace(setup, options=options, work=self.work / f"case-{self.count}")
        if is_whole:  # the limits of its model, which the policy has by name
            spec = replace(spec, model=self.spec.model)
        case = CaseRun(spec, inner).run().case
        result = read_result(case, self.finding.question, is_whole=is_whole)
        if result.is_refused and not is_refused_alike(self.finding, case, is_changed=is_changed):
            result = structs.replace(result, is_refused=False)
        if result.failure and self.left_s < LEAST_S:
            return Result(failure=TIME_IS_UP)
        return structs.replace(result, is_fleeting=is_fleeting(case))

    def examine_cured(self, remedies: tuple[str, ...]) -> Second | None:
        """Return what is wrong with the model with rewrites applied, and why, by experiments that
        have the time that is left."""
        subject = self.open_subject()
        if subject is None:
            return None
        try:
            spec = self.rewrite(subject, remedies)
        except QnnCiError:
            return None
        left_s = max(self.left_s, LEAST_S)
        slowest = (self.budget.most_s - self.budget.passed_s) / left_s
        inner = replace(self.shared, case_s=left_s, run_s=left_s, slowest=slowest, spent_s=0.0)
        options = replace(
            self.case_run.setup.options,
            timeout_s=self.most_s,
            keep=None,
            recorded={},
            estimate=False,
            experiments=replace(inner, search=None),
        )
        work = self.work / f"cured-{self.count}"
        case = CaseRun(spec, replace(self.case_run.setup, options=options, work=work)).run().case
        return name_second(case)

    def measure_quantized(self, subject: CaseSpec, remedies: tuple[str, ...]) -> Result:
        """Return the accuracy of the quantized model on the CPU with rewrites."""
        job: TorchRemedyTrial | OnnxRemedyTrial
        if self.is_onnx:
            job = OnnxRemedyTrial(subject, remedies)
        else:
            spec = self.spec
            job = TorchRemedyTrial(
                spec.reference, spec.source, remedies, spec.scheme.base, spec.soc
            )
        reached = self.call(job)
        if reached is None or not math.isfinite(reached):
            failure = TIME_IS_UP if self.left_s < LEAST_S else "it cannot be quantized"
            return Result(failure=failure)
        required_db = self.case_run.facts.limits.min_sqnr_db_all or 0.0
        return Result(reached_db=float(reached), is_right=reached >= required_db)

    def keep(self, part: tuple[str, ...]) -> str:
        """Copy a part to the directory of the case's files, and return its path; "" if it has none
        or there is no such directory. The whole model of a file is that file."""
        if part == WHOLE and self.spec.is_file:
            return self.spec.reference
        options = self.case_run.options
        if options.files_directory is None:
            return ""
        self.budget.extend_to(KEEP_S)
        reference = self.write_part(RunPart(part))
        if not reference:
            return ""
        path = Path(reference.rpartition(":")[0] or reference)
        with suppress(OSError):
            files = [path, *path.parent.glob(f"{path.stem}.*")]
            self.case_run.facts.leave(*dict.fromkeys(files))
            return str(options.files_directory / self.spec.slug / path.name)
        return ""


def open_answers(run: CaseRun, lane: RewriteLane, finding: Finding) -> Answers | None:
    """Return the answers that the store has about the model of a case; None if nothing is known to
    identify its program, or the cache must not be used."""
    evidence = run.facts.evidence
    key = evidence.artifact.key if evidence.artifact else evidence.refused_key
    if not key or not run.options.use_cache:
        return None
    # Of the finding, what an answer depends on, and not its words: those of a process that exceeded
    # a limit have the seconds that it took this time.
    known_cures = (row.name for row in read_rewrites(lane) if row.cures_any([finding]))
    words = (
        key,
        lane,
        run.spec.soc,
        run.spec.scheme.value,
        run.facts.runner,
        repr(run.setup.parts),
        repr(run.facts.limits),
        finding.question.value,
        name_stop(finding),
        *known_cures,
    )
    return Answers(words, answers_home())


def name_stop(finding: Finding) -> str:
    """Return why there are no outputs, without names and numbers, by which a part is refused for
    the same reason; empty if there are some."""
    if finding.question not in STOPPING:
        return ""
    excess = EXCEEDED.search(finding.headline)
    return excess[0] if excess else name_refusal(finding.headline)


def is_lasting(answer: Answer) -> bool:
    """Return whether an answer is the same in another run: not if a limit or something outside of
    its process ended it, or if something else than the compiler failed."""
    if not isinstance(answer, Result):
        return bool(answer)
    is_answered = not answer.failure or answer.failure == UNCHANGED or answer.is_refused
    return is_answered and not answer.is_fleeting


def describe(experiment: RunPart) -> str:
    """Return an experiment in a few words, for the progress."""
    size = count(len(experiment.part), "operator")
    subject = f"a part of {size}" if experiment.part else "the model"
    change = f" with {' and '.join(experiment.remedies)}" if experiment.remedies else ""
    change += f" with {experiment.operator}" if experiment.operator else ""
    change += f" in {experiment.scheme}" if experiment.scheme else ""
    if experiment.doubled or experiment.decomposed or experiment.shrunk:
        change += f" {describe_form(experiment)}"
    return f"run {subject}{change}"


def mix(spec: CaseSpec, operator: str, scheme: Scheme) -> CaseSpec:
    """Return a case in which only operators of one kind have a scheme."""
    parts = (Part(scheme=scheme, op=operator), *spec.source.choices.parts)
    choices = structs.replace(spec.source.choices, parts=parts)
    mixture = Mixture(f"{operator}-in-{scheme}", spec.scheme.base)
    return replace(spec, source=structs.replace(spec.source, choices=choices), scheme=mixture)


def make_choice(row: Rewrite, attempt: Attempt, findings: Sequence[Finding]) -> RemedyChoice:
    """Return the choice of a rewrite that applies to a model with ``findings``."""
    places: dict[str, None] = {}
    for change in attempt.changes:
        places |= dict.fromkeys(change.nodes)
        if change.place:
            places[f"{change.place.file}:{change.place.line}"] = None
    return RemedyChoice(
        name=row.name,
        title=row.title,
        reason=row.reason,
        cures=row.cures,
        is_for_finding=row.cures_any(findings),
        places=tuple(places),
    )


NOT_WRITTEN = "the rewritten model cannot be written"
NOTHING = "finds nothing to change"  # in the error of require_changes, which standalone files have


def read_result(case: Case, question: Question, *, is_whole: bool = False) -> Result:
    """Return the result of a case: of a part, or of the whole model if ``is_whole``. A program is
    right if the gate takes it for faithful; a model that was refused, or whose program did not run,
    if it has outputs; and a model in float16 that is not accurate enough, only if it passes."""
    judged = case.judgement
    reached = judged.sqnr_db if judged.sqnr_db_quantized is None else judged.sqnr_db_quantized
    is_passed = judged.status is Status.PASSED
    if question is Question.BUDGET:
        return read_cpu_nodes(case, is_whole=is_whole)
    answered = {finding.question for finding in judged.findings}
    if reached is None:
        # One that dies while it runs is no smaller case of a model that is refused.
        is_refused = not answered.isdisjoint({Question.LOWERED, question} & STOPPING)
        failure = "" if is_passed else case.headline
        if NOTHING in failure:  # the module of a rewritten model raised it when it was loaded
            return Result(failure=UNCHANGED)
        return Result(failure=failure, is_right=is_passed, is_refused=is_refused)
    is_lowered = answered.isdisjoint(STOPPING)
    accuracy = OF_ACCURACY if is_whole else {Question.FAITHFUL}
    is_faithful = Question.FAITHFUL not in answered and question is Question.FAITHFUL
    return Result(
        reached_db=reached,
        predicted_db=judged.predicted_sqnr_db,
        is_right=is_passed or is_faithful or (is_lowered and question in STOPPING),
        is_wrong=question in STOPPING and not answered.isdisjoint(accuracy),
    )


def is_refused_alike(finding: Finding, case: Case, *, is_changed: bool) -> bool:
    """Return whether the refusal of a case says something about that of the model. A model that is
    changed by a rewrite and exceeds a limit might end in the time that the whole case had."""
    if is_changed:
        return not is_fleeting(case)
    return is_same_refusal(finding, case)


def is_fleeting(case: Case) -> bool:
    """Return whether a limit, or something outside of its process, ended a case."""
    lines = [line for stopped in case.judgement.findings for line in stopped.words.splitlines()]
    return any(EXCEEDED.search(line) or ENDED_FROM_OUTSIDE.search(line) for line in lines)


def is_same_refusal(finding: Finding, case: Case) -> bool:
    """Return whether a part is refused for the reason of the whole model, except for names and
    numbers. A rule for messages may have given it another headline: the message is below. Of a
    model that exceeded a limit, a part may exceed another one: what grows without end takes all of
    its time or all of its memory."""
    lines = [line for refused in case.judgement.findings for line in refused.words.splitlines()]
    if EXCEEDED.search(finding.headline):
        return any(EXCEEDED.search(line) for line in lines)
    reason = name_refusal(finding.headline)
    return reason in {name_refusal(line) for line in lines}


def name_second(case: Case) -> Second | None:
    """Return what is wrong with the outputs of a case, and its cause; None if nothing is."""
    findings = [finding for finding in case.judgement.findings if finding.question in OF_ACCURACY]
    if not findings:
        return None
    first = findings[0]
    cause = next(iter(first.causes), None)
    remedy = next((remedy for remedy in first.remedies if remedy.proof is Proof.TRIED), None)
    return Second(
        first.headline,
        show_cause(first, cause) if cause else "",
        remedy.text if remedy else "",
        remedy.rewrites if remedy else (),
    )


def read_cpu_nodes(case: Case, *, is_whole: bool) -> Result:
    """Return the result of a case that is judged by its nodes on the CPU. The outputs of a part are
    wrong if its program is not faithful: how accurate they must be is known only of the whole
    model."""
    findings = case.judgement.findings
    nodes = max(case.program.fallback_nodes or 0, len(case.program.fallback_ops))
    if any(finding.id == NO_NODE.id for finding in findings):
        return Result(cpu_nodes=max(nodes, 1))
    # A part whose outputs hardly vary is not compiled, and says nothing of nodes.
    if any(finding.question in STOPPING | {Question.USABLE} for finding in findings):
        return Result(failure=case.headline)
    accuracy = OF_ACCURACY if is_whole else {Question.FAITHFUL}
    return Result(
        reached_db=case.judgement.sqnr_db,
        is_right=not nodes,
        cpu_nodes=nodes,
        is_wrong=any(finding.question in accuracy for finding in findings),
    )


def rewrite_file(spec: CaseSpec, names: tuple[str, ...], target: Path) -> bool:
    """Write a rewritten file with the samples next to the original one. Return true. Raises
    ValueError if a rewrite changes nothing."""
    if choose_lane(spec.reference) == "litert":
        from ci.mend.litert_files import open_file

        open_file(Path(spec.reference)).write(names, target)
        return True
    from ci.mend.onnx_files import OnnxFile

    OnnxFile(Path(spec.reference), spec.source.shapes).write(names, target)
    return True
