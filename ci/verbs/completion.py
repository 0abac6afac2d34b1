"""``completion SHELL``: print shell code that completes ``qnn-ci``'s verbs, options and choices."""

from __future__ import annotations

import argparse

import shtab

from ci.verbs.registry import VERBS
from ci.verbs.user_policy import policy_path
from provisioning.console.command import Outcome, add_global_arguments, load_verb, user_path
from provisioning.console.progress import Progress

SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to print completions for")


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    """Return the shell code, which is printed without changes."""
    # A normal call builds only the parser of the verb that it runs.
    full_parser = argparse.ArgumentParser("qnn-ci")
    full_parser.add_argument("-V", "--version", action="store_true", help="print the version")
    verbs = full_parser.add_subparsers()
    for name, verb in VERBS.items():
        parser = verbs.add_parser(name, help=verb.help)
        add_global_arguments(parser)
        load_verb(verb).add_arguments(parser)
        # argparse has no public list of a parser's options.
        for action in parser._actions:
            if action.type in {user_path, policy_path}:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(full_parser, args.shell)
    return Outcome(script, {"shell": args.shell, "script": script}, exact=True)
