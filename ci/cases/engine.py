"""The two protocols that test_emulator, test_onnx and test_llm implement: an Engine compiles cases,
and a Runner runs the compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from ci.analysis.steps import Step
from ci.cases.forked import describe_error
from ci.cases.spec import CaseSpec
from ci.facts.finding import NO_ADVICE, NOWHERE, Advice, Finding, Origin, Place, RefusedError
from ci.judging.figures import Array, is_floating, measure_pooled
from ci.models.tensors import Layer, Loss, Retyped, TensorInfo, write_sets
from ci.models.user_code import TraceError
from ci.models.user_models import ReferencePolicy
from ci.report.schema import Clipped, DeviceFigures, Footprint, Simulation, TypeShare
from provisioning.documents import DocumentError, read_json
from provisioning.errors import DefectError, FailedError, QnnCiError, StoreError, UnfitError
from provisioning.files import explain_no_room

# Names of directories and files of a program, see ci.cases.cache.
INPUTS, FLOAT, QUANTIZED = "inputs", "float", "quantized"
NOISE = "noise/{}.npy"  # the index of an output
STEPS = "steps.json"  # next to the log
FROZEN = "frozen.json"
CPU = "CPU time"
# The stages of a case. A worker notes in the file STAGE, next to the log, which one it is in.
STAGES = ("export", "quantize", "reference", "lower", "run", "judge")
STAGE = "stage"
# Each run is compared with the mean of the others, see ci.judging.noise.
MIN_RUNS = 2  # the least number of runs for a noise prediction
QUANTIZING = {"QuantizeLinear", "DequantizeLinear"}  # of ONNX
LOW, HIGH = "{}_{}.low.raw", "{}_{}.high.raw"
EXPORTED_DB = 60.0  # least SQNR of an exported model against torch; measured: above 100

Sets = Sequence[Sequence[Array]]  # a list of arrays per sample


class Fallback(Struct, frozen=True):
    """A node that stays on the CPU, the reason, and where the node comes from. ``asked`` is true if
    the model's entry in the policy requests this. ``name`` is that of an ONNX node."""

    op: str
    reason: str
    asked: bool = False
    origin: Origin = NOWHERE
    name: str = ""

    @property
    def label(self) -> str:
        """Return the operator with the node's name, such as ``Conv first``."""
        return f"{self.op} {self.name}".rstrip()

    @property
    def text(self) -> str:
        """Return the reason with the node's origin."""
        return f"{self.reason}{self.origin.mark}"


class Garbled(Struct, frozen=True):
    """Indices that QNN writes as int32 and a node on the CPU reads as int64: the operator that
    computes them, the one that reads them, and where both come from."""

    operator: str
    reader: str
    origin: Origin = NOWHERE
    reader_origin: Origin = NOWHERE


def list_places(left: Sequence[Fallback]) -> list[Place]:
    """Return the lines from which nodes on the CPU come, each once."""
    return [*dict.fromkeys(place for fallback in left for place in fallback.origin.places)]


class Delegation(Struct, frozen=True):
    """How many nodes QNN executes, in how many graphs (``partitions``), and which nodes stay on the
    CPU. ``getitem`` nodes on the CPU are not counted, because they compute nothing. Neither are
    ONNX's QuantizeLinear and DequantizeLinear nodes on QNN. ``on_host`` tells for each result of
    ExecuTorch's graphs whether the CPU computes it; it is empty if QNN computes all of them.
    ``garbled`` are the indices that nodes on the CPU read with the wrong type."""

    delegated_nodes: int
    fallback_nodes: int
    partitions: int
    fallback_ops: tuple[Fallback, ...] = ()
    on_host: tuple[bool, ...] = ()
    garbled: tuple[Garbled, ...] = ()


class Compiled(Struct, frozen=True, kw_only=True):
    """A compiled program in a directory."""

    program: str  # the file that a runner opens, relative to the directory
    binary: str  # the file with QNN's context binary, relative to the directory
    size_bytes: int  # of the program
    delegation: Delegation
    sets: int = 0  # the number of samples; 0 if the references are stored elsewhere, or missing
    inputs: tuple[TensorInfo, ...] = ()  # of all methods
    outputs: tuple[TensorInfo, ...] = ()
    methods: tuple[str, ...] = ()  # empty if there is only one
    unshared_bytes: int = 0  # the program's size without shared weights; 0 if they are not shared
    loss: Loss | None = None  # where quantization costs the most accuracy, if that is known
    # Operators whose results are appended to the model's outputs, if the case requests that.
    layers: tuple[Layer, ...] = ()
    made_inputs: str = ""  # describes generated inputs, see ci.models.user_models.name_made
    weights: str = ""  # the SHA-256 of the float32 model's weights, or empty
    calibration: str = ""  # the SHA-256 of the calibration samples, or empty
    footprint: Footprint | None = None
    # The tensors that leave their calibrated ranges most, if the scheme was calibrated.
    clipped: tuple[Clipped, ...] = ()
    steps: tuple[Step, ...] = ()  # the float32 model's operators, if the engine lists them
    simulation: Simulation | None = None  # only if the case is simulated; then nothing else counts
    types: tuple[TypeShare, ...] = ()  # of the operators and weights that QNN compiled
    retyped: tuple[Retyped, ...] = ()  # tensors with fewer bits than requested
    frozen: tuple[str, ...] = ()  # buffers of which the quantized model has the first values only
    warnings: tuple[str, ...] = ()  # about explanations that could not be computed


