"""``update``: show as a diff what would change if another version of an artifact were pinned;
--write pins it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from provisioning.artifacts.pins import list_by_hand, plan_update
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import Outcome, between
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.reader import Toolchain, parse_toml, read_toolchain
from provisioning.manifest.releases import Release, WheelRelease
from provisioning.quoting import show_command
from provisioning.store.store import Store
from provisioning.verbs.fetch import read_options
from provisioning.verbs.lock import add_write_option, conclude

MOST_DAYS = 36_500
LOWERED_WITH = ("qnn-runtime", "qnn-sdk")  # a new version of these changes lowered programs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``update``."""
    text = (
        "VERSION is a version of the package or archive, the QNN version in a known wheel, or a git"
        " tag (default: the newest)"
    )
    parser.add_argument("names", nargs="+", metavar="ARTIFACT[@VERSION]", help=text)
    text = "ignore versions that were published less than DAYS days ago"
    parser.add_argument(
        "--cooldown", type=between(0, MOST_DAYS, int), default=0, metavar="DAYS", help=text
    )
    text = "keep the baselines of the old version for the new one (default), or remove them"
    parser.add_argument("--baselines", choices=("carry", "drop"), default="carry", help=text)
    add_write_option(parser)


def name_side(release: Release) -> str:
    """Return a release as an argument of ``upgrade-report``."""
    if isinstance(release, WheelRelease):
        return f"{release.package}=={release.package_version}"
    return release.version


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return what would change if other versions were pinned, and pin them with --write. Raises
    UsageError for --cooldown with an artifact that is not a wheel.
    """
    store, plans, by_hand = Store(), {}, []
    options = replace(read_options(args), cooldown_days=args.cooldown)
    for word in args.names:
        name, _, version = word.partition("@")
        toolchain = read_toolchain(name)
        release = toolchain.release()
        # pip knows when a wheel was uploaded; for other sources, no date is read.
        if args.cooldown and not isinstance(release, WheelRelease):
            why = "publication dates are read only for wheels"
            raise UsageError(
                f"--cooldown does not work with {name}", why=why, fix="leave out --cooldown"
            )
        request = ArtifactRequest(toolchain, release, options=options)
        carry = args.baselines == "carry"
        plan = plan_update(request, version, store, progress, carry=carry)
        plans[request.label] = plan
        by_hand += list_by_hand(plan, request.name, release.version) if plan else []
        if plan and not args.write and name in LOWERED_WITH:
            manifest = next(change for change in plan if change.path.suffix == ".toml")
            sides = (release, parse_toml(manifest.after, Toolchain).release())
            command = show_command("upgrade-report", *map(name_side, sides))
            progress.step(f"before you use --write, try both versions: {command}")
    return conclude(plans, write=args.write, by_hand=by_hand)
