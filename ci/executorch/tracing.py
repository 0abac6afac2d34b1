"""The Python runtime as a Runner, and the second run of a program that writes a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ci.cases.engine import Program, RunNotes, Sets
from ci.cases.pool import Job, Pool
from ci.cases.runners import PooledProgram, PooledRunner

NAME = "python"
ETDUMP, DEBUG = "trace.etdump", "trace.debug"
# The limit for intermediate outputs of one input set, including padding.
DEBUG_BYTES = 256 << 20


@dataclass(frozen=True)
class OpenJob:
    """A job that opens a program. ``quantizes`` is true if the CPU quantizes its inputs."""

    program: Program
    quantizes: bool = False

    def __call__(self) -> object:
        from ci.executorch.runtime import LoadedProgram

        repeated = self.program.spec.source.run
        return LoadedProgram(self.program, quantizes=self.quantizes, repeated=repeated)


@dataclass(frozen=True)
class TracedRun:
    """A job that runs a program on input sets and writes its trace to ``directory``, together with
    files extracted from it.

    With ``debug_bytes``, these are intermediate outputs instead of times.
    """

    program: Program
    directory: Path
    sets: Sets
    debug_bytes: int = 0

    def __call__(self) -> tuple[Sets, dict[str, int], tuple[str, ...]]:
        """Return the outputs, the accelerator's figures, and the names of the files. Raises
        FailedError if the trace has nothing from QNN."""
        from ci.executorch.etdump import read_trace
        from ci.executorch.runtime import LoadedProgram

        loaded = LoadedProgram(self.program, debug_bytes=self.debug_bytes)
        outputs = loaded.run(self.sets)
        loaded.write_trace(self.directory / ETDUMP, self.directory / DEBUG)
        partitions = self.program.compiled.delegation.partitions
        debug = bool(self.debug_bytes)
        return outputs, *read_trace(self.directory, len(self.sets), partitions, debug=debug)


def make_runner(pool: Pool, timeout_s: float, *, quantizes: bool = False) -> PooledRunner:
    """Return a runner for ExecuTorch's Python runtime. ``timeout_s`` also limits a traced run."""

    def opening(program: Program) -> Job:
        return OpenJob(program, quantizes)

    def note(opened: PooledProgram, mean_s: float) -> RunNotes:
        source = opened.program.spec.source
        run_ms = mean_s * 1000 if source.run.flags else None
        if not source.choices.traces:
            return RunNotes(run_ms=run_ms)
        notes = trace_run(opened.program, opened.sets, opened.outputs, pool, timeout_s)
        return replace(notes, run_ms=run_ms)

    return PooledRunner(NAME, pool, opening, note)


def trace_run(program: Program, sets: Sets, judged: Sets, pool: Pool, timeout_s: float) -> RunNotes:
    """Run a program again with the trace that the entry requests; ``judged`` are the outputs of the
    first run.

    Intermediate outputs are kept only for the first input set.
    """
    directory, log = program.directory / "trace", program.log.with_name("trace.log")
    directory.mkdir(exist_ok=True)
    dumped = program.spec.source.choices.dump_intermediate_outputs
    job = (
        TracedRun(program, directory, sets[:1], DEBUG_BYTES)
        if dumped
        else TracedRun(program, directory, sets)
    )
    ended = pool.run(job, log, timeout_s, fresh=True)
    (directory / DEBUG).unlink(missing_ok=True)  # it always has the full reserved size
    if ended.failure:
        return RunNotes(faults=(f"trace: {ended.failure}",))
    outputs, figures, names = ended.result
    return RunNotes(
        faults=tuple(find_differences(outputs, judged)),
        files=tuple(directory / name for name in names),
        accelerator=figures,
    )


def find_differences(traced: Sets, judged: Sets) -> Iterator[str]:
    """Yield differences between the outputs with and without a trace. The emulator is
    deterministic, so a difference means that the trace does not belong to the judged run."""
    for number, (these, those) in enumerate(zip(traced, judged, strict=False)):
        for index, (one, other) in enumerate(zip(these, those, strict=True)):
            if one.tobytes() != other.tobytes():
                yield f"trace: output {index} of set {number} differs from the run without a trace"
