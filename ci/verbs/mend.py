"""``mend``: make red models green by rewriting them, with proof."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci.cases.pipeline import RunSetup
from ci.cases.policy import EMULATOR
from ci.cases.session import Phases, check_functions
from ci.executorch.engine import ExecutorchEngine, make_runner
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.faults.match import match_faults
from ci.mend.mending import Mended, Mending
from ci.mend.policy import (
    HEAD,
    POLICY,
    SOURCE,
    list_factories,
    make_policy,
    plan_entries,
    write_toml,
)
from ci.mend.report import choose_exit, data_of, render_cases
from ci.mend.search import Recipe
from ci.mend.source import write_source
from ci.models.schemes import EXECUTORCH
from ci.report.table import terminal_style
from ci.verbs.lanes.steps import (
    add_run,
    add_schemes,
    check_arguments,
    enter_environment,
    read_limits,
    read_options,
    require_packages,
    select_asked,
)
from provisioning.artifacts import choice
from provisioning.console.caller import shown_path
from provisioning.console.command import HOW, RESULTS, WHAT, Outcome, group_options, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import require_writable, write_whole
from provisioning.manifest.targets import Backend

SESSION = "mend"
MINUTES = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser, WHAT)
    add(
        "--model",
        action="append",
        default=[],
        help="a model's name, a glob, or file.py:factory; repeatable; default: all of the policy's",
    )
    add_schemes(parser)
    add_run(parser, SESSION)
    add = group_options(parser, HOW)
    add(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"how long to search; default: {MINUTES:g}",
    )
    add(
        "--allow-approximate",
        action="store_true",
        help="also try rewrites that change the function, such as the constant of a mask",
    )
    add("--no-cache", action="store_true", help="lower everything again")
    group_options(parser, RESULTS)(
        "--output",
        type=user_path,
        default="mended",
        metavar="DIR",
        help=f"the directory for {POLICY} and {SOURCE}; default: mended",
    )
    choice.add_arguments(parser)
    parser.set_defaults(record=False, keep_artifacts=None, sarif=None, list=False)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    if not args.minutes > 0:
        raise UsageError(f"--minutes {args.minutes} is not above 0", fix="pass more minutes")
    check_arguments(args, SESSION)
    directory = user_path(str(args.output))
    policy = read_limits(args, EMULATOR, progress).for_backend(Backend.HTP)
    specs = select_asked(args, policy, EXECUTORCH)
    for spec in specs:
        if spec.source.choices.methods:
            raise UsageError(
                f"{spec.model} has several methods",
                fix="select a model whose only method is forward",
            )
    require_writable(directory)
    require_packages(("torch", "executorch"), "lowering")
    deadline = time.monotonic() + 60 * args.minutes
    options = read_options(args, SESSION, policy, "", find_faults=match_faults)
    chosen = choice.read_choice(args.sdk, args.adaptor)
    with enter_environment(
        chosen.profile,
        Phases(progress),
        offline=args.offline,
        imports=ExecutorchEngine.imports,
        choice=chosen,
    ) as (environment, scratch, _):
        pool = scratch.open(environment.apply(os.environ))
        check_functions(specs, pool, scratch.scratch / "functions.log", args.timeout_s)
        progress.step("3/4 mend")
        parts = tuple(describe_toolchain(environment))
        setup = RunSetup(
            options=replace(options, files_directory=None),
            engine=ExecutorchEngine(name_toolchain(parts, environment)),
            runner=make_runner(pool, args.timeout_s),
            pool=pool,
            work=scratch.scratch / SESSION,
        )
        found = Mending(setup, progress, deadline, args.allow_approximate).run(specs)
    progress.step("4/4 report")
    written = write_mended(found, args.policy, directory, progress)
    _, width = terminal_style()
    text = render_cases(found, width)
    if written:
        text += f"\njudge it again: qnn-ci test-emulator --policy {written}\n"
    return Outcome(text, data_of(found, written), choose_exit(found))


def write_mended(
    found: Sequence[Mended], policy: Path | None, directory: Path, progress: Progress
) -> str:
    """Write the policy and the module with the recipes of all cases, and return the policy's path,
    or "" if no case has a recipe."""
    if all(one.recipe == Recipe() for one in found):
        return ""
    entries = plan_entries(found)
    name = shown_path(directory / POLICY)
    write_source(directory / SOURCE, list_factories(entries))
    text = write_toml(make_policy(entries, policy, directory))
    write_whole(directory / POLICY, HEAD.format(name=name) + text)
    progress.step(f"written: {name}, {shown_path(directory / SOURCE)}")
    return name
