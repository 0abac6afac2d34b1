"""What test-emulator does once its environment is there; imported when something is to be run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ci.cases.engine import Runner
from ci.cases.judged import SessionOptions
from ci.cases.pool import Pool, ScratchPool
from ci.cases.runners import ProgramRunner, find_program
from ci.cases.session import Phases, Session
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.executorch.tracing import NAME, make_runner
from ci.report.schema import Report
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.doctor.checks.registry import Finding
from provisioning.manifest.targets import read_backends

SESSION = "test_emulator"
IMPORTS = ExecutorchEngine.imports


def run_specs(
    specs: Sequence[CaseSpec],
    environment: Environment,
    runner: str | Runner,
    options: SessionOptions,
    *,
    plain: bool,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Run the cases in an environment, with a runner or the one that a word names. Raises what
    finding it raises, and StoreError."""
    parts = tuple(describe_toolchain(environment))
    variables = environment.apply(os.environ)
    pool = scratch.open(variables)
    emulator = None
    if isinstance(runner, str):
        found = find_runner(runner, pool, variables, options, phases.progress)
    else:  # a device
        found = runner
        emulator = make_runner(pool, options.timeout_s, quantizes=options.backend.is_lpai)
    session = Session(
        name=SESSION,
        specs=specs,
        engine=ExecutorchEngine(name_toolchain(parts, environment), options.backend, plain),
        runner=found,
        parts=parts,
        options=options,
        device=read_backends()[options.backend].device if runner == NAME else "",
        emulator=emulator,
    )
    return session.run(pool, scratch.scratch, phases)


def find_runner(
    word: str,
    pool: Pool,
    variables: Mapping[str, str],
    options: SessionOptions,
    progress: Progress,
) -> Runner:
    """Return the runner called ``python``, ``cpp`` (built here against ExecuTorch's wheel), or a
    command of the user's.

    Raises UsageError if there is no such program, and what the build of ``cpp`` raises.
    """
    if word == NAME:
        return make_runner(pool, options.timeout_s, quantizes=options.backend.is_lpai)
    if word == "cpp":
        from ci.builds.runner import ensure_wheel_runner

        return ProgramRunner([str(ensure_wheel_runner(progress))], variables)
    return find_program(word, variables)


def report_unrun(
    specs: Sequence[CaseSpec],
    environment: Environment,
    runner: str,
    options: SessionOptions,
    *,
    phases: Phases,
    lacks: Finding,
) -> Report:
    """Return the report of a host on which nothing is lowered for the backend."""
    reason = f"{lacks.id}: {lacks.what}\n  why: {lacks.why}\n  fix: {lacks.fix}"
    session = Session(
        name=SESSION,
        specs=specs,
        engine=ExecutorchEngine(()),
        runner=ProgramRunner([runner], {}),
        parts=tuple(describe_toolchain(environment)),
        options=options,
    )
    return session.report_unrun(phases, reason, read_backends()[options.backend].library)
