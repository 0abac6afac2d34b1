"""The ONNX Runtime engine and runner for the session and its workers. Only the process that runs a
case imports onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.engine import Compiled, Program, RunNotes, Sets, Staging
from ci.cases.forked import without_collection
from ci.cases.pool import Pool
from ci.cases.qnn_files import PROFILE_CSV, read_accelerator
from ci.cases.runners import PooledProgram, PooledRunner
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.models.numerics import NUMERICS, name_extensions
from ci.models.rounding import digest_terms
from ci.models.schemes import Mixture
from ci.onnx.fallback import PROVIDER, describe_refusal, read_profile
from ci.onnx.options import (
    NO_FALLBACK,
    SAVER_LIBRARY,
    choose_options,
    find_library,
    hash_option_files,
    profile_options,
)
from ci.report.text import count, name_some
from provisioning.errors import FailedError

ROOMS = ("analysis", "graphs", "models", "cases", "onnx")
BACKEND = ("backend_path", "backend_type")


@dataclass(frozen=True, kw_only=True)
class OnnxEngine:
    """Quantizes models, and compiles context binaries with QNN's provider.

    ``sdk`` is the root of QNN's libraries. ``user_options`` are the user's provider options. With
    ``embed``, the context binary is inside the ONNX file (embed mode 1), else next to it (0).
    ``saver`` requests a record of QNN's API calls. ``log_level`` is the level of QNN's log while a
    program runs. With ``direct``, a session loads the model itself instead of a context binary.
    ``exports`` is true if any model is exported from torch.
    """

    toolchain: tuple[str, ...]
    sdk: Path
    user_options: Mapping[str, str] = field(default_factory=dict)
    embed: bool = True
    saver: bool = False
    log_level: str = ""
    direct: bool = False
    exports: bool = True

    @property
    def imports(self) -> tuple[str, ...]:
        """Return the modules to import before workers are forked. Those that need torch are only
        for models that are exported from it."""
        return ("ci.onnx.compile", *["ci.onnx.export", "ci.models.model"] * self.exports)

    def options(self, spec: CaseSpec) -> dict[str, str]:
        """Return all provider options of a case."""
        options = choose_options(spec.scheme.base, spec.soc, self.user_options)
        # find_library turns both into a path.
        for name in BACKEND:
            options.pop(name, None)
        library = find_library(self.sdk, self.user_options)
        return {"backend_path": str(library), **options}

    def preload(self, spec: CaseSpec) -> None:
        """Load what the cases of a model share, once before workers are forked."""
        digest_rooms(ROOMS)
        if not spec.is_file:
            from ci.models.model import preload_model

            preload_model(spec.reference, spec.source)

    def key(self, spec: CaseSpec) -> str:
        """Return the key of a case's artifact in the cache: a hash of everything that determines
        it."""
        from ci.onnx.compile import load_source

        # Without the path of the SDK's backend, which does not matter: its digest is part of the
        # toolchain.
        options = choose_options(spec.scheme.base, spec.soc, self.user_options)
        return hash_words(
            load_source(spec).digest,
            *self.toolchain,
            digest_rooms(ROOMS),
            digest_terms(),
            NUMERICS,
            name_extensions(),
            msgspec.json.encode(spec.scheme.recipe).decode(),
            spec.scheme.value if isinstance(spec.scheme, Mixture) else "",
            repr(spec.source.choices),
            spec.soc,
            msgspec.json.encode(sorted(options.items())).decode(),
            *hash_option_files(options),
            f"embed {self.embed} saver {self.saver} layers {spec.layers} direct {self.direct}",
            "simulated" if spec.simulated else "",
        )

    def read_data(self, spec: CaseSpec) -> int:
        """Read the user's inputs, and return the number of samples for judging."""
        if spec.is_file:
            from ci.onnx.compile import load_source

            return len(load_source(spec).evaluation)
        from ci.models.model import count_judged

        return count_judged(spec.reference, spec.source)

    def warm_up(self, spec: CaseSpec) -> None:
        """Export a small model if the case is exported from torch; see warm_exporter."""
        if not spec.is_file:
            with without_collection():
                from ci.onnx.export import warm_exporter

                warm_exporter()

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Compile a case, or predict its latency if it is ``simulated``. Raises the errors of
        compile_source or simulate_source."""
        from ci.onnx.compile import compile_source, load_source
        from ci.onnx.simulate import simulate_source

        if spec.simulated:
            return simulate_source(load_source(spec), spec, staging, self.options(spec))
        saver = str(self.sdk / SAVER_LIBRARY) if self.saver else ""
        options = self.options(spec)
        embed = None if self.direct else self.embed
        return compile_source(load_source(spec), spec, staging, options, embed=embed, saver=saver)

    def explain(self, error: Exception, log: Path) -> Finding:
        """Return why a case failed, see describe_refusal."""
        return describe_refusal(error, log)


NAME, PROFILE = "onnxruntime", "profile"
# Tried with a stand-in only, because the emulator does not restart.
MAX_RESTARTS = 3


class Executed(NamedTuple):
    """The nodes that each provider executed, from the session's profile, and the number of times
    that the session was recreated after a restart of the NPU's subsystem."""

    providers: Mapping[str, tuple[str, ...]]
    restarts: int = 0