class Notes(list[str]):
    """Warnings about analyses that raised an exception. Exceptions that concern the whole run, such
    as a full disk, are raised."""

    @contextmanager
    def of(self, subject: str) -> Iterator[None]:
        """Run a block that only explains. If it raises an exception, add a warning that starts with
        ``subject`` instead."""
        try:
            yield
        except (StoreError, UnfitError):
            raise
        except Exception as error:
            if explain_no_room(error):
                raise
            self.append(f"{subject} could not be computed: {describe_error(error)}")


@contextmanager
def needed(subject: str) -> Iterator[None]:
    """Run a block without which there is no verdict. Raises DefectError for an exception
    that is not a QnnCiError, so that it is not reported as a refusal by ExecuTorch or QNN. A
    TraceError is raised unchanged."""
    try:
        yield
    except (QnnCiError, TraceError):
        raise
    except Exception as error:
        if explain_no_room(error):
            raise
        raise DefectError(
            f"{subject} could not be computed: {describe_error(error)}",
            why="this is a bug in executorch-qnn-ci, not a fault of the model or QNN",
            fix="report it, with the model",
        ) from error


@dataclass(frozen=True)
class Staging:
    """A new directory to which an engine writes a program and its references. QNN's output is
    appended to ``log``. ``cache`` is a directory on the same file system, for scratch files.
    ``reference`` specifies which references are unusable; without it, they are not checked.
    ``notes`` become warnings of the case."""

    directory: Path
    log: Path
    cache: Path
    reference: ReferencePolicy | None = None
    notes: Notes = field(default_factory=Notes)

    def note_steps(self, steps: Sequence[Step]) -> None:
        """Write the operators of the float32 model next to the log, where they remain even if the
        compiler refuses the model, crashes or hangs."""
        self.log.with_name(STEPS).write_bytes(msgspec.json.encode(steps))

    def note_frozen(self, buffers: Sequence[str]) -> None:
        """Write the buffers that quantization freezes next to the log, because the compiler may
        refuse what is left of the model."""
        self.log.with_name(FROZEN).write_bytes(msgspec.json.encode(buffers))

    def enter(self, stage: str) -> None:
        """Note for the progress line that one of STAGES begins."""
        self.log.with_name(STAGE).write_text(stage, encoding="ascii")

    def write_float(self, outputs: Sequence[Sequence[Any]], generated: str = "") -> None:
        """Write the float32 model's outputs. Raises FailedError if the program cannot be judged by
        them. ``generated`` describes generated inputs, which may be the cause."""
        self.write(FLOAT, outputs)
        try:
            require_proof([list(map(np.asarray, tensors)) for tensors in outputs], self.reference)
        except FailedError as error:
            why = (
                f"the reference was computed from {generated}; use real inputs" if generated else ""
            )
            raise FailedError(error.what, why=error.why or why, fix=error.fix) from error

    def write(self, folder: str, sets: Sequence[Sequence[Any]]) -> None:
        """Write the samples on which the program is judged (INPUTS), or the quantized model's
        outputs (QUANTIZED)."""
        write_sets(self.directory / folder, sets)

    def write_bounds(
        self, kind: str, low: Sequence[Sequence[Any]], high: Sequence[Sequence[Any]]
    ) -> None:
        """Write the bounds of outputs that are not floating-point, because small errors can change
        their values. ``kind`` is FLOAT or QUANTIZED."""
        for pattern, sets in ((LOW, low), (HIGH, high)):
            for number, tensors in enumerate(sets):
                for index, array in enumerate(map(np.asarray, tensors)):
                    if array.dtype.kind != "f":
                        path = self.directory / kind / pattern.format(number, index)
                        path.write_bytes(array.tobytes())

    def write_noise(self, errors: Sequence[Any], name_undefined: Callable[[], str] = str) -> None:
        """Write the predicted errors of each output as an array [run, sample, *shape]. An empty
        array means that no errors were predicted for the output.

        Runs with NaN or infinite elements are dropped. Raises FailedError if fewer than two runs
        remain; ``name_undefined`` then returns where the first of these elements come from, or "".
        """
        for index, error in enumerate(map(np.asarray, errors)):
            if error.size:
                finite = error[np.isfinite(error).reshape(len(error), -1).all(1)]
                if len(finite) < MIN_RUNS:
                    source = name_undefined()
                    came_from = f": NaN or infinite numbers come from {source}" if source else ""
                    raise FailedError(
                        f"the rounding noise of output {index} cannot be predicted",
                        why=f"with errors as of QNN's rounding, the output is finite in"
                        f" {len(finite)} of {len(error)} runs{came_from}",
                        fix="keep values away from points where an operator is undefined, as by a"
                        " clamp before it",
                    )
                path = self.directory / NOISE.format(index)
                path.parent.mkdir(exist_ok=True)
                np.save(path, finite.astype(np.float32), allow_pickle=False)


