"""``doctor PROFILE``: whether an environment is fit, and the fix for every fault."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from provisioning.command import Outcome
from provisioning.doctor import CHECKOUT_COMMIT, examine_request, find_fitness
from provisioning.environment import compose_environment, profile_requests
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest import read_profiles
from provisioning.progress import Progress
from provisioning.provision import Provisioned
from provisioning.sources import Options
from provisioning.store import Store, store_home
from provisioning.survey.environment import CHECKOUT, STAGING, Request
from provisioning.verdict_text import render_verdict

# Where a root is looked for that is neither given nor in the store.
VARIABLES = {
    "qnn-sdk": "QNN_SDK_ROOT",
    "android-ndk": "ANDROID_NDK_ROOT",
    "hexagon-sdk": "HEXAGON_SDK_ROOT",
    CHECKOUT: "EXECUTORCH_ROOT",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", nargs="?", default="emulator", help="default: emulator")
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help=f"examine DIR as artifact NAME; '{STAGING}' is a directory as a device has it",
    )
    parser.add_argument("--strict", action="store_true", help="a warning makes it unfit too")
    parser.add_argument("--python", type=Path, help="the interpreter to examine (default: this)")
    parser.add_argument("--soc", help="the SoC that will run it, such as SM8650")
    parser.add_argument("--device", action="store_true", help="look at devices that adb lists")
    parser.add_argument(
        "--shell",
        action="store_true",
        help="judge this shell's variables, not those that the profile composes",
    )


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    find_fitness(args.profile)
    given = parse_roots(args.root)
    request = compose_request(args.profile, given, os.environ, shell=args.shell)
    request = replace(request, python=args.python, soc=args.soc, device=args.device)
    verdict = examine_request(request, progress)
    fit = verdict.fit and not (args.strict and verdict.findings)
    return Outcome(
        render_verdict(verdict, strict=args.strict),
        verdict.data(strict=args.strict),
        ExitCode.OK if fit else ExitCode.ENVIRONMENT,
    )


def parse_roots(words: list[str]) -> dict[str, Path]:
    """``NAME=DIR`` options. Raises UsageError for another form."""
    roots = {}
    for word in words:
        name, equals, directory = word.partition("=")
        if not (name and equals and directory):
            raise UsageError(
                f"--root {word} is not NAME=DIR", todo="such as qnn-sdk=/opt/qairt/2.37"
            )
        roots[name] = Path(directory).expanduser().absolute()
    return roots


def compose_request(
    profile: str, given: Mapping[str, Path], base: Mapping[str, str], *, shell: bool
) -> Request:
    """Roots: given ones, then published ones of the store, then those that variables name.

    Only when all come from the store are the variables those of the profile.
    """
    published, pins = _published(profile)
    named = {
        name: Path(base[variable]).absolute()
        for name, variable in VARIABLES.items()
        if base.get(variable)
    }
    roots = {**named, **{artifact.name: artifact.root for artifact in published}, **given}
    variables = dict(base)
    if published and not given and not shell:
        artifacts = tuple(published)
        variables = compose_environment(profile, read_profiles()[profile], artifacts).apply(base)
    return Request(profile, roots, variables, store_home(), pins)


def _published(profile: str) -> tuple[list[Provisioned], dict[str, str]]:
    """What the store has of a profile, if that is all of it, and the pins."""
    profiles = read_profiles()
    if profile not in profiles:
        return [], {}
    store, found, pins = Store(), [], {}
    requests = profile_requests(profiles[profile], Options())
    for request in requests:
        pins[request.name] = request.release.version
        if request.name == CHECKOUT and request.release.commit:
            pins[CHECKOUT_COMMIT] = request.release.commit
        if published := store.find(request.key()):
            version, digest = request.release.version, request.release.sha256
            found.append(Provisioned(request.name, version, published.root, digest))
    return (found if len(found) == len(requests) else []), pins
