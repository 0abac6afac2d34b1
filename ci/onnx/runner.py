"""Runs a context binary in a separate process, and reports which provider executed each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ci.cases.engine import Compiled, Program, RunNotes, Sets
from ci.cases.pool import Job, Pool
from ci.cases.qnn_files import PROFILE_CSV, read_accelerator
from ci.cases.runners import PooledProgram, PooledRunner
from ci.onnx.engine import OnnxEngine
from ci.onnx.fallback import QNN, read_profile
from ci.onnx.options import profile_options
from provisioning.errors import FailedError

NAME, PROFILE = "onnxruntime", "profile"
MAX_RESTARTS = 3


class Executed(NamedTuple):
    """The nodes that each provider executed, from the session's profile, and the number of times
    that the session was recreated after a restart of the NPU's subsystem."""

    providers: Mapping[str, tuple[str, ...]]
    restarts: int = 0


@dataclass(frozen=True)
class OpenSession:
    """A job that opens the context at ``path``, or with ``direct`` the model, to run it as on
    ``soc``. ``options`` are the provider's. With ``strict``, no node may fall back to the CPU."""

    path: Path
    soc: str
    options: Mapping[str, str]
    profile: Path
    strict: bool = True
    log_level: str = ""
    direct: bool = False

    def __call__(self) -> RecoveringSession:
        """Open the session. Raises UnfitError if the context is for another SoC, because the
        emulator would run it."""
        from ci.onnx.contexts import check_context
        from ci.onnx.session import NO_FALLBACK, name_severity, open_session

        if not self.direct:
            check_context(self.path, self.soc)
        entries = NO_FALLBACK if self.strict else {}
        severity = name_severity(self.log_level)
        return RecoveringSession(
            lambda: open_session(
                self.path, self.options, entries, profile=self.profile, severity=severity
            )
        )


class RecoveringSession:
    """A session that is recreated after the subsystem, the NPU's operating system, has restarted.

    QNN's provider then raises ENGINE_ERROR, and the session cannot be used again.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.session, self.restarts = make, make(), 0

    def run(self, sets: Sets) -> Sets:
        """Return the outputs per input set. Raises FailedError after MAX_RESTARTS restarts."""
        return [self.run_set(tensors) for tensors in sets]

    def run_set(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the outputs of one input set."""
        from onnxruntime.capi.onnxruntime_pybind11_state import EngineError

        feed = dict(zip((one.name for one in self.session.get_inputs()), tensors, strict=True))
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
        """Return the nodes that each provider executed, from the session's profile."""
        return Executed(read_profile(Path(self.session.end_profiling())), self.restarts)


def make_runner(engine: OnnxEngine, pool: Pool, level: str = "") -> PooledRunner:
    """Return a runner for programs of ``engine``.

    ``level`` is the level of QNN's profile, if requested. Each program runs in a separate process.
    QNN's libraries keep a device, so a later session for another SoC would use the wrong one.
    """

    def opening(program: Program) -> Job:
        options = engine.options(program.spec)
        options |= profile_options(level, program.directory / PROFILE_CSV)
        strict = not program.compiled.delegation.fallback_ops
        profile = program.directory / PROFILE
        words = program.path, program.spec.soc, options, profile, strict
        return OpenSession(*words, engine.log_level, engine.direct)

    return PooledRunner(NAME, pool, opening, note_execution, alone=True)


def note_execution(opened: PooledProgram, executed: Executed) -> RunNotes:
    """Return notes on a run: nodes on the wrong provider, restarts, and QNN's profile."""
    program, compiled = opened.program, opened.program.compiled
    profile = program.directory / PROFILE_CSV
    many = "1 restart" if executed.restarts == 1 else f"{executed.restarts} restarts"
    return RunNotes(
        faults=tuple(find_lies(executed, compiled)),
        remark=f"the session was recreated after {many}" if executed.restarts else "",
        files=(profile,) if profile.is_file() else (),
        accelerator=read_accelerator(profile, compiled.sets, compiled.delegation.partitions),
    )


def find_lies(executed: Executed, compiled: Compiled) -> Iterator[str]:
    """Yield differences between where nodes were executed and where they were compiled to run."""
    if not executed.providers.get(QNN):
        seen = describe_providers(executed)
        yield f"QNN executed nothing, according to the session's profile: {seen}"
        return
    others = sum(len(names) for name, names in executed.providers.items() if name != QNN)
    fallback = compiled.delegation.fallback_nodes
    if others > fallback:
        yield (
            f"{others} nodes ran on other providers, but only {fallback} were compiled for them:"
            f" {describe_providers(executed)}"
        )


def describe_providers(executed: Executed) -> str:
    """Return which nodes ran on other providers, such as ``CPUExecutionProvider ran node_1``."""
    listed = (
        f"{name} ran {', '.join(nodes[:4])}{' ...' if len(nodes) > 4 else ''}"
        for name, nodes in executed.providers.items()
        if name != QNN
    )
    return "; ".join(listed) or "it has no nodes"