def read_steps(path: Path) -> tuple[Step, ...]:
    """Return the operators that ``note_steps`` wrote to ``path``. The result is empty if they are
    missing or incomplete, for example because the worker was killed."""
    try:
        return read_json(path, tuple[Step, ...])
    except DocumentError:
        return ()


def read_frozen(path: Path) -> tuple[str, ...]:
    """Return the buffers that ``note_frozen`` wrote to ``path``, or nothing as ``read_steps``
    does."""
    try:
        return read_json(path, tuple[str, ...])
    except DocumentError:
        return ()


def require_proof(reference: Sequence[Sequence[Array]], policy: ReferencePolicy | None) -> None:
    """Raise FailedError if ``reference``, the outputs of a float32 model, is unusable as a
    reference. It has one list per sample. Without a policy, nothing is checked."""
    if policy and (fault := find_degenerate(reference, policy)):
        raise FailedError(f"the reference proves nothing: {fault}")


def require_export(
    exporter: str,
    module_outputs: Sequence[Sequence[Array]],
    outputs: Sequence[Sequence[Array]],
    state: Sequence[str] = (),
) -> None:
    """Raise FailedError if the SQNR of an exported model's output against the torch module's output
    is below EXPORTED_DB. Both have one list per sample, from successive calls; nothing is compared
    without ``module_outputs``. ``exporter`` is what exported the model, and ``state`` are the
    buffers that each call of the module changes."""
    for expected_arrays, arrays in zip(module_outputs, outputs, strict=False):
        for index, (expected, array) in enumerate(zip(expected_arrays, arrays, strict=True)):
            if not np.isfinite(expected).all():
                continue  # the model itself is not finite
            reached = measure_pooled(expected, array)
            if not reached >= EXPORTED_DB:
                problem = (
                    f"{exporter} changed the model: output {index} has an SQNR of {reached:.1f} dB"
                    f" against torch, but at least {EXPORTED_DB:g} dB is required"
                )
                if state:
                    raise FailedError(
                        problem,
                        why=f"each call of the model changes {name_buffers(state)}, and the file"
                        " has no state: it computes with the values of before the first call",
                        fix=STATE_AS_INPUT,
                    )
                raise FailedError(
                    problem,
                    why="both were computed in float32 on the CPU, so QNN is not the cause",
                )


STATE_AS_INPUT = (
    "pass the state, such as a position, as an input, and return its new value as an output, which"
    " the app passes to the next call"
)


def name_buffers(names: Sequence[str]) -> str:
    """Return the names of buffers for a message."""
    return f"the buffer{'s' * (len(names) > 1)} {', '.join(names)}"


def find_degenerate(reference: Sequence[Sequence[Array]], policy: ReferencePolicy) -> str:
    """Return why a reference proves nothing, or "" if it is usable. The reference has one list per
    sample.

    A floating-point output must be finite, must be neither near zero nor constant, and must depend
    on the input. Integer and boolean outputs may be constant if there are floating-point outputs:
    the mask of unpadded text, for example, is constant. Otherwise, at least one of them must depend
    on the input.
    """
    columns = [np.stack(arrays) for arrays in zip(*reference, strict=True)]
    faults = [_find_fault(column, index, policy) for index, column in enumerate(columns)]
    pairs = zip(faults, columns, strict=True)
    floating = [fault for fault, column in pairs if is_floating(column)]
    if floating and not any(floating):
        return ""
    return next(filter(None, floating), "") or ("" if "" in faults else faults[0])


def _find_fault(stacked: Array, index: int, policy: ReferencePolicy) -> str:
    if is_floating(stacked):
        values = stacked.astype(np.float64)
        if not np.isfinite(values).all():
            return f"output {index} of the float32 model is not finite"
        rms = float(np.sqrt(np.mean(values**2))) if values.size else 0.0
        if rms < policy.min_rms:
            limit = f"RMS {_show_below(rms, policy.min_rms)}, but min_rms is {policy.min_rms:g}"
            return f"output {index} is near zero ({limit})"
        if float(values.std()) < policy.min_spread * rms:
            spread = _show_below(float(values.std()) / rms, policy.min_spread)
            limit = f"{spread} of its RMS, but min_spread is {policy.min_spread:g}"
            return f"output {index} hardly varies (its spread is {limit})"
    elif (stacked == stacked.reshape(-1)[:1]).all():
        return f"output {index} is constant"
    if len(stacked) > 1 and (stacked == stacked[:1]).all():
        return f"output {index} is the same for every input: vary the inputs, or remove the output"
    return ""


