"""``path``: print the root of an artifact that is installed or in the store; fetch nothing."""

from __future__ import annotations

import argparse

from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.provision import locate_artifact
from provisioning.artifacts.sources import Options
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError
from provisioning.store.store import Store
from provisioning.verbs.fetch import describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``path``."""
    parser.add_argument("name", help="ARTIFACT[@VERSION][:COMPONENT,...]")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return the root of the artifact. Raises UsageError for several artifacts, and UnfitError if
    it is neither installed nor in the store.
    """
    store = Store()
    request, *other_requests = parse_selection([args.name], Options(offline=True))
    if other_requests:
        names = dict.fromkeys(
            artifact_request.name for artifact_request in (request, *other_requests)
        )
        raise UsageError(
            f"{args.name} stands for several artifacts", fix=f"pass one of {', '.join(names)}"
        )
    artifact = locate_artifact(request, store, progress)
    if artifact is None:
        raise UnfitError(
            f"{request.label} was not found",
            why=f"it is not in the store {store.home}",
            fix=f"run `qnn-ci fetch {args.name}`",
        )
    return Outcome(f"{artifact.root}\n", describe(artifact), exact=True)
