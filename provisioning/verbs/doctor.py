"""``doctor PROFILE``: check whether an environment is usable, and print faults with their fixes."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from provisioning.artifacts import choice
from provisioning.artifacts.environment import compose_environment, locate_profile, other_versions
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import FLAG, Outcome, user_path, user_program
from provisioning.console.progress import Progress
from provisioning.doctor.examine import (
    examine_request,
    find_fitness,
    make_request,
    settle_adaptor,
    wanted_requests,
)
from provisioning.doctor.facts import STAGING
from provisioning.doctor.survey.environment import SurveyRequest
from provisioning.doctor.verdict_text import WIDTH, render_verdict
from provisioning.errors import ExitCode, UnfitError, UsageError
from provisioning.files import explain_path
from provisioning.manifest.reader import read_profile
from provisioning.manifest.targets import Backend
from provisioning.store.store import Store

EMULATORS = {choice.WHEEL_PROFILE, choice.SDK_PROFILE}
WITH_SDK = {"onnx": "onnx-sdk"}  # profiles of which another one takes an SDK
LEAST = 40  # columns; narrower text would break words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    parser.add_argument("profile", nargs="?", default="emulator", help="default: emulator")
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help=f"examine DIR as artifact NAME; the NAME '{STAGING}' stands for a directory with the "
        "files for a device",
    )
    parser.add_argument("--strict", **FLAG, help="treat warnings as errors")
    text = "the interpreter to examine (default: the running one)"
    parser.add_argument("--python", type=user_program, help=text)
    choice.add_arguments(parser)
    parser.add_argument("--soc", help="the SoC that will run the programs, such as SM8650")
    parser.add_argument(
        "--backend",
        choices=[backend.value for backend in Backend],
        default=Backend.HTP.value,
        help="the processor to lower for (default: htp)",
    )
    parser.add_argument("--device", **FLAG, help="examine devices that adb lists")
    text = "examine the files with which the DSP of a Linux board starts a process"
    parser.add_argument("--board", default="", metavar="ssh:[USER@]HOST[:PORT]", help=text)
    text = "check this shell's variables instead of those that the profile sets"
    parser.add_argument("--shell", **FLAG, help=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Examine the environment of a profile and return the verdict, with exit code 3 if it is unfit.
    Raises UsageError for options that do not fit the profile.
    """
    find_fitness(args.profile)
    given_roots = parse_roots(args.root)
    check_roots(args.profile, given_roots, is_asked_of_board=bool(args.board))
    chosen = choice.read_choice(args.sdk, args.adaptor)
    python = Path(args.python) if args.python else None
    backend = Backend(args.backend)
    if backend is not Backend.HTP and args.profile not in EMULATORS:
        raise UsageError(
            f"--backend {backend.value} cannot be used with profile {args.profile}",
            why="it selects the processor for programs that are lowered and run on this machine",
            fix=f"use one of {', '.join(sorted(EMULATORS))}",
        )
    if args.profile in EMULATORS and not chosen.is_usual and not (given_roots or args.shell):
        environment = locate_profile(chosen.profile, progress)
        _, verdict = settle_adaptor(chosen, environment, progress, python=python, backend=backend)
    else:
        profile = name_profile(args.profile, chosen)
        request = compose_request(profile, given_roots, os.environ, keep_variables=args.shell)
        request = replace(
            request,
            python=python,
            soc=args.soc,
            device=args.device,
            backend=backend,
            board=args.board,
        )
        verdict = examine_request(request, progress)
    fit = verdict.fit and not (args.strict and verdict.warnings)
    columns = shutil.get_terminal_size((WIDTH, 24)).columns  # longer lines are hard to read
    if not args.shell and (value := os.environ.get("LD_LIBRARY_PATH")):
        progress.step(
            f"note: the shell's LD_LIBRARY_PATH={value} was not checked, because sessions set their"
            f" own; `qnn-ci doctor {args.profile} --shell` checks it"
        )
    return Outcome(
        render_verdict(verdict, strict=args.strict, width=max(LEAST, min(WIDTH, columns))),
        verdict.data(strict=args.strict),
        ExitCode.OK if fit else ExitCode.ENVIRONMENT,
    )


