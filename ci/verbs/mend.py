"""``mend``: make red models green by rewriting them, with proof."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.limited import run_limited
from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.litert.reading import SIMPLER
from ci.mend.experiments import CASES, Experiments
from ci.mend.mending import (
    Mended,
    Mending,
    find_reference,
    is_in_file,
    is_quantized_litert,
    write_rewritten,
)
from ci.mend.policy import (
    HEAD,
    POLICY,
    SOURCE,
    Earlier,
    Written,
    check_editable,
    list_factories,
    name_entry,
    name_rewritten,
    plan_entries,
    read_tables,
    write_toml,
)
from ci.mend.report import Mends, choose_exit, describe_case, make_document
from ci.mend.rewrite import EXTERNAL, SAMPLES
from ci.mend.search import Recipe
from ci.mend.source import make_relative, make_source, read_source
from ci.mend.table import RewriteLane
from ci.models.schemes import EXECUTORCH, LITERT, ONNX, SchemeSet
from ci.models.suite import DEFAULT_SOC
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.report.text import name_some
from ci.verbs.lanes.choice import name_verb
from ci.verbs.localise import choose_cases, make_lane_request
from ci.verbs.options import DIAGNOSE_S, MODELS, PARALLEL, RUN, add_option, add_options, positive
from ci.verbs.requests import check_arguments
from ci.verbs.steps import read_options
from ci.verbs.trials import open_setup
from provisioning.console.caller import shown_path
from provisioning.console.command import DIR, FLAG, HOW, RESULTS, Outcome
from provisioning.console.progress import Progress
from provisioning.console.user_folder import (
    MOVE_ASIDE,
    UserFolder,
    edit_file,
    lock_folder,
    move_aside,
)
from provisioning.documents import DocumentError, read_bytes
from provisioning.errors import UsageError
from provisioning.files import require_writable, write_json, write_whole
from provisioning.manifest.targets import read_litert_socs
from provisioning.quoting import is_unicode, show_command

SESSION = "mend"
OUTPUT_FIX = f"{MOVE_ASIDE}; or pass another directory to --output"
MINUTES = 20.0
EARLIER_NAMED = 3
DRIFTED_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models = {"text": f"{MODELS}; default: all of the policy's"}
    add_options(
        parser, "--model", gaps={"--model": "file.onnx, file.tflite, or file.py:factory"}, **models
    )
    gaps = {"--reports": f"{SESSION}/"}
    add_options(parser, "--runtime", "--shape", "--scheme", "--soc", *RUN, *PARALLEL, gaps=gaps)
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
    output = f"the directory for {POLICY} and {SOURCE}, or the rewritten files; default: mended"
    add(RESULTS, "--output", output, **DIR, default="mended")
    add(RESULTS, "--apply", "also edit your policy in place", **FLAG)
    text = f"write a {SOURCE} that contains the rewrites and imports nothing of this project"
    add(RESULTS, "--standalone", text, **FLAG)
    force = "rename files in --output that this command did not write, instead of refusing them"
    add(RESULTS, "--force", force, **FLAG)
    add_options(parser, "--sdk", "--adaptor")


@dataclass(frozen=True)
class Output:
    """Where and how the results are written: the options of mend besides those of a Request.
    ``lane`` has the schemes of the runtime that compiles the models. ``policy`` is the user's
    policy, and ``policy_models`` are the names of its models."""

    directory: Path
    policy: Path | None = None
    policy_models: tuple[str, ...] = ()
    applies: bool = False  # whether the policy is edited, too
    standalone: bool = False
    force: bool = False
    timeout_s: float = 300.0
    lane: SchemeSet = EXECUTORCH

    @property
    def verb(self) -> str:
        """The verb that judges the models."""
        return name_verb(self.lane.runtime)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Search for rewrites of the requested cases, and write those that help. Raises UsageError,
    StoreError if a directory cannot be written, and the same errors as choose_cases and
    open_setup."""
    check_arguments(args, SESSION)
    models = (args.model, args.shape, args.policy)
    lane, request = make_lane_request(args, SESSION, *models, runtime=args.runtime)
    specs, policy = choose_cases(lane, request, progress)
    output = Output(
        directory=args.output,
        lane=lane.schemes,
        policy=request.policy,
        policy_models=tuple(policy.models),
        applies=args.apply,
        standalone=args.standalone,
        force=args.force,
        timeout_s=args.timeout_s,
    )
    check_files(output, specs)
    check_output(output, specs)
    check_session(request.directory, (f"{SESSION}.json", PAGE))
    claim_reports(request.directory)
    with lane.prepare(request, policy, specs, progress) as plan:
        for line in check_quantized(plan.specs, args.timeout_s):
            progress.step(line)
        deadline = time.monotonic() + 60 * args.minutes
        options = read_options(
            request, policy, plan.specs, find_faults=match_faults, files_directory=None
        )
        with open_setup(plan, options, progress, offline=request.offline) as setup:
            progress.step("3/4 mend")
            mending = Mending(
                setup,
                lane.schemes,
                progress,
                deadline,
                args.allow_approximate,
                open_experiments(lane.schemes, deadline - time.monotonic()),
            )
            mended_cases = mending.run(plan.specs)
    progress.step("4/4 report")
    written = write_mended(mended_cases, output, progress)
    cases = [describe_case(mended) for mended in mended_cases]
    data = msgspec.to_builtins(Mends(cases=tuple(cases), policy=written))
    write_json(request.directory / f"{SESSION}.json", data)
    document = make_document(cases)
    write_page(document, request.directory, progress)
    text = show_document(document)
    if written:
        applied = shown_path(output.policy) if output.applies and output.policy else written
        text += f"\njudge it again: {show_command(output.verb, '--policy', applied)}\n"
    return Outcome(text, data, choose_exit(mended_cases), exact=True)


