"""``lock``: show as a diff how an artifact's lock would change; --write changes it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.pins import Change, plan_lock, take_archive
from provisioning.console.command import FILE, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.store.store import Store
from provisioning.verbs.fetch import add_options, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``lock``."""
    parser.add_argument("names", nargs="+", help="ARTIFACT[@VERSION]")
    text = "lock this local archive; implies --trust-first-use and --offline"
    parser.add_argument("--from", dest="archive", **FILE, help=text)
    add_write_option(parser)


def add_write_option(parser: argparse.ArgumentParser) -> None:
    """Add the options of a verb that changes pins."""
    parser.add_argument("--write", action="store_true", help="write the changes of the diff")
    add_options(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return how the locks of the artifacts would change, and write them with --write. Raises
    UsageError for --from with several artifacts.
    """
    store = Store()
    options = read_options(args)
    if args.archive:
        options = replace(options, offline=True, trust_first_use=True)
    requests = parse_selection(args.names, options)
    if args.archive:
        if len(requests) != 1:
            raise UsageError(
                "--from FILE works with one artifact only", fix="pass one ARTIFACT[@VERSION]"
            )
        take_archive(requests[0], args.archive, store)
    plans = {request.label: plan_lock(request, store, progress) for request in requests}
    return conclude(plans, write=args.write)


def conclude(
    plans: Mapping[str, list[Change]], *, write: bool, by_hand: Sequence[str] = ()
) -> Outcome:
    """Show the changes of each artifact, and write them if ``write`` is true. ``by_hand`` are lines
    in other files that still contain the old version.
    """
    changes = [change for plan in plans.values() for change in plan]
    for change in reversed(changes if write else []):  # locks before the manifest that needs them
        change.write()
    changed = [label for label, plan in plans.items() if plan]
    text = diff = "".join(change.diff() for change in changes)
    if by_hand:
        text += "lines that still contain the old version; change them by hand if necessary:\n"
        text += "".join(f"  {line}\n" for line in by_hand)
    if not changed:
        text += "nothing changed\n"
    elif not write:
        text += "nothing was written; add --write\n"
    data = {"changed": changed, "written": write, "diff": diff, "by_hand": list(by_hand)}
    return Outcome(text, data)
