"""``localise``: find the operator where a program loses accuracy, by lowering parts of its
model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ci.audit.localise import Localised, Localiser
from ci.audit.localise_report import choose_exit, data_of, render_cases
from ci.cases.judged import SessionOptions
from ci.cases.pipeline import RunSetup
from ci.cases.policy import EMULATOR, EmulatorPolicy
from ci.cases.session import Phases, check_functions
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine, make_runner
from ci.executorch.toolchain import LIBRARY, describe_toolchain, name_toolchain
from ci.models.schemes import EXECUTORCH
from ci.report.text import name_models
from ci.verbs.lanes.steps import (
    add_run,
    add_schemes,
    enter_environment,
    read_limits,
    require_forward,
    require_packages,
    select_asked,
)
from provisioning.artifacts import choice
from provisioning.console.command import WHAT, Outcome, group_options, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import require_writable
from provisioning.manifest.targets import Backend

LIMIT = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser, WHAT)
    add(
        "--model",
        action="append",
        default=[],
        required=True,
        help="a model's name, a glob, or file.py:factory; repeatable",
    )
    add_schemes(parser)
    add(
        "--limit",
        type=int,
        default=LIMIT,
        metavar="N",
        help=f"maximum number of programs to lower per case; default: {LIMIT}",
    )
    add(
        "--reproducer",
        type=user_path,
        metavar="OUT.py",
        help="write the smallest wrong part of the model to OUT.py, and its weights and inputs to"
        " OUT.pt",
    )
    add("--no-cache", action="store_true", help="lower everything again")
    add_run(parser, "")
    choice.add_arguments(parser)
    parser.set_defaults(record=False)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit} is below 1", fix="pass 1 or more")
    if not args.timeout_s > 0:
        raise UsageError(
            f"--timeout-s {args.timeout_s} is not above 0", fix="pass a number of seconds above 0"
        )
    args.strict_noise = True
    policy = read_limits(args, EMULATOR, progress).for_backend(Backend.HTP)
    specs = select_asked(args, policy, EXECUTORCH)
    require_forward(specs)
    if args.reproducer:
        check_reproducer(args.reproducer, len(specs))
    require_packages(("torch", "executorch"), "lowering")

    cases = localise(specs, policy, args, progress)
    return Outcome(render_cases(cases) + "\n", data_of(cases), choose_exit(cases))


def check_reproducer(file: Path, cases: int) -> None:
    """Raise UsageError if the file's name does not end in .py or if there are several cases, and
    StoreError if the file's directory cannot be written."""
    if file.suffix != ".py":
        raise UsageError(
            f"--reproducer {file} does not end with .py",
            why="a reproducer is a Python file",
            fix="name it OUT.py",
        )
    if cases > 1:
        raise UsageError(
            f"--reproducer is for one case, and {cases} are selected",
            fix="select one --model, --scheme and --soc",
        )
    require_writable(file.parent)


def localise(
    specs: list[CaseSpec], policy: EmulatorPolicy, args: argparse.Namespace, progress: Progress
) -> list[Localised]:
    """Provision, check the environment, and localise one case after the other."""
    chosen = choice.read_choice(args.sdk, args.adaptor)
    options = SessionOptions(policy=policy, timeout_s=args.timeout_s, use_cache=not args.no_cache)
    found = []
    with enter_environment(
        chosen.profile,
        Phases(progress),
        offline=args.offline,
        imports=ExecutorchEngine.imports,
        choice=chosen,
    ) as (environment, scratch, _):
        pool = scratch.open(environment.apply(os.environ))
        check_functions(specs, pool, scratch.scratch / "functions.log", args.timeout_s)
        parts = tuple(describe_toolchain(environment))
        engine = ExecutorchEngine(name_toolchain(parts, environment))
        qnn = next((one.version for one in parts if one.name == LIBRARY), "")
        names = name_models(spec.model for spec in specs)
        for number, spec in enumerate(specs):
            progress.step(
                f"3/4 localise {names[spec.model]} {spec.scheme.value} {spec.soc}, at most"
                f" {args.limit} programs"
            )
            setup = RunSetup(
                options=options,
                engine=engine,
                runner=make_runner(pool, args.timeout_s),
                pool=pool,
                work=scratch.scratch / f"localise-{number}",
            )
            localiser = Localiser(spec, setup, engine, progress, qnn)
            found.append(localiser.run(args.limit, args.reproducer))
    progress.step("4/4 report")
    return found
