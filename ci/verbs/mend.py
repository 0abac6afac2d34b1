"""``mend``: make red models green by rewriting them, with proof."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    Written,
    list_factories,
    plan_entries,
    write_toml,
)
from ci.mend.report import MendedCase, choose_exit, data_of, describe_case, render_cases
from ci.mend.search import Recipe
from ci.mend.source import Factory, make_source, read_source
from ci.models.schemes import EXECUTORCH
from ci.report.schema import Status
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
from provisioning.documents import read_text
from provisioning.errors import UsageError
from provisioning.files import require_writable, write_json, write_whole
from provisioning.manifest.targets import Backend

SESSION, PAGE = "mend", "index.html"
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
    add(
        "--estimate",
        action="store_true",
        help="compare costs by the predicted time on a device, which lowers each case a second"
        " time; by default, by the program's size",
    )
    add = group_options(parser, RESULTS)
    add(
        "--output",
        type=user_path,
        default="mended",
        metavar="DIR",
        help=f"the directory for {POLICY} and {SOURCE}; default: mended",
    )
    add("--apply", action="store_true", help="also edit your policy in place")
    add(
        "--standalone",
        action="store_true",
        help=f"write a {SOURCE} that contains the rewrites and imports nothing of this project",
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
    known = check_output(directory, args)
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
    written = write_mended(found, args, known, progress)
    cases = [describe_case(one) for one in found]
    data = data_of(cases, written)
    write_page(cases, data, args.reports / SESSION, progress)
    _, width = terminal_style()
    text = render_cases(cases, width)
    if written:
        text += f"\njudge it again: `qnn-ci test-emulator --policy {written}`\n"
    return Outcome(text, data, choose_exit(found))


def check_output(directory: Path, args: argparse.Namespace) -> list[Factory]:
    """Return the functions that an earlier run wrote. Raises UsageError if the run would overwrite
    a user's file, or has no policy to edit, and StoreError if a directory is not writable."""
    if args.apply and not args.policy:
        raise UsageError(
            "--apply needs a policy to edit",
            why="there is no qnn.toml here or above",
            fix="pass --policy, or leave out --apply",
        )
    policy = directory / POLICY
    if policy.exists() and not read_text(policy, "replace").startswith(HEAD.partition(".")[0]):
        known = None
    else:
        known = read_source(directory / SOURCE)
    if known is None:
        raise UsageError(
            f"{shown_path(directory)} has a {POLICY} or {SOURCE} that this command did not write",
            fix="pass another directory to --output",
        )
    require_writable(directory)
    if args.apply:
        require_writable(args.policy.parent)
    return known


def write_mended(
    found: Sequence[Mended],
    args: argparse.Namespace,
    known: Sequence[Factory],
    progress: Progress,
) -> str:
    """Write the policy and the module with the recipes of all cases, and return the policy's path,
    or "" if no case has a recipe. Functions in ``known`` stay in the module, because a policy may
    refer to them."""
    if all(one.recipe == Recipe() for one in found):
        return ""
    directory: Path = args.output
    entries = plan_entries(found, args.own)
    factories = list_factories(entries, known)
    functions = {one.name: one for one in (*known, *factories.values())}
    made = Written(entries, factories, directory / SOURCE)
    applied = made.apply(args.policy) if args.apply else ""
    paths = [directory / POLICY, *([directory / SOURCE] if functions else [])]
    if functions:
        code = make_source(directory, functions.values(), standalone=args.standalone)
        write_whole(directory / SOURCE, code)
    name = shown_path(paths[0])
    text = write_toml(made.make_policy(args.policy))
    write_whole(paths[0], HEAD.format(name=name) + text)
    if applied:
        write_whole(args.policy, applied)
        paths.append(args.policy)
    progress.step(f"written: {', '.join(map(shown_path, paths))}")
    return name


def write_page(
    cases: Sequence[MendedCase], data: dict[str, Any], directory: Path, progress: Progress
) -> None:
    """Write mend.json and index.html."""
    from ci.mend.page import render_html

    before = sum(one.result == "green" for one in cases)
    green = sum(one.after.status is not Status.FAILED for one in cases)
    note = f"{before} of {len(cases)} cases green before, {green} after"
    write_json(directory / f"{SESSION}.json", data)
    write_whole(directory / PAGE, render_html(cases, [note]))
    progress.step(f"report: {shown_path(directory / PAGE)}")
