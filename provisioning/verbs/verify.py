"""``verify``: hash what is published again, name every difference, restore with --repair."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from provisioning.artifacts.provision import trusted_tree, verify_published, with_lock
from provisioning.artifacts.selection import parse_selection, stored_requests
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from provisioning.store.store import Store
from provisioning.store.tree import Difference, compare_tree
from provisioning.verbs.fetch import add_options, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="as for fetch; everything published if none")
    parser.add_argument("--quick", action="store_true", help="sizes, modes and times only")
    parser.add_argument("--repair", action="store_true", help="restore what differs")
    add_options(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store, options = Store(), read_options(args)
    requests = parse_selection(args.names, options) if args.names else stored_requests(store)
    rows = [_verify(with_lock(item, store), args, store, progress) for item in requests]
    broken = any(row["differences"] and not row["repaired"] for row in rows)
    missing = bool(args.names) and any(not row["published"] for row in rows)
    code = ExitCode.DOWNLOAD if broken or missing else ExitCode.OK
    text = "".join(map(_render, rows)) or f"nothing is published in {store.home}\n"
    return Outcome(text, {"artifacts": rows}, code)


def _verify(
    request: ArtifactRequest, args: argparse.Namespace, store: Store, progress: Progress
) -> dict[str, Any]:
    key = request.key()
    published = store.find(key)
    row: dict[str, Any] = {
        "name": request.name,
        "version": request.release.version,
        "root": str(published.root) if published else "",
        "published": published is not None,
        "files": 0,
        "size_bytes": 0,
        "differences": [],
        "repaired": [],
    }
    if published is None:
        return row
    tree = trusted_tree(request, published)
    if tree is None:
        found = [Difference("tree.json", "is damaged")]
    else:
        found = compare_tree(published.root, tree.files, quick=args.quick)
        row.update(files=len(tree.files), size_bytes=tree.size_bytes)
    row["differences"] = msgspec.to_builtins(found)
    if found and args.repair:
        done = verify_published(request, key, published, store, progress)
        row["repaired"] = list(done.repaired) or ["tree.json"]
    return row


def _render(row: dict[str, Any]) -> str:
    label = f"{row['name']} {row['version']}"
    if not row["published"]:
        return f"{label}: is not in the store\n"
    if not row["differences"]:
        size_mib = row["size_bytes"] / (1 << 20)
        return f"{label}: {row['files']} files, {size_mib:.0f} MiB, as they should be\n"
    lines = [f"  {Difference(**item)}" for item in row["differences"]]
    ended = "repaired" if row["repaired"] else "run it again with --repair"
    return "\n".join([f"{label}: {len(lines)} differences", *lines, f"  {ended}"]) + "\n"
