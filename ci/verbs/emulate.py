"""``test-emulator``: the main job, from pinned wheel to judged outputs."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
from pathlib import Path

from msgspec.structs import replace

from ci.emulator.baselines import record_baselines
from ci.emulator.policy import EmulatorPolicy, read_emulator_policy
from ci.gate.portion import list_planned, take_shard
from ci.lowering.cases import CaseSpec, select_cases
from ci.lowering.schemes import Scheme
from ci.lowering.suite import SUITE
from ci.lowering.users.places import name_file
from ci.report.review import telling
from ci.report.schema import Report
from ci.report.table import render_table, terminal_style
from ci.report.write import report_data, write_report
from provisioning.artifacts.environment import provision_profile
from provisioning.console.caller import shown_path
from provisioning.console.command import Outcome, given_path
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UnfitError, UsageError
from provisioning.manifest.socs import read_socs

PROFILE = "emulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", action="append", default=[], help="name or glob, or file.py:factory")
    add("--scheme", action="append", default=[], help="name or glob of a quantization scheme")
    add("--soc", action="append", default=[], help="name or glob of a SoC; default SM8650")
    add("--list", action="store_true", help="list models, schemes and SoCs, run nothing")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases at a time")
    add("--timeout-s", type=float, default=300.0, help="limit of each lowering and of each run")
    add("--runner", default="python", help="python, cpp, or a program like qnn_executor_runner")
    add("--keep-artifacts", type=given_path, metavar="DIR", help="keep programs, outputs and logs")
    add("--no-cache", action="store_true", help="lower again what was lowered before")
    add(
        "--policy",
        type=given_path,
        metavar="FILE",
        help="limits of your own, like the emulator policy",
    )
    add("--plan", type=given_path, metavar="FILE", help="only the cases of a plan.json")
    add("--shard", default="", metavar="I/N", help="only this part of the cases, as 2/3")
    add("--record", action="store_true", help="record the suite's figures for this toolchain")
    add("--offline", action="store_true", help="use only what is provisioned already")
    telling.add_arguments(parser)
    parser.set_defaults(program=parser.prog)
    add("--reports", type=given_path, default=Path("reports"), help="where to write test_emulator/")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    check_numbers(args)
    policy = read_emulator_policy(args.policy)
    socs = sorted(read_socs())
    if args.list:
        return list_choices(policy, socs)
    specs = select_cases(
        policy.suite,
        socs,
        entries=policy.models,
        models=args.model,
        schemes=args.scheme,
        soc_names=args.soc,
    )
    if args.plan:
        specs = list_planned(args.plan)
    mark = None
    if args.shard:
        specs, mark = take_shard(specs, args.shard, policy, args.runner)
    report = replace(run(specs, policy, args, progress), shard=mark)
    directory = args.reports / "test_emulator"
    write_report(report, directory)
    if args.record:
        progress.step(f"recorded: {record_baselines(report)}")
    progress.step(f"report: {shown_path(directory / 'index.html')}")
    telling.tell(report, args, progress)
    colour, width = terminal_style()
    text = render_table(report, colour=colour, width=width)
    code = ExitCode.OK if report.ok else ExitCode.FAILED
    return Outcome(text, report_data(report), code, exact=True)


def run(
    specs: list[CaseSpec], policy: EmulatorPolicy, args: argparse.Namespace, progress: Progress
) -> Report:
    """Provision, check, then run the cases, each step said and timed."""
    require_packages()
    from ci.emulator.session import Phases, SessionOptions, run_session
    from ci.emulator.workshop import open_workshop
    from provisioning.doctor.examine import examine

    phases = Phases(progress)
    options = SessionOptions(
        policy=policy,
        jobs=args.jobs,
        timeout_s=args.timeout_s,
        runner=args.runner,
        use_cache=not args.no_cache,
        keep=args.keep_artifacts,
        record=args.record,
        command=repeat_command(args),
    )
    with open_workshop() as workshop:
        progress.step(f"1/4 provision profile {PROFILE}")
        workshop.guess_pool(PROFILE)
        with phases.measure("provision"):
            environment = provision_profile(PROFILE, progress, verify=True, offline=args.offline)
        progress.step("2/4 check the environment")
        with phases.measure("check"):
            examine(PROFILE, environment).require()
        progress.step(f"3/4 lower, run and judge {len(specs)} cases, {args.jobs} at a time")
        report = run_session(specs, environment, options, phases, workshop)
    progress.step("4/4 report")
    return report


def repeat_command(args: argparse.Namespace) -> str:
    """How this was called, less the choice of cases, as it is typed at a repository's root."""
    words = ["--policy", name_file(args.policy.absolute())] if args.policy else []
    words += ["--runner", args.runner] if args.runner != "python" else []
    return " ".join([args.program, *map(shlex.quote, words)])


def check_numbers(args: argparse.Namespace) -> None:
    """Raises UsageError for a number that makes no sense, and for options that exclude others."""
    if args.plan and (args.model or args.scheme or args.soc):
        raise UsageError("--plan names the cases", fix="leave out --model, --scheme and --soc")
    if args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}", fix="1 or more")
    if not args.timeout_s > 0:
        raise UsageError(f"--timeout-s {args.timeout_s}", fix="a number of seconds above 0")


def require_packages() -> None:
    """Raises UnfitError where torch or executorch is not installed."""
    missing = [name for name in ("torch", "executorch") if not importlib.util.find_spec(name)]
    if missing:
        raise UnfitError(
            f"this Python has no {' and no '.join(missing)}",
            why="models are lowered with them",
            fix='pip install "executorch-qnn-ci[lowering]", with the versions that were tested',
        )


def list_choices(policy: EmulatorPolicy, socs: list[str]) -> Outcome:
    """Models with what they are and their default schemes, schemes, SoCs."""
    models = {
        name: {"about": about, "schemes": [scheme.value for scheme in policy.suite.get(name, ())]}
        for name, about in SUITE.items()
    }
    schemes = [scheme.value for scheme in Scheme]
    width = max(map(len, models))
    rows = [
        f"  {name:<{width}}  {model['about']} ({', '.join(model['schemes'])})"
        for name, model in models.items()
    ]
    text = "\n".join(
        ["models (default schemes)", *rows, "", "schemes", "  " + " ".join(schemes), "", "SoCs"]
    )
    lines = [" ".join(socs[start : start + 10]) for start in range(0, len(socs), 10)]
    text += "".join(f"\n  {line}" for line in lines) + "\n"
    return Outcome(text, {"models": models, "schemes": schemes, "socs": socs})
