"""The two protocols behind every engine: an Engine compiles a case, a Runner runs programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from ci.cases.spec import CaseSpec
from ci.judging.figures import Array, is_floating
from ci.models.graph_steps import Step
from ci.models.tensors import Loss, TensorInfo, read_sets, write_sets
from ci.models.user_models import ReferencePolicy
from ci.report.schema import DeviceFigures, Footprint
from provisioning.errors import FailedError

# Names of directories and files of a program, see ci.cases.cache.
INPUTS, FLOAT, QUANTIZED = "inputs", "float", "quantized"
NOISE = "noise/{}.npy"  # the index of an output
STEPS = "steps.json"  # next to the log
MIN_RUNS = 2  # runs that a noise prediction needs at least
LOW, HIGH = "{}_{}.low.raw", "{}_{}.high.raw"

Sets = Sequence[Sequence[Array]]  # a list of arrays per input set


class Fallback(Struct, frozen=True):
    """A node that stays on the CPU, and the reason. ``asked`` is true if the model's entry in the
    policy requests the CPU for it."""

    op: str
    reason: str
    asked: bool = False


class Delegation(Struct, frozen=True):
    """How many nodes of a graph QNN executes. ``getitem`` nodes are not counted, because they
    compute nothing."""

    delegated_nodes: int
    fallback_nodes: int
    partitions: int
    fallback_ops: tuple[Fallback, ...] = ()


class Compiled(Struct, frozen=True, kw_only=True):
    """A compiled program in a directory. ``program`` is the file that a runner opens, ``binary``
    the file with QNN's context binary; both are relative to the directory.

    ``sets`` is the number of input sets. ``methods`` lists the methods of a program with several
    methods; their inputs and outputs are concatenated, and ``unshared_bytes`` is the program's size
    without shared weights. ``loss`` is the layer where quantization costs most, if known.
    ``layers`` names the last outputs if the case requests its layers' outputs. ``made_inputs``
    describes inputs that this project generated, see ci.models.model.name_made. ``footprint`` is
    the memory and size of the program and its lowering. ``steps`` are the operators of the float32
    model's graph, if the engine lists them. ``weights`` and ``calibration`` are the SHA-256 of the
    float32 model's weights and of the calibration sets, if any.
    """

    program: str
    binary: str
    size_bytes: int
    sets: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    delegation: Delegation
    methods: tuple[str, ...] = ()
    unshared_bytes: int = 0
    loss: Loss | None = None
    layers: tuple[str, ...] = ()
    made_inputs: str = ""
    weights: str = ""
    calibration: str = ""
    footprint: Footprint | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Staging:
    """A new directory into which an engine writes a program and its references. QNN's output goes
    to ``log``. ``cache`` is a directory for scratch files on the same file system."""

    directory: Path
    log: Path
    cache: Path
    reference: ReferencePolicy | None = None

    def note_steps(self, steps: Sequence[Step]) -> None:
        """Write the operators of the float32 model next to the log. They remain there if
        the compiler refuses the model, crashes or hangs."""
        self.log.with_name(STEPS).write_bytes(msgspec.json.encode(steps))

    def write_inputs(self, sets: Sequence[Sequence[Any]]) -> None:
        """Write the input sets on which the program is judged."""
        write_sets(self.directory / INPUTS, sets)

    def write_float(self, outputs: Sequence[Sequence[Any]], made: str = "") -> None:
        """Write the float32 model's outputs. Raises FailedError if the outputs prove nothing.
        ``made`` describes generated inputs, which may be the cause."""
        write_sets(self.directory / FLOAT, outputs)
        try:
            require_proof([list(map(np.asarray, tensors)) for tensors in outputs], self.reference)
        except FailedError as error:
            why = f"it was computed from {made}; with real inputs it may be usable" if made else ""
            raise FailedError(error.what, why=error.why or why, fix=error.fix) from error

    def write_quantized(self, outputs: Sequence[Sequence[Any]]) -> None:
        """Write the quantized model's outputs."""
        write_sets(self.directory / QUANTIZED, outputs)

    def write_noise(self, errors: Sequence[Any]) -> None:
        """Write the predicted errors per output, [run, input set, *shape]; an empty array means
        that no prediction is known.

        Runs that are not finite are dropped, such as those with a logarithm of nearly zero. Raises
        FailedError if fewer than two runs remain.
        """
        for index, error in enumerate(map(np.asarray, errors)):
            if error.size:
                finite = error[np.isfinite(error).reshape(len(error), -1).all(1)]
                if len(finite) < MIN_RUNS:
                    raise FailedError(
                        f"the rounding noise of output {index} cannot be predicted",
                        why=f"with small errors added, the output is finite in {len(finite)} of"
                        f" {len(error)} runs",
                        fix="keep values away from points where an operator is undefined",
                    )
                path = self.directory / NOISE.format(index)
                path.parent.mkdir(exist_ok=True)
                np.save(path, finite.astype(np.float32), allow_pickle=False)


