"""``mend``: make red models green by rewriting them, with proof."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.mend.mending import Mended, Mending, write_rewritten
from ci.mend.policy import HEAD, POLICY, SOURCE, Written, list_factories, plan_entries, write_toml
from ci.mend.report import Mends, choose_exit, describe_case, make_document
from ci.mend.search import Recipe
from ci.mend.source import Factory, make_source, read_source
from ci.models.schemes import ONNX
from ci.report.document import show_document
from ci.report.html import write_page
from ci.verbs.localise import choose_cases
from ci.verbs.options import MODELS, PARALLEL, RUN, add_option, add_options, positive
from ci.verbs.steps import check_arguments, read_options
from ci.verbs.trials import open_setup, prepare_tools
from provisioning.console.caller import shown_path
from provisioning.console.command import DIR, FLAG, HOW, RESULTS, Outcome
from provisioning.console.progress import Progress
from provisioning.documents import read_text
from provisioning.errors import UsageError
from provisioning.files import require_writable, write_json, write_whole

SESSION = "mend"
MINUTES = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    every = {"text": f"{MODELS}; default: all of the policy's"}
    add_options(parser, "--model", gaps={"--model": "file.onnx, or file.py:factory"}, **every)
    gaps = {"--reports": f"{SESSION}/"}
    add_options(parser, "--shape", "--scheme", "--soc", *RUN, *PARALLEL, gaps=gaps)
    add = partial(add_option, parser)
    text = f"how long to search; default: {MINUTES:g}"
    add(HOW, "--minutes", text, type=float, default=MINUTES, check=positive("more minutes"))
    approximate = "also try rewrites that change the function, such as the constant of a mask"
    add(HOW, "--allow-approximate", approximate, **FLAG)
    add_options(parser, "--no-cache")
    costs = (
        "compare costs by simulated time, which lowers each case a second time; by default, by the"
        " program's size"
    )
    add_options(parser, "--estimate", text=costs)
    output = f"the directory for {POLICY} and {SOURCE}, or the .onnx files; default: mended"
    add(RESULTS, "--output", output, **DIR, default="mended")
    add(RESULTS, "--apply", "also edit your policy in place", **FLAG)
    text = f"write a {SOURCE} that contains the rewrites and imports nothing of this project"
    add(RESULTS, "--standalone", text, **FLAG)
    add_options(parser, "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    check_arguments(args, SESSION)
    specs, policy, is_onnx = choose_cases(args, progress)
    known = check_output(args, specs)
    specs, tools = prepare_tools(
        args, specs, policy, progress, is_onnx=is_onnx, command="qnn-ci mend"
    )
    deadline = time.monotonic() + 60 * args.minutes
    options = read_options(args, SESSION, policy, specs=specs, find_faults=match_faults)
    options = replace(options, files_directory=None)
    with open_setup(tools, options, progress, offline=args.offline) as setup:
        progress.step("3/4 mend")
        found = Mending(setup, progress, deadline, args.allow_approximate).run(specs)
    progress.step("4/4 report")
    written = write_mended(found, args, known, progress)
    cases = [describe_case(mended) for mended in found]
    data = msgspec.to_builtins(Mends(cases=tuple(cases), policy=written))
    write_json(args.reports / SESSION / f"{SESSION}.json", data)
    document = make_document(cases)
    write_page(document, args.reports / SESSION, progress)
    text = show_document(document)
    if written:
        text += f"\njudge it again: `qnn-ci {name_verb(specs)} --policy {written}`\n"
    return Outcome(text, data, choose_exit(found), exact=True)


def name_verb(specs: Sequence[CaseSpec]) -> str:
    """Return the verb that judges the cases."""
    return "test-onnx" if all(spec.is_file for spec in specs) else "test-emulator"


def check_output(args: argparse.Namespace, specs: Sequence[CaseSpec]) -> list[Factory]:
    """Return the functions that an earlier run wrote. Raises UsageError if the run would overwrite
    a user's file, or has no policy to edit, and StoreError if a directory is not writable."""
    directory: Path = args.output
    files = [Path(spec.reference).resolve().parent for spec in specs if spec.is_file]
    if directory.resolve() in files:
        raise UsageError(
            f"--output {shown_path(directory)} is the directory of a model to mend",
            fix="pass another directory to --output",
        )
    if args.apply and not args.policy:
        raise UsageError(
            "--apply needs a policy to edit",
            why="there is no qnn.toml here or above",
            fix="pass --policy, or leave out --apply",
        )
    policy = directory / POLICY
    if policy.exists():
        is_ours = read_text(policy, "replace").startswith(HEAD.partition(".")[0])
    else:
        is_ours = not (files and [*directory.glob(f"*{ONNX.suffix}")])
    known = read_source(directory / SOURCE) if is_ours else None
    if known is None:
        raise UsageError(
            f"{shown_path(directory)} has a {POLICY}, {SOURCE} or .onnx file that this command did"
            " not write",
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
    """Write the policy, and the module or the .onnx files with the recipes of all cases, and return
    the policy's path, or "" if no case has a recipe. Functions in ``known`` stay in the module,
    because a policy may refer to them."""
    if all(mended.recipe == Recipe() for mended in found):
        return ""
    directory: Path = args.output
    entries = plan_entries(found, args.own)
    factories = list_factories(entries, known)
    functions = {factory.name: factory for factory in (*known, *factories.values())}
    made = Written(entries, factories, directory / SOURCE)
    applied = made.apply(args.policy) if args.apply else ""
    paths = [directory / POLICY, *([directory / SOURCE] if functions else [])]
    if functions:
        code = make_source(directory, functions.values(), standalone=args.standalone)
        write_whole(directory / SOURCE, code)
    for entry, (first, *_) in entries.items():
        if first.spec.is_file and first.recipe.rewrites:
            directory.mkdir(parents=True, exist_ok=True)
            paths.append(made.name_file(entry))
            write_rewritten(first.spec, first.recipe, paths[-1])
    name, verb = shown_path(paths[0]), name_verb([mended.spec for mended in found])
    text = write_toml(made.make_policy(args.policy))
    write_whole(paths[0], HEAD.format(name=name, verb=verb) + text)
    if applied:
        write_whole(args.policy, applied)
        paths.append(args.policy)
    progress.step(f"written: {', '.join(map(shown_path, paths))}")
    return name
