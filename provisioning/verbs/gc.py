"""``gc``: free what no profile names and no process uses."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from provisioning.artifacts.selection import all_requests
from provisioning.artifacts.sources import Options
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.manifest.reader import list_toolchains, read_toolchain
from provisioning.manifest.releases import FileRelease
from provisioning.store.collect import Garbage, find_garbage, remove_garbage
from provisioning.store.store import Store, explain_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed")
    parser.add_argument("--downloads", action="store_true", help="free kept archives, too")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store = Store()
    toolchains = [read_toolchain(name) for name in list_toolchains()]
    releases = [release for toolchain in toolchains for release in toolchain.releases]
    filenames = {release.filename for release in releases if isinstance(release, FileRelease)}
    requests = [request.pinned(store) for request in all_requests(Options())]
    named = {request.key().directory for request in requests}
    with ExitStack() as locks:
        if not args.dry_run and store.home.is_dir():
            for toolchain in toolchains:
                locks.enter_context(store.lock(toolchain.name, progress))
        with explain_errors(store.home):
            garbage, kept = find_garbage(store, named, filenames, downloads=args.downloads)
            freed = 0 if args.dry_run else remove_garbage(store, garbage)
    data = {
        "freed_bytes": freed,
        "garbage": [_row(item) for item in garbage],
        "kept": [{"path": str(item.path), "why": item.why} for item in kept],
        "dry_run": args.dry_run,
    }
    lines = [f"{item.path}  {item.size_bytes / (1 << 20):.1f} MiB  {item.why}" for item in garbage]
    lines += [f"{item.path}  kept: {item.why}" for item in kept]
    total_mib = sum(item.size_bytes for item in garbage) / (1 << 20)
    lines.append(f"{'would free' if args.dry_run else 'freed'} {total_mib:.1f} MiB")
    return Outcome("\n".join(lines) + "\n", data)


def _row(item: Garbage) -> dict[str, object]:
    return {"path": str(item.path), "size_bytes": item.size_bytes, "why": item.why}
