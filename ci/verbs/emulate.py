"""``test-emulator``: lower models, run the programs and judge their outputs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ci.cases.engine import Runner
from ci.cases.judged import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import EMULATOR, EmulatorPolicy
from ci.cases.pool import ScratchPool
from ci.cases.runners import ProgramRunner, find_program
from ci.cases.session import Phases, report_unrun, run_session
from ci.cases.spec import CaseSpec, choose_lane, default_soc, require_backend, require_options
from ci.device.runner import STARTS
from ci.executorch.engine import NAME, ExecutorchEngine, make_runner
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.facts.finding import Finding, Proof, advise
from ci.facts.kinds import LACKING
from ci.faults.match import match_faults
from ci.gate.plan import parse_shard, split_cases
from ci.gate.results import read_plan
from ci.graphs.candidates import Candidate
from ci.mend.remedies import make_torch_trial
from ci.mend.table import suggest_mending
from ci.models.schemes import EXECUTORCH, Scheme
from ci.models.suite import expect_s
from ci.report.claim import claim_reports
from ci.report.merge import digest_names
from ci.report.schema import Report, ShardMark
from ci.report.text import count
from ci.verbs import deploy, steps
from ci.verbs.built import (
    compare_built,
    explain_apart,
    find_built,
    follow_build,
    require_executorch,
)
from ci.verbs.options import (
    CASES,
    add_option,
    add_options,
    least,
    list_digested,
    name_mending,
    repeat_command,
)
from provisioning.artifacts import choice
from provisioning.artifacts.choice import WHEEL, find_laid, read_choice
from provisioning.artifacts.environment import Environment
from provisioning.console.command import FILE, FLAG, HOW, TOOLS, WHAT, Outcome
from provisioning.console.progress import Progress
from provisioning.doctor import examine, registry
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.targets import Backend, read_backends

SESSION = "test_emulator"
WHEEL_RUNNER = "cpp"
# Pairs of ExecuTorch, torch and QNN that were not seen together.
UNSUPPORTED = ("QNN505",)
FAULTS = "faults"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {"--model": "or file.py:factory", "--reports": f"{SESSION}/"}
    add_options(parser, *CASES, gaps=gaps)
    add = partial(add_option, parser)
    runner = (
        "what runs the programs: python, cpp, or a program that accepts the flags of"
        " qnn_executor_runner"
    )
    add(HOW, "--runner", runner, default=NAME, again=str, digest=True)
    text = "the processor to lower for; default: htp"
    add(
        HOW,
        "--backend",
        text,
        choices=[backend.value for backend in Backend],
        default=Backend.HTP.value,
        again=str,
        digest=True,
    )
    add(WHAT, "--plan", "run only the cases in this plan.json", **FILE)
    shard = "run only part I of N of the cases, as in 2/3"
    add(WHAT, "--shard I/N", shard, default="")
    add_options(parser, "--plain")
    untested = "accept versions that are not in manifests/pairs.toml; the report notes this"
    add(TOOLS, "--try-unsupported", untested, **FLAG, again=str)
    add_options(parser, "--executorch")
    text = "exit with code 3 if the runner that this nox call built cannot load the programs"
    add(TOOLS, "--strict", text, **FLAG)
    add_options(parser, "--sdk", "--adaptor")
    deploy.add_device(parser)
    text = f"how often to start each program on a device, to measure times; default: {STARTS}"
    add(
        deploy.DEVICE,
        "--starts N",
        text,
        type=int,
        default=0,
        check=least(0),
        again=str,
        digest=True,
        needs=deploy.ON_DEVICE,
    )
    gaps = {"--suite": "the known faults instead of cases", "--filter": "known faults"}
    add_options(parser, "--suite", choices=[FAULTS], gaps=gaps)
    add_options(parser, "--filter", needs="--suite", gaps=gaps)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases or, with --suite, the known faults. Raises the same errors as
    execute_cases and run_faults."""
    if args.suite:
        from ci.verbs.faults import run_faults

        return run_faults(args, progress)
    return execute_cases(args, progress)


