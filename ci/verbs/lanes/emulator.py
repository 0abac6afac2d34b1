"""The lane of test-emulator: ExecuTorch lowers models, and the HTP emulator, a user's program
or a device runs them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ci.cases.engine import Runner
from ci.cases.facts import Options
from ci.cases.policy import LANES, EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.request import Request
from ci.cases.runners import ProgramRunner, find_program
from ci.cases.session import Phases, report_unrun
from ci.cases.spec import CaseSpec, choose_lane, default_soc, require_backend
from ci.executorch import choose_imports
from ci.executorch.engine import (
    NAME,
    PACKAGES,
    ExecutorchEngine,
    make_runner,
)
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.facts.finding import Proof, advise
from ci.facts.kinds import LACKING
from ci.faults.match import match_faults
from ci.gate.plan import parse_shard, split_cases
from ci.gate.results import read_plan
from ci.graphs.candidates import Candidate
from ci.mend.experiments import make_experiments
from ci.mend.offers import list_unchangeable, suggest_mending
from ci.mend.remedies import make_torch_trial
from ci.models.schemes import EXECUTORCH, Scheme, SchemeSet
from ci.models.suite import expect_s
from ci.report.merge import digest_names
from ci.report.schema import Report, ShardMark
from ci.verbs import deploy, steps
from ci.verbs.built import Built, compare_built, explain_apart, require_executorch
from ci.verbs.lanes.lane import Lane, Plan, Tools
from ci.verbs.options import LOWERING
from provisioning.artifacts.choice import WHEEL, find_laid
from provisioning.artifacts.environment import Environment
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.doctor import examine, registry
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.targets import Backend, read_backends

WHEEL_RUNNER = "cpp"
# Pairs of ExecuTorch, torch and QNN that were not seen together.
UNSUPPORTED = ("QNN505",)


@dataclass(frozen=True, kw_only=True)
class EmulatorRequest(Request):
    """A request with the options of test-emulator."""

    runner: str = NAME  # what runs the programs, unless a device does
    backend: Backend = Backend.HTP
    on_device: deploy.DeviceChoice | None = None
    plan: Path | None = None  # a plan.json that selects the cases
    shard: str = ""  # I/N
    try_unsupported: bool = False
    built: Built | None = None  # the runtime that the same nox call built
    strict: bool = False  # fail if that runtime cannot load the programs


def limit(
    request: EmulatorRequest, policy: EmulatorPolicy, schemes: SchemeSet
) -> tuple[EmulatorPolicy, SchemeSet]:
    """Return the policy for the request's backend, and the schemes that it has limits for."""
    policy = policy.for_backend(request.backend)
    return policy, choose_lane(schemes, request.backend, policy.schemes, request.schemes)