def open_experiments(schemes: SchemeSet, left_s: float) -> Experiments | None:
    """Return what looks for the cause of each red case, None if the runtime has no experiments."""
    if schemes is LITERT:
        return None
    case_s = min(DIAGNOSE_S, left_s)
    lane: RewriteLane = "onnx" if schemes is ONNX else "torch"
    return Experiments(lane, case_s, CASES * case_s, slowest=1.0)  # as --minutes is


def check_files(output: Output, specs: Sequence[CaseSpec]) -> None:
    """Raise UsageError for an option that has an effect only if a model is a PyTorch model."""
    files = [spec for spec in specs if spec.is_file]
    if output.standalone and len(files) == len(specs):
        raise UsageError(
            "--standalone cannot be used with files of models",
            why=f"their rewrites are in new files, and no {SOURCE} is written",
            fix="leave out --standalone",
        )


def check_quantized(specs: Sequence[CaseSpec], timeout_s: float) -> list[str]:
    """Return a line for each quantized .tflite file with weights that its float model has only
    approximately. Raise UsageError for one of which no operator can be computed in float: its float
    model is not known or does not match, or the SoC has no float16."""
    quantized = [*filter(is_quantized_litert, specs)]
    for spec in quantized:
        if not read_litert_socs()[spec.soc].float16:
            raise UsageError(
                f"no operator of {spec.model} can be computed in float for {spec.soc}",
                why="mend gives operators of a quantized file float16, which this SoC lacks",
                fix=f"choose an SoC with float16, such as {DEFAULT_SOC}",
            )
    lines = []
    for spec in {(spec.reference, spec.source): spec for spec in quantized}.values():
        name = Path(spec.reference).name
        drifted = run_limited(partial(check_pair, spec), name, timeout_s=timeout_s, fix=SIMPLER)
        if drifted:
            float_name = Path(spec.source.float_model).name
            lines.append(
                f"  {name}: the weights of {name_some(drifted, DRIFTED_NAMED)} are not those of"
                f" {float_name} up to rounding, but close to them, as after training with"
                f" quantization; an operator in float has those of {float_name}"
            )
    return lines


