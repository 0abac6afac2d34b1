"""The ExecuTorch engine and runner for the session and its workers. torch is imported only when a
function needs it, so that the session's process does not load it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.engine import Compiled, Program, RunNotes, Sets, Staging
from ci.cases.forked import without_collection
from ci.cases.pool import Pool
from ci.cases.qnn_files import DEBUG, ETDUMP
from ci.cases.runners import HeldProgram, PooledProgram, PooledRunner
from ci.cases.spec import CaseSpec
from ci.executorch import IMPORTS
from ci.facts.finding import Finding
from ci.models.schemes import Mixture
from ci.packages.modules import EXECUTORCH
from provisioning.manifest.targets import Backend

ROOMS = ("analysis", "graphs", "models", "cases", "executorch")


@dataclass(frozen=True)
class ExecutorchEngine:
    """Quantizes and lowers with ExecuTorch. ``toolchain`` lists the versions and digests of all
    tools involved. ``plain`` disables the patches of ci.executorch.patches."""

    toolchain: tuple[str, ...]
    backend: Backend = Backend.HTP
    plain: bool = False
    imports = IMPORTS

    def preload(self, spec: CaseSpec) -> None:
        """Compute the digest of the rooms and load the model, so that later forks need not."""
        from ci.models.model import preload_model

        digest_rooms(ROOMS)
        preload_model(spec.reference, spec.source)

    def key(self, spec: CaseSpec) -> str:
        """Return the cache key of a case, see ``digest_key``."""
        from ci.models.model import load_digested

        return self.digest_key(load_digested(spec.reference, spec.source)[1], spec)

    def digest_key(self, model: str, spec: CaseSpec) -> str:
        """Return the cache key of a case; ``model`` is the model's digest.

        A key includes only the recipe of the case's scheme, so a new scheme does not change other
        keys, and the name of a mixture, which the program's record contains. If a lowering option
        is a user's function, the key is random, because the function's effect is unknown.
        """
        from ci.models.numerics import NUMERICS, name_instructions
        from ci.models.rounding import digest_terms

        choices = spec.source.choices
        return hash_words(
            model,
            *self.toolchain,
            digest_rooms(ROOMS),
            digest_terms(),
            # The last bits of the references depend on these two.
            NUMERICS,
            name_instructions(),
            msgspec.json.encode(spec.scheme.recipe).decode(),
            spec.scheme.value if isinstance(spec.scheme, Mixture) else "",
            spec.soc,
            self.backend.value,
            "plain" if self.plain else "",
            "layers" if spec.layers else "",
            "simulated" if spec.simulated else "",
            msgspec.json.encode(choices).decode(),
            secrets.token_hex() if choices.functions else "",
        )

    def read_data(self, spec: CaseSpec) -> int:
        """Return the number of samples that are judged."""
        from ci.models.model import count_judged

        return count_judged(spec.reference, spec.source)

    def warm_up(self, spec: CaseSpec) -> None:
        """Apply the patches, and lower a small model so that the forks share the loaded code. If
        ``preload`` has loaded the model, export it, so that all of its schemes share the export."""
        from ci.executorch.toolchain import find_qnn_version

        load_compiler(plain=self.plain)
        find_qnn_version()  # reads a large file, so that the forks need not
        if not (spec.layers or spec.simulated):
            from ci.models.model import preload_exports

            preload_exports(spec.reference, spec.source)

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Lower a case, or simulate it if its spec requests that. The files go to ``staging``."""
        from ci.executorch.lower import Lowering
        from ci.models.model import load_digested

        model, _ = load_digested(spec.reference, spec.source)
        lowering = Lowering(model, spec, staging, self.backend)
        return lowering.simulate() if spec.simulated else lowering.write()

    def explain(self, error: Exception, log: Path) -> Finding:
        """Return the finding on a failed lowering, with QNN's lines from ``log``."""
        from ci.executorch.lower import describe_refusal

        return describe_refusal(error, log)