def select(
    request: EmulatorRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return the requested cases. Raises UsageError for what the backend or the runner lacks."""
    specs = steps.select_asked(request, policy, schemes, default_soc(request.backend))
    require_backend(specs, request.backend)
    if request.plan:
        progress.step(
            "warning: --plan will be removed; the jobs of a plan run all cases, with --shard"
        )
        specs = list_planned(request.plan)
    # As a lowering option, it is part of a program's key: a cached program has no log of this
    # level.
    if request.log_level:
        specs = [set_log_level(spec, request.log_level) for spec in specs]
    if request.judges:
        check_runner(specs, request.runner, request.backend)
    return specs


@contextlib.contextmanager
def prepare(
    request: EmulatorRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run, with a device leased if the request chooses one. Raises UsageError
    for an unsuitable runner, UnfitError for another ExecuTorch or a missing package, and the same
    errors as ready_device."""
    mark = None
    if request.shard:
        specs, mark = take_shard(specs, request.shard, policy, request.shared_words)
    require_executorch(request.executorch)
    comparison, loads = "", True
    if request.built:
        comparison, loads = compare_built(request.built, request.choice)
        comparison = comparison if loads else f"warning: {comparison}"
        progress.step(comparison if loads else f"{comparison}; {explain_apart(request.built)}")
    # After the checks of all options: a mistake is reported before torch is installed, which takes
    # minutes.
    LANE.require_packages(specs)
    if request.runner == WHEEL_RUNNER and request.choice.adaptor not in {"", WHEEL}:
        raise refuse_overlay()
    options: dict[str, Any] = {}
    is_htp = request.backend is Backend.HTP
    if is_htp:  # the known faults are those of HTP
        options = {"find_faults": match_faults, "make_remedy_job": make_torch_trial}
        if request.on_device is None:
            options |= make_experiments("torch", request.diagnose)
    with (
        deploy.ready_device(request.on_device, progress)
        if request.on_device
        else contextlib.nullcontext()
    ) as device:
        remarks = [deploy.describe_device(*device)] if device else []
        yield Plan(
            specs=specs,
            profile=LANE.profile(request.choice),
            imports=choose_imports(use_cache=request.use_cache, plain=request.plain),
            choice=request.choice,
            open=partial(open_tools, request, device[0] if device else None, progress),
            options=options,
            backend=request.backend,
            tolerated=UNSUPPORTED if request.try_unsupported else (),
            refuse=partial(refuse, request),
            shard=mark,
            remarks=(*remarks, *filter(None, [comparison])),
            mendable=None if is_htp else (),
            on_device=device is not None,
            end=partial(end, comparison, loads, strict=request.strict),
        )


def end(comparison: str, loads: bool, outcome: Outcome, *, strict: bool) -> Outcome:
    """Return what the verb returns if the built runtime ``loads`` the programs, or not."""
    if loads:
        return outcome
    code = ExitCode.ENVIRONMENT if strict and not outcome.exit_code else outcome.exit_code
    return replace(outcome, text=f"{outcome.text}{comparison}\n", exit_code=code)


def suggest(report: Report, plan: Plan, command: str) -> Report:
    """Return the report with the commands that mend its cases."""
    return suggest_mending(
        report,
        EXECUTORCH,
        command,
        on_device=plan.on_device,
        mendable=plan.mendable,
        unchangeable=list_unchangeable(plan.options),
    )


def refuse(
    request: EmulatorRequest,
    options: Options,
    phases: Phases,
    environment: Environment,
    lacks: registry.Finding,
) -> Report:
    """Return the report for a host that lacks a library that the backend needs."""
    advice = advise(lacks.why, lacks.fix, proof=Proof.PROVEN)
    return report_unrun(
        options,
        tuple(describe_toolchain(environment)),
        phases,
        LACKING.find(f"{lacks.id}: {lacks.what}", advice=advice),
        runner=ProgramRunner([request.runner], {}).name,
        library=read_backends()[request.backend].library,
    )


def open_tools(
    request: EmulatorRequest,
    device: Runner | None,
    progress: Progress,
    environment: Environment,
    pool: Pool,
) -> Tools:
    """Return the engine and the runner of a request: a device's runner, ``python``, ``cpp`` (built
    here against ExecuTorch's wheel), or the user's command.

    Raises UsageError if that command does not exist or cannot run the programs, UnfitError if the
    Python runtime cannot, StoreError, and the same errors as ``ensure_wheel_runner``.
    """
    if not device:
        check_backend(request.runner, environment, progress)
    parts = tuple(describe_toolchain(environment))
    # LPAI leaves quantizing the inputs and dequantizing the outputs to kernels on the CPU.
    emulator = make_runner(pool, request.timeout_s, quantizes=request.backend.is_lpai)
    is_emulated = not device and request.runner == NAME
    return Tools(
        engine=ExecutorchEngine(name_toolchain(parts, environment), request.backend, request.plain),
        runner=device or choose_runner(request.runner, emulator, environment, progress),
        parts=parts,
        # The user's own runner may reach a device.
        device=read_backends()[request.backend].device if is_emulated else "",
        # Only the outputs of a device are compared with the emulator's.
        emulator=emulator if device else None,
    )


def choose_runner(
    name: str, emulator: Runner, environment: Environment, progress: Progress
) -> Runner:
    """Return the runner with the value of --runner."""
    if name == NAME:
        return emulator
    variables = environment.apply(os.environ)
    if name == WHEEL_RUNNER:
        from ci.builds.runner import ensure_wheel_runner  # the builds take 0.1 s to import

        return ProgramRunner([str(ensure_wheel_runner(progress))], variables)
    return find_program(name, variables)


def check_backend(runner: str, environment: Environment, progress: Progress) -> None:
    """Raise UsageError or UnfitError if the runner cannot run the programs that the environment's
    adaptor lowers."""
    if runner == WHEEL_RUNNER and find_laid(environment):
        raise refuse_overlay()
    # An overlay for ExecuTorch 1.5 has no backend for the Python runtime, and that of the wheel
    # cannot create a device with each QNN.
    if runner == NAME:
        examine.require_runtime(environment, progress)


def refuse_overlay() -> UsageError:
    """Return the error for --runner cpp with an overlay: that runner cannot run the overlay's
    programs."""
    return UsageError(
        "--runner cpp does not work with an overlay",
        why="that runner is linked with the installed wheel's QNN backend, not the overlay's",
        fix="leave out --runner, or pass the qnn_executor_runner that `qnn-ci build runner "
        "--source CHECKOUT` builds with the same --sdk",
    )


def list_nodes(spec: CaseSpec) -> list[Candidate]:
    """Return the nodes of a model that parts can select."""
    LANE.require_packages([spec])
    from ci.executorch.graph_reader import list_model_candidates

    return list_model_candidates(spec.reference, spec.source)


def set_log_level(spec: CaseSpec, level: str) -> CaseSpec:
    """Return the case with QNN's log level set."""
    choices = structs.replace(spec.source.choices, log_level=level)
    return replace(spec, source=structs.replace(spec.source, choices=choices))


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


LANE = Lane(
    session="test_emulator",
    policy=LANES["test_emulator"],
    schemes=EXECUTORCH,
    request=EmulatorRequest,
    packages=lambda _: (PACKAGES, LOWERING),
    profile=lambda choice: choice.profile,
    select=select,
    prepare=prepare,
    list_nodes=list_nodes,
    limit=limit,
    suggest=suggest,
)
