"""What was asked of a case, and what is known about it so far: its program, its run, its figures,
and the known faults of its graph. Nothing here decides whether the case passes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ci.analysis.steps import Step
from ci.cases.baselines import Baseline
from ci.cases.cache import Artifact
from ci.cases.engine import FROZEN, STEPS, Compiled, Notes, RunNotes, Sets, read_frozen, read_steps
from ci.cases.outputs import stack_outputs
from ci.cases.policy import EmulatorPolicy
from ci.cases.qnn_files import PARAMS, SAVER, SAVER_CALLS, count_operators
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Diagnosis, Suspicion
from ci.facts.finding import NO_ADVICE, Advice, Finding, Place
from ci.facts.known_fault import KnownFault
from ci.judging.figures import Nearness, find_nearness, measure_variation
from ci.judging.verdict import CaseFigures, ControlResult
from ci.latency.estimate import Line
from ci.models.schemes import Scheme
from ci.models.source_lines import find_factory, find_suite_model
from ci.models.user_models import MetricResult, is_suite
from ci.report.schema import (
    Case,
    Control,
    Estimate,
    LayerFigures,
    NoiseNote,
    OpCount,
    OutputFigures,
)
from provisioning.console.user_folder import UserFolder
from provisioning.documents import CONTENT_BYTES, read_text
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.manifest.targets import Backend

# One case at a time writes the record of the files next to the report.
LEAVING = threading.Lock()
UNCOMPARED = "the outputs were not compared with the emulator's"


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
    # Whether the case is an experiment: its first wrong layer is not looked for, and its
    # references, which may be results inside of a model, are not checked.
    is_experiment: bool = False


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
    it. ``by_runtime`` is whether the runtime answered with an error, ``died`` whether the process
    died, and ``exceeded`` whether a limit of time or memory ended it. ``advice`` is what is known
    about the cause of a failure. ``inputs`` are the samples."""

    outputs: Sets = ()
    inputs: Sets = ()
    failure: str = ""
    advice: Advice = NO_ADVICE
    lacks: str = ""
    by_runtime: bool = False
    died: bool = False
    exceeded: bool = False
    notes: RunNotes = field(default_factory=RunNotes)
    wall_s: float = 0.0
    used: bool = False


@dataclass(kw_only=True)
class Evidence:
    """The facts known about a case so far. A field keeps its default until the step that sets it
    has run."""

    artifact: Artifact | None = None
    refused_key: str = ""  # of the program, if there is none: see CompileResult
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
    layer_places: Sequence[Collection[str]] = ()  # the node and the line of each of the layers
    estimate: Estimate | None = None
    nearness: Nearness | None = None  # how close a device's outputs are to the emulator's


class CaseFacts:
    """What is known about one case, without a verdict. ``directory`` is a scratch directory, and
    ``runner`` the name of what computed the outputs."""

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

    def read_steps(self) -> Sequence[Step]:
        """Return the operators of the float32 model, or nothing if they are unknown."""
        artifact = self.evidence.artifact
        return artifact.compiled.steps if artifact else read_steps(self.directory / STEPS)

    def read_frozen(self) -> tuple[str, ...]:
        """Return the buffers that quantization freezes, or nothing if they are unknown."""
        artifact = self.evidence.artifact
        return artifact.compiled.frozen if artifact else read_frozen(self.directory / FROZEN)

    def find_faults(
        self, *, refused: bool = False, scheme: Scheme | None = None
    ) -> list[KnownFault]:
        """Return the known faults that the model's graph triggers with a scheme, by default that of
        the case, and the version of QNN that compiled it. If the model was ``refused``, those that
        only make values wrong are left out."""
        artifact = self.evidence.artifact
        steps = self.read_steps()
        name, qnn = (scheme or self.spec.scheme.base).value, self.evidence.compiler
        compiled = bool(artifact and not artifact.compiled.delegation.fallback_nodes)
        ends = {"compiled": compiled and not refused, "refused": refused}
        if not refused:  # what the CPU computes, no compiler of QNN gets wrong
            on_cpu = self.list_on_cpu(steps)
            steps = [step for step in steps if step.name not in on_cpu]
        return [*self.options.find_faults(steps, name, qnn, **ends, is_file=self.spec.is_file)]

    def gains_faults(self, finer: Scheme) -> bool:
        """Return whether the model triggers known faults in a scheme that it does not trigger in
        that of the case. A mixture of both may have them, too, and was not tried."""
        labels = {fault.label for fault in self.list_faults()}
        faults: list[KnownFault] = []
        with self.notes.of("the known faults"):
            faults += self.find_faults(scheme=finer)
        return any(fault.label not in labels for fault in faults)

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

    @property
    def reached_db(self) -> float | None:
        """The SQNR of the outputs in dB: against the quantized model, if there is one."""
        figures = self.evidence.figures
        quantized_db = figures.sqnr_db_quantized
        return figures.sqnr_db if quantized_db is None else quantized_db
