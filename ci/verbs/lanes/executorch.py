"""Run test-emulator, after its arguments were checked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext

from msgspec.structs import replace

from ci.builds.runner import ensure_wheel_runner
from ci.cases.engine import Runner
from ci.cases.judged import SessionOptions
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import ScratchPool
from ci.cases.runners import ProgramRunner, find_program
from ci.cases.session import Phases, Session
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.executorch.tracing import NAME, make_runner
from ci.faults.match import warn_of_faults
from ci.report.schema import Report
from ci.report.text import count
from ci.verbs.deploy import describe_device, ready_device
from ci.verbs.lanes.steps import read_options, repeat_command, take_steps
from provisioning.artifacts.choice import WHEEL, find_laid, read_choice
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.doctor import examine
from provisioning.doctor.checks.registry import Finding
from provisioning.errors import UsageError
from provisioning.manifest.targets import Backend, read_backends

SESSION, WHEEL_RUNNER = "test_emulator", "cpp"
UNSUPPORTED = ("QNN505",)


def run(
    specs: Sequence[CaseSpec], policy: EmulatorPolicy, args: argparse.Namespace, progress: Progress
) -> Report:
    """Provision, check, then run the cases, on a device if the call names one. Show and time each
    step. Raises UsageError for an unsuitable runner before anything is fetched."""
    chosen, backend = read_choice(args.sdk, args.adaptor), Backend(args.backend)
    if args.runner == WHEEL_RUNNER and chosen.adaptor not in {"", WHEEL}:
        raise refuse_overlay()
    phases, is_htp = Phases(progress), backend is Backend.HTP
    command = repeat_command(
        args,
        "plain",
        "try-unsupported",
        backend="" if is_htp else backend.value,
        runner="" if args.runner == NAME else args.runner,
        device=args.device,
        any=args.any,
        bundle=str(args.bundle or ""),
        starts=str(args.starts or ""),
        **{"log-level": args.log_level, **chosen.options},
    )
    known = {"find_faults": warn_of_faults} if is_htp else {}
    options = read_options(args, SESSION, policy, command, backend=backend, **known)
    with ready_device(args, progress) if args.device or args.any else nullcontext() as device:
        report = take_steps(
            chosen.profile,
            f"lower, run and judge {count(len(specs), 'case')}, {args.jobs} at a time",
            lambda environment, scratch: run_specs(
                specs,
                environment if device else check_backend(args.runner, environment, progress),
                device[0] if device else args.runner,
                options,
                plain=args.plain,
                phases=phases,
                scratch=scratch,
            ),
            phases,
            offline=args.offline,
            imports=ExecutorchEngine.imports,
            choice=chosen,
            backend=backend,
            tolerated=UNSUPPORTED if args.try_unsupported else (),
            refuse=lambda environment, lacks: report_unrun(
                specs, environment, args.runner, options, phases=phases, lacks=lacks
            ),
        )
    if not device:
        return report
    return replace(report, remarks=(*report.remarks, describe_device(*device)))


def check_backend(runner: str, environment: Environment, progress: Progress) -> Environment:
    """Return the environment if its adaptor suits the runner. Raises UsageError or UnfitError."""
    if runner == WHEEL_RUNNER and find_laid(environment):
        raise refuse_overlay()
    if runner == NAME:
        examine.require_runtime(environment, progress)
    return environment


def refuse_overlay() -> UsageError:
    """Return the error for --runner cpp with an overlay: that runner cannot run the overlay's
    programs."""
    return UsageError(
        "--runner cpp does not work with an overlay",
        why="that runner is linked with the installed wheel's QNN backend, not the overlay's",
        fix="leave out --runner, or pass the qnn_executor_runner that `qnn-ci build runner "
        "--source CHECKOUT` builds with the same --sdk",
    )


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
    """Run the cases in an environment. ``runner`` is a device's Runner, ``python``, ``cpp`` (built
    here against ExecuTorch's wheel), or the user's command.

    Raises UsageError if that command does not exist, StoreError, and the errors of building
    ``cpp``.
    """
    parts = tuple(describe_toolchain(environment))
    variables = environment.apply(os.environ)
    pool = scratch.open(variables)
    emulator = make_runner(pool, options.timeout_s, quantizes=options.backend.is_lpai)
    found: Runner
    if not isinstance(runner, str):  # a device
        found = runner
    elif runner == NAME:
        found = emulator
    elif runner == WHEEL_RUNNER:
        found = ProgramRunner([str(ensure_wheel_runner(phases.progress))], variables)
    else:
        found = find_program(runner, variables)
    session = Session(
        name=SESSION,
        specs=specs,
        engine=ExecutorchEngine(name_toolchain(parts, environment), options.backend, plain),
        runner=found,
        parts=parts,
        options=options,
        device=read_backends()[options.backend].device if runner == NAME else "",
        emulator=None if isinstance(runner, str) else emulator,
    )
    return session.run(pool, scratch.scratch, phases)


def report_unrun(
    specs: Sequence[CaseSpec],
    environment: Environment,
    runner: str,
    options: SessionOptions,
    *,
    phases: Phases,
    lacks: Finding,
) -> Report:
    """Return a report without results, for a host that lacks a library that the backend needs."""
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
