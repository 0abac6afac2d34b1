"""``update``: another version of an artifact as the project's pin; a diff comes first."""

from __future__ import annotations

import argparse

from provisioning.artifacts.pins import plan_update
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from provisioning.verbs.fetch import read_options
from provisioning.verbs.lock import add_write_option, conclude


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="ARTIFACT[@VERSION]",
        help="VERSION as the source has it: of the package, the archive, the tag; default: newest",
    )
    add_write_option(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store, plans = Store(), {}
    for word in args.names:
        name, _, version = word.partition("@")
        toolchain = read_toolchain(name)
        request = ArtifactRequest(toolchain, toolchain.release(), options=read_options(args))
        plans[request.label] = plan_update(request, version, store, progress)
    return conclude(plans, write=args.write)
