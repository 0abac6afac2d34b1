"""``verify``: hash published files again and list every difference; --repair restores them."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from provisioning.artifacts.environment import parse_selection, stored_requests, unreadable_trees
from provisioning.artifacts.lockfile import damaged_locks
from provisioning.artifacts.provision import find_differences, trusted_tree, verify_published
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from provisioning.files import mib
from provisioning.store.store import Store
from provisioning.store.tree import Difference
from provisioning.verbs.fetch import add_options, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``verify``."""
    text = "profiles or artifacts, as for fetch; default: everything in the store"
    parser.add_argument("names", nargs="*", help=text)
    parser.add_argument("--quick", **FLAG, help="compare sizes, modes and times only")
    parser.add_argument("--repair", **FLAG, help="restore files that differ")
    add_options(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return the differences of each artifact, after repairing them with --repair. The exit code is
    4 if differences are left, or if a named artifact is not in the store.
    """
    store, options = Store(), read_options(args)
    if args.names:
        requests = [request.pinned(store) for request in parse_selection(args.names, options)]
    else:
        requests = stored_requests(store)
    # A repair is decided by hashes: a file with the right time may have wrong bytes.
    check = partial(_verify, store, progress, quick=args.quick and not args.repair)
    rows = [check(request, repair=args.repair) for request in requests]
    if not args.names:
        why = "is damaged or belongs to another artifact: remove the directory"
        damage = Difference("tree.json", why)
        listed = {str(Path(row["root"]).parent) for row in rows if row["root"]}
        unlisted = [path for path in unreadable_trees(store) if str(path) not in listed]
        rows += [_row(path.name, "", str(path), damage) for path in unlisted]
        for error in damaged_locks(store):
            rows.append(_row("lock", "", "-", Difference(error.what, error.why, error.fix)))
    broken = any(row["differences"] and not row["repaired"] for row in rows)
    missing = bool(args.names) and any(not row["published"] for row in rows)
    code = ExitCode.DOWNLOAD if broken or missing else ExitCode.OK
    text = "".join(map(_render, rows)) or f"the store {store.home} contains no artifact\n"
    return Outcome(text, {"artifacts": rows}, code)


def _verify(
    store: Store, progress: Progress, request: ArtifactRequest, *, quick: bool, repair: bool
) -> dict[str, Any]:
    key = request.key()
    published = store.find(key)
    root = str(published.root) if published else ""
    row = _row(request.name, request.release.version, root)
    if published is None:
        return row
    differences = find_differences(request, published, quick=quick)
    if differences and store.find(key) is None:  # another process removed it meanwhile
        return _row(request.name, request.release.version, "")
    row["differences"] = msgspec.to_builtins(differences)
    if differences and repair:
        done = verify_published(request, published, store, progress)
        row["repaired"] = list(done.repaired)
    if tree := trusted_tree(request, published):
        row.update(files=len(tree.files), size_bytes=tree.size_bytes)
    return row


def _row(name: str, version: str, root: str, *differences: Difference) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "root": root,
        "published": bool(root),
        "files": 0,
        "size_bytes": 0,
        "differences": msgspec.to_builtins(list(differences)),
        "repaired": [],
    }


def _render(row: dict[str, Any]) -> str:
    label = f"{row['name']} {row['version']}".rstrip()
    if not row["published"]:
        return f"{label} is not in the store\n"
    if not row["differences"]:
        files = f"{row['files']} file{'s' * (row['files'] != 1)}"
        return f"{label}: {files}, {mib(row['size_bytes'])}, all unchanged\n"
    lines = [f"  {Difference(**item)}" for item in row["differences"]]
    count = f"{len(lines)} difference{'s' if len(lines) > 1 else ''}"
    if row["version"]:  # the text for a damaged directory or lock contains its own fix
        lines.append("  repaired" if row["repaired"] else "  run `verify` again with --repair")
    return "\n".join([f"{label}: {count}", *lines]) + "\n"