def check_pair(spec: CaseSpec) -> list[str]:
    """Return the operators of a quantized .tflite file whose weights the float model has only
    approximately. Raise UsageError if no operator can be computed in float."""
    from ci.mend.litert_mixtures import open_quantized

    return open_quantized(spec).drifted


def check_output(output: Output, specs: Sequence[CaseSpec]) -> None:
    """Raise UsageError if the run would overwrite or change a file of the user's, or has no policy
    that can be edited, and StoreError if a directory is not writable."""
    directory = output.directory
    files = [Path(spec.reference).resolve().parent for spec in specs if spec.is_file]
    if directory.resolve() in files:
        raise UsageError(
            f"--output {shown_path(directory)} is the directory of a model to mend",
            fix="pass another directory to --output",
        )
    require_unicode([directory.absolute(), *(Path(find_reference(spec)) for spec in specs)])
    if output.applies:
        check_apply(output, specs)
    require_writable(directory)
    folder = UserFolder(directory, OUTPUT_FIX)
    names = [POLICY] if files else [POLICY, SOURCE]
    for spec in specs:
        if spec.is_file:
            is_listed = spec.model in output.policy_models
            entry = spec.model if is_listed else name_entry(spec.model)
            names += name_files(name_rewritten(entry, Path(spec.reference).suffix))
    if not output.force:
        folder.require_ours(dict.fromkeys(names))
        require_same_run(folder, output)


def check_apply(output: Output, specs: Sequence[CaseSpec]) -> None:
    """Raise UsageError if --apply cannot edit the policy, and StoreError if it is not writable."""
    if not output.policy:
        raise UsageError(
            "--apply needs a policy to edit",
            why="there is no qnn.toml here or above",
            fix="pass --policy, or leave out --apply",
        )
    if output.policy.resolve() == (output.directory / POLICY).resolve():
        raise UsageError(
            f"--apply would edit {shown_path(output.policy)}, which is also what --output writes",
            fix="pass another directory to --output, or leave out --apply",
        )
    require_writable(output.policy.parent)
    socs: dict[str, dict[str, None]] = {}
    for spec in specs:
        socs.setdefault(spec.model, {})[spec.soc] = None
    check_editable(output.policy, {model: [*judged] for model, judged in socs.items()})


def require_unicode(paths: Sequence[Path]) -> None:
    """Raise UsageError if a path cannot be written to a policy."""
    for path in paths:
        if not is_unicode(str(path)):
            raise UsageError(
                f"the path {str(path)!r} is not valid UTF-8",
                why="a policy, which is a TOML file, cannot contain it",
                fix="rename the file or the directory",
            )


def name_files(target: str) -> list[str]:
    """Return the names of a rewritten file, its weights and its samples."""
    return [target, f"{target}{EXTERNAL}", f"{Path(target).with_suffix(SAMPLES)}"]


def is_other_run(folder: UserFolder, output: Output) -> bool:
    """Return whether the folder has results for another policy or for another runtime."""
    about, context = folder.record.about, describe_run(folder, output)
    return any(about.get(key, value) != value for key, value in context.items())


def require_same_run(folder: UserFolder, output: Output) -> None:
    """Raise UsageError if the folder has results that cannot be in one policy with this run's."""
    if is_other_run(folder, output):
        old, new = folder.record.about, describe_run(folder, output)
        raise UsageError(
            f"{shown_path(folder.path)} has results for {show_run(old)}, but this run is for"
            f" {show_run(new)}",
            why="they cannot be in one policy",
            fix="pass another directory to --output, or --force, which renames the old policy",
        )


def show_run(about: Mapping[str, str]) -> str:
    """Return what a run was about, as describe_run notes it, for a message."""
    policy = about.get("policy")
    return f"{about.get('command')} with {f'the policy {policy}' if policy else 'no policy'}"


def describe_run(folder: UserFolder, output: Output) -> dict[str, str]:
    """Return what all runs that write into one folder must have in common."""
    base = make_relative(str(output.policy.absolute()), folder.path) if output.policy else ""
    return {"policy": base, "command": output.verb}