def open_program(program: Program, engine: OnnxEngine, level: str) -> RecoveringSession:
    """Open a program of ``engine`` in a worker: a context or, if the engine is ``direct``, a model.

    ``level`` is the level of QNN's profile; if it is empty, no profile is written. If the program
    was compiled without nodes on the CPU, nodes must not fall back to the CPU. Raises UnfitError if
    the context is for another SoC, because the emulator would run it anyway.
    """
    from ci.onnx.contexts import check_context
    from ci.onnx.session import open_session

    if not engine.direct:
        check_context(program.path, program.spec.soc)
    options = engine.options(program.spec)
    options |= profile_options(level, program.directory / PROFILE_CSV)
    entries = {} if program.compiled.delegation.fallback_ops else NO_FALLBACK
    make = partial(open_session, program.path, options, entries, log_level=engine.log_level)
    return RecoveringSession(partial(make, profile=program.directory / PROFILE))


class RecoveringSession:
    """A session that is created again if the NPU's subsystem, its operating system, restarts.

    After a restart, QNN's provider raises EngineError, and the old session cannot be used again.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.session, self.restarts = make, make(), 0

    def run(self, sets: Sets) -> Sets:
        """Return the outputs, one list per sample. Raises FailedError if the subsystem restarts
        more than MAX_RESTARTS times."""
        return [self.run_set(tensors) for tensors in sets]

    def run_set(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the outputs of one sample. If the subsystem restarts, create the session again
        and repeat the run."""
        from onnxruntime.capi.onnxruntime_pybind11_state import EngineError

        names = [declared.name for declared in self.session.get_inputs()]
        feed = dict(zip(names, tensors, strict=True))
        try:
            return list(self.session.run(None, feed))
        except EngineError as error:
            if self.restarts == MAX_RESTARTS:
                raise FailedError(
                    f"the subsystem restarted {MAX_RESTARTS + 1} times",
                    why=" ".join(str(error).split()),
                    fix="check what else runs on the NPU, and the system log (logcat, dmesg)",
                ) from error
            self.restarts += 1
            self.session = self.make()
            return self.run_set(tensors)

    def finish(self) -> Executed:
        """Return the nodes that each provider executed, from the session's profile, and the number
        of restarts."""
        return Executed(read_profile(Path(self.session.end_profiling())), self.restarts)


def make_runner(engine: OnnxEngine, pool: Pool, level: str = "") -> PooledRunner:
    """Return a runner for programs of ``engine``. ``level`` is the level of QNN's profile; if it is
    empty, no profile is written.

    Each program runs in a separate process. QNN's libraries keep the device of a process's first
    session, and would use it even for another SoC.
    """

    opening = partial(open_program, engine=engine, level=level)
    return PooledRunner(NAME, pool, opening, note_execution, alone=True)


def note_execution(opened: PooledProgram, executed: Executed) -> RunNotes:
    """Return notes on a run: nodes that ran on the wrong provider, restarts, and QNN's profile."""
    program, compiled = opened.program, opened.program.compiled
    profile = program.directory / PROFILE_CSV
    remark = ""
    if executed.restarts:
        restarts = count(executed.restarts, "restart")
        remark = f"the session was recreated after {restarts} of the NPU's subsystem"
    return RunNotes(
        faults=tuple(find_lies(executed, compiled)),
        remark=remark,
        files=(profile,) if profile.is_file() else (),
        accelerator=read_accelerator(profile, compiled.sets, compiled.delegation.partitions),
    )


def find_lies(executed: Executed, compiled: Compiled) -> Iterator[str]:
    """Yield a message if QNN executed no node, or if other providers executed more nodes than were
    compiled for them."""
    # A session can run everything on the CPU without an error (onnxruntime-qnn#715).
    if not executed.providers.get(PROVIDER):
        providers = describe_providers(executed)
        yield f"QNN executed nothing, according to the session's profile: {providers}"
        return
    strays = sum(len(names) for name, names in executed.providers.items() if name != PROVIDER)
    fallback = compiled.delegation.fallback_nodes
    if strays > fallback:
        yield (
            f"{count(strays, 'node')} ran on other providers, but only {fallback}"
            f" {'was' if fallback == 1 else 'were'} compiled for them:"
            f" {describe_providers(executed)}"
        )


def describe_providers(executed: Executed) -> str:
    """Return which nodes ran on other providers, such as ``CPUExecutionProvider ran node_1``."""
    listed = (
        f"{name} ran {name_some(nodes, 4)}"
        for name, nodes in executed.providers.items()
        if name != PROVIDER
    )
    return "; ".join(listed) or "it lists no nodes"
