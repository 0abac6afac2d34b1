"""``fetch``: put artifacts or the artifacts of profiles into the store."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from provisioning.command import Outcome
from provisioning.progress import Progress
from provisioning.provision import Provisioned, provision_artifact
from provisioning.selection import parse_selection
from provisioning.sources import Options
from provisioning.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="profiles, or ARTIFACT[@VERSION][:COMPONENT,...]")
    parser.add_argument("--verify", action="store_true", help="hash what is there, repair it")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every verb that may fetch."""
    parser.add_argument("--offline", action="store_true", help="store and downloads only")


def read_options(args: argparse.Namespace) -> Options:
    """The Options that the command line asks for."""
    return Options(offline=args.offline)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store = Store()
    requests = parse_selection(args.names, read_options(args))
    found = [provision_artifact(item, store, progress, verify=args.verify) for item in requests]
    text = "".join(f"{item.name} {item.version}  {item.root}\n" for item in found)
    return Outcome(text, {"artifacts": [describe(item) for item in found]})


def describe(item: Provisioned) -> dict[str, Any]:
    """A provisioned artifact for --json."""
    return {**asdict(item), "root": str(item.root)}
