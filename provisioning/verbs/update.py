"""``update``: show as a diff what would change if another version of an artifact were pinned;
--write pins it.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from provisioning.artifacts.pins import list_by_hand, plan_update
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.reader import read_toolchain
from provisioning.manifest.releases import WheelRelease
from provisioning.store.store import Store
from provisioning.verbs.fetch import read_options
from provisioning.verbs.lock import add_write_option, conclude

LOWERED_WITH = ("qnn-runtime", "qnn-sdk")  # a new version of these changes lowered programs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "VERSION is a version of the package or archive, or a git tag (default: the newest)"
    parser.add_argument("names", nargs="+", metavar="ARTIFACT[@VERSION]", help=text)
    text = "ignore versions that were published less than DAYS days ago"
    parser.add_argument("--cooldown", type=int, default=0, metavar="DAYS", help=text)
    text = "keep the baselines of the old version for the new one (default), or remove them"
    parser.add_argument("--baselines", choices=("carry", "drop"), default="carry", help=text)
    add_write_option(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store, plans, by_hand = Store(), {}, []
    options = replace(read_options(args), cooldown_days=args.cooldown)
    for word in args.names:
        name, _, version = word.partition("@")
        toolchain = read_toolchain(name)
        release = toolchain.release()
        if args.cooldown and not isinstance(release, WheelRelease):
            why = "publication dates are read only for wheels"
            raise UsageError(
                f"--cooldown does not work with {name}", why=why, fix="leave --cooldown out"
            )
        request = ArtifactRequest(toolchain, release, options=options)
        carry = args.baselines == "carry"
        plan = plan_update(request, version, store, progress, carry=carry)
        plans[request.label] = plan
        by_hand += list_by_hand(plan, request.name, release.version) if plan else []
        if plan and not args.write and name in LOWERED_WITH:
            old = release.version
            if isinstance(release, WheelRelease):
                old = f"{release.package}=={release.package_version}"
            new = re.sub(r"[^=]+$", "NEW", old)
            progress.step(
                f"before you use --write, try both versions: `qnn-ci upgrade-report {old} {new}`"
            )
    return conclude(plans, write=args.write, by_hand=by_hand)