def execute_cases(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases. Raises UsageError, and the same errors as ``run``."""
    steps.check_arguments(args, SESSION)
    typed = [f"--{name}" for name in ("model", "scheme", "soc") if getattr(args, name)]
    if args.plan and typed:
        raise UsageError(
            "--plan already selects the cases", fix=f"leave out --plan, or {' and '.join(typed)}"
        )
    backend = Backend(args.backend)
    require_options(backend, runner=args.runner, plan=bool(args.plan), estimate=args.estimate)
    if args.device or args.any:
        check_device(args)
    policy = steps.read_limits(args, EMULATOR, progress).for_backend(backend)
    lane = choose_lane(EXECUTORCH, backend, policy.schemes, args.scheme)
    if args.list:
        return steps.list_asked(args, policy, lane, find_candidates)
    specs = steps.select_asked(args, policy, lane, default_soc(backend))
    require_backend(specs, backend)
    if args.plan:
        progress.step(
            "warning: --plan will be removed; the jobs of a plan run all cases, with --shard"
        )
        specs = list_planned(args.plan)
    # As a lowering option, it is part of a program's key: a cached program has no log of this
    # level.
    if args.log_level:
        specs = [set_log_level(spec, args.log_level) for spec in specs]
    check_runner(specs, args.runner, backend)
    mark = None
    if args.shard:
        specs, mark = take_shard(specs, args.shard, policy, list_digested(args))
    claim_reports(args.reports / SESSION)
    require_executorch(args.executorch)
    built = find_built(args.reports)
    # After a build in the same call, programs are for the runner that was built.
    args.sdk = follow_build(built, args.sdk)
    comparison, loads = "", True
    if built:
        comparison, loads = compare_built(built, choice.read_choice(args.sdk, args.adaptor))
        comparison = comparison if loads else f"warning: {comparison}"
        progress.step(comparison if loads else f"{comparison}; {explain_apart(built)}")
    # After the checks of all options: a mistake is reported before torch is installed, which takes
    # minutes.
    steps.require_packages(("torch", "executorch"), "lowering")
    report = replace(run(specs, policy, args, progress), shard=mark)
    if comparison:
        report = replace(report, remarks=(*report.remarks, comparison))
    outcome = steps.publish(report, args.reports / SESSION, args, progress)
    if loads:
        return outcome
    code = ExitCode.ENVIRONMENT if args.strict and not outcome.exit_code else outcome.exit_code
    return dataclasses.replace(outcome, text=f"{outcome.text}{comparison}\n", exit_code=code)


def find_candidates(spec: CaseSpec) -> list[Candidate]:
    """Return the nodes of a model that parts can select."""
    steps.require_packages(("torch",), "lowering")
    from ci.executorch.graph_reader import list_model_candidates

    return list_model_candidates(spec.reference, spec.source)


def check_device(args: argparse.Namespace) -> None:
    """Check the options of a run on a device, and take the SoC from --any or the bundle unless
    --soc is given. Raises UsageError or UnfitError."""
    if args.runner != NAME:
        raise UsageError(
            "--runner cannot be used with a device",
            fix="leave it out: the bundle contains a runner",
        )
    socs = deploy.require_bundle(args).socs
    chosen = args.any.partition("=")[2].upper()
    args.soc = args.soc or [chosen if chosen in socs else socs[0]]
    if unknown := [soc for soc in args.soc if soc.upper() not in socs]:
        raise UsageError(
            f"--soc {', '.join(unknown)}: the bundle is for {', '.join(socs)}",
            fix="stage a bundle for that SoC",
        )


def set_log_level(spec: CaseSpec, level: str) -> CaseSpec:
    """Return the case with QNN's log level set."""
    choices = replace(spec.source.choices, log_level=level)
    return dataclasses.replace(spec, source=replace(spec.source, choices=choices))


def check_runner(specs: Sequence[CaseSpec], runner: str, backend: Backend = Backend.HTP) -> None:
    """Raise UsageError for a case that only ExecuTorch's Python runtime can run, and for LPAI
    options that the runner or the backend does not support."""
    for spec in specs:
        choices = spec.source.choices
        if runner != NAME and (choices.traces or choices.methods):
            raise UsageError(
                f"models.{spec.model}.lowering sets {choices}",
                why=f"--runner {runner} runs only the forward method, and writes no trace",
                fix="leave out --runner",
            )
        lpai_options = spec.source.run.of_lpai
        if not lpai_options:
            continue
        problem = f"models.{spec.model}.run sets {', '.join(lpai_options)}"
        if not backend.is_lpai:
            raise UsageError(
                problem, why="these options are only for --backend lpai", fix="add --backend lpai"
            )
        if runner == NAME:
            raise UsageError(
                problem,
                why="ExecuTorch's Python runtime passes no options to a backend",
                fix="pass a program that accepts qnn_executor_runner's flags to --runner",
            )


def run(
    specs: Sequence[CaseSpec], policy: EmulatorPolicy, args: argparse.Namespace, progress: Progress
) -> Report:
    """Provision, check the environment, then run the cases. If the call selects a device, run them
    there. Show and time each step. Raises UsageError for an unsuitable runner before anything is
    fetched."""
    chosen, backend = read_choice(args.sdk, args.adaptor), Backend(args.backend)
    if args.runner == WHEEL_RUNNER and chosen.adaptor not in {"", WHEEL}:
        raise refuse_overlay()
    phases, is_htp = Phases(progress), backend is Backend.HTP
    # What a variable chose becomes an option, so that the command in the report repeats the run.
    vars(args).update(chosen.options)
    faults: dict[str, Any] = {}
    if is_htp:  # the known faults are those of HTP
        faults = {"find_faults": match_faults, "make_remedy_job": make_torch_trial}
    options = steps.read_options(
        args, SESSION, policy, specs=specs, command=repeat_command(args), backend=backend, **faults
    )
    with (
        deploy.ready_device(args, progress)
        if args.device or args.any
        else contextlib.nullcontext() as device
    ):
        report = steps.take_steps(
            chosen.profile,
            f"lower, run and judge {count(len(specs), 'case')}, {args.jobs} at a time",
            lambda environment, scratch: run_specs(
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
                options,
                tuple(describe_toolchain(environment)),
                phases,
                find_lacking(lacks),
                runner=ProgramRunner([args.runner], {}).name,
                library=read_backends()[backend].library,
            ),
        )
    if is_htp:
        report = suggest_mending(report, "torch", name_mending(args), on_device=bool(device))
    if not device:
        return report
    return replace(report, remarks=(*report.remarks, deploy.describe_device(*device)))


def check_backend(runner: str, environment: Environment, progress: Progress) -> Environment:
    """Return the environment unchanged. Raises UsageError or UnfitError if the runner cannot run
    the programs that the environment's adaptor lowers."""
    if runner == WHEEL_RUNNER and find_laid(environment):
        raise refuse_overlay()
    # An overlay for ExecuTorch 1.5 has no backend for the Python runtime, and that of the wheel
    # cannot create a device with each QNN.
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
    environment: Environment,
    runner: str | Runner,
    options: Options,
    *,
    plain: bool,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Run the cases in an environment. ``runner`` is a device's Runner, ``python``, ``cpp`` (built
    here against ExecuTorch's wheel), or the user's command.

    Raises UsageError if that command does not exist, StoreError, and the same errors as
    ``ensure_wheel_runner``.
    """
    parts = tuple(describe_toolchain(environment))
    variables = environment.apply(os.environ)
    pool = scratch.open(variables)
    # LPAI leaves quantizing the inputs and dequantizing the outputs to kernels on the CPU.
    emulator = make_runner(pool, options.timeout_s, quantizes=options.backend.is_lpai)
    chosen_runner: Runner
    if not isinstance(runner, str):  # a device
        chosen_runner = runner
    elif runner == NAME:
        chosen_runner = emulator
    elif runner == WHEEL_RUNNER:
        from ci.builds.runner import ensure_wheel_runner  # the builds take 0.1 s to import

        chosen_runner = ProgramRunner([str(ensure_wheel_runner(phases.progress))], variables)
    else:
        chosen_runner = find_program(runner, variables)
    setup = Setup(
        options=options,
        engine=ExecutorchEngine(name_toolchain(parts, environment), options.backend, plain),
        runner=chosen_runner,
        pool=pool,
        work=scratch.scratch,
        parts=parts,
        # The user's own runner may reach a device.
        device=read_backends()[options.backend].device if runner == NAME else "",
        # Only the outputs of a device are compared with the emulator's.
        emulator=None if isinstance(runner, str) else emulator,
    )
    return run_session(setup, phases)


def find_lacking(lacks: registry.Finding) -> Finding:
    """Return the finding for a host that lacks a library that the backend needs."""
    advice = advise(lacks.why, lacks.fix, proof=Proof.PROVEN)
    return LACKING.find(f"{lacks.id}: {lacks.what}", advice=advice)


def list_planned(path: Path) -> list[CaseSpec]:
    """Return the cases of a plan.json. Raises UsageError if there are none, or if a scheme is
    unknown."""
    cases = read_plan(path).cases
    if not cases:
        raise UsageError(f"{path} contains no case", fix="to run all cases, leave out --plan")
    try:
        return [CaseSpec(case.model, Scheme(case.scheme), case.soc) for case in cases]
    except ValueError as error:
        raise UsageError(f"{path} contains a case that does not exist", why=str(error)) from error


def take_shard(
    specs: Sequence[CaseSpec], text: str, policy: EmulatorPolicy, options: Sequence[str]
) -> tuple[list[CaseSpec], ShardMark]:
    """Return the cases of a shard such as ``2/3``, and the mark that identifies it in the report.

    The mark has the SHA-256 of everything that the shards of a run must have in common. These are
    the lowering options, the limits and other rules of the policy, and the ``options`` of the call
    that change results. Raises UsageError for an invalid shard.
    """
    index, count = parse_shard(text)
    # By expected time, so that the shards take equally long.
    parts = split_cases(specs, count, lambda spec: expect_s(spec.model, spec.scheme.value))
    chosen = parts[index - 1]
    choices = [str(spec.source.choices) for spec in specs]
    limits = policy.describe_limits(specs)
    common = (choices, limits, policy.reference, policy.unsupported, options)
    mark = ShardMark(
        index=index,
        count=count,
        positions=tuple(position for position, spec in enumerate(specs) if spec in set(chosen)),
        whole=digest_names(spec.name for spec in specs),
        policy=hashlib.sha256(msgspec.json.encode(common)).hexdigest(),
    )
    return list(chosen), mark
