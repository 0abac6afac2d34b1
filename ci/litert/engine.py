"""The LiteRT engine and runner for the session and its workers. Only the process that runs a case
imports LiteRT and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.engine import Compiled, Program, RunNotes, Sets, Staging
from ci.cases.pool import Pool
from ci.cases.runners import PooledProgram, PooledRunner
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.models.numerics import NUMERICS
from ci.models.rounding import digest_terms
from ci.onnx.fallback import describe_refusal
from ci.onnx.options import choose_options, find_library
from ci.report.text import count
from provisioning.documents import CONTENT_BYTES, read_bytes

if TYPE_CHECKING:
    from ci.litert.source import LitertSource

ROOMS = ("analysis", "graphs", "models", "cases", "onnx", "litert")
NAME = "litert"
PLUGIN_SHARE = 0.8  # of a case's time: the plugin is ended before its worker is


@dataclass(frozen=True, kw_only=True)
class LitertEngine:
    """Compiles .tflite files with LiteRT's plugin for Qualcomm. ``sdk`` is the root of QNN's
    libraries. ``timeout_s`` is the time that a case may take. ``converts`` is true if any model is
    converted from torch."""

    toolchain: tuple[str, ...]
    sdk: Path
    timeout_s: float
    converts: bool = False

    @property
    def imports(self) -> tuple[str, ...]:
        """Return the modules to import before workers are forked. Those that need torch are only
        for models that are converted from it."""
        converting = ("ci.litert.convert", "ci.models.model")
        return ("ci.litert.compile", "ci.litert.execution", *converting * self.converts)

    @property
    def library(self) -> Path:
        """Return QNN's backend."""
        return find_library(self.sdk, {})

    def preload(self, spec: CaseSpec) -> None:
        """Hash the rooms once, before workers are forked."""
        del spec
        digest_rooms(ROOMS)

    def key(self, spec: CaseSpec) -> str:
        """Return the key of a case's artifact in the cache: a hash of everything that determines
        it."""
        from ci.litert.source import digest_litert

        return hash_words(
            digest_litert(spec),
            *self.toolchain,
            digest_rooms(ROOMS),
            digest_terms(),
            NUMERICS,
            spec.scheme.value,
            spec.soc,
            "layers" if spec.layers else "",
            "simulated" if spec.simulated else "",
        )

    def read_data(self, spec: CaseSpec) -> int:
        """Read the user's inputs, and return the number of samples for judging."""
        from ci.litert.source import count_samples

        return count_samples(spec)

    def warm_up(self, spec: CaseSpec) -> None:
        """Nothing is slow when it is first used."""

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Compile a case, or predict its latency if it is ``simulated``. Raises the errors of
        compile_litert or simulate_litert."""
        from ci.litert.simulate import simulate_litert
        from ci.litert.source import load_litert

        if spec.simulated:
            limit_s = self.timeout_s * PLUGIN_SHARE
            source = load_litert(spec)
            return simulate_litert(source, spec, staging, library=self.library, timeout_s=limit_s)
        return self.compile_source(load_litert(spec), spec, staging)

    def compile_source(
        self, source: LitertSource, spec: CaseSpec, staging: Staging, *, is_part: bool = False
    ) -> Compiled:
        """Compile a model, or a part of one, as compile_litert does."""
        from ci.litert.compile import compile_litert

        return compile_litert(
            source,
            spec,
            staging,
            library=self.library,
            timeout_s=self.timeout_s * PLUGIN_SHARE,
            is_part=is_part,
        )

    def explain(self, error: Exception, log: Path) -> Finding:
        """Return why a case failed."""
        return describe_refusal(error, log)


class Executed(NamedTuple):
    """What a run of a compiled file showed: why operators on the CPU do not load."""

    problems: tuple[str, ...]


class CompiledProgram:
    """A compiled file that is open in a worker."""

    def __init__(self, program: Program, engine: LitertEngine) -> None:
        from ci.graphs.litert_file import list_entries, read_model
        from ci.litert.compile import PART, SOURCE, SPLIT
        from ci.litert.compiled import CompiledModel, check_order, check_states, check_target
        from ci.litert.execution import Execution

        soc = program.spec.soc
        compiled = CompiledModel(program.path)
        is_part = program.path.with_name(PART).exists()
        check_target(compiled, soc, is_shipped=not (program.spec.layers or is_part))
        options = choose_options(program.spec.scheme.base, soc, {})
        options = {"backend_path": str(engine.library), **options}
        source = read_model(read_bytes(program.path.with_name(SOURCE), CONTENT_BYTES))
        is_split = program.path.with_name(SPLIT).exists()
        if not is_split:  # the source of a split file has a signature for each partition
            check_order(program.path.name, compiled.model, source)
        folder = program.directory / "partitions"
        folder.mkdir(exist_ok=True)
        self.execution = Execution(compiled, source, folder, options, partitions_only=is_split)
        signatures = program.spec.source.signatures
        entries = list_entries(source) if is_split else list_entries(compiled.model, signatures)
        check_states(program.path.name, entries, list_entries(source, signatures))
        opened = self.execution
        self.calls = opened.list_alone(entries) if is_split else opened.list_calls(entries)

    def run(self, sets: Sets) -> Sets:
        """Return the outputs, one list per sample. States begin anew, and last from one sample to
        the next."""
        outputs = []
        for call in self.calls:
            call.begin()
        for arrays in sets:
            results: list[Any] = []
            place = 0
            for call in self.calls:
                results += call.run(arrays[place : place + call.inputs])
                place += call.inputs
            outputs.append(results)
        return outputs

    def finish(self) -> Executed:
        """Return what the run showed."""
        return Executed(tuple(dict.fromkeys(self.execution.problems)))


def open_program(program: Program, engine: LitertEngine) -> CompiledProgram:
    """Open a program of ``engine`` in a worker. Raises UnfitError if it is for another SoC, because
    the emulator would run it anyway."""
    return CompiledProgram(program, engine)


def make_runner(engine: LitertEngine, pool: Pool) -> PooledRunner:
    """Return a runner for programs of ``engine``. Each program runs in a separate process, because
    QNN's libraries keep the device of a process's first session."""
    return PooledRunner(
        NAME, pool, partial(open_program, engine=engine), note_execution, alone=True
    )


def note_execution(opened: PooledProgram, executed: Executed) -> RunNotes:
    """Return notes on a run: a file whose operators on the CPU do not load is no program."""
    del opened
    return RunNotes(faults=tuple(describe_problems(executed.problems)))


def describe_problems(problems: Sequence[str]) -> list[str]:
    """Return why a compiled file loads on no phone, or nothing if it loads."""
    if not problems:
        return []
    first = problems[0]
    if len(problems) > 1:
        first += f", and {count(len(problems) - 1, 'other reason')}"
    problem = (
        "the compiled file loads on no phone: LiteRT does not load the operators that stay on the"
        f" CPU ({first}); the figures are of these operators in the source file"
    )
    return [problem]
