"""``test-emulator``: lower models, run the programs and judge their outputs. Runs all cases, or
only those of a plan or a shard."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ci.cases.policy import EMULATOR, EmulatorPolicy
from ci.cases.spec import (
    CaseSpec,
    choose_lane,
    default_soc,
    require_choices,
    require_hardware,
    require_options,
)
from ci.device.bundle import read_bundle
from ci.device.runner import STARTS
from ci.gate.jobs import parse_shard, split_cases
from ci.gate.results import read_plan
from ci.models.schemes import EXECUTORCH, Scheme
from ci.models.suite import expect_s
from ci.report.merge import digest_names
from ci.report.schema import CaseName, ShardMark
from ci.upstream.suites import SUITES
from ci.verbs.deploy import add_device
from ci.verbs.lanes.built import (
    add_executorch,
    compare_built,
    explain_apart,
    find_built,
    follow_build,
    installed_executorch,
)
from ci.verbs.lanes.executorch import run
from ci.verbs.lanes.steps import (
    add_case_arguments,
    check_arguments,
    list_choices,
    publish,
    read_limits,
    require_packages,
    select_asked,
)
from provisioning.artifacts import choice
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UnfitError, UsageError
from provisioning.manifest.targets import Backend
from provisioning.versions import is_same

SESSION = "test_emulator"
PYTHON = "python"
OUTPUTS = "outputs"
FAULTS = "faults"
JUDGED = (OUTPUTS, "zeros", "noise")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_case_arguments(parser, "name or glob, or file.py:factory", SESSION)
    add = parser.add_argument
    add(
        "--runner",
        default=PYTHON,
        help="python, cpp, or a program with qnn_executor_runner's flags",
    )
    add(
        "--backend",
        choices=[one.value for one in Backend],
        default=Backend.HTP.value,
        help="the processor to lower for; default: htp",
    )
    add("--plan", type=user_path, metavar="FILE", help="only the cases of a plan.json")
    add("--shard", default="", metavar="I/N", help="only part I of N of the cases, such as 2/3")
    add("--plain", action="store_true", help="lower without the patches that save time")
    add(
        "--try-unsupported",
        action="store_true",
        help="accept versions that are not in manifests/pairs.toml; the report notes this",
    )
    add_executorch(parser)
    add(
        "--strict",
        action="store_true",
        help="exit with code 3 if the runner built by this call cannot load the programs",
    )
    choice.add_arguments(parser)
    add_device(parser)
    add(
        "--starts",
        type=int,
        default=0,
        metavar="N",
        help=f"how often to start each program on a device, to measure times; default: {STARTS}",
    )
    add_suite_arguments(parser)


def add_suite_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for running ExecuTorch's test suites."""
    add = parser.add_argument_group("ExecuTorch's own QNN test suites").add_argument
    add("--suite", choices=[*SUITES, FAULTS], help="tests of ExecuTorch's wheel, or faults")
    add("--filter", action="append", default=[], metavar="GLOB", help="only tests with this name")
    add("--source", type=user_path, metavar="DIR", help="run the tests of this checkout instead")
    add("--resume", action="store_true", help="continue an interrupted run")
    add(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="run each test N times, to find flaky tests",
    )
    add(
        "--judge-again",
        nargs="?",
        const=OUTPUTS,
        choices=JUDGED,
        help="run nothing; judge the kept outputs again, or zeros or noise instead of them",
    )


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    if args.suite == FAULTS:
        from ci.verbs.lanes.faults import run_faults

        return run_faults(args, progress)
    if args.suite:
        from ci.verbs.lanes.upstream import run_suite

        return run_suite(args, progress)
    return execute_cases(args, progress)