def load_compiler(*, plain: bool) -> None:
    """Import and patch ExecuTorch before a worker forks, and log which patches are disabled."""
    with without_collection():
        from ci.executorch.patches import warm_up

        notes = warm_up(plain=plain)
    for note in notes:
        logging.getLogger(__name__).warning(note)


PACKAGES = EXECUTORCH.for_files  # that cases import
NAME = "python"
# The limit for intermediate outputs of one sample, including padding.
DEBUG_BYTES = 256 << 20


def open_program(program: Program, *, quantizes: bool = False) -> HeldProgram:
    """Open a program in a worker. ``quantizes`` is true if the CPU quantizes its inputs and
    outputs."""
    from ci.executorch.runtime import LoadedProgram

    return LoadedProgram(program, quantizes=quantizes, repeated=program.spec.source.run)


def run_traced(
    program: Program, directory: Path, sets: Sets, debug_bytes: int = 0
) -> tuple[Sets, dict[str, int], tuple[str, ...]]:
    """Run a program on samples in a worker. Write its trace to ``directory``, and extract files
    from the trace: the times of QNN's events or, with ``debug_bytes``, intermediate outputs.

    Return the outputs, the accelerator's figures, and the names of the extracted files. Raises
    FailedError if the trace contains nothing from QNN.
    """
    from ci.executorch.runtime import LoadedProgram, read_trace

    loaded = LoadedProgram(program, debug_bytes=debug_bytes)
    outputs = loaded.run(sets)
    trace, debug = directory / ETDUMP, directory / DEBUG
    loaded.program.write_etdump_result_to_file(str(trace), str(debug))
    partitions = program.compiled.delegation.partitions
    return outputs, *read_trace(directory, len(sets), partitions, debug=bool(debug_bytes))


def make_runner(pool: Pool, timeout_s: float, *, quantizes: bool = False) -> PooledRunner:
    """Return a runner for ExecuTorch's Python runtime. If the model's entry requests a trace, the
    program runs a second time to record it, for at most ``timeout_s`` seconds."""

    def note(opened: PooledProgram, mean_s: float) -> RunNotes:
        source = opened.program.spec.source
        run_ms = mean_s * 1000 if source.run.flags else None
        if not source.choices.traces:
            return RunNotes(run_ms=run_ms)
        notes = trace_run(opened.program, opened.sets, opened.outputs, pool, timeout_s)
        return replace(notes, run_ms=run_ms)

    return PooledRunner(NAME, pool, partial(open_program, quantizes=quantizes), note)


def trace_run(program: Program, sets: Sets, judged: Sets, pool: Pool, timeout_s: float) -> RunNotes:
    """Run a program again to record the trace that the model's entry requests, and return the notes
    on this run. The case fails if the outputs differ from ``judged``, the outputs of the first run.

    Intermediate outputs are kept only for the first sample.
    """
    directory, log = program.directory / "trace", program.log.with_name("trace.log")
    directory.mkdir(exist_ok=True)
    dumped = program.spec.source.choices.dump_intermediate_outputs
    arguments = (sets[:1], DEBUG_BYTES) if dumped else (sets,)
    job = partial(run_traced, program, directory, *arguments)
    # Fresh, because a process that has lowered can crash when it writes an ETDump through
    # pybindings.
    ended = pool.run(job, log, timeout_s, fresh=True)
    (directory / DEBUG).unlink(missing_ok=True)  # it is always as large as the reserved memory
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
    deterministic, so a difference means that the trace does not describe the judged run."""
    for number, (outputs, judged_outputs) in enumerate(zip(traced, judged, strict=False)):
        for index, (output, judged_output) in enumerate(zip(outputs, judged_outputs, strict=True)):
            if output.tobytes() != judged_output.tobytes():
                yield f"trace: output {index} of set {number} differs from the run without a trace"
