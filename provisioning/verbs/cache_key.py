"""``cache-key``: the name and the paths of a CI system's cache for artifacts or profiles."""

from __future__ import annotations

import argparse

from provisioning.artifacts.environment import github_line
from provisioning.artifacts.selection import parse_selection
from provisioning.artifacts.shareable import CachePlan, plan_cache
from provisioning.artifacts.sources import Options
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="as for fetch")
    parser.add_argument(
        "--private",
        action="store_true",
        help="nobody reads the cache but who may have what its licences restrict",
    )
    parser.add_argument("--github", action="store_true", help='lines for >> "$GITHUB_OUTPUT"')


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    requests = parse_selection(args.names, Options(offline=True))
    plan = plan_cache(requests, Store(), private=args.private)
    for name, why in plan.left_out.items():
        progress.step(f"{name} is in no cache: {why}")
    paths = "\n".join(map(str, plan.paths))
    if args.github:
        return Outcome(github_line("key", plan.key) + github_line("paths", paths), exact=True)
    return Outcome("".join(f"{line}\n" for line in (plan.key, *plan.paths)), _as_data(plan))


def _as_data(plan: CachePlan) -> dict[str, object]:
    return {"key": plan.key, "paths": [*map(str, plan.paths)], "left_out": dict(plan.left_out)}
