"""``fetch``: put artifacts or the artifacts of profiles into the store."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.selection import parse_selection
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.artifacts.together import provision_artifacts
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="profiles, or ARTIFACT[@VERSION][:COMPONENT,...]")
    parser.add_argument("--verify", action="store_true", help="hash what is there, repair it")
    parser.add_argument("--to", type=user_path, help="fill a mirror directory instead")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every verb that may fetch."""
    parser.add_argument("--offline", action="store_true", help="store and downloads only")
    parser.add_argument(
        "--trust-first-use",
        action="store_true",
        help="take what has no published hash, and record what it is",
    )
    parser.add_argument(
        "--accept-licence", action="store_true", help="accept the licences of what is fetched"
    )


def read_options(args: argparse.Namespace) -> Options:
    return Options(args.offline, args.trust_first_use, args.accept_licence)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store = Store()
    requests = parse_selection(args.names, read_options(args))
    if args.to:
        return _fill(requests, args.to, store, progress)
    found = provision_artifacts(requests, store, progress, verify=args.verify)
    text = "".join(f"{item.name} {item.version}  {item.root}\n" for item in found)
    return Outcome(text, {"artifacts": [describe(item) for item in found]})


def _fill(
    requests: list[ArtifactRequest], directory: Path, store: Store, progress: Progress
) -> Outcome:
    from provisioning.artifacts.mirror import fill_mirror

    written = [str(path) for path in fill_mirror(requests, directory, store, progress)]
    hint = f"on the other machine: QNN_CI_MIRROR={directory.absolute()}\n"
    return Outcome("".join(path + "\n" for path in written) + hint, {"mirror": written})


def describe(item: Provisioned) -> dict[str, Any]:
    """A provisioned artifact for --json."""
    return {**asdict(item), "root": str(item.root)}
