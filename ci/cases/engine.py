"""The two seams of every lane: an Engine turns a case into a program, a Runner runs programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from ci.cases.spec import CaseSpec
from ci.judging.figures import Array, is_floating
from ci.models.graph_steps import Step
from ci.models.tensors import Loss, TensorInfo, read_sets, write_sets
from ci.models.user_models import ReferencePolicy
from ci.report.schema import DeviceFigures, Footprint
from provisioning.errors import FailedError

# Directories and files of a program, see ci.cases.cache.
INPUTS, FLOAT, QUANTIZED = "inputs", "float", "quantized"
NOISE = "noise/{}.npy"  # by output
MIN_RUNS = 2  # of a prediction
LOW, HIGH = "{}_{}.low.raw", "{}_{}.high.raw"
SAVER, SAVER_CALLS = "saver_output", "saver_output.c"  # written by QNN's Saver, with --saver

Sets = Sequence[Sequence[Array]]  # a list of arrays per input set


class Fallback(Struct, frozen=True):
    """A node that stays on the CPU, and why; ``asked`` if the model's entry keeps it there."""

    op: str
    reason: str
    asked: bool = False


class Delegation(Struct, frozen=True):
    """How much of a graph QNN takes. ``getitem`` nodes, which compute nothing, are not counted."""

    delegated_nodes: int
    fallback_nodes: int
    partitions: int
    fallback_ops: tuple[Fallback, ...] = ()


class Compiled(Struct, frozen=True, kw_only=True):
    """A program in a directory. ``program`` is the file that a runner opens, ``binary`` the one
    with QNN's context binary; both are relative to the directory.

    ``sets`` is the number of input sets. ``methods`` names the methods of a program with several;
    their inputs and outputs are concatenated, and ``unshared_bytes`` is its size without shared
    weights. ``loss`` is where quantization costs most, if known. ``layers`` names the last outputs
    if the case asks for those of its layers. ``made_inputs`` describes inputs that the user did not
    give, see ci.models.model.name_made. ``footprint`` is the memory and size of the program and its
    lowering. ``steps`` are the operators of the float32 model's graph, if the engine lists them.
    ``weights`` and ``calibration`` are the SHA-256 of the float32 model's weights and of the
    calibration sets, if any.
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
    to ``log``; scratch files on the program's file system belong below ``cache``."""

    directory: Path
    log: Path
    cache: Path
    reference: ReferencePolicy | None = None

    def write_inputs(self, sets: Sequence[Sequence[Any]]) -> None:
        """Write the input sets that the program is judged on."""
        write_sets(self.directory / INPUTS, sets)

    def write_float(self, outputs: Sequence[Sequence[Any]], made: str = "") -> None:
        """Write the float32 model's outputs. Raises FailedError if they prove nothing, perhaps
        because the inputs were ``made`` by this project."""
        write_sets(self.directory / FLOAT, outputs)
        try:
            require_proof([list(map(np.asarray, tensors)) for tensors in outputs], self.reference)
        except FailedError as error:
            why = f"it was computed from {made}: real inputs may give it a range" if made else ""
            raise FailedError(error.what, why=error.why or why, fix=error.fix) from error

    def write_quantized(self, outputs: Sequence[Sequence[Any]]) -> None:
        """Write the quantized model's outputs."""
        write_sets(self.directory / QUANTIZED, outputs)

    def write_noise(self, errors: Sequence[Any]) -> None:
        """Write the predicted errors per output, [run, input set, *shape]; empty if none is known.
        A run that is not finite, such as after the logarithm of nearly zero, is left out.

        Raises FailedError if fewer than two runs are left.
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


def require_references(directory: Path, compiled: Compiled, policy: ReferencePolicy | None) -> None:
    """Raise FailedError if the float32 model's outputs in ``directory`` prove nothing. Programs
    without input sets, such as language models, have their references elsewhere."""
    if not compiled.sets:
        return
    require_proof(read_sets(directory / FLOAT, compiled.outputs, compiled.sets), policy)


def require_proof(reference: Sequence[Sequence[Array]], policy: ReferencePolicy | None) -> None:
    """Raise FailedError for outputs of a float32 model that are useless for judging a program."""
    if policy and (fault := find_degenerate(reference, policy)):
        raise FailedError(f"the reference proves nothing: {fault}")


def find_degenerate(reference: Sequence[Sequence[Array]], policy: ReferencePolicy) -> str:
    """Return why a reference, one list per input set, proves nothing; empty if it is good.

    A floating-point output has to be finite, to differ from zero and from a constant, and to
    depend on the input. Integers and booleans may be the same for every input, such as the mask of
    unpadded text, if another output is not.
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
    """Turns a case into a program. It is made in the session's process and sent to workers, where
    all methods except ``imports`` run: key and compile each in a fork, the rest in the worker."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules to import in the process from which all workers are forked."""

    def give_layers(self, spec: CaseSpec) -> CaseSpec | None:
        """Return the case with a program that also returns its layers' outputs, or None."""

    def preload(self, spec: CaseSpec) -> None:
        """Load whatever the cases of a model share."""

    def key(self, spec: CaseSpec) -> str:
        """Return the SHA-256 of everything that determines the program and its references."""

    def read_data(self, spec: CaseSpec) -> int:
        """Return on how many input sets a user's model is judged. Raises UsageError for data files
        that do not fit the model."""

    def warm_up(self, spec: CaseSpec) -> None:
        """Load the compiler, before the first compilation of a worker."""

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Write the program and its references. Any exception counts as a refusal."""

    def explain(self, error: Exception, log: Path) -> str:
        """Return why a compilation was refused, from its exception and QNN's log."""


@dataclass(frozen=True)
class Program:
    """A compiled case to run: ``path`` is a copy that a runner may damage. ``directory`` is for
    what the runner writes, ``log`` for what it prints."""

    spec: CaseSpec
    path: Path
    compiled: Compiled
    directory: Path
    log: Path


@dataclass(frozen=True)
class RunNotes:
    """What a runner reports besides outputs: ``faults`` fail the case, ``remark`` is shown,
    ``files`` are kept next to the report, ``accelerator`` has means per input set from QNN's
    profile, in cycles and microseconds, ``run_ms`` is the mean time of the runs per input set that
    the model's entry asks for, ``device`` has a device's figures."""

    faults: tuple[str, ...] = ()
    remark: str = ""
    files: tuple[Path, ...] = ()
    accelerator: Mapping[str, int] = field(default_factory=dict)
    run_ms: float | None = None
    device: DeviceFigures | None = None


class RunError(FailedError):
    """Raised if a program returned no outputs. ``used`` is whether its process ran other programs
    before, ``lacks`` names a device lost meanwhile: then nothing is known about the program."""

    def __init__(self, what: str, *, used: bool = False, lacks: str = "") -> None:
        super().__init__(what)
        self.used, self.lacks = used, lacks


class OpenProgram(Protocol):
    """A program that is loaded."""

    @property
    def used(self) -> bool:
        """Whether its process ran other programs before."""

    def run(self, sets: Sets) -> Sets:
        """Return the outputs per input set. Raises RunError."""

    def finish(self) -> RunNotes:
        """End the program and return the notes on its runs. Raises RunError."""


class Runner(Protocol):
    """Opens a program once, to run it as often as wanted, all within ``timeout_s`` seconds.

    ``fresh`` asks for a process that has run nothing. ``open`` raises RunError.
    """

    @property
    def name(self) -> str: ...

    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> AbstractContextManager[OpenProgram]: ...