def read_earlier(folder: UserFolder) -> Earlier:
    """Return what earlier runs wrote into the folder."""
    # The record names each entry's model by a reference relative to the folder.
    relative_references = folder.record.about.get("models")
    policy = folder.path / POLICY
    if not isinstance(relative_references, dict) or not policy.is_file():
        return Earlier()
    resolved_folder = folder.path.resolve()
    references = {}
    for name, reference in relative_references.items():
        references[str(name)] = os.path.normpath(resolved_folder / str(reference))
    try:
        return Earlier(read_tables(policy), references)
    except DocumentError:
        return Earlier()


def write_mended(mended_cases: Sequence[Mended], output: Output, progress: Progress) -> str:
    """Write the policy, and the module or the files with the recipes of all cases, and return
    the policy's path, or "" if no case has a recipe. What earlier runs wrote about other models
    stays, also what another run wrote in the meantime."""
    if all(mended.recipe == Recipe() for mended in mended_cases):
        return ""
    folder, top = UserFolder(output.directory, OUTPUT_FIX), output.directory.resolve()
    # Another run may write here at the same time. What it wrote is read under the lock, and stays.
    with lock_folder(folder.path, progress):
        earlier = read_earlier(folder)
        if not output.force:
            require_same_run(folder, output)
        elif is_other_run(folder, output):
            earlier = Earlier()
            with suppress(FileNotFoundError):
                progress.step(f"renamed: {shown_path(move_aside(folder.path / POLICY))}")
        earlier_functions = read_source(folder.path / SOURCE) or []
        # Read again: the policy may have got other models since the run started.
        edited = output.policy if output.applies else None
        applied_models = read_tables(edited).get("models", {}) if edited else {}
        listed_models = {*output.policy_models, *applied_models}
        entries = plan_entries(mended_cases, listed_models, earlier.references)
        factories = list_factories(entries, earlier_functions)
        functions = {factory.name: factory for factory in (*earlier_functions, *factories.values())}
        mended_files = Written(entries, factories, top / SOURCE, output.lane)
        policy, obsolete = folder.path / POLICY, list[str]()
        # Written aside and renamed at the end: after a kill at any time, the same command
        # continues.
        with folder.stage() as scratch:
            if functions:
                code = make_source(top, functions.values(), standalone=output.standalone)
                write_whole(scratch / SOURCE, code)
            for entry, (first, *_) in entries.items():
                is_changed = first.recipe.rewrites or is_in_file(first.spec, first.recipe)
                if first.spec.is_file and is_changed:
                    target = scratch / mended_files.name_file(entry).name
                    write_rewritten(first.spec, first.recipe, target, output.timeout_s)
                    names = name_files(target.name)
                    obsolete += [name for name in names if not (scratch / name).exists()]
            command = show_command(output.verb, "--policy", shown_path(policy))
            text = write_toml(mended_files.make_policy(output.policy, earlier))
            write_whole(scratch / POLICY, HEAD.format(command=command) + text)
            earlier_references = earlier.list_others([*mended_files.references.values()])
            references = earlier_references | mended_files.references
            about = {
                **describe_run(folder, output),
                "models": {
                    name: make_relative(reference, top) for name, reference in references.items()
                },
            }
            published = folder.publish(scratch, force=output.force, about=about, obsolete=obsolete)
    published.say_aside(progress)
    paths = [folder.path / name for name in published.names]
    if edited:
        with lock_folder(edited.parent, progress):
            before = read_bytes(edited)
            after = mended_files.apply(edited).encode()
            if after != before:
                edit_file(edited, before, after)
        paths.append(edited)
    progress.step(f"written: {', '.join(map(shown_path, paths))}")
    if earlier_references:
        shown_names = name_some(sorted(earlier_references), EARLIER_NAMED)
        progress.step(f"of earlier runs, {shown_path(policy)} has {shown_names}: --model chooses")
    return shown_path(policy)