def _show_below(number: float, limit: float) -> str:
    """Return a number below a limit with as many digits as are needed to show that it is."""
    texts = (f"{number:.{digits}g}" for digits in range(2, 17))
    return next((text for text in texts if float(text) < limit), f"{number}")


class Engine(Protocol):
    """Compiles cases. An engine is created in the session's process and sent to workers. There,
    ``key`` runs in a fork of the worker, ``compile`` and ``explain`` run in another fork, and the
    other methods run in the worker itself."""

    def preload(self, spec: CaseSpec) -> None:
        """Prepare a worker for a case before the forks that look up its key or compile it. QNN must
        not be loaded here (see ci.cases.forked)."""

    def key(self, spec: CaseSpec) -> str:
        """Return the SHA-256 of everything that determines the program and its references."""

    def read_data(self, spec: CaseSpec) -> int:
        """Return the number of samples on which a user's model is judged. Raises UsageError if
        the data files do not match the model."""

    def warm_up(self, spec: CaseSpec) -> None:
        """Load code that ``compile`` needs, before the worker forks."""

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Write the program and its references to ``staging``, and return the program's
        description. For a case with ``layers``, the outputs include those of its layers if the
        engine supports this. An exception means that the case is refused."""

    def explain(self, error: Exception, log: Path) -> Finding:
        """Return why a case was refused, from the exception that ``compile`` raised and
        QNN's log."""


@dataclass(frozen=True)
class Program:
    """A compiled case that can be run. ``path`` is a copy of the program, which the runner may
    change. The runner writes its files to ``directory`` and its output to ``log``."""

    spec: CaseSpec
    path: Path
    compiled: Compiled
    directory: Path
    log: Path
    max_bytes: int = 0  # of memory; 0 if the policy sets no limit


@dataclass(frozen=True)
class RunNotes:
    """What a runner reports besides outputs."""

    faults: tuple[str, ...] = ()  # reasons why the case fails
    remark: str = ""  # printed on the terminal
    files: tuple[Path, ...] = ()  # kept next to the report
    # Mean cycles and microseconds per sample, from QNN's profile.
    accelerator: Mapping[str, int] = field(default_factory=dict)
    # The mean time per sample, if the model's entry requests timed runs.
    run_ms: float | None = None
    device: DeviceFigures | None = None  # measurements from a device


class CompilerError(RefusedError):
    """Raised if the compiler is a program that refuses a model, that ``died``, or that was ended
    because it ``exceeded`` a limit of time or memory."""

    def __init__(
        self, what: str, *, why: str = "", fix: str, died: bool = False, exceeded: bool = False
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.died, self.exceeded = died, exceeded


class RunError(FailedError):
    """Raised if a program returned no outputs. ``used`` is true if its process had run other
    programs before. If a device was lost during the run, ``lacks`` names it; if the machine was too
    busy to run the program at all, ``lacks`` is CPU. Such a failure says nothing about the
    program. ``advice`` is what is known about the cause. ``by_runtime`` is whether the runtime
    answered with an error, ``died`` whether its process died, and ``exceeded`` whether a limit of
    time or memory ended it."""

    def __init__(
        self,
        text: str,
        advice: Advice = NO_ADVICE,
        *,
        used: bool = False,
        lacks: str = "",
        by_runtime: bool = False,
        died: bool = False,
        exceeded: bool = False,
    ) -> None:
        super().__init__(text)
        self.advice, self.used, self.lacks = advice, used, lacks
        self.by_runtime, self.died, self.exceeded = by_runtime, died, exceeded


class OpenProgram(Protocol):
    """A loaded program."""

    @property
    def used(self) -> bool:
        """Whether its process had run other programs before."""

    def run(self, sets: Sets) -> Sets:
        """Return the outputs, one list per sample. Raises RunError if there are none."""

    def finish(self) -> RunNotes:
        """Close the program and return the notes on its runs. Raises RunError if its process
        fails."""


class Runner(Protocol):
    """Opens programs.

    An opened program can be run any number of times. ``timeout_s`` limits the total time of its
    runs, or the time of each run if the runner starts a new process for it. ``fresh`` requests a
    process that has not run other programs. ``open`` raises RunError if it fails.
    """

    @property
    def name(self) -> str: ...

    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> AbstractContextManager[OpenProgram]: ...
