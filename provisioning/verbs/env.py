"""``env``: the variables of a profile, for a shell, for GITHUB_ENV, or as JSON."""

from __future__ import annotations

import argparse

from provisioning.artifacts.environment import (
    DROPPED_VARIABLES,
    Environment,
    provision_profile,
    render_github,
    render_shell,
)
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.store.store import Store
from provisioning.verbs.fetch import add_options, describe, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", nargs="?", default="emulator")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--shell", action="store_true", help="lines for eval (the default)")
    style.add_argument("--github", action="store_true", help='lines for >> "$GITHUB_ENV"')
    add_options(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    environment = provision_profile(args.profile, progress, options=read_options(args))
    for artifact in environment.artifacts:
        Store().note_use(artifact.root)
    render = render_github if args.github else render_shell
    return Outcome(render(environment), _as_data(environment), exact=True)


def _as_data(environment: Environment) -> dict[str, object]:
    return {
        "profile": environment.profile,
        "variables": dict(environment.variables),
        "unset": sorted(set(DROPPED_VARIABLES) - environment.variables.keys()),
        "artifacts": [describe(artifact) for artifact in environment.artifacts],
    }
