"""``env``: print the variables of a profile for a shell, for GITHUB_ENV, or as JSON."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provisioning.artifacts import choice
from provisioning.artifacts.environment import (
    Environment,
    provision_profile,
    render_github,
    render_shell,
)
from provisioning.artifacts.sources import Options
from provisioning.console.command import FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.store.store import Store
from provisioning.verbs.fetch import add_options, describe, read_options
from provisioning.versions import is_same

BUILT = "aot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``env``."""
    parser.add_argument("profile", nargs="?", default="emulator", help="default: emulator")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--shell", **FLAG, help="print lines for eval (the default)")
    style.add_argument("--github", **FLAG, help='print lines for >> "$GITHUB_ENV"')
    add_options(parser)
    choice.add_arguments(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Fetch what the profile lacks, and return its variables as lines for a shell or GitHub."""
    chosen = choice.read_choice(args.sdk, args.adaptor)
    environment = _compose(args.profile, chosen, read_options(args), progress)
    for artifact in environment.artifacts:
        Store().note_use(artifact.root)
    render = render_github if args.github else render_shell
    data = {
        "profile": environment.profile,
        "variables": dict(environment.variables),
        "unset": environment.unset,
        "artifacts": [describe(artifact) for artifact in environment.artifacts],
    }
    return Outcome(render(environment), data, exact=True)


def _compose(
    name: str, chosen: choice.QnnChoice, options: Options, progress: Progress
) -> Environment:
    """Return the environment of a profile.

    For ``emulator`` and ``emulator-sdk``, --sdk selects one of these two profiles, and --adaptor
    selects the adaptor. Without an option, its environment variable is used. The environment of
    ``aot`` contains the newest matching overlay (an executorch package with an adaptor that was
    built from source), if there is one.
    """
    is_emulator = name in {choice.WHEEL_PROFILE, choice.SDK_PROFILE}
    profile = chosen.profile if is_emulator else name
    environment = provision_profile(profile, progress, options=options)
    if is_emulator and not chosen.is_usual:
        # Imported only now, since the usual QNN needs no doctor.
        from provisioning.doctor.examine import settle_adaptor

        environment, verdict = settle_adaptor(chosen, environment, progress)
        verdict.require()
    if profile == BUILT and (overlay := find_built(environment)):
        return choice.lay_over(environment, overlay, os.environ)
    return environment


def find_built(environment: Environment) -> Path | None:
    """Return the newest overlay that was built from the environment's version of ExecuTorch for its
    SDK and this Python, or None if there is none.
    """
    versions = {artifact.name: artifact.version for artifact in environment.artifacts}
    for overlay, record in choice.find_overlays(versions["qnn-sdk"]):
        if is_same(record.executorch, versions["executorch"]):
            return overlay
    return None
