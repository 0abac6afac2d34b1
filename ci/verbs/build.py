"""``build TARGET``: check the requirements, build, check every artifact, and write
artifacts.json."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ci.builds.builder import SCHEMA_VERSION, describe_result, render_result, run_build
from ci.builds.checkout import LPAI, QNN_SOURCES, find_python, prepare_checkout
from ci.builds.deliver import OVERLAY, PLACES, check_delivery, deliver
from ci.builds.plan import BuildJob, BuildRequest
from ci.builds.runner import prepare_runner
from ci.builds.targets import Origin, Target, find_target, read_targets
from ci.parity.compare.findings import ParityReport
from ci.parity.policy import ParityPolicy
from ci.parity.render import make_document, render_document
from ci.parity.run import compare_folders
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.verbs.options import add_options
from provisioning.artifacts import choice
from provisioning.console.caller import shown_path
from provisioning.console.command import (
    FLAG,
    HOW,
    MANY,
    TOOLS,
    WHAT,
    Outcome,
    group_options,
    user_path,
    user_program,
)
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError
from provisioning.files import write_json
from provisioning.manifest.reader import read_policy, read_profile
from provisioning.quoting import shell_words
from provisioning.store.home import store_home

PREPARERS: dict[Origin, Callable[[Target, BuildRequest, Progress], BuildJob]] = {
    Origin.CHECKOUT: prepare_checkout,
    Origin.RUNNER: prepare_runner,
}


@dataclass(frozen=True, kw_only=True)
class BuildCall:
    """What a call builds: a target, once for each of ``requests``, which differ in the Python."""

    target: Target
    requests: tuple[BuildRequest, ...]
    reports: Path
    check: bool  # only check what a build needs
    dry_run: bool  # only print its commands
    install: str  # where the adaptor is installed
    with_proof: bool  # lower a model with it
    parity: str  # "on", "strict" or "off"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser, WHAT)
    add("target", "one of: " + ", ".join(read_targets()))
    add("--source", "an ExecuTorch checkout (default: EXECUTORCH_ROOT)", type=user_path)
    text = "a profile to use instead of the target's, for example with another NDK"
    add("--profile", text, default="")
    add = group_options(parser, HOW)
    add("--jobs", "number of parallel compilers (default: one per core)", type=int, default=0)
    add("--clean", "remove the earlier build first", **FLAG)
    add("--release", "set CMAKE_BUILD_TYPE to Release", **FLAG)
    add("--dry-run", "check, print the commands, and build nothing", **FLAG)
    add("--check", "check everything except Python packages, and build nothing", **FLAG)
    tools = group_options(parser, TOOLS)
    text = "the Python to use: path, command or version; repeatable for target aot"
    tools("--python", text, type=user_program, **MANY)
    aot = group_options(parser, "for target aot")
    aot("--install", "where to install the adaptor", choices=PLACES, default=PLACES[0])
    aot("--no-proof", "do not lower a model with the new adaptor", **FLAG)
    add("--no-doctor", "build even if the doctor reports errors", **FLAG)
    add_target_option = group_options(parser, WHAT)
    add_target_option("--with", "also build an extra, such as llama", dest="extras", **MANY)
    add_target_option("-D", "an additional CMake option, NAME=VALUE", dest="defines", **MANY)
    text = "differences between Buck and CMake: show them, fail on them, or skip the check"
    add("--parity", text, choices=("on", "strict", "off"), default="on")
    add_options(parser, "--sdk", "--executorch")
    direct = group_options(parser, "for target direct")
    direct("--soc", "the SoC, such as SM8750", default="")
    direct("--dsp-type", "0 for LPAI (aDSP), 3 for HTP (cDSP)", type=int, default=3)
    add_options(parser, "--reports", gaps={"--reports": "build_TARGET/"})


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Build the target for each --python, or only check or print what a build needs. The exit code
    is 1 if an artifact is not published or, with --parity strict, if Buck and CMake differ. Raises
    UsageError and UnfitError before a compiler starts."""
    call = read_call(args)
    target, path = call.target, call.reports / call.target.session / "artifacts.json"
    if not (call.check or call.dry_run):
        check_session(path.parent, (path.name,))
        claim_reports(path.parent)
    # All are planned before the first one runs: what is missing is reported before a compiler
    # starts.
    jobs = [prepare_job(target, request, progress) for request in call.requests]
    if call.check:
        return check_jobs(jobs)
    for job in jobs:
        # What the proof lacks is reported before the build, which takes minutes.
        check_delivery(job, call.install, with_proof=call.with_proof)
    parity = None
    # A dry run compares only if the result can fail it.
    if call.parity == "strict" or not (call.parity == "off" or call.dry_run):
        # All jobs build the same sources; they differ in the Python.
        parity = compare_parity(jobs[0], progress)
    if call.dry_run:
        check_jobs(jobs)
        lines = [shell_words(command) for job in jobs for command in job.plan.list_commands()]
        planned = Outcome("".join(f"{line}\n" for line in lines), {"commands": lines})
        return add_parity(planned, parity, strict=True)
    rows, text, code = list[dict[str, Any]](), "", ExitCode.OK
    for job in jobs:
        result = run_build(job, progress)
        row = describe_result(result)
        if result.published:
            row |= deliver(job, result, call.install, progress, with_proof=call.with_proof)
        else:
            code = ExitCode.FAILED
        rows.append(row)
        text += render_result(result, row)
        # After each build, so that the record is there if a later build fails or is interrupted.
        write_json(path, {"schema_version": SCHEMA_VERSION, "builds": rows})
    built = Outcome(text, {"builds": rows, "report": str(path)}, code)
    outcome = add_parity(built, parity, strict=call.parity == "strict")
    write_json(path, {"schema_version": SCHEMA_VERSION, **outcome.data})
    return replace(outcome, text=f"{outcome.text}{shown_path(path)}\n")