def read_steps(path: Path) -> tuple[Step, ...]:
    """Return what ``note_steps`` wrote; nothing if the worker was killed before it was done."""
    try:
        return NOTED.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return ()


NOTED = msgspec.json.Decoder(tuple[Step, ...])  # at import: see CONVERTING in manifest/reader.py


def require_references(directory: Path, compiled: Compiled, policy: ReferencePolicy | None) -> None:
    """Raise FailedError if the float32 model's outputs in ``directory`` prove nothing. Programs
    without input sets, such as language models, are not checked: their references are elsewhere."""
    if not compiled.sets:
        return
    require_proof(read_sets(directory / FLOAT, compiled.outputs, compiled.sets), policy)


def require_proof(reference: Sequence[Sequence[Array]], policy: ReferencePolicy | None) -> None:
    """Raise FailedError if a program cannot be judged by these outputs of a float32 model."""
    if policy and (fault := find_degenerate(reference, policy)):
        raise FailedError(f"the reference proves nothing: {fault}")


def find_degenerate(reference: Sequence[Sequence[Array]], policy: ReferencePolicy) -> str:
    """Return why a reference, one list per input set, proves nothing; empty if it is usable.

    A floating-point output must be finite, must be neither zero nor constant, and must depend on
    the input. An integer or boolean output, such as the mask of unpadded text, may be the same for
    every input if another output is not.
    """
    columns = [np.stack(arrays) for arrays in zip(*reference, strict=True)]
    faults = [_find_fault(column, index, policy) for index, column in enumerate(columns)]
    floating = [fault for fault, one in zip(faults, columns, strict=True) if is_floating(one)]
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
            return f"output {index} is near zero (RMS {rms:.2g} < {policy.min_rms:g})"
        if float(values.std()) < policy.min_spread * rms:
            return f"output {index} is constant (spread {values.std() / rms:.2g} of its RMS)"
    elif (stacked == stacked.reshape(-1)[:1]).all():
        return f"output {index} is constant"
    if len(stacked) > 1 and (stacked == stacked[:1]).all():
        return f"output {index} is the same for every input: vary the inputs, or remove the output"
    return ""


class Engine(Protocol):
    """Compiles cases. An engine is created in the session's process and sent to workers. There,
    ``key`` and ``compile`` each run in a fork, and the other methods in the worker itself."""

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules that the fork server imports before it forks the workers."""

    def preload(self, spec: CaseSpec) -> None:
        """Load what all cases of a model have in common."""

    def key(self, spec: CaseSpec) -> str:
        """Return the SHA-256 of everything that determines the program and its references."""

    def read_data(self, spec: CaseSpec) -> int:
        """Return the number of input sets on which a user's model is judged. Raises UsageError if
        the data files do not fit the model."""

    def warm_up(self, spec: CaseSpec) -> None:
        """Load the compiler before a worker compiles for the first time."""

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Write the program and its references, of a case with ``layers`` those of its layers too
        if the engine can. An exception means that the case is refused."""

    def explain(self, error: Exception, log: Path) -> str:
        """Return why a compilation was refused, based on its exception and QNN's log."""


@dataclass(frozen=True)
class Program:
    """A compiled case to run. ``path`` is a copy of the program that the runner may change. The
    runner writes its files to ``directory`` and its output to ``log``."""

    spec: CaseSpec
    path: Path
    compiled: Compiled
    directory: Path
    log: Path


@dataclass(frozen=True)
class RunNotes:
    """What a runner reports besides outputs. ``faults`` fail the case, ``remark`` is shown, and
    ``files`` are kept next to the report. ``accelerator`` has means per input set from QNN's
    profile, in cycles and microseconds. ``run_ms`` is the mean time per input set, if the model's
    entry requests timed runs. ``device`` has measurements from a device."""

    faults: tuple[str, ...] = ()
    remark: str = ""
    files: tuple[Path, ...] = ()
    accelerator: Mapping[str, int] = field(default_factory=dict)
    run_ms: float | None = None
    device: DeviceFigures | None = None


class RunError(FailedError):
    """Raised if a program returned no outputs. ``used`` is true if its process ran other programs
    before. ``lacks`` names a device that was lost, so nothing is known about the program."""

    def __init__(self, what: str, *, used: bool = False, lacks: str = "") -> None:
        super().__init__(what)
        self.used, self.lacks = used, lacks


class OpenProgram(Protocol):
    """A loaded program."""

    @property
    def used(self) -> bool:
        """Whether its process ran other programs before."""

    def run(self, sets: Sets) -> Sets:
        """Return the outputs per input set. Raises RunError."""

    def finish(self) -> RunNotes:
        """Close the program and return the notes on its runs. Raises RunError."""


class Runner(Protocol):
    """Opens programs.

    An opened program can run any number of times within ``timeout_s`` seconds in total. ``fresh``
    requests a process that has run nothing. ``open`` raises RunError.
    """

    @property
    def name(self) -> str: ...

    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> AbstractContextManager[OpenProgram]: ...