def execute_cases(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases. Raises UsageError, and the errors of a run."""
    check_arguments(args, SESSION)
    if args.plan and (args.model or args.scheme or args.soc):
        raise UsageError("--plan names the cases", fix="leave out --model, --scheme and --soc")
    backend = Backend(args.backend)
    require_options(backend, runner=args.runner, plan=bool(args.plan))
    if args.device or args.any:
        check_device(args)
    policy = read_limits(args.policy, EMULATOR, progress).for_backend(backend)
    lane = choose_lane(EXECUTORCH, backend, policy.schemes, args.scheme)
    if args.list:
        return list_choices(policy, lane)
    specs = select_asked(args, policy, lane, default_soc(backend))
    require_hardware(specs, backend)
    require_choices(specs, backend)
    if args.plan:
        specs = list_planned(args.plan)
    if args.log_level:
        specs = [set_log_level(spec, args.log_level) for spec in specs]
    check_runner(specs, args.runner, backend)
    mark = None
    if args.shard:
        specs, mark = take_shard(specs, args.shard, policy, args.runner)
    require_executorch(args.executorch)
    built = find_built(args.reports)
    args.sdk = follow_build(built, args.sdk)
    told, loads = "", True
    if built:
        told, loads = compare_built(built, choice.read_choice(args.sdk, args.adaptor))
        progress.step(told if loads else f"warning: {told}; {explain_apart(built)}")
    require_packages(("torch", "executorch"), "lowering")
    report = replace(run(specs, policy, args, progress), shard=mark)
    if told:
        warning = told if loads else f"warning: {told}"
        report = replace(report, remarks=(*report.remarks, warning))
    outcome = publish(report, args.reports / SESSION, args, progress)
    if loads:
        return outcome
    code = ExitCode.ENVIRONMENT if args.strict and not outcome.exit_code else outcome.exit_code
    return dataclasses.replace(outcome, text=f"{outcome.text}warning: {told}\n", exit_code=code)


def check_device(args: argparse.Namespace) -> None:
    """Check the options of a run on a device, and take the SoC from the bundle unless one is given.
    Raises UsageError or UnfitError."""
    if args.starts < 0:
        raise UsageError(f"--starts {args.starts}", why="each program has to start at least once")
    if args.runner != PYTHON:
        raise UsageError(
            "--device with --runner", fix="the bundle contains the runner: leave one out"
        )
    if not args.bundle:
        raise UsageError("--device without --bundle", fix="create one with `qnn-ci stage`")
    socs = read_bundle(args.bundle).socs
    chosen = args.any.partition("=")[2].upper()
    args.soc = args.soc or [chosen if chosen in socs else socs[0]]
    if unknown := [soc for soc in args.soc if soc.upper() not in socs]:
        raise UsageError(
            f"--soc {', '.join(unknown)}: the bundle is for {', '.join(socs)}",
            fix="stage one for that SoC",
        )


def require_executorch(wanted: str) -> None:
    """Raise UnfitError if ``wanted`` is a version and ExecuTorch is installed in another
    version."""
    installed = installed_executorch()
    if wanted and not is_same(installed or "0", wanted):
        raise UnfitError(
            f"--executorch {wanted}: "
            + (f"{installed} is installed" if installed else "none is installed"),
            why="only `./nox -s` creates an environment with that version, qnn-ci does not",
            fix=f"./nox -s test_emulator -- --executorch {wanted}, or pip install "
            f"executorch=={wanted} into another environment",
        )


def set_log_level(spec: CaseSpec, level: str) -> CaseSpec:
    """Return the case with QNN's log level set."""
    choices = replace(spec.source.choices, log_level=level)
    return dataclasses.replace(spec, source=replace(spec.source, choices=choices))


def check_runner(specs: Sequence[CaseSpec], runner: str, backend: Backend = Backend.HTP) -> None:
    """Raise UsageError for a case that only ExecuTorch's Python runtime can run, and for options of
    LPAI that the runner or the backend does not support."""
    for spec in specs:
        choices = spec.source.choices
        if runner != PYTHON and (choices.traces or choices.methods):
            told = f"models.{spec.model}.lowering has {choices}"
            why = f"--runner {runner} can only run forward"
            raise UsageError(told, why=why, fix="leave out --runner")
        own = spec.source.run.of_lpai
        if own and not backend.is_lpai:
            told = f"models.{spec.model}.run has {', '.join(own)}"
            raise UsageError(
                told, why="these options are only for --backend lpai", fix="add --backend lpai"
            )
        if own and runner == PYTHON:
            raise UsageError(
                f"models.{spec.model}.run has {', '.join(own)}",
                why="ExecuTorch's Python runtime passes no options to a backend",
                fix="pass a program that accepts qnn_executor_runner's flags to --runner",
            )


def list_planned(path: Path) -> list[CaseSpec]:
    """Return the cases of a plan.json. Raises UsageError if it has none."""
    cases = read_plan(path).cases
    if not cases:
        raise UsageError(f"{path} contains no case", fix="to run all cases, leave out --plan")
    try:
        return [CaseSpec(case.model, Scheme(case.scheme), case.soc) for case in cases]
    except ValueError as error:
        raise UsageError(f"{path} contains a case that does not exist", why=str(error)) from error


def take_shard(
    specs: Sequence[CaseSpec], text: str, policy: EmulatorPolicy, runner: str
) -> tuple[list[CaseSpec], ShardMark]:
    """Return the cases of a shard such as ``2/3``, and the mark that identifies it in the report.
    Raises UsageError."""
    index, count = parse_shard(text)
    parts = split_cases(specs, count, lambda one: expect_s(one.model, one.scheme.value))
    chosen = parts[index - 1]
    mark = ShardMark(
        index=index,
        count=count,
        positions=tuple(position for position, spec in enumerate(specs) if spec in set(chosen)),
        whole=digest_names(CaseName(spec.model, spec.scheme.value, spec.soc) for spec in specs),
        policy=digest_policy(policy, specs, runner),
    )
    return list(chosen), mark


def digest_policy(policy: EmulatorPolicy, specs: Sequence[CaseSpec], runner: str) -> str:
    """Return the SHA-256 of all that determines a shard's results: lowering options, limits,
    runner."""
    chosen = [str(spec.source.choices) for spec in specs]
    limits = policy.describe_limits(specs)
    parts = (chosen, limits, policy.reference, policy.unsupported, runner)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