def add_parity(outcome: Outcome, parity: ParityReport | None, *, strict: bool) -> Outcome:
    """Return the outcome with parity's findings added. With ``strict``, the outcome fails if a
    finding fails parity, or if parity could not read a file."""
    if not parity:
        return outcome
    fails = strict and (parity.failing or parity.unread)
    return Outcome(
        outcome.text + show_document(make_document(parity)),
        {**outcome.data, "parity": render_document(parity)},
        ExitCode.FAILED if fails else outcome.exit_code,
    )


def compare_parity(job: BuildJob, progress: Progress) -> ParityReport | None:
    """Return where Buck and CMake disagree about what a target builds, or None if the target has no
    Buck files. Raises UsageError if parity cannot read the tree."""
    folders = job.plan.target.parity
    if not folders:
        return None
    progress.step(f"comparing Buck and CMake in {', '.join(folders)}")
    policy = read_policy("parity", ParityPolicy)
    return compare_folders(job.plan.source, folders, policy, store_home() / "parity")


def choose_target(
    name: str, profile: str, *, has_source: bool, is_lpai: bool, several: bool
) -> Target:
    """Return the target that the command line selects: with --source, the target's variant for
    checkouts, and for LPAI or with --profile another profile. Raises UsageError if the target does
    not support the profile or ``several`` --python."""
    target = find_target(name)
    # Direct mode for LPAI needs a QNN SDK of 2.39 or later, which this profile has.
    if is_lpai and target.lpai_profile and not profile:
        return msgspec.structs.replace(target, profile=target.lpai_profile)
    if has_source and target.with_source:
        target = find_target(target.with_source)
    if profile:
        usable = {profile, read_profile(profile).like} - {""}
        if target.profile not in usable:
            raise UsageError(
                f"target {target.name} cannot use profile {profile}",
                fix=f'pass a profile that has like = "{target.profile}" in manifests/profiles.toml'
                if target.profile
                else "omit --profile: this target does not use one",
            )
        target = msgspec.structs.replace(target, profile=profile)
    if several and not target.per_python:
        raise UsageError(f"{target.name} accepts only one --python")
    return target


def read_call(args: argparse.Namespace) -> BuildCall:
    """Return what the command line asks for. Raises UsageError for an invalid option, and
    UnfitError if a --python is not found."""
    choice.read_choice(args.sdk)
    target = choose_target(
        args.target,
        args.profile,
        has_source=bool(args.source),
        is_lpai=args.dsp_type == LPAI,
        several=len(args.python) > 1,
    )
    if args.jobs < 0:
        raise UsageError(f"--jobs {args.jobs} is negative")
    if args.source and not args.source.is_dir():
        raise UsageError(f"--source {args.source} is not a directory", fix="correct the path")
    if args.source and not (args.source / QNN_SOURCES).is_dir():
        raise UsageError(
            f"--source {args.source} is not an ExecuTorch checkout",
            why=f"it has no {QNN_SOURCES}",
            fix="pass the root of a clone of pytorch/executorch",
        )
    defines = {}
    for word in args.defines:
        name, equals, defines[name] = word.partition("=")
        if not equals or not name:
            raise UsageError(f"-D {word} is not NAME=VALUE")
    request = BuildRequest(
        source=args.source.absolute() if args.source else None,
        jobs=args.jobs,
        release=args.release,
        clean=args.clean,
        extras=frozenset(args.extras),
        defines=defines,
        soc=args.soc,
        dsp_type=args.dsp_type,
        doctor=not args.no_doctor,
        # The noxfile runs --check before it installs torch.
        packages=not args.check,
        lays_over=args.install == OVERLAY and not args.check,
        executorch=args.executorch,
    )
    pythons = [find_python(word) for word in args.python or [""]]
    return BuildCall(
        target=target,
        requests=tuple(replace(request, python=python) for python in pythons),
        reports=args.reports,
        check=args.check,
        dry_run=args.dry_run,
        install=args.install,
        with_proof=not args.no_proof,
        parity=args.parity,
    )


def prepare_job(target: Target, request: BuildRequest, progress: Progress) -> BuildJob:
    """Return a planned build. Call its ``check`` before starting it.

    Raises UsageError for an extra that the target does not have, and UnfitError if anything is
    missing.
    """
    if unknown := request.extras - set(target.extras):
        raise UsageError(
            f"{target.name} has no extra {', '.join(sorted(unknown))}",
            fix="its extras: " + (", ".join(target.extras) or "none"),
        )
    return PREPARERS[target.origin](target, request, progress)


def check_jobs(jobs: list[BuildJob]) -> Outcome:
    """Run the ``check`` of each build. For a build from a checkout, this is the doctor. Everything
    else was checked when the builds were planned. Raises UnfitError if a check fails."""
    for job in jobs:
        job.check()
    names = [job.plan.target.name for job in jobs]
    return Outcome(f"{', '.join(names)}: nothing is missing\n", {"checked": names})