def name_profile(profile: str, chosen: choice.QnnChoice) -> str:
    """Return the profile that provides the chosen QNN, as ``fetch`` and ``env`` take it, such as
    ``android+qnn-sdk@2.50.0.260828``."""
    if chosen.sdk == choice.WHEEL:
        return profile
    profile = chosen.profile if profile in EMULATORS else WITH_SDK.get(profile, profile)
    return "+".join([profile, *other_versions(read_profile(profile), wanted_requests(profile))])


def parse_roots(words: list[str]) -> dict[str, Path]:
    """Parse ``NAME=DIR`` options. Raises UsageError for any other form."""
    roots = {}
    for word in words:
        name, equals, directory = word.partition("=")
        if not (name and equals and directory):
            raise UsageError(
                f"--root {word} is not NAME=DIR",
                fix="for example, pass --root qnn-sdk=/opt/qairt/2.37",
            )
        roots[name] = user_path(directory).absolute()
    return roots


def check_roots(
    profile: str, given_roots: Mapping[str, Path], *, is_asked_of_board: bool = False
) -> None:
    """Raise UsageError if a name in ``given_roots`` is neither an artifact of the profile nor the
    staging directory, or if the profile needs that directory and it is missing, unless a board is
    examined.
    """
    if STAGING not in given_roots and not find_fitness(profile).sdk and not is_asked_of_board:
        raise UsageError(
            f"profile {profile} examines only files for a device, and no directory was given",
            fix=f"pass --root {STAGING}=DIR",
        )
    valid_names = [STAGING, *(request.name for request in wanted_requests(profile))]
    for name in given_roots:
        if name not in valid_names:
            raise UsageError(
                f"--root {name}=DIR: profile {profile} has no artifact {name}",
                fix=f"use one of {', '.join(valid_names)}",
            )


def compose_request(
    profile: str, given_roots: Mapping[str, Path], base: Mapping[str, str], *, keep_variables: bool
) -> SurveyRequest:
    """Return the request to examine a profile. The root of each artifact is the one in
    ``given_roots``, else the one in a variable of ``base``, else the one in the store.

    The profile's variables are applied to ``base``, unless the root of a required artifact is not
    known or ``keep_variables`` is true.
    """
    requests = wanted_requests(profile)
    located = []
    for request in requests:
        root = _locate(request, given_roots, base)
        if root:
            located.append(Provisioned(request.name, request.release.version, root))
    # If several artifacts may serve as the SDK, use the one that was given as an option.
    sdk_names = set(find_fitness(profile).sdk)
    has_given_sdk = not sdk_names.isdisjoint(given_roots)
    roots = {}
    for artifact in located:
        if not (has_given_sdk and artifact.name in sdk_names):
            roots[artifact.name] = artifact.root
    roots |= given_roots
    profile_spec = read_profile(profile)
    variables = dict(base)
    needed = {artifact.name for artifact in profile_spec.artifacts if not artifact.is_optional}
    if not keep_variables and needed <= roots.keys():
        variables = compose_environment(profile, profile_spec, tuple(located)).apply(base)
    return make_request(profile, roots, variables)


def require_directory(root: Path, named: str, fix: str) -> None:
    """Raise UnfitError if ``root`` is a file. ``named`` is the variable or option, with its value.
    Checks report a root that does not exist."""
    if root.exists() and (why := explain_path(root)):
        raise UnfitError(f"{named} is not a directory", why=why, fix=fix)


def _locate(
    request: ArtifactRequest, given_roots: Mapping[str, Path], base: Mapping[str, str]
) -> Path | None:
    if request.name in given_roots:
        root, option = (
            given_roots[request.name],
            f"--root {request.name}={given_roots[request.name]}",
        )
        require_directory(root, option, "pass its directory")
        return root
    variable, directory = request.toolchain.adoption.find_named(base)
    if directory:
        root = Path(directory).expanduser().absolute()
        require_directory(root, f"{variable}={directory}", f"correct {variable}, or unset it")
        return root
    store = Store()
    published = store.find(request.pinned(store).key())
    return published.root if published else None
